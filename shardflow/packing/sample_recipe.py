"""The sample recipe: turns an input into a sample, its images by a recipe and its other parts by the annotations.

    cls           number of the class, as text
    labels.json   numbers of the classes, ascending, as a JSON list
    masks         PNGs, cropped and resized with the image by nearest neighbour
    coordinates   boxes and keypoints in JSON are moved, the rest of the JSON is kept
    others        kept byte for byte

`formats.annotations` declares which parts are masks, and where boxes and keypoints are. A sample that lacks a declared
part, or whose part differs from its declaration, cannot be packed. Coordinates are in pixels of the upright image (see
`encoded_image`).

Boxes are clipped to the packed image. A box outside the image becomes all zeros, so that parallel lists stay aligned.
A box without area inside the image is kept, and loading decides about it. Keypoints may lie outside the image; a
keypoint with visibility 0 does not change. Coordinates are rounded to a thousandth of a pixel.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow._masks import load_mask, open_mask
from shardflow._pillow import map_codec_errors
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats import image_array
from shardflow.formats.annotations import NOTHING, Annotations, image_stem
from shardflow.formats.coordinates import Coordinates, move_coordinates
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, Label, format_label
from shardflow.formats.manifest import Manifest
from shardflow.formats.statistics import PixelSums, Statistics
from shardflow.geometry.crops import Crops
from shardflow.geometry.objects import clip_boxes, move_boxes
from shardflow.geometry.segment_masks import move_segment

from .image.encoded_image import EncodedImage, Geometry
from .image.pipeline import pack_image
from .recipe import Recipe, recipe_of
from .shard_writer import check_sample
from .sources.reader import Input
from .sources.source import Source

logger = logging.getLogger(__name__)

_GEOMETRY_VERSION = 2
"""Raised when the arithmetic for masks or coordinates changes, so that packs begun before are not resumed."""

_COORDINATES = re.compile(rb'"(boxes|bbox|keypoints)"')

_ROUNDING = 0.01  # the share of an image by which boxes that annotators have rounded may reach beyond it

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,15}")


def no_image(parts: Iterable[str]) -> str:
    """Return why a sample with these parts is not packed, if no further images are declared."""
    return f"has no image among its parts: {', '.join(parts) or 'a label alone'}"


class PackedSample(NamedTuple):
    """A packed sample: its images by part, the main image first; all parts; and counts of annotations."""

    images: dict[str, EncodedImage]
    parts: dict[str, bytes]
    counts: dict[str, int]

    def count_in(self, statistics: Statistics, label: Label) -> PixelSums:
        """Add the sample to statistics, with its label and annotations once, and return the sums of its pixels."""
        labels, counts, pixels = (label,) if isinstance(label, int) else label or (), self.counts, PixelSums()
        if not self.images:
            statistics.classes.update(labels)
        for image in self.images.values():
            statistics.count(
                before=image.geometry.upright,
                after=image.geometry.size,
                labels=labels,
                bytes_before=image.bytes_before,
                bytes_after=len(image.image),
                **dict.fromkeys(image.done, 1),
                **counts,
            )
            labels, counts = (), {}
            pixels += image.pixels
        return pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecipe:
    """How inputs become samples: the recipe of their images, and which of their other parts are annotations."""

    image: Recipe
    annotations: Annotations = NOTHING

    @classmethod
    def of(cls, manifest: Manifest) -> SampleRecipe:
        """Return the recipe that a dataset was packed with; raise ConfigError if this version cannot reproduce it."""
        return cls(image=recipe_of(manifest), annotations=manifest.annotations)

    @property
    def digest(self) -> str:
        """SHA-256 of all settings that the packed bytes depend on, including the codecs' versions."""
        if not self.annotations:
            return self.image.digest
        moved_by = {"geometry": _GEOMETRY_VERSION}
        text = json.dumps([self.image.digest, self.annotations.to_json(), moved_by], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def pack(self, found: Input, label: Label) -> PackedSample:
        """Return the sample of an input; raise a SampleError if the input cannot be packed."""
        images, geometry = dict[str, EncodedImage](), None
        if found.has_image:
            image = pack_image(found.image, self.image)
            images[image.part], geometry = image, image.geometry
            check_size(found.size, geometry)
        elif not self.annotations.images:
            raise SampleError(no_image(found.parts))
        further = self.further_images(found.parts)
        for stem, part in further.items():
            try:
                packed = pack_image(found.parts[part], self.image)
            except SampleError as error:
                raise type(error)(f"part {part!r}: {error}") from error
            name = f"{stem}.{packed.part.rpartition('.')[2]}"
            if name in images:
                raise DecodeError(f"part {part!r} would be packed as {name!r}, which is the first image; rename it")
            images[name] = packed
        others = {part: data for part, data in found.parts.items() if part not in further.values()}
        most = self.image.max_pixels
        beside, counts = transform_parts(others, label, geometry, self.annotations, max_pixels=most)
        if (array := images.get(image_array.PART)) is not None:
            counts[image_array.kind(*image_array.shape(array.image)[2:])] = 1
        parts = {part: each.image for part, each in images.items()} | beside
        check_sample(parts)
        return PackedSample(images, parts, counts)

    def further_images(self, parts: Iterable[str]) -> dict[str, str]:
        """Return the declared images among the parts of an input, by their names without a format.

        Raises:
            DecodeError: An image is present in two formats.
        """
        stems = {image_stem(each) for each in self.annotations.images}
        found: dict[str, str] = {}
        for part in parts:
            if (stem := image_stem(part)) is not None and stem in stems and found.setdefault(stem, part) != part:
                raise DecodeError(f"has the image {stem} twice, as {found[stem]} and {part}; rename one of them")
        return found


def refuse_other_annotations(source: Source, annotations: Annotations) -> None:
    """Raise ConfigError if a source declares annotations that the dataset to extend lacks or has differently."""
    if (joined := annotations.joined(source.annotations)) != annotations:
        differing = [name for name, text in joined.describe().items() if annotations.describe().get(name) != text]
        message = f"the source declares other annotations than the dataset ({', '.join(differing)})"
        raise ConfigError(f"{message}, whose samples would not fit together; pack it as another dataset")


def refuse_absent_images(source: Source, annotations: Annotations) -> None:
    """Raise ConfigError if no input has any of the declared images; warn of declared images that no input has."""
    absent = {image_stem(each): each for each in annotations.images}
    for items in source.splits.values():
        for item in items if absent else ():
            for part in json.loads(item.more or b"{}").get("parts", ()):
                absent.pop(image_stem(part), None)
    if not absent:
        return
    message = f"no input has {', '.join(absent.values())}, declared as images"
    if len(absent) == len(annotations.images):
        first = annotations.images[0]
        raise ConfigError(f"{message}; of a folder with x.jpg and x.{first}, name it with --parts {first} too")
    logger.warning("%s", message)


def warn_of_undeclared(source: Source, annotations: Annotations) -> None:
    """Warn if the first input has an undeclared part that looks like a mask, boxes or keypoints."""
    first = next((items[0] for items in source.splits.values() if len(items)), None)
    if first is None or not first.more:
        return  # an image alone
    parts: Mapping[str, bytes] = dict.fromkeys(json.loads(first.more).get("parts", ()), b"")
    if not source.reader.remote:
        with contextlib.suppress(SampleError):  # packing quarantines the input
            parts = source.reader.read(first).parts
    for part, data in parts.items():
        if part in annotations.parts or image_stem(part) in map(image_stem, annotations.images):
            continue
        hint = ""
        if part.endswith(".png"):
            hint = f"it is a mask, which must be cropped and resized with the image, declare it: --mask {part}"
        elif part.endswith("json") and (key := _COORDINATES.search(data)):
            keys = f"{key[0].decode()} means boxes or keypoints, which must move with the image"
            hint = f"{keys}, declare them: --boxes {part}:PATH:FORMAT or --keypoints {part}:PATH:FORMAT"
        if hint:
            logger.warning("part %r, as of %r, is kept byte for byte; if %s", part, first.path, hint)


def transform_parts(
    parts: Mapping[str, bytes],
    label: Label,
    geometry: Geometry | None,
    annotations: Annotations = NOTHING,
    *,
    max_pixels: int = MAX_PIXELS,
) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the packed parts of a sample except its images, and their counts: "masks", "boxes", "boxes_outside", ….

    `max_pixels` limits masks too. The count "boxes_beyond" is of boxes that reach beyond the image that was given.
    """
    for part in parts:
        if not _NAME.fullmatch(part):
            raise DecodeError(f"part {part!r}: names of parts are up to 16 letters, digits and ._-")
        if part in IMAGE_PARTS:
            raise DecodeError(f"part {part!r} would be a second image; rename it, for example to second.{part}")
        if part in LABEL_PARTS:
            raise DecodeError(f"part {part!r} is reserved for the labels; rename it")
    kept = {**parts, **format_label(label)}
    if not annotations.parts:
        return kept, {}
    if geometry is None:
        raise DecodeError("has no image to which its masks, boxes or keypoints belong")
    if missing := annotations.missing(parts):
        raise DecodeError(missing)
    masks = {}
    for mask in annotations.masks:
        try:
            masks[mask] = transform_mask(parts[mask], geometry, max_pixels)
        except (DecodeError, TooLargeError) as error:
            raise type(error)(f"part {mask!r}: {error}") from error
    crops, unfit = geometry.crops, Counter[str]()
    border = np.array(geometry.upright * 2)

    def move_boxes_in(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        packed, is_outside = pack_boxes(boxes, crops)
        beyond = np.maximum(-boxes, boxes - border) > _ROUNDING * border
        unfit.update(boxes_outside=int(is_outside.sum()), boxes_beyond=int(beyond.any(axis=1).sum()))
        return packed

    moved, found = move_coordinates(
        annotations,
        parts.get,
        geometry.upright,
        geometry.size,
        move_boxes=move_boxes_in,
        move_points=lambda points: crops.move(points, np.zeros(len(points), dtype=np.int64)),
        move_segment=lambda segment: move_segment(segment, crops),
    )
    return {**kept, **masks, **moved}, {**count_annotations(annotations, found), **+unfit}


def count_annotations(annotations: Annotations, found: Coordinates) -> dict[str, int]:
    """Return the numbers of masks, boxes and keypoints of a sample with these coordinates, without zeros."""
    counts = {"masks": len(annotations.masks), "boxes": len(found.boxes) if found.boxes is not None else 0}
    if (points := found.keypoints) is not None:
        is_there = points[..., 2] > 0 if points.shape[-1] == 3 else np.ones(points.shape[:-1], np.bool_)
        counts["keypoints"] = int(is_there.sum())
    return {name: count for name, count in counts.items() if count}


def pack_boxes(boxes: npt.NDArray[np.float64], crops: Crops) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return boxes of an image, [N, 4], clipped to its crop, and which are outside, [N]; these become all zeros.

    A box without area (a line or a point) on the border of the crop counts as inside.
    """
    rows = np.zeros(len(boxes), dtype=np.int64)
    moved = move_boxes(boxes, crops, rows)
    clipped = clip_boxes(moved, crops.extents[rows])
    # Per axis: the clipped interval has a length, or a point was not moved by clipping.
    is_place = moved[:, :2] == moved[:, 2:]
    is_left = np.where(is_place, moved[:, :2] == clipped[:, :2], clipped[:, :2] < clipped[:, 2:])
    is_outside = ~(is_left[:, 0] & is_left[:, 1])
    clipped[is_outside] = 0
    return clipped, is_outside


def check_size(declared: tuple[int, int] | None, geometry: Geometry) -> None:
    """Raise a DecodeError if an upright image does not have the size that its annotations declare."""
    if declared is None or declared == geometry.upright:
        return
    expected, found = ("{}x{}".format(*each) for each in (declared, geometry.upright))
    message = f"the image has {found} pixels, its annotations are of one with {expected}"
    if declared == geometry.stored:
        message += ", as it is stored: it is turned by its metadata, and coordinates are in the upright image"
    raise DecodeError(f"{message}; give each image its own annotations")


def transform_mask(data: bytes, geometry: Geometry, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return a mask of the upright image, moved to the packed image, as a PNG.

    The resize takes the pixel at each centre, PyTorch's "nearest-exact", because labels must not be mixed. Bilevel, 8-
    and 16-bit grey, palette and RGB values stay.
    """
    with map_codec_errors(DecodeError), open_mask(data, geometry.upright, max_pixels=max_pixels) as image:
        resized = Image.fromarray(geometry.crops.crop_mask(0, load_mask(image)))
        if image.mode == "P":
            resized.putpalette(cast("list[int]", image.getpalette()))
        buffer = io.BytesIO()
        resized.save(buffer, "PNG")
        return buffer.getvalue()
