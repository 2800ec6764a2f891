"""The quarantine: inputs that were not packed, why, and what they look like where they can still be read."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import ImageFile

from shardflow.dataset.dataset import Dataset
from shardflow.errors import FormatError, NotFoundError, ShardflowError
from shardflow.formats.manifest import QUARANTINE_NAME
from shardflow.storage.storage import Storage

from .tile import Tile, opened_picture, size_of

_MOST_BYTES = 64_000_000
"""Of a file that is opened for a look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An input that was not packed: its path below the source, where it failed, and what was said about it."""

    path: str
    stage: str
    reason: str


def quarantined(dataset: Dataset) -> list[Refused]:
    """Return all inputs that were not packed; none where the dataset has no list of them.

    Raises:
        FormatError: The list is damaged.
        StoreError: It is out of reach.
    """
    try:
        lines = dataset.storage.read(QUARANTINE_NAME).splitlines()
    except NotFoundError:
        return []
    try:
        entries = [json.loads(line) for line in lines]
        return [Refused(path=entry["path"], stage=entry["stage"], reason=entry["reason"]) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        url = dataset.storage.url(QUARANTINE_NAME)
        raise FormatError(f"{url} is damaged ({type(error).__name__}: {error}); restore it from a copy") from error


def reasons(refused: Sequence[Refused]) -> list[tuple[str, int]]:
    """Return "stage: reason" and how often, the most frequent first."""
    return Counter(f"{each.stage}: {each.reason}" for each in refused).most_common()


def tiles_of(refused: Sequence[Refused], source: Storage | None) -> Iterator[Tile]:
    """Yield the tile of each input, read from the source if that is known."""
    for each in refused:
        picture, detail = None, each.stage
        if source is not None:
            try:
                payload = source.read_range(each.path, 0, _MOST_BYTES)
                with _as_far_as_it_goes():
                    opened = opened_picture(payload)
                picture = None if opened is None else opened[0]
                detail = f"{each.stage}, {size_of(payload)}"
            except (ShardflowError, ValueError):  # ValueError: a path that no store can hold
                detail = f"{each.stage}; not there any more"
        name = each.path.rpartition("/")[2].encode(errors="replace").decode()
        yield Tile(title=name, detail=detail, picture=picture, problem=each.reason)


@contextlib.contextmanager
def _as_far_as_it_goes() -> Iterator[None]:
    """Let Pillow decode what there is of a truncated file; it knows this as a switch of the whole process alone."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
