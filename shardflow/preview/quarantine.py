"""The pictures of the quarantine: inputs that were not packed, read from their source."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence

from PIL import Image, ImageFile

from shardflow._wording import size_text
from shardflow.errors import SampleError, TooLargeError
from shardflow.formats.quarantine import Quarantined
from shardflow.packing.sources.items import Item, encode_more
from shardflow.packing.sources.source import Source

from .contact_sheet import Tile, decode_picture


def quarantine_tiles(inputs: Sequence[Quarantined], source: Source | None) -> Iterator[Tile]:
    """Yield the tile of each input, with its picture if the source is known. Only inputs that it lists are read."""
    names = {each.path: each.path for each in inputs}
    found: dict[str, Item] = {}
    if source is not None:
        above = os.path.join(os.path.abspath(source.reader.base), "")  # a table may have named its folder's files so
        names = {path: path.removeprefix(above) for path in names}
        wanted = {*names, *names.values()}
        skipped = (Item(each.path, None, -1, 0) for each in source.skipped)
        listed = itertools.chain(skipped, *source.splits.values())
        found = {item.path: item for item in listed if item.path in wanted}
    for each in inputs:
        picture, detail = None, each.stage
        item = found.get(each.path, found.get(names[each.path]))
        if source is not None and item is None:
            detail = f"{each.stage}, not in the source"
        elif source is not None and item is not None:
            payload, problem = _image(item, source)
            detail = f"{each.stage}, {problem or size_text(len(payload))}"
            with contextlib.suppress(TooLargeError):  # most likely why the input was not packed
                decoded = _decode_truncated(payload)
                picture = None if decoded is None else decoded[0]
        title = "/".join(each.path.split("/")[-2:])  # cameras repeat names in each folder
        yield Tile(title, detail, picture, each.reason)


def _image(item: Item, source: Source) -> tuple[bytes, str]:
    """Return the image of an input, without its other parts, or a few words that say why there is none."""
    more = json.loads(item.more) if item.more else {}
    try:
        payload = source.reader.read(item._replace(more=encode_more(image=more.get("image"))))
    except SampleError:
        return b"", "cannot be read"
    return payload.image, "" if payload.has_image else "has no image"


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
