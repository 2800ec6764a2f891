"""Further images: the field "images", the images of a sample that its dataset declares besides the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from shardflow.errors import ShardflowError
from shardflow.formats.annotations import image_stem
from shardflow.order import keyed_rng

from .batch import Batch
from .damaged_samples import replace_damaged
from .decoders.decoder import as_views
from .source import IMAGES, Source


class FurtherImages:
    """Fills in the field "images" of each sample: [N, 3, H, W], or a list if the decoder keeps sizes.

    Images are in the order of their declaration, without those that a sample lacks. Each is decoded like the first
    image, with its own crop, which depends only on (seed, epoch, sample) and its name.
    """

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches with their further images."""
        for batch in batches:
            first = self._sources[batch.sources[0]]
            if IMAGES not in first.fields:
                yield batch
                continue
            failures: dict[int, ShardflowError] = {}
            views: list[list[Any]] = [[None] * len(batch.samples) for _ in first.decoder.views or (None,)]
            for number in sorted(set(batch.sources)):
                rows = [row for row, each in enumerate(batch.sources) if each == number]
                failures |= self._decode(batch, rows, self._sources[number], views)
            batch.returned[IMAGES] = tuple(views) if first.decoder.views else views[0]
            replace_damaged(batch, failures, self._sources)
            yield batch

    def _decode(
        self, batch: Batch, rows: list[int], source: Source, views: list[list[Any]]
    ) -> dict[int, ShardflowError]:
        """Fill in the images of some rows; return row → error for those that cannot be decoded."""
        files, keys, owners = [], [], []
        for row in rows:
            parts = {image_stem(part): part for part in batch.samples[row].parts}
            for declared in source.images:
                stem = image_stem(declared)
                if stem is not None and (part := parts.get(stem)) is not None:
                    files.append(batch.samples[row].parts[part])
                    keys.append(keyed_rng.fold(int(batch.keys[row]), keyed_rng.key("image", stem)))
                    owners.append((row, part))
        if not files:
            for view, none in zip(views, _no_images(batch, source), strict=True):
                for row in rows:
                    view[row] = [] if isinstance(none, list) else none
            return {}
        sizes = np.zeros((len(files), 2), dtype=np.int64)
        images, _, errors = source.decoder(
            files, sizes, np.array(keys, dtype=np.uint64), epoch=batch.epoch, shape=batch.shape
        )
        bounds = np.searchsorted([row for row, _ in owners], [*rows, len(batch.samples)])
        for view, decoded in zip(views, as_views(images), strict=True):
            for row, begin, end in zip(rows, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                view[row] = decoded[begin:end]
        found: dict[int, ShardflowError] = {}
        for index, error in errors.items():
            row, part = owners[index]
            found.setdefault(row, batch.samples[row].with_sample(type(error)(f"part {part!r}: {error}")))
        return found


def _no_images(batch: Batch, source: Source) -> list[Any]:
    """Return per view the value for a sample without images: [] or a tensor [0, C, H, W]."""
    one = np.ones((1, 2), dtype=np.int64)
    crops = as_views(source.decoder.plan(batch.epoch, batch.shape, one, batch.keys[:1]))
    firsts = [None] * len(crops) if batch.images is None else [view[0] for view in as_views(batch.images)]
    found: list[Any] = []
    for own, first in zip(crops, firsts, strict=True):
        like = torch.empty((3,), dtype=torch.uint8, device="cpu") if first is None else first
        if own is None or own.size is None:
            found.append([])
        else:
            found.append(like.new_empty((0, len(like), *own.size[::-1])))
    return found
