"""YOLO sets: a YAML names the classes and the folders of images; a text per image has its boxes.

    data.yaml                    names: [cat, dog]   train: images/train   val: images/val   path: (root of both)
    images/train/x.jpg           or train/images/x.jpg: the last folder `images` of a path becomes `labels`
    labels/train/x.txt           CLASS CENTRE_X CENTRE_Y WIDTH HEIGHT, in fractions of the image; a line per box

A sample gets a part `json` with `boxes` and `labels`, which is declared in the manifest. An image without a text has no
boxes. Texts with polygons, for segmentation, are bad inputs.

Source: docs.ultralytics.com, "Object Detection Datasets Overview".
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import yaml

from shardflow._wording import plural
from shardflow.dataset.label_numbering import LabelNumbering
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.formats.image_types import type_of_part
from shardflow.formats.manifest import SPLITS
from shardflow.packing.progress import counted
from shardflow.storage.file_names import is_hidden
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_folder_of, open_storage
from shardflow.storage.urls import divide_query, is_remote, strip_file_scheme

from .detection import bad_input, detection_input, number
from .items import Item, Items
from .labelling import number_labels
from .reader import Reader, map_in_threads, refusal
from .source import Source, SourceKind

logger = logging.getLogger(__name__)

_BOXES = Boxes("json", "boxes", "cxcywh", normalized=True, fields={"labels": "labels"})
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Yolo(SourceKind):
    """The images of a YOLO set with their boxes.

    Args:
        url: Path or URL of the YAML: "coco8/data.yaml".
        classes: Names of the classes in the order of their labels, or a file with one per line; None for the order of
            the YAML.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack("coco8/data.yaml", "coco8-512/", preset="fine")
    """

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:  # noqa: ARG004 - the interface's
        """Return whether a path or URL has the extension of a YAML, and is not a directory."""
        extension = os.path.splitext(divide_query(url).place)[1].lower()
        return extension in (".yaml", ".yml") and not os.path.isdir(strip_file_scheme(url))

    def list(self) -> Source:
        """List the images."""
        storage, folder, name = open_folder_of(self.url, self.storage_options)
        content = self._read(storage, name)
        names = self._names(content.get("names"))
        if (number := content.get("nc")) not in (None, "", str(len(names))):
            raise ConfigError(
                f"{self}: nc is {number!r:.20}, but it has {plural(len(names), 'name')}; correct one of them"
            )
        folders = {split: self._folders(content[split]) for split in SPLITS if content.get(split)}
        if not folders:
            raise ConfigError(f"{self} names no folder of images as train, val or test")
        base, files = self._images(folder, str(content.get("path") or "."), folders)
        images = open_storage(base, self.storage_options, may_be_local=True)
        found = [
            (split, place)
            for split, below in folders.items()
            for place in files
            if any(place.startswith(f"{each}/") for each in below) and _is_image(place) and not is_hidden(place)
        ]
        if len({place for _, place in found}) < len(found):
            raise ConfigError(f"{self}: an image is in two splits; name separate folders")
        texts = {place: text for _, place in found if (text := _text_of(place)) in files}
        if not texts:
            raise ConfigError(
                f"{self}: {plural(len(found), 'image')} in {base}, but no text with boxes, such as labels/x.txt"
            )
        for split, below in folders.items():
            own = [place for each, place in found if each == split]
            if not own:
                logger.warning("%s: split %r has no images in %s", self, split, ", ".join(below))
            elif texts.keys().isdisjoint(own):
                message = "%s: split %r has no boxes: none of its %s has a text, such as %r"
                logger.warning(message, self, split, plural(len(own), "image"), _text_of(own[0]))
        below_labels = {os.path.dirname(text) for text in texts.values()}
        others = (each for each in files.keys() - texts.values() if each.lower().endswith(".txt") > is_hidden(each))
        lost = {name for name in others if os.path.dirname(name) in below_labels}
        if without := sorted(name for name in lost if not name.endswith("/classes.txt")):
            logger.warning("%s: %s without an image, such as %r", self, plural(len(without), "text"), without[0])
        numbering = LabelNumbering(names if self.classes is None else self.classes, names, self)
        numbers = [numbering.number(each) for each in names]
        reader = Reader.at(images, base, self.storage_options)
        uses = Counter(_text_of(place) for _, place in found)
        listed = map_in_threads(partial(_input, images, reader.base, texts, uses, numbers), found)
        source = number_labels(Items.of(counted(listed)), numbering.classes, self, reader)
        return replace(source, annotations=Annotations(boxes=_BOXES))

    def _read(self, storage: Storage, name: str) -> dict[str, Any]:
        try:
            content = yaml.load(storage.read(name, most_bytes=_MOST_BYTES), Loader=_Texts)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self} is not valid YAML: {str(error)!r:.200}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{self} is not a YOLO set: expected names, and train or val")
        return content

    def _names(self, names: Any) -> tuple[str, ...]:
        """Return the class names, given as a list, or as an object from number to name."""
        if isinstance(names, dict) and set(names) == {*map(str, range(len(names)))}:
            names = [names[str(number)] for number in range(len(names))]
        if not isinstance(names, list) or not names or not all(isinstance(each, str) and each for each in names):
            raise ConfigError(f"{self}: names must be a list of classes, or one name for each of 0, 1, ...")
        return tuple(names)

    def _folders(self, given: Any) -> Sequence[str]:
        folders = given if isinstance(given, list) else [given]
        if not all(isinstance(each, str) and each and not each.endswith(".txt") for each in folders):
            raise ConfigError(
                f"{self}: expected folders of images below it, such as images/train; found {given!r:.100}"
            )
        return [os.path.normpath(each.removeprefix("../")) for each in folders]  # as Roboflow writes them

    def _images(self, folder: str, path: str, folders: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, Any]]:
        """Return the first root with an image folder of the set, and its files."""
        tried = [os.path.join(folder, path), folder] if path != "." else [folder]
        wanted = tuple(f"{each}/" for below in folders.values() for each in below)
        for base in tried:
            if refusal(base, folder) and base != folder:
                continue
            if not is_remote(base) and not os.path.isdir(base):
                continue
            files = open_storage(base, self.storage_options, may_be_local=True).listing()
            if any(name.startswith(wanted) for name in files):
                return base, dict(sorted(files.items()))
        raise ConfigError(
            f"{self}: no images in {', '.join(wanted)} below {' or '.join(tried)}; check `path` and folders"
        )


class _Texts(yaml.BaseLoader):  # type: ignore[misc]
    """Reads all values as texts, so that a class `no` is not False and `010` not 8; a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return an object."""
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(found) < len(node.value):
            raise yaml.YAMLError("a key is repeated")
        return found


def _is_image(place: str) -> bool:
    return type_of_part(place.rpartition(".")[2].lower()) is not None


def _text_of(place: str) -> str:
    """Return the name of the text with the boxes of an image."""
    stem = f"/{os.path.splitext(place)[0]}"
    before, found, after = stem.rpartition("/images/")
    return f"{before}/labels/{after}.txt"[1:] if found else f"{stem}.txt"[1:]


def _input(
    storage: Storage,
    base: str,
    texts: Mapping[str, str],
    uses: Mapping[str, int],
    numbers: Sequence[Any],
    image: tuple[str, str],
) -> Item:
    split, place = image
    if place in texts and (count := uses[texts[place]]) > 1:
        return bad_input(split, place, f"{texts[place]} belongs to {count} images; give each a different name")
    try:
        lines = storage.read(texts[place], most_bytes=_MOST_BYTES).decode().splitlines() if place in texts else []
        boxes = [_box(line, row, len(numbers)) for row, line in enumerate(lines, 1) if line.strip()]
    except UnicodeDecodeError:
        return bad_input(split, place, f"{texts[place]} is not text")
    except SampleError as error:
        return bad_input(split, place, f"{texts[place]}, {error}")
    labels = [numbers[category] for category, _ in boxes]
    return detection_input(base, split, place, {"boxes": [box for _, box in boxes], "labels": labels})


def _box(line: str, row: int, classes: int) -> tuple[int, list[float]]:
    """Return the class and box in a line of a text; SampleError if it has none."""
    try:
        category, *box = map(number, line.split())
    except ValueError:
        raise SampleError(f"line {row}: {line!r:.60} is not made of numbers") from None
    if len(box) != 4:
        hint = "; polygons are not supported" if len(box) > 4 and len(box) % 2 == 0 else ""
        raise SampleError(f"line {row} has {len(box) + 1} numbers; expected 5, a class and a box{hint}")
    if not (category.is_integer() and 0 <= category < classes):
        raise SampleError(f"line {row}: class {category:g} is not one of the {classes} names")
    if not all(-1 <= each <= 2 for each in box):
        raise SampleError(f"line {row}: {box} are not fractions of the image's width and height")
    return int(category), box
