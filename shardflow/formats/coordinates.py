"""Coordinates: the boxes and keypoints in the JSON parts of a sample, read and written as declared.

    boxes        a list of lists of four numbers; four numbers alone are one box
    box fields   a list of numbers or segments, one per box; a single one for a single box
    keypoints    a list of points, [[x, y, visibility], ...], or a flat list, [x, y, visibility, ...]

A sample without boxes has empty lists. Results are in pixels of an image of a given size, boxes as left, top, right,
bottom. Packing and loading share this code, so every packed sample can be loaded.
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
from .json_object import unique_names
from .segments import Segment

Array: TypeAlias = "npt.NDArray[Any]"
Size: TypeAlias = "tuple[int, int]"
"""Width and height in pixels."""

MAX_JSON_BYTES = 16 * 2**20
"""Limit of a part with coordinates: parsed JSON takes up to 30 times as much memory."""

_MOST_MASK_PIXELS, _MOST_CORNERS = 1 << 34, 1 << 18  # of the segments of a sample: these take seconds

_MAX = float(np.finfo(np.float32).max)
_DIGITS = {False: 3, True: 7}  # of numbers in pixels, and of fractions
_SHOWN = 60


class Coordinates(NamedTuple):
    """The boxes and keypoints of a sample.

    Attributes:
        boxes: float32 [N, 4], left, top, right, bottom in pixels; None if no boxes are declared.
        box_fields: Name → further values of the boxes, int64 or float32 [N]; or their segments, object [N].
        keypoints: float32 [N, K, 2 or 3] if declared per box, otherwise [K, 2 or 3]: x, y in pixels, and visibility;
            None if not declared. If N is 0, so is K.
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
        read_part: Returns a part by its name; None if the sample lacks it.
        size: Size of the image, by which normalized coordinates are multiplied.

    Raises:
        DecodeError: A part is missing or not JSON, a path does not exist in it, or values differ from the declaration.
        TooLargeError: The segments have too many corners, or masks with too many pixels.
    """
    found = _Documents(annotations, read_part, None)  # packing, or the index, has seen that no name is repeated
    boxes = found.boxes(size)
    if boxes is not None and annotations.boxes is not None and annotations.boxes.normalized:  # as packing clips them
        _check_unit(annotations.boxes, boxes.reshape(-1, 2), size)
    return _coordinates(boxes, found.box_fields(size), found.keypoints(size))


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
    """Return the parts with their coordinates moved, name → bytes, and the coordinates before the move.

    Args:
        annotations, read_part: As for `read_coordinates`.
        before: Size of the image before the move.
        after: Size of the image after the move.
        move_boxes: Moves boxes, float64 [N, 4]: left, top, right, bottom in pixels.
        move_points: Moves points, float64 [N, 2]: x, y in pixels. Points of visibility 0 do not change.
        move_segment: Moves the segment of a box.

    Raises:
        DecodeError, TooLargeError: As for `read_coordinates`.
    """
    found = _Documents(annotations, read_part)
    boxes, fields, points = found.boxes(before), found.box_fields(before), found.keypoints(before)
    if boxes is not None:
        _check_unit(annotations.boxes, boxes.reshape(-1, 2), before)
        found.write_boxes(move_boxes(boxes), after)
    if points is not None:
        _check_unit(annotations.keypoints, points[(points[..., 2:] != 0).all(-1)][:, :2], before)
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

    def __init__(
        self, annotations: Annotations, read_part: Callable[[str], bytes | memoryview | None], hook: Any = unique_names
    ) -> None:
        self._annotations = annotations
        self._roots: dict[str, list[Any]] = {}  # in lists of one, so that the root is a slot too
        for declared, what in ((annotations.boxes, "boxes"), (annotations.keypoints, "keypoints")):
            if declared is not None and declared.part not in self._roots:
                if (data := read_part(declared.part)) is None:
                    raise DecodeError(f"the sample lacks the part {declared.part!r}, declared to hold its {what}")
                self._roots[declared.part] = [parse_json(declared.part, data, hook)]
        self._boxes = [] if annotations.boxes is None else self._elements(annotations.boxes, annotations.boxes.path, 4)
        points = annotations.keypoints
        self._points = [] if points is None else self._slots(points, points.path)
        if points is not None and points.per_box and annotations.boxes and len(self._points) != len(self._boxes):
            message = f"{len(self._points)} lists of keypoints at {points.path}, but {len(self._boxes)} boxes"
            raise DecodeError(f"part {points.part!r}: {message}; expected one for each box")

    def boxes(self, size: Size) -> Array | None:
        """Return float64 [N, 4] in pixels; None if no boxes are declared."""
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
            raise _error(declared, f"{message}; declare another format")
        if declared.normalized:
            boxes *= (*size, *size)
        return _checked(declared, boxes)

    def box_fields(self, size: Size) -> dict[str, Array]:
        """Return the further values of the boxes: name → int64, float32 or (segments) object [N]."""
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
        """Return float64 [N, K, 2 or 3] or [K, 2 or 3] in pixels; None if no keypoints are declared."""
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
            raise _error(declared, f"{path}: flip_pairs name point {last}, but there are {length}, numbered from 0")
        rows = [*itertools.chain.from_iterable(sets)]
        points = _numbers(
            declared, rows, numbers, lambda number: f"{_place(path, number // length)}[{number % length}]"
        ).reshape(len(sets), length, numbers)
        if declared.normalized:
            points[..., :2] *= size
        points = _checked(declared, points)
        return points if declared.per_box else points[0]

    def write_boxes(self, boxes: Array, size: Size) -> None:
        """Replace the boxes by others in pixels, float64 [N, 4]."""
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
        """Replace the segments of the boxes in a field."""
        declared = self._annotations.boxes
        assert declared is not None
        slots = self._elements(declared, field_path(declared.fields[name])[0], 0)
        for slot, segment in zip(slots, segments, strict=True):
            for corners in segment.polygons:
                _checked(declared, corners)
            slot.container[slot.key] = segment.to_json(size if declared.normalized else (1, 1))

    def write_keypoints(self, points: Array, size: Size) -> None:
        """Replace the keypoints by others in pixels, float64 [..., 2]; those of visibility 0 do not change."""
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
            # A lone surrogate has no UTF-8 encoding, but an escape in JSON.
            return {
                part: json.dumps(root[0], ensure_ascii=False).encode(errors="backslashreplace")
                for part, root in self._roots.items()
            }
        except RecursionError as error:
            raise DecodeError(f"parts {', '.join(self._roots)}: too deeply nested") from error

    def _slots(self, declared: Boxes | Keypoints, path: str) -> list[_Slot]:
        """Return the places that a path selects, in order."""
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
        """Return the places of the elements of the list at a path, or those that a path with `[]` selects.

        An element is a list of `numbers` numbers, or a single value if `numbers` is 0.
        """
        slots = self._slots(declared, path)
        if EACH in path:
            return slots
        (slot,) = slots
        value = slot.value
        is_single = not isinstance(value, list) or (numbers > 0 and len(value) > 0 and not isinstance(value[0], list))
        return slots if is_single else [_Slot(value, place) for place in range(len(value))]


def parse_json(part: str, data: bytes | memoryview, hook: Any = unique_names) -> Any:
    """Return the content of a part; DecodeError if it is not JSON, repeats a name, or is too long to be parsed."""
    if len(data) > MAX_JSON_BYTES:
        raise DecodeError(
            f"part {part!r} has {len(data):,} bytes; the limit for parts with coordinates is {MAX_JSON_BYTES:,}"
        )
    try:
        return json.loads(bytes(data), object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"part {part!r} is not JSON: {error}") from error


def _numbers(declared: Boxes | Keypoints, rows: Sequence[Any], length: int, place: Callable[[int], str]) -> Array:
    """Return the numbers of rows as a flat float64 array; each row must be a list of `length` numbers."""
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
    """Return numbers after checking that they are finite in float32."""
    fits = np.abs(numbers) <= _MAX
    if not fits.all():
        wrong = numbers[~fits][0]
        raise _error(declared, f"{declared.path}: {wrong} is not a finite 32-bit number")
    return numbers


def _check_unit(declared: Boxes | Keypoints | None, points: Array, size: Size) -> None:
    """Refuse corners or points in pixels that are rather in the other unit than is declared: all would be lost."""
    if declared is None or not points.size:
        return
    if declared.normalized:
        fractions = points / size
        if ((fractions < -2) | (fractions > 3)).any():
            message = f"{fractions[np.abs(fractions).max(1).argmax()].tolist()} is not in fractions of the image"
            raise _error(declared, f"{declared.path}: {message}; declare pixels, without :normalized")
    elif points.min() >= 0 and points.max() <= 1 < min(size) and (points % 1).any():
        message = f"all is within one pixel, such as {points[0].tolist()}"
        raise _error(declared, f"{declared.path}: {message}; declare fractions of the image with :normalized")


def _point_rows(declared: Keypoints, number: int, value: Any) -> list[Any]:
    """Return the points of a list, each as a list, still unchecked."""
    numbers = len(declared.format)
    if not isinstance(value, list):
        raise _error(declared, f"{_place(declared.path, number)}: expected a list of points, found {_shown(value)}")
    if not value or isinstance(value[0], list):
        return value
    if len(value) % numbers:
        found = f"{len(value)} numbers: {_shown(value)}"
        place = _place(declared.path, number)
        raise _error(declared, f"{place}: expected a flat list of {', '.join(declared.format)}, found {found}")
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
    place = _place(path, number) if path else "the whole part"
    return f"{place}: expected {expected}, found {_shown(value)}"


def _place(path: str, number: int) -> str:
    """Return the name of value `number` among those that a path selects."""
    if path.count(EACH) == 1:
        return path.replace(EACH, f"[{number}]")
    return f"{path}, number {number}" if EACH in path else path


def _shown(value: Any) -> str:
    # repr() of the whole value may be long, or exceed the recursion limit.
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, itertools.islice(value, 5))) or 'nothing'}"[:_SHOWN]
    if isinstance(value, list):
        inner = ", ".join("[...]" if isinstance(each, list | dict) else repr(each) for each in value[:6])
        return f"[{inner}{', ...' * (len(value) > 6)}]"[:_SHOWN]
    return repr(value)[:_SHOWN]


def _error(declared: Boxes | Keypoints, message: str) -> DecodeError:
    return DecodeError(f"part {declared.part!r}: {message}")
