"""PASCAL VOC sets: an XML for each image, with its objects.

    Annotations/x.xml            filename, size, and for each object: name, bndbox, difficult, truncated
    JPEGImages/x.jpg
    ImageSets/Main/train.txt     the names of the images of a split; also val.txt, test.txt, trainval.txt

A sample gets a part `json` with `boxes`, `labels`, `difficult`, `truncated`, `width` and `height`, which is declared in
the manifest. VOC counts pixels from 1, and (xmax, ymax) is the last pixel inside, so the left and top of a box are one
less than xmin and ymin.

An image whose size differs from its XML is a bad input. So is an XML with a document type: its entities could exhaust
the memory, or name other files.

Source: host.robots.ox.ac.uk/pascal/VOC/voc2012, "Development Kit".
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from shardflow._wording import plural
from shardflow.dataset.label_numbering import LabelNumbering
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.manifest import SPLITS
from shardflow.packing.progress import counted
from shardflow.storage.file_names import is_hidden
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import strip_file_scheme

from .detection import bad_input, detection_input, number
from .items import Item, Items
from .labelling import number_labels
from .reader import Reader, map_in_threads
from .source import Source, SourceKind

logger = logging.getLogger(__name__)

_ANNOTATIONS, _IMAGES, _SETS = "Annotations", "JPEGImages", "ImageSets/Main"
_FLAGS = ("difficult", "truncated")
_BOXES = Boxes("json", "boxes", "xyxy", fields={"labels": "labels", **{flag: flag for flag in _FLAGS}})
_MOST_BYTES = 16 * 2**20
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True, slots=True)
class Voc(SourceKind):
    """The images of a PASCAL VOC set with their boxes.

    Args:
        url: Directory or URL with `Annotations` and `JPEGImages`: "VOCdevkit/VOC2012".
        classes: Names of the classes in the order of their labels, or a file with one per line; None for the names in
            the XMLs, sorted.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack("VOCdevkit/VOC2012", "voc512/", preset="fine")
    """

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:  # noqa: ARG004 - the interface's
        """Return whether this is a directory in VOC's layout; name a remote one as `Voc(url)`."""
        return all(os.path.isdir(os.path.join(strip_file_scheme(url), each)) for each in (_ANNOTATIONS, _IMAGES))

    def list(self) -> Source:
        """List the images."""
        storage = open_storage(self.url, self.storage_options, may_be_local=True)
        files = {name: found for name, found in storage.listing().items() if not is_hidden(name)}
        begin, end = f"{_ANNOTATIONS}/", ".xml"
        stems = sorted(name[len(begin) : -len(end)] for name in files if name.startswith(begin) and name.endswith(end))
        splits = self._splits(storage, files, stems)
        reader = Reader.at(storage, self.url, self.storage_options)
        read = map_in_threads(lambda stem: (stem, _read(storage, stem, files)), splits)
        found = dict(counted(read))
        if not found:
            raise ConfigError(f"{self}: no {begin}*{end} is listed in {_SETS}; check the directory")
        named = {name for each in found.values() if isinstance(each, _Annotated) for name in each.names}
        numbering = LabelNumbering(self.classes, named, self)
        uses = Counter(each.place for each in found.values() if isinstance(each, _Annotated))
        known = {f"{_IMAGES}/{stem}" for stem in stems}
        images = [name for name in files if name.startswith(f"{_IMAGES}/") and name not in uses]
        if without := sum(os.path.splitext(name)[0] not in known for name in images):
            logger.warning("%s: left out %s without an XML in %s", self, plural(without, "image"), _ANNOTATIONS)

        def item(stem: str) -> Item:
            each = found[stem]
            if isinstance(each, _Annotated) and uses[each.place] > 1:
                each = f"{uses[each.place]} XMLs name the image {each.place}; keep one of them"
            if isinstance(each, str):
                return bad_input(splits[stem], f"{begin}{stem}{end}", each)
            labels = [numbering.number(name) for name in each.names]
            return detection_input(reader.base, splits[stem], each.place, {**each.sample, "labels": labels})

        source = number_labels(Items.of(map(item, splits)), numbering.classes, self, reader)
        return replace(source, annotations=Annotations(boxes=_BOXES))

    def _splits(self, storage: Storage, files: Mapping[str, Any], stems: Sequence[str]) -> dict[str, str]:
        """Return the split of each image; without lists, all are of "train"."""
        lists = {split: f"{_SETS}/{split}.txt" for split in SPLITS if f"{_SETS}/{split}.txt" in files}
        if not lists.keys() - {"test"} and f"{_SETS}/trainval.txt" in files:
            lists[SPLITS[0]] = f"{_SETS}/trainval.txt"
        if not lists:
            return dict.fromkeys(stems, SPLITS[0])
        found: dict[str, str] = {}
        for split, name in lists.items():
            words = storage.read(name, most_bytes=_MOST_BYTES).decode(errors="replace").split()
            for stem in words:
                if found.setdefault(stem, split) != split:
                    raise ConfigError(f"{self}: {stem!r} is in {lists[found[stem]]} and in {name}; list it once")
        if missing := sorted(found.keys() - set(stems)):
            raise ConfigError(f"{self}: {_SETS} lists {missing[0]}, but {_ANNOTATIONS}/{missing[0]}.xml is missing")
        if left_out := len(stems) - len(found):
            logger.warning("%s: left out %s that %s does not list", self, plural(left_out, "image"), _SETS)
        return {stem: found[stem] for stem in stems if stem in found}


@dataclass(frozen=True, slots=True)
class _Annotated:
    """The content of an XML: the place of its image, the names of its objects, and its sample's JSON."""

    place: str
    names: tuple[str, ...]
    sample: dict[str, Any]


def _read(storage: Storage, stem: str, files: Mapping[str, Any]) -> _Annotated | str:
    """Return the content of an XML, or why it cannot be used."""
    try:
        root = parse_xml(storage.read(f"{_ANNOTATIONS}/{stem}.xml", most_bytes=_MOST_BYTES))
        place = f"{_IMAGES}/{root.findtext('filename') or ''}"
        if place not in files:
            raise SampleError(f"the image {place} does not exist")
        own = [name for part in SOURCE_PARTS if (name := f"{_IMAGES}/{stem}.{part}") in files]
        if own and os.path.splitext(place)[0] != f"{_IMAGES}/{stem}":
            raise SampleError(f"its <filename> means {place}, but its own name {own[0]}; correct one of them")
        sides = [_whole(root, f"size/{side}") for side in ("width", "height")]
        sample: dict[str, Any] = {"width": sides[0], "height": sides[1], "boxes": []}
        objects = root.findall("object")
        for each in objects:
            left, top, right, bottom = (_number(each, f"bndbox/{corner}") for corner in _CORNERS)
            if not (left <= right and top <= bottom):
                raise SampleError(f"an object has the corners {left:g}, {top:g} and {right:g}, {bottom:g}")
            sample["boxes"].append([left - 1, top - 1, right, bottom])
        for flag in _FLAGS:
            sample[flag] = [_whole(each, flag, 0) for each in objects]
        names = tuple((each.findtext("name") or "").strip() for each in objects)
        if not all(names):
            raise SampleError("an object has no name")
    except SampleError as error:
        return str(error)
    return _Annotated(place, names, sample)


def _number(element: Element, path: str, default: float | None = None) -> float:
    text = element.findtext(path)
    if text is None and default is not None:
        return default
    try:
        return number((text or "").strip())
    except ValueError:
        raise SampleError(f"{path} is {text!r:.60}, not a number") from None


def _whole(element: Element, path: str, default: float | None = None) -> int:
    found = _number(element, path, default)
    if found != int(found):
        raise SampleError(f"{path} is {found}, not a whole number")
    return int(found)


def parse_xml(data: bytes) -> Element:
    """Return the root of an XML; SampleError if it is damaged, or has a document type, which may declare entities."""
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: Any) -> None:
        raise SampleError("the XML has a document type, which could declare entities: remove it")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, ValueError) as error:
        raise SampleError(f"not valid XML: {error}") from None
