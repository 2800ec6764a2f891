"""COCO sets: one JSON with images, their boxes and keypoints, and categories; the images are in a folder.

A sample gets a part `json`, which is declared in the manifest:

    boxes      [[left, top, right, bottom], ...] in pixels; an empty list without boxes
    labels     the class of each box: the rank of its category by id, from 0
    iscrowd, area, ids   of each box; the area is in pixels of the source image, also if the image is resized
    segmentation   the polygons or run lengths of each box, if any annotation has some
    keypoints  [[[x, y, visibility], ...], ...], a list per box, if any annotation has keypoints; pairs whose names
               differ in left and right are swapped when an image is mirrored
    image_id, width, height   of the source image

Boxes, width and height are of the upright image. An image with another size than the JSON says is a bad input, because
its boxes may belong to another image. An image has the classes of its boxes, for sampling and subsets.

The JSON is parsed at once, except the segmentations, which are most of it: they stay texts until an image is listed.

Source: cocodataset.org, "Data format".
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardflow._wording import plural
from shardflow.dataset.finding_tars import splits_of_files
from shardflow.dataset.label_numbering import LabelNumbering
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.formats.json_object import unique_names
from shardflow.formats.manifest import SPLITS
from shardflow.packing.progress import counted
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_folder_of, open_storage
from shardflow.storage.urls import divide_query, is_remote, strip_file_scheme

from .detection import bad_input, detection_input
from .items import Item, Items
from .labelling import number_labels
from .reader import Reader, is_place, local_path, map_in_threads, public_name, refusal
from .source import Source, SourceKind

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 2**30
"""Limit of the JSON. COCO's files have up to 0.45 GB."""

_FIELDS = {"labels": "labels", "iscrowd": "iscrowd", "area": "area:float", "ids": "ids"}
_MASKS = {"masks": "segmentation:mask"}
_BOXES = Boxes("json", "boxes", "xyxy", fields=_FIELDS)
_KEYPOINTS = Keypoints("json", "keypoints[]", "xyv")
_TRIED_IMAGES = 3
_SEGMENT, _NOTHING = "segmentation", "[]"
_SIDES, _OPPOSITE = re.compile("left|right"), {"left": "right", "right": "left"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coco(SourceKind):
    """The images of a COCO set with their boxes, masks and keypoints.

    Args:
        url: Path or URL of the JSON: "coco/annotations/instances_train2017.json".
        images: Directory or URL of the images; None for COCO's layout: `train2017/` next to `annotations/`, or the
            folder of the JSON. A remote JSON may name only files below its folder, or URLs of stores.
        split: "train", "val", "valid", "validation" or "test"; None to take it from the name of the file or its folder,
            or else "train".
        classes: Names of the categories in the order of their labels, or a file with one per line; None for the order
            of the category ids.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack("coco/annotations/instances_train2017.json", "coco512/", preset="fine")
    """

    images: str | os.PathLike[str] | None = None
    split: str | None = None

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:  # noqa: ARG004 - the interface's
        """Return whether a path or URL has the extension of a JSON, and is not a directory."""
        extension = os.path.splitext(divide_query(url).place)[1].lower()
        return extension == ".json" and not os.path.isdir(strip_file_scheme(url))

    def list(self) -> Source:
        """List the images."""
        storage, folder, name = open_folder_of(self.url, self.storage_options)
        content = _Content(self._read(storage, name), str(self))
        base = str(self.images) if self.images is not None else self._image_folder(content, folder, name)
        split = self.split or splits_of_files(folder, [name])[name]
        if split not in SPLITS:
            raise ConfigError(f"split is {split!r}; splits are named {', '.join(SPLITS)}")
        numbering = LabelNumbering(content.names if self.classes is None else self.classes, content.names, self)
        numbers = {category: numbering.number(name) for category, name in content.categories.items()}
        images = open_storage(base, self.storage_options, may_be_local=True)
        reader = Reader.at(images, base, self.storage_options)
        unlabelled = Items.of(_unlabelled_inputs(content, numbers, split, folder, reader.base))
        if not unlabelled:
            raise ConfigError(f"{self} has no images")
        source = number_labels(unlabelled, numbering.classes, storage, reader)
        pairs = content.flip_pairs()
        if content.points and not pairs:
            effect = "none are swapped when an image is mirrored; name such pairs left_... and right_..."
            logger.warning("%s: no two keypoints have names that differ in left and right, so %s", self, effect)
        keypoints = replace(_KEYPOINTS, flip_pairs=pairs) if content.points else None
        boxes = replace(_BOXES, fields=_FIELDS | _MASKS) if content.has_segments else _BOXES
        return replace(source, annotations=Annotations(boxes=boxes, keypoints=keypoints))

    def _read(self, storage: Storage, name: str) -> Any:
        if (found := storage.version(name)) is not None and found.size > MAX_BYTES:
            raise ConfigError(f"{self} has {found.size:,} bytes; the limit is {MAX_BYTES:,}: divide it")
        try:
            return json.loads(storage.read(name, most_bytes=MAX_BYTES), object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            tables = "; tables are named .csv, .tsv, .jsonl or .parquet" * (not name.endswith(".json"))
            raise ConfigError(f"{self} is not valid JSON: {error}{tables}") from error

    def _image_folder(self, content: _Content, folder: str, name: str) -> str:
        """Return the first folder of COCO's layout, or a similar one, that has one of the first images."""
        here, query = divide_query(folder)
        parent = here.rpartition("/")[0] if is_remote(here) else os.path.dirname(os.path.abspath(here))
        words = os.path.splitext(name)[0].split("_")
        names = ["_".join(words[at:]) for at in range(len(words) - 1, -1, -1)]
        bases = [base for base in (parent, here) if base and not base.endswith(":/")]
        folders = [f"{base}/{inner}{each}" for each in names for base in bases for inner in ("", "images/")]
        folders += [here, *(f"{base}/images" for base in bases), *bases[:1]]
        first = [image.get("file_name") for image in content.images[:_TRIED_IMAGES]]
        tried = [each for each in first if isinstance(each, str) and not refusal(each, folder)]
        for found in folders:
            images = open_storage(found + query, self.storage_options, may_be_local=True)
            if any(images.version(each) is not None for each in tried):
                return found + query
        raise ConfigError(
            f"{self}: the images, such as {first[:1]}, are not in {folders[0]}, {here} or similar folders; name their "
            "folder with --image-folder"
        )


class _Content:
    """The content of a COCO JSON.

    Attributes:
        images: The entries of the images.
        annotations: Image id → its annotations, in the order of the file.
        categories: Category id → name, by ascending id.
        names: The different names of the categories, in this order.
        points: The largest number of keypoints of an annotation.
        has_segments: Whether annotations have segments; True without annotations.
    """

    def __init__(self, content: Any, where: str) -> None:
        kinds = ("images", "annotations", "categories")
        lists: list[Any] = [content.get(kind) for kind in kinds] if isinstance(content, dict) else []
        if not lists or not all(isinstance(each, list) and all(isinstance(e, dict) for e in each) for each in lists):
            raise ConfigError(f"{where} is not a COCO set: expected an object with the lists {', '.join(kinds)}")
        self.images, annotations, categories = lists
        if not self.images:
            raise ConfigError(f"{where} lists no images; name another file")
        self.annotations: dict[Any, list[dict[str, Any]]] = {}
        try:
            for image in self.images:
                if image["id"] in self.annotations:
                    raise ConfigError(f"{where} has the image {image['id']!r} twice")
                self.annotations[image["id"]] = []
            self.categories: dict[int, str] = {}
            for each in categories:
                if type(each["id"]) is not int or each["id"] in self.categories:
                    message = f"category ids must be different integers, found {each['id']!r:.60}"
                    raise ConfigError(f"{where} is not a COCO set: {message}")
                self.categories[each["id"]] = str(each["name"])
            left_out = 0
            for annotation in annotations:
                if annotation["image_id"] in self.annotations:
                    self.annotations[annotation["image_id"]].append(annotation)
                else:
                    left_out += 1
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            message = f"an image, an annotation or a category has no valid {error}"
            raise ConfigError(f"{where} is not a COCO set: {message}") from error
        if annotations and left_out == len(annotations):
            message = (
                f"{where}: no annotation belongs to a listed image; the first has {annotations[0]['image_id']!r:.60}"
            )
            raise ConfigError(f"{message}; use the same image ids in both lists")
        if left_out:
            logger.warning("%s: left out %s of unlisted images", where, plural(left_out, "annotation"))
        if annotations and not any("bbox" in annotation for annotation in annotations):
            raise ConfigError(f"{where}: no annotation has a box; expected COCO's instances or person_keypoints")
        self.categories = dict(sorted(self.categories.items()))
        self.names = tuple(dict.fromkeys(self.categories.values()))
        lengths = (len(points) for each in annotations if isinstance(points := each.get("keypoints"), list))
        self.points = max(lengths, default=0) // 3
        self.has_segments = not annotations or any(each.get(_SEGMENT, _NOTHING) != _NOTHING for each in annotations)
        self._point_names = [each["keypoints"] for each in categories if isinstance(each.get("keypoints"), list)]

    def flip_pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of left and right points; none if the categories have different point names."""
        names = self._point_names[0] if self._point_names else []
        if len(names) > self.points or any(other != names for other in self._point_names):
            return ()
        opposites = [_SIDES.sub(lambda side: _OPPOSITE[side[0]], str(name)) for name in names]
        found = [(number, names.index(other)) for number, other in enumerate(opposites) if other in names]
        return tuple((one, other) for one, other in found if one < other)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the JSON, with its segmentation as text."""
    entry = unique_names(pairs)
    if _SEGMENT in entry:
        entry[_SEGMENT] = json.dumps(entry[_SEGMENT] or [])
    return entry


def _unlabelled_inputs(
    content: _Content, numbers: Mapping[int, Any], split: str, folder: str, base: str
) -> Iterator[Item]:
    """Yield the images of a JSON in `folder`; their names are relative to `base`."""
    uses = Counter(_same_file(str(image.get("file_name")), base) for image in content.images)

    def unlabelled(numbered: tuple[int, dict[str, Any]]) -> Item:
        number, image = numbered
        place = image.get("file_name")
        reason = refusal(place, folder) if isinstance(place, str) and place else f"{place!a} is not a file name"
        if not reason and (count := uses[_same_file(str(place), base)]) > 1:
            reason = f"{place!r} is the file of {count} images; merge them into one image id"
        if reason:
            return bad_input(split, f"image {number}", reason)
        place = str(place)
        try:
            sample = _sample(image, content.annotations[image["id"]], numbers, content)
        except SampleError as error:
            return bad_input(split, public_name(place), str(error))
        return detection_input(base, split, place, sample)

    return counted(map_in_threads(unlabelled, enumerate(content.images)))


def _same_file(place: str, base: str) -> str:
    """Return a text that the names of one file share, such as `x.jpg` and `./x.jpg`."""
    if is_remote(place) or not is_place(place):
        return place
    return os.path.normpath(local_path(base, place) or place)


def _sample(
    image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], numbers: Mapping[int, Any], content: _Content
) -> dict[str, Any]:
    """Return the JSON of a sample; SampleError names an annotation that does not follow COCO's format."""
    sample: dict[str, Any] = {"image_id": image["id"], "width": image.get("width"), "height": image.get("height")}
    declared = sample["width"], sample["height"]
    if declared != (None, None) and not all(type(side) is int and side > 0 for side in declared):
        raise SampleError(f"width and height are {declared!r:.60}, not two numbers of pixels")
    points = content.points
    sample |= {name: [] for name in ("boxes", *_FIELDS, *["keypoints"] * bool(points))}
    if content.has_segments:
        sample[_SEGMENT] = [json.loads(annotation.get(_SEGMENT, _NOTHING)) for annotation in annotations]
    for number, annotation in enumerate(annotations):
        own = annotation.get("id", number)
        box: Any = annotation.get("bbox")
        category: Any = annotation.get("category_id")
        flat: Any = annotation.get("keypoints", [])
        if not _are_numbers(box, 4):
            raise SampleError(f"annotation {own!r}: bbox is {box!r:.60}, not four numbers")
        left, top, width, height = box
        if width < 0 or height < 0:
            raise SampleError(
                f"annotation {own!r}: bbox is {box!r:.60}, with a side below 0 as left, top, width, height"
            )
        if type(category) is not int or category not in numbers:
            raise SampleError(f"annotation {own!r}: category {category!r:.60} is not listed")
        area, crowd = annotation.get("area", width * height), annotation.get("iscrowd", 0)
        if not _are_numbers([area], 1) or type(own) is not int or type(crowd) not in (int, bool):
            raise SampleError(f"annotation {own!r:.60}: area, iscrowd or id is not a number")
        if not _are_numbers(flat, len(flat) // 3 * 3 if isinstance(flat, list) else 0):
            raise SampleError(f"annotation {own!r}: keypoints are not a flat list of x, y, visibility")
        sample["boxes"].append([round(each, 3) for each in (left, top, left + width, top + height)])
        for name, value in zip(_FIELDS, (numbers[category], int(crowd), area, own), strict=True):
            sample[name].append(value)
        if points:
            flat = [*flat, *[0] * (3 * points - len(flat))]
            sample["keypoints"].append([flat[at : at + 3] for at in range(0, 3 * points, 3)])
    return sample


def _are_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(each) in (int, float) and abs(each) < math.inf for each in value)
    )
