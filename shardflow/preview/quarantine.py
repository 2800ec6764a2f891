"""The pictures of the quarantine: inputs that were not packed, read from their source."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from PIL import Image, ImageFile

from shardflow._wording import size_text
from shardflow.errors import ShardflowError, TooLargeError
from shardflow.formats.quarantine import Quarantined
from shardflow.storage.file_names import is_below
from shardflow.storage.interface import Storage

from .contact_sheet import Tile, decode_picture

_MOST_BYTES = 64_000_000  # that are read of a quarantined file


def quarantine_tiles(inputs: Sequence[Quarantined], source: Storage | None) -> Iterator[Tile]:
    """Yield the tile of each input, with its picture if the source is known."""
    root = None if source is None else source.local_path("")
    above = "" if root is None else os.path.join(root.absolute(), "")  # inputs of a table may have absolute paths
    for each in inputs:
        picture, detail = None, each.stage
        name = each.path.removeprefix(above) if above else each.path
        if source is not None and not is_below(name):
            detail = f"{each.stage}, not below the source"
        elif source is not None:
            try:
                payload = source.read_range(name, 0, _MOST_BYTES)
                detail = f"{each.stage}, {size_text(len(payload))}"
                decoded = _decode_truncated(payload)
                picture = None if decoded is None else decoded[0]
            except TooLargeError:
                pass  # most likely why the input was not packed
            except (ShardflowError, ValueError):  # ValueError: a path that the storage refuses
                detail = f"{each.stage}, no longer in the source"
        yield Tile("/".join(name.split("/")[-2:]), detail, picture, each.reason)  # cameras repeat names in each folder


def _decode_truncated(payload: bytes) -> tuple[Image.Image, tuple[int, int]] | None:
    """Decode an image that may be truncated; Pillow's global switch for it is set only meanwhile."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with _silent_codecs():
            return decode_picture(payload)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


@contextlib.contextmanager
def _silent_codecs() -> Iterator[None]:
    """Hide messages of C codecs, such as libtiff: the reason is on the sheet."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
