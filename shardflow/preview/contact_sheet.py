"""The contact sheet: tiles in rows, each a picture of a sample with lines of text below it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import rgb_pixels, upright_size
from shardflow._wording import first_few, plural, size_text
from shardflow.errors import ConfigError, DecodeError, TooLargeError
from shardflow.formats import image_array
from shardflow.formats.annotations import NOTHING, Annotations, image_stem
from shardflow.formats.image_limits import check_image
from shardflow.storage.local_files import map_os_errors

from .annotation_overlay import draw_annotations
from .lettering import write
from .sample_reader import RawSample

PAPER, INK, FAINT, FRAME = "#f7f6f3", "#1d1d1f", "#6b6a6f", "#e6e4df"

SIDE = 176  # width and height of a tile's picture in pixels
COLUMNS = 6
_GAP, _MARGIN, _HEADER, _TITLE, _LINE = 14, 36, 104, 44, 16
_PROBLEM_CHARACTERS, _PROBLEM_LINES = 24, 4
_MOST_CAPTION = 4000  # characters, so that browsers can open a page with 10,000 samples
_LEAST_COLUMNS = 4
_FORMATS = {".png": "PNG", "": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_JPEG_QUALITY = 92


class Tile(NamedTuple):
    """A picture of a sample or file, in RGB and of any size, with two lines of text, and its problem.

    The tile of a sample also has the sample's number in the split, key, classes, caption and source, and the width,
    height and bytes of its image.
    """

    title: str
    detail: str
    picture: Image.Image | None
    problem: str = ""
    number: int = -1
    key: str = ""
    classes: Sequence[str] = ()
    size: tuple[int, int] = (0, 0)
    bytes: int = 0
    caption: str = ""
    source: str = ""


class ContactSheet(NamedTuple):
    """Tiles, and the two lines of the heading above them."""

    title: str
    subtitle: str
    tiles: Sequence[Tile]


def sample_tiles(
    samples: Iterable[RawSample], classes: Sequence[str] | None, annotations: Annotations = NOTHING
) -> Iterator[Tile]:
    """Yield a tile per sample, with its annotations drawn over it; the title is its number and classes."""
    stems = {image_stem(part) for part in annotations.images}
    for sample in samples:
        further = [data for part, data in sample.parts.items() if image_stem(part) in stems]
        payload, problem = sample.image or next(iter(further), None), sample.problem
        decoded = None
        try:
            decoded = None if payload is None else decode_picture(payload)
        except TooLargeError as error:
            problem = problem or f"the image {error}"
        if sample.problem:
            detail = "damaged or missing"
        elif payload is None:
            detail = f"no image: {', '.join(sample.parts)}"
        elif decoded is None:
            detail = f"{size_text(len(payload))}, cannot be decoded"
        else:
            detail = f"{decoded[1][0]} x {decoded[1][1]}, {size_text(len(payload))}"
            detail += f", {plural(len(further), 'further image')}" * bool(further and sample.image)
            detail += f", first of {plural(len(further), 'image')}" * bool(further and not sample.image)
        if decoded is not None and annotations:
            try:
                drawn = draw_annotations(*decoded, sample.parts, annotations)
                decoded = drawn.picture, decoded[1]
                detail += f", {drawn.detail}" * bool(drawn.detail)
            except (DecodeError, TooLargeError) as error:
                problem = problem or str(error)
        names = [classes[label] for label in sample.labels if label < len(classes)] if classes is not None else []
        yield Tile(
            f"{sample.number}: {first_few(names, len(names))}" if names else f"sample {sample.number}",
            detail,
            None if decoded is None else decoded[0],
            problem,
            sample.number,
            sample.key,
            names,
            (0, 0) if decoded is None else decoded[1],
            len(payload or b""),
            sample.caption[:_MOST_CAPTION],
            sample.source,
        )


def decode_picture(payload: bytes) -> tuple[Image.Image, tuple[int, int]] | None:
    """Return an image upright, scaled down for a tile, and its full size; None if it cannot be decoded.

    Raises:
        TooLargeError: The image exceeds the default limit for decoding.
    """
    try:
        if image_array.is_array(payload):
            picture = _array_picture(payload)
            size = picture.size
            picture.thumbnail((2 * SIDE, 2 * SIDE), Image.Resampling.LANCZOS)
            return picture, size
        with map_codec_errors(DecodeError), open_image(payload) as image:
            image.draft(None, (SIDE, SIDE))
            picture = Image.fromarray(rgb_pixels(image))
        size = upright_size(payload)
    except DecodeError:
        return None
    picture.thumbnail((2 * SIDE, 2 * SIDE), Image.Resampling.LANCZOS)
    return picture, size


def _array_picture(payload: bytes) -> Image.Image:
    """Return the first three channels of an array, or the first if it has fewer, in 8 bits."""
    check_image(payload)
    pixels = image_array.pixels(payload)
    shown = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    return Image.fromarray((shown >> 8 * (pixels.itemsize - 1)).astype(np.uint8)).convert("RGB")


def draw_contact_sheet(contact_sheet: ContactSheet, path: str | os.PathLike[str]) -> None:
    """Draw a contact sheet, `COLUMNS` tiles in a row, and write it as PNG or JPEG."""
    title, subtitle, tiles = contact_sheet
    texts = _TITLE + _LINE * any(tile.caption or tile.source for tile in tiles)
    row = SIDE + texts + _LINE * _PROBLEM_LINES * any(tile.problem for tile in tiles) + _GAP
    columns = min(COLUMNS, max(_LEAST_COLUMNS, len(tiles)))
    width = 2 * _MARGIN + columns * (SIDE + _GAP) - _GAP
    sheet = Image.new("RGB", (width, _HEADER + -(-len(tiles) // columns) * row + _MARGIN - _GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    write(pen, (_MARGIN, 26), title, 26, INK, width=width - 2 * _MARGIN)
    write(pen, (_MARGIN, 62), subtitle, 16, FAINT, width=width - 2 * _MARGIN)
    for number, tile in enumerate(tiles):
        left, top = _MARGIN + number % columns * (SIDE + _GAP), _HEADER + number // columns * row
        pen.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), FRAME)
        if tile.picture is not None:
            picture = tile.picture.copy()
            picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            sheet.paste(picture, (left + (SIDE - picture.width) // 2, top + (SIDE - picture.height) // 2))
        else:
            write(pen, (left + SIDE // 2, top + SIDE // 2), "no picture", 15, FAINT, anchor="mm")
        is_path = tile.number < 0  # whose end says most
        write(pen, (left, top + SIDE + 4), tile.title, 16, INK, width=SIDE, keeps_end=is_path)
        write(pen, (left, top + SIDE + 25), tile.detail, 13, FAINT, width=SIDE)
        caption = " ".join(tile.caption.split())[:SIDE]  # no letter is narrower than a pixel
        is_source = not caption
        write(pen, (left, top + SIDE + _TITLE), caption or tile.source, 13, INK, width=SIDE, keeps_end=is_source)
        lines = textwrap.wrap(tile.problem, _PROBLEM_CHARACTERS, max_lines=_PROBLEM_LINES, placeholder=" ...")
        for place, line in enumerate(lines):
            y = top + SIDE + texts + place * _LINE
            write(pen, (left, y), line, 13, INK, width=SIDE)
    save_picture(sheet, path)


def picture_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a picture by the suffix of its file: PNG, also without a suffix, or JPEG."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ConfigError(
            f"{path}: pictures cannot be written as {suffix}; choose .png or .jpg, or write a page with --html"
        )
    return _FORMATS[suffix]


def save_picture(picture: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write a picture in the format of its suffix."""
    encoding = picture_format(path)
    with map_os_errors(Path(path)):
        picture.save(path, encoding, **({"quality": _JPEG_QUALITY} if encoding == "JPEG" else {}))
