"""Annotations: the declaration of masks among the parts of samples, and of boxes and keypoints in JSON.

It is made when packing, and stored in the manifest. Names of parts and keys have no meaning by themselves: a part that
is not declared is kept byte for byte.

    images       further images of a sample, in any format: "img1.jpg" is the part img1.jpg, img1.png, ...
    masks        PNG parts: "mask.png" is the field "mask" of a batch
    boxes        PART:PATH:FORMAT[:normalized]   json:boxes:xyxy, json:objects[].bbox:xywh
    box fields   NAME=PATH[:float|:mask]         labels=objects[].category_id, area=objects[].area:float,
                                                 masks=objects[].segmentation:mask
    keypoints    PART:PATH:FORMAT[:normalized]   json:keypoints:xyv, json:objects[].keypoints:xyv
                 [:flip=I-J,...]                 json:keypoints:xyv:flip=1-2,3-4

A path is a sequence of keys separated by dots, with `[]` for each element of a list; it may start with `[]` if the
whole JSON is a list. `coordinates` defines the form of the values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from shardflow.errors import ConfigError

from .image_types import IMAGE_PARTS, SOURCE_PARTS
from .json_object import JsonObject, entry, nested
from .labels import LABEL_PARTS

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
"""Left, top, right, bottom; left, top, width, height (COCO); centre x, centre y, width, height (YOLO)."""

KEYPOINT_FORMATS = ("xy", "xyv")
"""Without and with a visibility, which is 0 for a missing point (COCO)."""

EACH = "[]"
NORMALIZED = "normalized"
FLOAT, MASK = "float", "mask"
FLIP = "flip"

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,15}")
_STEP = re.compile(r"([^.:=\[\]]*)((?:\[\])*)")
_FIELD = re.compile(r"[a-z0-9_]{1,32}")
_RESERVED = (
    "boxes", "crop", "flipped", "image", "image_size", "images", "index", "key", "keypoints", "label", "labels",
    "pixel_mask", "random_key", "source", "valid",
)  # fmt: skip
_MOST_STEPS = 16
_EXTENSIONS = frozenset(part.rpartition(".")[2] for part in SOURCE_PARTS)  # of image.npy too

_Text = TypeVar("_Text", "Boxes", "Keypoints")


def path_steps(path: str) -> tuple[str, ...]:
    """Return the steps of a path: keys, and `EACH` for the elements of a list; ConfigError if it is not a path."""
    steps: list[str] = []
    for number, step in enumerate(path.split(".") if isinstance(path, str) else ("",)):
        match = _STEP.fullmatch(step)
        if match is None or not step.isprintable() or not (match[1] or (number == 0 and match[2])):
            raise ConfigError(f"path {path!r} must be keys separated by dots, such as objects[].bbox")
        steps += [match[1]] * bool(match[1]) + [EACH] * (len(match[2]) // len(EACH))
    if len(steps) > _MOST_STEPS:
        raise ConfigError(f"path {path!r} has {len(steps)} steps; the limit is {_MOST_STEPS}")
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Boxes(JsonObject):
    """The place of a sample's boxes.

    Args:
        part: Part of the samples, a JSON: "json".
        path: Path to the boxes: "boxes" is a list of boxes, "objects[].bbox" the `bbox` of each object.
        format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height; COCO) or "cxcywh" (centre, width,
            height; YOLO), in pixels of the upright image.
        normalized: Whether the numbers are fractions of the image's width and height.
        fields: Name → path of further values in the same part, one integer per box: {"labels": "objects[].category"}
            is the field "box_labels" of a batch. The path ends in ":float" for floats, and in ":mask" for polygons or
            run-length masks, such as COCO's `segmentation`.

    Raises:
        ConfigError: A value is out of its range.
    """

    part: str
    path: str
    format: str
    normalized: bool = False
    fields: Mapping[str, str] = field(default_factory=dict, metadata=entry(write=dict, read=dict))

    def __post_init__(self) -> None:
        _check(self, BOX_FORMATS)
        for name, path in self.fields.items():
            if not (isinstance(name, str) and _FIELD.fullmatch(name)):
                raise ConfigError(f"box field {name!r}: a name must be 1 to 32 characters of a-z 0-9 _")
            field_path(path)

    @classmethod
    def parse(cls, text: str, fields: Mapping[str, str] | None = None) -> Boxes:
        """Return the declaration in a text, such as "json:boxes:xyxy" or "json:objects[].bbox:cxcywh:normalized"."""
        return replace(_parse(cls, text, "boxes", BOX_FORMATS), fields=dict(fields or {}))

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class Keypoints(JsonObject):
    """The place of a sample's keypoints.

    >>> eyes = shardflow.annotations.Keypoints("json", "landmarks", "xy", flip_pairs=((1, 2),))

    Args:
        part: Part of the samples, a JSON: "json".
        path: Path to the keypoints: "landmarks" is one list of K points for the sample; "keypoints[]" and
            "objects[].keypoints" are a list of K points per element, parallel to the boxes if boxes are declared.
        format: "xy", or "xyv" with a visibility that is 0 for a missing point; in pixels of the upright image.
        normalized: Whether x and y are fractions of the image's width and height.
        flip_pairs: Pairs of points, numbered from 0, that are swapped when an image is mirrored, such as the left and
            right eye: ((1, 2), (3, 4)).

    Raises:
        ConfigError: A value is out of its range, or a point is in two pairs.
    """

    part: str
    path: str
    format: str
    normalized: bool = False
    flip_pairs: tuple[tuple[int, int], ...] = field(
        default=(), metadata=entry(write=lambda pairs: [list(pair) for pair in pairs], optional=True)
    )

    def __post_init__(self) -> None:
        _check(self, KEYPOINT_FORMATS)
        try:
            pairs = tuple((first, second) for first, second in self.flip_pairs)
        except (TypeError, ValueError):
            pairs = ((-1, -1),)
        points = [point for pair in pairs for point in pair]
        if any(type(point) is not int or point < 0 for point in points) or len(set(points)) != len(points):
            raise ConfigError(
                f"keypoints: flip_pairs must be pairs of different point numbers, such as ((1, 2), (3, 4)), found "
                f"{self.flip_pairs!r:.200}"
            )
        object.__setattr__(self, "flip_pairs", pairs)

    @property
    def per_box(self) -> bool:
        """Whether a sample has a list of lists of points, [N, K, 2 or 3], instead of one list, [K, 2 or 3]."""
        return EACH in self.path

    @property
    def visibility(self) -> bool:
        """Whether each point has a third number."""
        return self.format == "xyv"

    @classmethod
    def parse(cls, text: str) -> Keypoints:
        """Return the declaration in a text, such as "json:keypoints:xyv" or "json:keypoints:xyv:flip=1-2,3-4"."""
        declared, is_flipped, listed = text.partition(f":{FLIP}=")
        try:
            pairs = [tuple(map(int, pair.split("-"))) for pair in listed.split(",")] if is_flipped else []
        except ValueError:
            raise ConfigError(f"keypoints {text!r}: expected pairs of points, such as :{FLIP}=1-2,3-4") from None
        return replace(_parse(cls, declared, "keypoints", KEYPOINT_FORMATS), flip_pairs=tuple(pairs))  # type: ignore[arg-type] # checked there

    def __str__(self) -> str:
        pairs = ",".join(f"{first}-{second}" for first, second in self.flip_pairs)
        return _text(self) + f":{FLIP}={pairs}" * bool(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations(JsonObject):
    """The parts that are further images, and masks, boxes and keypoints, which follow the pixels.

    Args:
        images: Parts that are images, with or without a first one, in order: ("img1.jpg", "img2.jpg"). Each has its own
            size, and any image extension; a sample may lack some of them.
        masks: Parts that are masks, as large as the images: ("mask.png",).
        boxes: The place of the boxes; None if there are none.
        keypoints: The place of the keypoints; None if there are none.

    Raises:
        ConfigError: A value is out of its range.

    Example:
        >>> from shardflow.annotations import Annotations, Boxes
        >>> boxes = Boxes("json", "objects[].bbox", "xywh", fields={"labels": "objects[].category_id"})
        >>> report = shardflow.pack("photos/", "out/", annotations=Annotations(boxes=boxes))
    """

    images: tuple[str, ...] = field(default=(), metadata=entry(write=list, read=tuple, optional=True))
    masks: tuple[str, ...] = field(default=(), metadata=entry(write=list, read=tuple, optional=True))
    boxes: Boxes | None = field(default=None, metadata=nested(Boxes, optional=True))
    keypoints: Keypoints | None = field(default=None, metadata=nested(Keypoints, optional=True))

    def __post_init__(self) -> None:
        stems = [image_stem(each) for each in self.images] if isinstance(self.images, tuple | list) else [None]
        if None in stems or len(set(stems)) != len(stems):
            raise ConfigError(
                f"images must be different parts with image extensions, such as ('img1.jpg', 'img2.jpg'), found "
                f"{self.images!r:.200}"
            )
        if isinstance(self.masks, str) or len(set(self.masks)) != len(self.masks):
            raise ConfigError(f"masks must be different names of parts, such as ('mask.png',); found {self.masks!r}")
        for mask in self.masks:
            if not (isinstance(mask, str) and _PART.fullmatch(mask) and mask.endswith(".png")):
                raise ConfigError(f"mask {mask!r} is not the name of a part, up to 16 characters ending in .png")
            if mask_field(mask) in _RESERVED:
                raise ConfigError(f"mask {mask!r} has the name of the field {mask_field(mask)!r}; rename the part")
            if mask_field(mask) in stems:
                raise ConfigError(f"{mask!r} cannot be a mask and one of the images; declare it once")

    def __bool__(self) -> bool:
        return bool(self.images or self.masks or self.boxes or self.keypoints)

    @property
    def parts(self) -> tuple[str, ...]:
        """The different parts that follow the pixels."""
        coordinates = [each.part for each in (self.boxes, self.keypoints) if each is not None]
        return tuple(dict.fromkeys([*self.masks, *coordinates]))

    def missing(self, parts: Collection[str]) -> str:
        """Return which declared parts a sample with these parts lacks, as a reason; "" if none."""
        lacking = ", ".join(part for part in self.parts if part not in parts)
        return f"has no {lacking}, which is declared" if lacking else ""

    def describe(self, counts: Mapping[str, int] = MappingProxyType({})) -> dict[str, str]:
        """Return the declaration as texts by subject ("images", "masks", "boxes", ...), with `Statistics.counts`."""
        fields = self.boxes.fields if self.boxes is not None else {}
        texts = {
            "images": ", ".join(self.images),
            "masks": ", ".join(self.masks),
            "boxes": str(self.boxes or ""),
            "box fields": ", ".join(f"{name}={path}" for name, path in sorted(fields.items())),
            "keypoints": str(self.keypoints or ""),
        }
        numbers = {name: f"; {counts[name]:,}" for name in texts if name != "images" and counts.get(name)}
        return {name: text + numbers.get(name, "") for name, text in texts.items() if text}

    def joined(self, other: Annotations) -> Annotations:
        """Return both declarations as one; if both declare boxes or keypoints, `other` takes precedence."""
        return Annotations(
            images=tuple(dict.fromkeys([*self.images, *other.images])),
            masks=tuple(dict.fromkeys([*self.masks, *other.masks])),
            boxes=other.boxes or self.boxes,
            keypoints=other.keypoints or self.keypoints,
        )


NOTHING = Annotations()
"""The declaration of a dataset without annotations."""


def image_stem(part: str) -> str | None:
    """Return the name of a further image without its format, "img1" for "img1.jpg"; None for any other part."""
    stem, _, extension = part.rpartition(".") if isinstance(part, str) and _PART.fullmatch(part) else ("", "", "")
    return stem if stem and extension in _EXTENSIONS and part not in IMAGE_PARTS else None


def mask_field(part: str) -> str:
    """Return the field of a batch that a mask becomes: "mask" for "mask.png"."""
    return part.removesuffix(".png")


def field_path(text: str) -> tuple[str, str]:
    """Return the path of a box field, and the kind of its values: `FLOAT`, `MASK`, or "" for integers."""
    path, colon, kind = text.partition(":") if isinstance(text, str) else (text, "", "")
    if colon and kind not in (FLOAT, MASK):
        raise ConfigError(f"box field {text!r}: the path may end in :float or :mask, found {kind!r}")
    path_steps(path)
    return path, kind


def _check(declared: Boxes | Keypoints, formats: tuple[str, ...]) -> None:
    part, name = declared.part, type(declared).__name__.lower()
    if not (isinstance(part, str) and _PART.fullmatch(part)) or part in (*IMAGE_PARTS, *LABEL_PARTS):
        raise ConfigError(f"{name}: the part {part!r} cannot hold them; name a JSON part, such as json")
    path_steps(declared.path)
    if declared.format not in formats:
        raise ConfigError(f"{name}: format must be one of {', '.join(formats)}, found {declared.format!r}")
    if not isinstance(declared.normalized, bool):
        raise ConfigError(f"{name}: normalized must be True or False, found {declared.normalized!r}")


def _parse(kind: type[_Text], text: str, name: str, formats: tuple[str, ...]) -> _Text:
    part, path, *rest = text.split(":") if text.count(":") >= 2 else ("", "", "")
    if not part or not path or rest[1:] not in ([], [NORMALIZED]):
        message = f"{name} {text!r}: expected PART:PATH:FORMAT or PART:PATH:FORMAT:{NORMALIZED}"
        raise ConfigError(f"{message}, such as json:{name}:{formats[0]}")
    return kind(part, path, rest[0], len(rest) > 1)


def _text(declared: Boxes | Keypoints) -> str:
    return ":".join([declared.part, declared.path, declared.format, *[NORMALIZED] * declared.normalized])
