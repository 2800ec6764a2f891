"""Annotations: the parts of a sample beside its image, and how they follow the image to its new size.

    cls           number of the class, as text
    labels.json   numbers of the classes, ascending, as a JSON list
    *.png         a mask, such as mask.png: cropped and resized with the image, by nearest neighbour
    json, *.json  annotations: coordinates in it are moved, see below; everything else is kept
    others        kept as they are: txt, ...

Coordinates are in pixels of the upright image (see `geometry`), and are found by their names, at any depth:

    boxes         [[x1, y1, x2, y2], ...]: corners
    bbox          [x, y, width, height], or a list of those, as in COCO
    keypoints     [[x, y], ...], or [[x, y, visibility], ...], or, as in COCO, [x, y, visibility, x, y, ...]

Boxes are clipped to the packed image. A box outside of it becomes all zeros, so that lists that run in parallel stay in
step. Keypoints may lie beyond the borders; one whose visibility is 0 is kept as it is. Numbers are rounded to a
thousandth of a pixel.

Source of the COCO forms: cocodataset.org, "Data format".
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from shardflow._pillow import map_codec_errors, open_image
from shardflow.errors import DecodeError, TooLargeError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import IMAGE_PARTS, IMAGE_TYPES
from shardflow.formats.labels import LABEL_PARTS, Label, format_label

from .image.colour import BITS_TAG
from .image.geometry import Geometry

MASK_FORMATS = tuple(each.name for each in IMAGE_TYPES if each.for_masks)
MASK_MODES = ("1", "L", "P", "I;16", "RGB")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,15}")
_DIGITS = 3


def transform_parts(
    parts: Mapping[str, bytes], label: Label, geometry: Geometry, *, max_pixels: int = MAX_PIXELS
) -> dict[str, bytes]:
    """Return the parts that stand beside an image in its sample; masks have the limit of images."""
    for part in parts:
        if not _NAME.fullmatch(part):
            raise DecodeError(f"part {part!r}: names of parts are up to 16 letters, digits and ._-")
        if part in IMAGE_PARTS:
            raise DecodeError(f"part {part!r} would be a second image; rename it, for example to second.{part}")
        if part in LABEL_PARTS:
            raise DecodeError(f"part {part!r} is reserved for the labels; rename it")
    transformed = {part: _transform(part, data, geometry, max_pixels) for part, data in parts.items()}
    return transformed | format_label(label)


def transform_mask(data: bytes, geometry: Geometry, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return a mask of the upright image as a PNG for the packed one.

    By nearest neighbour, because labels must not be mixed. Bilevel, 8- and 16-bit grey, palette and RGB values stay.
    """
    with map_codec_errors(DecodeError), open_image(data, max_pixels=max_pixels, formats=MASK_FORMATS) as image:
        if image.size != geometry.upright:
            found, expected = ("{}x{}".format(*size) for size in (image.size, geometry.upright))
            message = f"the mask has {found} pixels, the upright image {expected}"
            raise DecodeError(f"{message}; make the mask as large as the image")
        if image.mode not in MASK_MODES or _is_rescaled(image, data):
            kinds = "1, 8 or 16 bits of grey, a palette, or 8 bits of RGB"
            raise DecodeError(f"a mask in mode {image.mode} has no plain label values; save it with {kinds}")
        image.load()
        resized = image.resize(geometry.size, Image.Resampling.NEAREST, box=geometry.box)
        resized.info = {}  # drop the metadata of the file
        buffer = io.BytesIO()
        resized.save(buffer, "PNG")
        return buffer.getvalue()


def _is_rescaled(image: Image.Image, data: bytes) -> bool:
    """Whether Pillow changes the values of the file: 2 or 4 bits of grey, 16 of colour (W3C PNG 11.2.2)."""
    if image.format == "PNG":
        return data[24:26] in (b"\x02\x00", b"\x04\x00", b"\x10\x02")
    return getattr(image, "tag_v2", {}).get(BITS_TAG, (8,))[0] in (2, 4)


def _transform(part: str, data: bytes, geometry: Geometry, max_pixels: int) -> bytes:
    try:
        if part.endswith(".png"):
            return transform_mask(data, geometry, max_pixels)
        if (part == "json" or part.endswith(".json")) and any(f'"{name}"'.encode() in data for name in _COORDINATES):
            return json.dumps(_transform_json(json.loads(data), geometry), ensure_ascii=False).encode()
    except (DecodeError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise DecodeError(f"part {part!r}: {error}") from error
    except TooLargeError as error:
        raise TooLargeError(f"part {part!r} {error}") from error
    return data


def _transform_json(value: Any, geometry: Geometry) -> Any:
    """Return a JSON value with all coordinates in it moved."""
    if isinstance(value, dict):
        return {
            name: _COORDINATES[name](inner, geometry) if name in _COORDINATES else _transform_json(inner, geometry)
            for name, inner in value.items()
        }
    return [_transform_json(inner, geometry) for inner in value] if isinstance(value, list) else value


def _boxes(value: Any, geometry: Geometry) -> list[list[float]]:
    return [_box(x1, y1, x2, y2, geometry) for x1, y1, x2, y2 in _rows(value, "boxes", (4,))]


def _bbox(value: Any, geometry: Geometry) -> list[Any]:
    single = bool(_list(value, "bbox")) and not isinstance(value[0], list)
    boxes = []
    for x, y, width, height in _rows([value] if single else value, "bbox", (4,)):
        x1, y1, x2, y2 = _box(x, y, x + width, y + height, geometry)
        boxes.append([x1, y1, round(x2 - x1, _DIGITS), round(y2 - y1, _DIGITS)])
    return boxes[0] if single else boxes


def _keypoints(value: Any, geometry: Geometry) -> list[Any]:
    if _list(value, "keypoints") and isinstance(value[0], list) and value[0] and isinstance(value[0][0], list):
        return [_keypoints(inner, geometry) for inner in value]
    if value and not isinstance(value[0], list):
        if len(value) % 3:
            raise ValueError(f"keypoints: expected x, y, visibility in turn, found {len(value)} numbers")
        rows = _keypoints([value[at : at + 3] for at in range(0, len(value), 3)], geometry)
        return [number for row in rows for number in row]
    return [
        [x, y, 0] if visibility == [0] else [*_rounded(geometry.point(x, y)), *visibility]
        for x, y, *visibility in _rows(value, "keypoints", (2, 3))
    ]


def _box(x1: float, y1: float, x2: float, y2: float, geometry: Geometry) -> list[float]:
    return _rounded(geometry.rectangle(x1, y1, x2, y2) or (0.0, 0.0, 0.0, 0.0))


def _rounded(numbers: tuple[float, ...]) -> list[float]:
    return [round(number, _DIGITS) for number in numbers]


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, found {value!r}")
    return value


def _rows(value: Any, name: str, lengths: tuple[int, ...]) -> list[list[float]]:
    """Return a list of lists of numbers, after checking that it is one."""
    rows: list[list[float]] = value
    for row in rows:
        if len(row) not in lengths or not all(isinstance(number, int | float) for number in row):
            raise ValueError(f"{name}: expected {' or '.join(map(str, lengths))} numbers, found {row!r}")
    return rows


_COORDINATES: dict[str, Callable[[Any, Geometry], Any]] = {"bbox": _bbox, "boxes": _boxes, "keypoints": _keypoints}
