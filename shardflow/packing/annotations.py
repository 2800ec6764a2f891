"""Parts: what stands beside an image under the same key, and how it follows the image to its new size.

    cls           number of the class, as text
    labels.json   numbers of the classes, ascending, as a JSON list
    *.png         a mask, such as mask.png: cut and resized with the image, each pixel the nearest one's value
    json, *.json  annotations: the coordinates in it move with the image, see below; everything else stays as it is
    anything else stays as it is: txt, ...

Coordinates are in pixels of the upright picture (see `geometry`), and are found by their names, at any depth:

    boxes         [[x1, y1, x2, y2], ...]: corners
    bbox          [x, y, width, height], or a list of those: as COCO has it
    keypoints     [[x, y], ...], or [[x, y, visibility], ...], or, as COCO has it, [x, y, visibility, x, y, ...]

Boxes are cut at the borders of the packed picture; one of which nothing is left becomes all zeros, so that lists that
run in parallel with it stay in step. Points may come to lie beyond the borders; one whose visibility is 0 stays as it
is. Numbers are rounded to a thousandth of a pixel.

Source of the COCO forms: cocodataset.org, "Data format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from shardflow.errors import DecodeError
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, Label, format_label

from .image.geometry import Geometry

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,15}")
_DIGITS = 3


def companions(parts: Mapping[str, bytes], label: Label, geometry: Geometry) -> dict[str, bytes]:
    """Return everything that goes with an image into its sample.

    Args:
        parts: What goes with the source.
        label: Its class or classes.
        geometry: What became of the image.

    Raises:
        DecodeError: A part cannot be read, does not fit the image, or has a name that no sample can have.
    """
    made = {}
    for part, data in parts.items():
        if not _NAME.fullmatch(part):
            raise DecodeError(f"part {part!r}: names of parts are up to 16 letters, digits and ._-")
        if part in IMAGE_PARTS:
            raise DecodeError(f"part {part!r} would be a second image; rename it to something like second.{part}")
        if part in LABEL_PARTS:
            raise DecodeError(f"part {part!r} is made from the labels of a source, and is no part of its own")
        made[part] = _moved(part, data, geometry)
    return made | format_label(label)


def _moved(part: str, data: bytes, geometry: Geometry) -> bytes:
    if part.endswith(".png"):
        try:
            return geometry.mask(data)
        except DecodeError as error:
            raise DecodeError(f"part {part!r}: {error}") from error
    if (part == "json" or part.endswith(".json")) and any(f'"{name}"'.encode() in data for name in _COORDINATES):
        try:
            return json.dumps(_followed(json.loads(data), geometry), ensure_ascii=False).encode()
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise DecodeError(f"part {part!r}: {error}") from error
    return data


def _followed(value: Any, geometry: Geometry) -> Any:
    """Return a JSON value with all coordinates in it moved."""
    if isinstance(value, dict):
        return {
            name: _COORDINATES[name](inner, geometry) if name in _COORDINATES else _followed(inner, geometry)
            for name, inner in value.items()
        }
    return [_followed(inner, geometry) for inner in value] if isinstance(value, list) else value


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
            raise ValueError(f"keypoints: expected x, y, visibility, again and again, found {len(value)} numbers")
        rows = _keypoints([value[at : at + 3] for at in range(0, len(value), 3)], geometry)
        return [number for row in rows for number in row]
    points = []
    for x, y, *visibility in _rows(value, "keypoints", (2, 3)):
        unseen = visibility == [0]
        points.append([x, y, *visibility] if unseen else [*_rounded(geometry.point(x, y)), *visibility])
    return points


def _box(x1: float, y1: float, x2: float, y2: float, geometry: Geometry) -> list[float]:
    return _rounded(geometry.rectangle(x1, y1, x2, y2) or (0.0, 0.0, 0.0, 0.0))


def _rounded(numbers: tuple[float, ...]) -> list[float]:
    return [round(number, _DIGITS) for number in numbers]


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, found {value!r}")
    return value


def _rows(value: Any, name: str, lengths: tuple[int, ...]) -> list[list[float]]:
    """Return a list of lists of numbers, checked to be one."""
    rows: list[list[float]] = value
    for row in rows:
        if len(row) not in lengths or not all(isinstance(number, int | float) for number in row):
            raise ValueError(f"{name}: expected {' or '.join(map(str, lengths))} numbers, found {row!r}")
    return rows


_COORDINATES: dict[str, Callable[[Any, Geometry], Any]] = {"bbox": _bbox, "boxes": _boxes, "keypoints": _keypoints}
