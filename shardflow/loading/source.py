"""A source: one split, and the settings by which its samples are chosen, read, decoded and transformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardflow.dataset.open_dataset import Split
from shardflow.order.epochs import Epochs
from shardflow.order.rank_partition import RankPartition

from .annotation_fields import AnnotationFields
from .column_fields import ColumnFields
from .decoders.decoder import Decoder
from .pixel_cache import PixelCache
from .whole_sample import WholeSample

Transform = Callable[[torch.Tensor], Any]
Transforms = Transform | Sequence[Transform | None] | None
"""One for all views of an image, or one per view."""

IMAGES = "images"
"""The field of a sample's further images."""


@dataclass(slots=True)
class EpochStart:
    """Where an iteration starts in a source."""

    epoch: int
    position: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One split with a loader's settings. A mix has several sources."""

    split: Split
    limit: int | None = None  # of its first samples
    epochs: Epochs  # the order of its samples
    partition: RankPartition  # the part of this rank in an epoch
    fields: tuple[str, ...] = ("image",)  # read of each sample; a `WholeSample` may return others
    classes: int = 0  # number of classes of the labels
    images: tuple[str, ...] = ()  # the declared further images, if "images" is among the fields
    decoder: Decoder
    transform: Transforms = None
    batch_transform: Callable[..., Any] | None = None
    pixel_cache: PixelCache | None = None
    annotations: AnnotationFields  # which of the fields follow the crops, and which boxes stay
    columns: ColumnFields  # which of the fields are columns
    max_errors: int = 0  # 0 if no sample may be replaced by another

    @property
    def returns(self) -> tuple[str, ...]:
        """The fields of a batch."""
        given = self.transform.returns if isinstance(self.transform, WholeSample) else None
        return self.fields if given is None else given

    def after(self, start: EpochStart, steps: int) -> EpochStart:
        """Return the start that is `steps` batches after another one."""
        if steps < (left := self.partition.steps(start.position)):
            return EpochStart(start.epoch, self.partition.after(start.position, steps), start.streams)
        epochs, step = divmod(steps - left, self.partition.steps())
        return EpochStart(start.epoch + 1 + epochs, self.partition.after(0, step), start.streams)

    def stream_position(self, start: EpochStart) -> int:
        """Return the position of a start in the endless stream of the source's epochs."""
        return start.epoch * self.epochs.length + start.position

    def at(self, position: int, streams: int) -> EpochStart:
        """Return the start at a position of the endless stream."""
        epoch, within = divmod(position, self.epochs.length)
        return EpochStart(epoch, within, streams)
