"""Coordinates: the boxes and keypoints in the JSON parts of a sample, read and written back as they are declared.

    boxes        a list of lists of four numbers; four numbers alone are one box
    box fields   a list of numbers or segments, as many as boxes; with a single box, one
    keypoints    a list of points, [[x, y, visibility], ...], or their numbers in turn, [x, y, visibility, ...]

A sample without boxes has empty lists. All that comes out is in pixels of an image whose size is given, boxes as left,
top, right, bottom. The same reading serves packing and loading, so that a sample which was packed can be loaded.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardflow.errors import DecodeError, TooLargeError

from .annotations import EACH, FLOAT, MASK, Annotations, Boxes, Keypoints, field_path, path_steps
from .segments import Segment

Array: TypeAlias = "npt.NDArray[Any]"
Size: TypeAlias = "tuple[int, int]"
"""Width and height in pixels."""

MAX_JSON_BYTES = 16 * 2**20
"""Longest part with coordinates, because a JSON takes up to some 30 times its bytes in memory."""

_MOST_MASK_PIXELS, _MOST_CORNERS = 1 << 34, 1 << 18  # of the segments of a sample, which take seconds

_MAX = float(np.finfo(np.float32).max)
_DIGITS = {False: 3, True: 7}  # of numbers in pixels, and of fractions
_SHOWN = 60


class Coordinates(NamedTuple):
    """The boxes and keypoints of a sample.

    Attributes:
        boxes: float32 [N, 4], left, top, right, bottom in pixels; None where no boxes are declared.
        box_fields: Name → int64 or float32 [N], the further values of the boxes; or their segments, object [N].
        keypoints: float32 [N, K, 2 or 3] where they are declared per box, otherwise [K, 2 or 3], x, y in pixels and the
            visibility; None where none are declared. K is 0 where N is 0.
    """

    boxes: Array | None
    box_fields: dict[str, Array]
    keypoints: Array | None


def read_coordinates(
    annotations: Annotations, read_part: Callable[[str], bytes | memoryview | None], size: Size
) -> Coordinates:
    """Return the boxes and keypoints of a sample, whose parts `read_part` returns.

    Args:
        annotations: The declaration.
        read_part: Returns a part by its name; None where the sample has none.
        size: Of the image to which the coordinates belong, for those that are fractions of it.

    Raises:
        DecodeError: A part is missing or not JSON, a path leads nowhere, or the values differ from their declaration.
        TooLargeError: The segments have too many corners, or masks of too many pixels.
    """
    found = _Documents(annotations, read_part)
    return _coordinates(found.boxes(size), found.box_fields(size), found.keypoints(size))


def move_coordinates(
    annotations: Annotations,
    read_part: Callable[[str], bytes | memoryview | None],
    before: Size,
    after: Size,
    *,
    move_boxes: Callable[[Array], Array],
    move_points: Callable[[Array], Array],
    move_segment: Callable[[Segment], Segment],
) -> tuple[dict[str, bytes], Coordinates]:
    """Return the parts by name, with only their coordinates moved, and the coordinates that were read.

    Args:
        annotations, read_part: As for `read_coordinates`.
        before: Size of the image to which the coordinates belong.
        after: Size of the image to which the moved ones belong.
        move_boxes: Moves boxes, float64 [N, 4]: left, top, right, bottom in pixels.
        move_points: Moves points, float64 [N, 2]: x, y in pixels. A point whose visibility is 0 does not change.
        move_segment: Moves the segment of a box.

    Raises:
        DecodeError, TooLargeError: As for `read_coordinates`.
    """
    found = _Documents(annotations, read_part)
    boxes, fields, points = found.boxes(before), found.box_fields(before), found.keypoints(before)
    if boxes is not None:
        found.write_boxes(move_boxes(boxes), after)
    if points is not None:
        moved = move_points(points[..., :2].reshape(-1, 2)).reshape(*points.shape[:-1], 2)
        found.write_keypoints(moved, after)
    for name, values in fields.items():
        if values.dtype == object:
            found.write_segments(name, [move_segment(each) for each in values], after)
    return found.to_bytes(), _coordinates(boxes, fields, points)


def _coordinates(boxes: Array | None, fields: dict[str, Array], points: Array | None) -> Coordinates:
    boxes, points = (None if each is None else each.astype(np.float32) for each in (boxes, points))
    return Coordinates(boxes, fields, points)


class _Slot(NamedTuple):
    """A place in a JSON value: an entry of a list or an object."""

    container: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.container[self.key]


class _Documents:
    """The JSON parts of a sample, each parsed once."""

    def __init__(self, annotations: Annotations, read_part: Callable[[str], bytes | memoryview | None]) -> None:
        self._annotations = annotations
        self._roots: dict[str, list[Any]] = {}  # lists of one, so that the whole value is a slot as well
        for declared, what in ((annotations.boxes, "boxes"), (annotations.keypoints, "keypoints")):
            if declared is not None and declared.part not in self._roots:
                if (data := read_part(declared.part)) is None:
                    raise DecodeError(f"the sample has no part {declared.part!r}, which is declared to hold its {what}")
                self._roots[declared.part] = [parse_json(declared.part, data)]
        self._boxes = [] if annotations.boxes is None else self._elements(annotations.boxes, annotations.boxes.path, 4)
        points = annotations.keypoints
        self._points = [] if points is None else self._slots(points, points.path)
        if points is not None and points.per_box and annotations.boxes and len(self._points) != len(self._boxes):
            message = f"{len(self._points)} lists of keypoints at {points.path}, but {len(self._boxes)} boxes"
            raise DecodeError(f"part {points.part!r}: {message}; expected one for each box")

    def boxes(self, size: Size) -> Array | None:
        """Return float64 [N, 4] in pixels; None where no boxes are declared."""
        declared = self._annotations.boxes
        if declared is None:
            return None
        values = [slot.value for slot in self._boxes]
        boxes = _numbers(declared, values, 4, partial(_place, declared.path)).reshape(-1, 4)
        if declared.format == "xyxy":
            sides = boxes[:, 2:] - boxes[:, :2]
        else:
            sides = boxes[:, 2:].copy()
            boxes[:, :2] -= sides / 2 if declared.format == "cxcywh" else 0
            boxes[:, 2:] = boxes[:, :2] + sides
        if (reversed_ := (sides < 0).any(1)).any():
            number = int(reversed_.argmax())
            message = f"{_place(declared.path, number)}: {values[number]!r} has a side below 0 as {declared.format}"
            raise _error(declared, f"{message}; is another format meant?")
        if declared.normalized:
            boxes *= (*size, *size)
        return _checked(declared, boxes)

    def box_fields(self, size: Size) -> dict[str, Array]:
        """Return the further values of the boxes: name → int64, float32 or, of segments, object [N]."""
        declared = self._annotations.boxes
        if declared is None:
            return {}
        fields = {}
        for name, text in declared.fields.items():
            path, kind = field_path(text)
            values = [slot.value for slot in self._elements(declared, path, 0)]
            if len(values) != len(self._boxes):
                message = (
                    f"box field {name!r} has {len(values)} values at {path}, but there are {len(self._boxes)} boxes"
                )
                raise _error(declared, message)
            if kind == MASK:
                fields[name] = _segments(declared, path, values, size)
            else:
                fields[name] = _field(declared, name, path, values, is_float=kind == FLOAT)
        return fields

    def keypoints(self, size: Size) -> Array | None:
        """Return float64 [N, K, 2 or 3] or [K, 2 or 3] in pixels; None where no keypoints are declared."""
        declared = self._annotations.keypoints
        if declared is None:
            return None
        path, numbers = declared.path, len(declared.format)
        sets = [_point_rows(declared, number, slot.value) for number, slot in enumerate(self._points)]
        length = len(sets[0]) if sets else 0
        for number, each in enumerate(sets):
            if len(each) != length:
                message = f"{len(each)} points, but {length} in the first list"
                raise _error(declared, f"{_place(path, number)}: {message}")
        if length and (pairs := declared.flip_pairs) and (last := max(map(max, pairs))) >= length:
            raise _error(declared, f"{path}: flip_pairs name point {last}, but there are {length}, from 0")
        rows = [*itertools.chain.from_iterable(sets)]
        points = _numbers(
            declared, rows, numbers, lambda number: f"{_place(path, number // length)}[{number % length}]"
        ).reshape(len(sets), length, numbers)
        if declared.normalized:
            points[..., :2] *= size
        points = _checked(declared, points)
        return points if declared.per_box else points[0]

    def write_boxes(self, boxes: Array, size: Size) -> None:
        """Put boxes in pixels, float64 [N, 4], in the place of those that were read."""
        declared = self._annotations.boxes
        assert declared is not None
        boxes = _checked(declared, boxes) / ((*size, *size) if declared.normalized else 1)
        if declared.format != "xyxy":
            boxes[:, 2:] -= boxes[:, :2]
        if declared.format == "cxcywh":
            boxes[:, :2] += boxes[:, 2:] / 2
        digits = _DIGITS[declared.normalized]
        for slot, box in zip(self._boxes, boxes.tolist(), strict=True):
            slot.container[slot.key] = [round(number, digits) for number in box]

    def write_segments(self, name: str, segments: Sequence[Segment], size: Size) -> None:
        """Put the segments of the boxes in the place of those that were read."""
        declared = self._annotations.boxes
        assert declared is not None
        slots = self._elements(declared, field_path(declared.fields[name])[0], 0)
        for slot, segment in zip(slots, segments, strict=True):
            for corners in segment.polygons:
                _checked(declared, corners)
            slot.container[slot.key] = segment.to_json(size if declared.normalized else (1, 1))

    def write_keypoints(self, points: Array, size: Size) -> None:
        """Put keypoints in pixels, float64 [..., 2], in the place of those that were read and have a visibility."""
        declared = self._annotations.keypoints
        assert declared is not None
        digits = _DIGITS[declared.normalized]
        scale = size if declared.normalized else (1, 1)
        for slot, rows in zip(self._points, (points if declared.per_box else points[None]).tolist(), strict=True):
            is_flat = bool(slot.value) and not isinstance(slot.value[0], list)
            stored = _rows(slot.value, len(declared.format)) if is_flat else slot.value
            moved = []
            for to, own in zip(rows, stored, strict=True):
                if declared.visibility and own[2] == 0:
                    moved.append(own)
                    continue
                _checked(declared, np.array(to))
                moved.append([*(round(at / side, digits) for at, side in zip(to, scale, strict=True)), *own[2:]])
            slot.container[slot.key] = list(itertools.chain.from_iterable(moved)) if is_flat else moved

    def to_bytes(self) -> dict[str, bytes]:
        """Return the parts, by their names."""
        try:
            # A lone half of a surrogate pair has no UTF-8, but an escape in JSON.
            return {
                part: json.dumps(root[0], ensure_ascii=False).encode(errors="backslashreplace")
                for part, root in self._roots.items()
            }
        except RecursionError as error:
            raise DecodeError(f"parts {', '.join(self._roots)}: too deeply nested") from error

    def _slots(self, declared: Boxes | Keypoints, path: str) -> list[_Slot]:
        """Return the places to which a path leads, in order."""
        slots = [_Slot(self._roots[declared.part], 0)]
        steps = path_steps(path)
        for done, step in enumerate(steps):
            found: list[_Slot] = []
            for number, slot in enumerate(slots):
                value = slot.value
                if step == EACH:
                    if not isinstance(value, list):
                        raise _error(declared, _lacking(steps[:done], number, "a list", value))
                    found += [_Slot(value, place) for place in range(len(value))]
                else:
                    if not isinstance(value, dict) or step not in value:
                        raise _error(declared, _lacking(steps[:done], number, f"an object with {step!r}", value))
                    found.append(_Slot(value, step))
            slots = found
        return slots

    def _elements(self, declared: Boxes, path: str, numbers: int) -> list[_Slot]:
        """Return the places of the elements of a list at a path, or those to which it leads if it has `[]`.

        An element is a list of as many numbers, or a number where that is 0.
        """
        slots = self._slots(declared, path)
        if EACH in path:
            return slots
        (slot,) = slots
        value = slot.value
        is_single = not isinstance(value, list) or (numbers > 0 and len(value) > 0 and not isinstance(value[0], list))
        return slots if is_single else [_Slot(value, place) for place in range(len(value))]


def parse_json(part: str, data: bytes | memoryview) -> Any:
    """Return the content of a part; raise a DecodeError if it is not JSON, or too long to be parsed."""
    if len(data) > MAX_JSON_BYTES:
        raise DecodeError(
            f"part {part!r} has {len(data):,} bytes; parts with coordinates have {MAX_JSON_BYTES:,} at most"
        )
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"part {part!r} is not JSON: {error}") from error


def _numbers(declared: Boxes | Keypoints, rows: Sequence[Any], length: int, place: Callable[[int], str]) -> Array:
    """Return the numbers of rows as float64 [...]; each row must be a list of so many numbers."""
    if not _are_numbers(rows, length):
        number = next(number for number, row in enumerate(rows) if not _are_numbers([row], length))
        raise _error(declared, f"{place(number)}: expected {length} numbers, found {_shown(rows[number])}")
    try:
        return _checked(declared, np.array([*itertools.chain.from_iterable(rows)], np.float64))
    except OverflowError as error:
        raise _error(declared, f"{declared.path}: {error}") from error


def _are_numbers(rows: Sequence[Any], length: int) -> bool:
    are_lists = {*map(type, rows)} <= {list} and {*map(len, rows)} <= {length}
    return are_lists and {*map(type, itertools.chain.from_iterable(rows))} <= {int, float}


def _checked(declared: Boxes | Keypoints, numbers: Array) -> Array:
    """Return numbers after checking that they fit into float32, so that they are neither NaN nor infinite."""
    fits = np.abs(numbers) <= _MAX
    if not fits.all():
        wrong = numbers[~fits][0]
        raise _error(declared, f"{declared.path}: {wrong} is not a finite number of 32 bits")
    return numbers


def _point_rows(declared: Keypoints, number: int, value: Any) -> list[Any]:
    """Return the points of a list, each a list, not checked yet."""
    numbers = len(declared.format)
    if not isinstance(value, list):
        raise _error(declared, f"{_place(declared.path, number)}: expected a list of points, found {_shown(value)}")
    if not value or isinstance(value[0], list):
        return value
    if len(value) % numbers:
        found = f"{len(value)} numbers: {_shown(value)}"
        place = _place(declared.path, number)
        raise _error(declared, f"{place}: expected {', '.join(declared.format)} in turn, found {found}")
    return _rows(value, numbers)


def _rows(numbers: list[Any], length: int) -> list[list[Any]]:
    return [numbers[at : at + length] for at in range(0, len(numbers), length)]


def _field(declared: Boxes, name: str, path: str, values: list[Any], *, is_float: bool) -> Array:
    allowed = {int, float} if is_float else {int, bool}
    for number, value in enumerate(values):
        if type(value) not in allowed:
            remedy = f"; declare {name}={path}:float" if type(value) is float else ""
            expected = "a number" if is_float else "an integer"
            raise _error(declared, f"{_place(path, number)}: expected {expected}, found {_shown(value)}{remedy}")
    try:
        if not is_float:
            return np.array(values, np.int64)
        return _checked(declared, np.array(values, np.float64)).astype(np.float32)
    except OverflowError as error:
        raise _error(declared, f"{path}: {error}") from error


def _segments(declared: Boxes, path: str, values: list[Any], size: Size) -> Array:
    """Return the segments of boxes, object [N]."""
    runs = sum(isinstance(value, dict) for value in values)
    if runs * size[0] * size[1] > _MOST_MASK_PIXELS:
        raise TooLargeError(f"part {declared.part!r}: {path} has {runs} masks of {size[0]}x{size[1]} pixels")
    segments = np.empty(len(values), dtype=object)
    corners = 0
    for number, value in enumerate(values):
        try:
            segments[number] = Segment.parse(value, size, size if declared.normalized else (1, 1))
        except ValueError as error:
            raise _error(declared, f"{_place(path, number)}: {error}") from None
        corners += segments[number].corners
    if corners > _MOST_CORNERS:
        raise TooLargeError(f"part {declared.part!r}: {path} has polygons with {corners:,} corners")
    return segments


def _lacking(steps: Sequence[str], number: int, expected: str, value: Any) -> str:
    path = "".join(step if step == EACH else f".{step}" for step in steps).lstrip(".")
    place = _place(path, number) if path else "the whole"
    return f"{place}: expected {expected}, found {_shown(value)}"


def _place(path: str, number: int) -> str:
    """Return the name of a value to which a path leads."""
    if path.count(EACH) == 1:
        return path.replace(EACH, f"[{number}]")
    return f"{path}, number {number}" if EACH in path else path


def _shown(value: Any) -> str:
    # Not repr() of the whole: it may be long, or nested deeper than the interpreter recurses.
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, itertools.islice(value, 5))) or 'nothing'}"[:_SHOWN]
    if isinstance(value, list):
        inner = ", ".join("[...]" if isinstance(each, list | dict) else repr(each) for each in value[:6])
        return f"[{inner}{', ...' * (len(value) > 6)}]"[:_SHOWN]
    return repr(value)[:_SHOWN]


def _error(declared: Boxes | Keypoints, message: str) -> DecodeError:
    return DecodeError(f"part {declared.part!r}: {message}")
