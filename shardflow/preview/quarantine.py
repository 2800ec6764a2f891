"""The quarantine: inputs that were not packed, with their reasons and, if the source is known, their pictures."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from PIL import Image, ImageFile

from shardflow.dataset.dataset import Dataset
from shardflow.errors import FormatError, NotFoundError, ShardflowError
from shardflow.formats.manifest import QUARANTINE_NAME
from shardflow.storage.storage import Storage

from .contact_sheet import Tile, decode_picture, format_size

_MOST_BYTES = 64_000_000  # that are read of a quarantined file


class QuarantinedInput(NamedTuple):
    """An input that was not packed: its path below the source, the stage that refused it, and the reason."""

    path: str
    stage: str
    reason: str


def read_quarantine(dataset: Dataset) -> list[QuarantinedInput]:
    """Return all inputs that were not packed; an empty list if the dataset has no record of them."""
    try:
        lines = dataset.storage.read(QUARANTINE_NAME).splitlines()
    except NotFoundError:
        return []
    try:
        return [QuarantinedInput(each["path"], each["stage"], each["reason"]) for each in map(json.loads, lines)]
    except (ValueError, KeyError, TypeError) as error:
        url = dataset.storage.url(QUARANTINE_NAME)
        raise FormatError(f"{url} is damaged ({type(error).__name__}: {error}); restore it from a copy") from error


def quarantine_tiles(inputs: Sequence[QuarantinedInput], source: Storage | None) -> Iterator[Tile]:
    """Yield the tile of each input; its picture is read from the source, if that is known."""
    for each in inputs:
        picture, detail = None, each.stage
        if source is not None:
            try:
                payload = source.read_range(each.path, 0, _MOST_BYTES)
                decoded = _decode_truncated(payload)
                picture = None if decoded is None else decoded[0]
                detail = f"{each.stage}, {format_size(payload)}"
            except (ShardflowError, ValueError):  # ValueError: a path that a storage refuses
                detail = f"{each.stage}, no longer in the source"
        yield Tile(each.path.rpartition("/")[2], detail, picture, each.reason)


def _decode_truncated(payload: bytes) -> tuple[Image.Image, tuple[int, int]] | None:
    """Decode an image that may be truncated; Pillow's switch for it is global, so it is set only for a moment."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with _silent_codecs():
            return decode_picture(payload)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


@contextlib.contextmanager
def _silent_codecs() -> Iterator[None]:
    """Keep what codecs in C print to stderr, such as libtiff, from the terminal: the reason is on the sheet."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
