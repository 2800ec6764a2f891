"""Folders: the images below a directory or a URL, with their splits and labels.

The layout of a tree is detected from the images' paths, after one walk:

    x.jpg                   flat: one split "train", no labels
    CLASS/.../x.jpg         ImageFolder: one split "train", the label is the top folder
    train/CLASS/.../x.jpg   every top folder is named like a split, and holds class folders
    train/x.jpg             every top folder is named like a split, and holds images: no labels

A mixture of layouts is refused, because a guess could make wrong labels, unless `classes=()` leaves labels out; so are
two files that look like an image and its mask. Names that start with a dot are ignored. Images of unsupported kinds
and, on a disk, images without an extension are listed as skipped; all other files are counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from shardflow._pillow import MISSING_CODECS
from shardflow._wording import plural
from shardflow.dataset.finding_tars import split_words
from shardflow.dataset.label_numbering import LabelNumbering
from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.image_types import IMAGE_TYPES, UNREAD_EXTENSIONS, image_type, type_of_part
from shardflow.formats.labels import Label
from shardflow.formats.manifest import SPLITS
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.packing.progress import counted
from shardflow.storage.file_names import is_below, is_hidden, name_bytes, name_of
from shardflow.storage.interface import Storage
from shardflow.storage.local_files import is_folder, map_os_errors
from shardflow.storage.resolve import open_storage

from .items import Item, Items, encode_more, identity_of
from .reader import Reader, file_state, map_in_threads
from .source import Source, SourceKind, describe_skipped

logger = logging.getLogger(__name__)

Ends: TypeAlias = "tuple[str | None, str | None]"
"""The first two folders of a path, which may be its split and class; None if missing."""

_LIKE_A_SPLIT = re.compile(
    r"(train|training|val|valid|validation|test|testing)[_-]?(images?|imgs?|pictures|photos|set|data|\d+)?", re.I
)
_WORD = re.compile(r"\.[A-Za-z][^./]*$")  # a number, as in shot.0001.png, does not name a part
_MASK_WORD = "(masks?|annotations?|labels?|seg|segmentations?|gt|ground_?truths?|trimaps?)"
_MASK_FOLDER = re.compile(rf"(.*[^a-z])?({_MASK_WORD}|segmentation(class|object))([^a-z].*)?", re.I | re.S)
_MASK_NAME = re.compile(rf"(.+)[_-]{_MASK_WORD}", re.I | re.S)
_COCO = re.compile(r"(^|/)(instances|person_keypoints)_[^/]*\.json$")
_FIRST_BYTES = 32
_NAMED = 5
_LOSSLESS = tuple(f".{part}" for each in IMAGE_TYPES if each.for_masks for part in each.parts)
_LOSSY = tuple(f".{part}" for each in IMAGE_TYPES if each.is_lossy for part in each.parts)

_NO_PLACE = "the name begins with '/', or contains '..' or '://'; rename it"
_NO_LABELS = "or pack all of them without labels, --classes none"
_LAYOUTS = "expected CLASS/x.jpg, or train/CLASS/x.jpg, or x.jpg directly, or train/x.jpg"


class NoImagesError(ConfigError):
    """A folder without readable images; `ignored` counts its other files by extension."""

    ignored: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder(SourceKind):
    """The images below a directory or URL.

    Args:
        url: `photos/`, `s3://bucket/photos`.
        parts: Files with the name of each image: ("txt", "json") for the `x.txt` and `x.json` of `x.jpg`. Parts that
            `annotations` declares are added. An image that lacks one is quarantined. None means no parts; () also packs
            image files that look like masks, which are refused otherwise.
        classes: Class names in the order of their labels, or a file with one per line; None for the folders' names,
            sorted; () for no labels: then images lie at any depth, and only folders named like splits have a meaning.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack(shardflow.sources.Folder("photos/", parts=("txt",)), "out/")
    """

    parts: tuple[str, ...] | None = None

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:  # noqa: ARG004 - the interface's
        """Return True: any path or URL may be a folder."""
        return True

    def list(self) -> Source:
        """List the images."""
        storage = open_storage(self.url, self.storage_options)
        if joined := next((part for part in self.parts or () if part.startswith(("_", "-"))), None):
            found = f"the part {joined!r} would be 'x.{joined}' next to 'x.jpg', because a part begins behind a dot"
            raise ConfigError(f"{found}; rename the files, or pack a table with --mask-column")
        skipped: list[Quarantined] = []
        ignored: Counter[str] = Counter()
        beside: dict[str, Item] = {}
        empty, others = set[Ends](), set[Ends]()
        files = counted(_files(storage, empty))
        images: Iterable[Item] = self._images(storage, files, beside, skipped, ignored, others)
        if self.parts != ():
            images = _refuse_masks(images, storage)
        if self.parts:  # a part may come after its image
            images = list(images)
            stems = {os.path.splitext(file.path)[0] for file in images}
            ignored.update(f".{part}" for part in self.parts for path in beside if _lacks_image(path, part, stems))
        unlabelled = Items.of(self._with_parts(file, beside) for file in images)
        if not unlabelled:
            raise _no_images(storage, skipped, ignored)
        if self.parts != ():
            _refuse_other_masks(unlabelled, storage)
        is_labelled = self.classes != ()
        place = _detect_layout(unlabelled, storage, is_labelled=is_labelled)
        named = {place(ends)[1] for ends in unlabelled.labels}
        if self.classes is None:
            _refuse_splits(storage, {name for name in named if name})
            with_files, without = (
                {name for split, name in map(place, ends) if split in SPLITS} - named - {None}
                for ends in (others, empty | others)
            )
            _refuse_empty(storage, without, with_files)
        numbering = LabelNumbering(self.classes if is_labelled else None, named, storage)

        def number(ends: Ends) -> tuple[str, Label]:
            split, name = place(ends)
            return split, numbering.number(name)

        return Source(
            reader=Reader.at(storage, self.url, self.storage_options),
            splits=unlabelled.divided(number),
            classes=numbering.classes,
            has_own_classes=self.classes is None and numbering.classes is not None,
            skipped=skipped,
            ignored=ignored,
        )

    def _images(
        self,
        storage: Storage,
        files: Iterable[Item],
        beside: dict[str, Item],
        skipped: MutableSequence[Quarantined],
        ignored: Counter[str],
        others: MutableSet[Ends],
    ) -> Iterator[Item]:
        """Yield the images, sorted by the bytes of their paths.

        `beside` gets the parts, `skipped` the unsupported images, `ignored` the counts of other files, and `others` the
        folders of files that are not packed.
        """
        coco = ""
        is_remote = storage.local_path("") is None
        for file in files:
            part = next((part for part in self.parts or () if file.path.endswith(f".{part}")), None)
            extension = os.path.splitext(file.path)[1].lower()
            if part is not None:
                beside[file.path] = file
            elif (kind := type_of_part(extension[1:])) is not None and kind.name not in MISSING_CODECS:
                if is_remote and ("://" in file.path or not is_below(file.path)):
                    skipped.append(Quarantined(file.path, SKIPPED, _NO_PLACE))
                else:
                    yield file
                    continue
            elif reason := _why_skipped(storage, file.path, extension[1:]):
                skipped.append(Quarantined(file.path, SKIPPED, reason))
            else:
                if not coco and _COCO.search(file.path):
                    coco = storage.url(file.path)
                    logger.warning(
                        "%s looks like a COCO set, whose boxes are left out; to keep them, pack that file", coco
                    )
                ignored[extension] += 1
            others.add(file.label)

    def _with_parts(self, file: Item, beside: Mapping[str, Item]) -> Item:
        """Return an image with the parts next to it."""
        stem = os.path.splitext(file.path)[0]
        found = {part: beside[f"{stem}.{part}"] for part in self.parts or () if f"{stem}.{part}" in beside}
        missing = ", ".join(part for part in self.parts or () if part not in found)
        more = encode_more(
            parts={part: [other.path] for part, other in found.items()},
            bad=f"has no {missing} next to it" if missing else "",
        )
        identities = [file.identity, *(other.identity for other in found.values())]
        return file._replace(identity=identity_of(*identities) if found else file.identity, more=more)


def _lacks_image(path: str, part: str, stems: Collection[str]) -> bool:
    return path.endswith(f".{part}") and path.removesuffix(f".{part}") not in stems


def _why_skipped(storage: Storage, path: str, extension: str) -> str:
    """Return why an image, recognised by its extension or first bytes, is not read; "" if it is not an image."""
    if (kind := type_of_part(extension)) is not None:
        return MISSING_CODECS[kind.name]
    if extension in UNREAD_EXTENSIONS:
        return "convert them to JPEG or PNG"
    local = None if extension else storage.local_path(path)  # in a remote store, this would cost a request per file
    with contextlib.suppress(OSError):
        if local is not None and local.is_symlink() and not local.exists():
            return "perhaps links to folders of images; restore what they point to, or remove them"
        if local is not None and local.is_file():
            with open(local, "rb") as file:
                kind = image_type(file.read(_FIRST_BYTES))
    return "" if kind is None or not kind.by_pillow else "give them the right extension, such as x.jpg"


def _refuse_masks(files: Iterable[Item], storage: Storage) -> Iterator[Item]:
    """Yield the images, sorted by their paths; refuse `x.mask.png` or `x.png` next to `x.jpg`.

    Masks are lossless, so `x.old.jpg` and `x.webp` next to `x.jpg` are ordinary images.
    """
    begin = ""
    images: dict[str, str] = {}  # stem → path, of the adjacent files whose paths are equal up to a dot
    masks: dict[str, str] = {}  # stem of an image that may follow its mask → mask
    for file in files:
        path = file.path
        stem, extension = os.path.splitext(path)
        if not begin or not path.startswith(begin):
            folder, slash, name = path.rpartition("/")
            begin = f"{folder}{slash}{name.partition('.')[0]}."
            images, masks = {}, {}
        same = images.setdefault(stem, path)
        if same != path:
            for image, mask in ((same, path), (path, same)):
                if image.lower().endswith(_LOSSY) and mask.lower().endswith(_LOSSLESS):
                    raise _looks_like_a_mask(storage, image, mask, "rename the second to end in .mask.png and ")
        if stem in masks:
            raise _looks_like_a_mask(storage, path, masks[stem])
        while extension.lower() in _LOSSLESS and (word := _WORD.search(stem)):
            stem = stem[: word.start()]
            if stem in images:
                raise _looks_like_a_mask(storage, images[stem], path)
            masks.setdefault(stem, path)
        yield file


def _refuse_other_masks(files: Iterable[Item], storage: Storage) -> None:
    """Refuse `masks/x.png` and `x_mask.png` if most of them have an image of that name, in any folder."""
    is_for_masks: dict[str, bool] = {}  # folder → whether its path has a word for masks
    masks: dict[str, str] = {}  # stem of the image → mask
    for path in (file.path for file in files if file.path.lower().endswith(_LOSSLESS)):
        folder, _, name = path.rpartition("/")
        if folder not in is_for_masks:
            is_for_masks[folder] = any(map(_MASK_FOLDER.fullmatch, folder.split("/")))
        stem = os.path.splitext(name)[0]
        if (named := _MASK_NAME.fullmatch(stem)) or is_for_masks[folder]:
            masks[named[1] if named else stem] = path
    others, images = {*masks.values()}, dict[str, str]()
    for path in (file.path for file in files if masks and file.path not in others):
        stem = os.path.splitext(path.rpartition("/")[2])[0]
        if stem in masks:
            images[stem] = path
    if 2 * len(images) > len(masks):
        image, mask = min((image, masks[stem]) for stem, image in images.items())
        raise ConfigError(
            f"{storage} has {image!r} and {mask!r}, which look like an image and its mask; pack a table with a column "
            "of images and one of masks (--mask-column), or each file as a separate image with --parts none"
        )


def _looks_like_a_mask(storage: Storage, image: str, mask: str, first: str = "") -> ConfigError:
    part = "mask.png" if first else mask[len(os.path.splitext(image)[0]) + 1 :]
    option = "--mask" if part.endswith(".png") else "--parts"
    return ConfigError(
        f"{storage} has {image!r} and {mask!r}, which look like an image and its mask; {first}pack both as one sample "
        f"with {option} {part}, or each file as a separate image with --parts none"
    )


def _refuse_splits(storage: object, classes: set[str]) -> None:
    """Refuse folders that would become classes although all are named like splits, such as `train_images`."""
    if classes and all(_LIKE_A_SPLIT.fullmatch(name) for name in classes):
        raise ConfigError(
            f"{storage} has folders named like splits, not classes: {', '.join(sorted(classes))}. Rename them to "
            f"{', '.join(SPLITS)}; or pack one of them, {storage}/{min(classes)}; or pack a table of labels with "
            "--image-folder; or list them in a file for --classes, if they are classes"
        )


def _refuse_empty(storage: Storage, without: Collection[str | None], with_files: Collection[str | None]) -> None:
    """Refuse empty folders that look like classes; warn of those that have only other files.

    The latter get no class number, as in a bucket, which lists no empty folders.
    """

    def found(folders: Collection[str | None]) -> str:
        shown = f"{', '.join(sorted(map(repr, folders))[:_NAMED])}{', ...' * (len(folders) > _NAMED)}"
        return f"{storage} has {plural(len(folders), 'folder')} without images: {shown}"

    if empty := set(without).difference(with_files):
        remedy = "list all classes in a file for --classes, or in Folder(classes=), to fix their numbers"
        raise ConfigError(f"{found(empty)}; remove them, or {remedy}")
    if with_files:
        logger.warning("%s; they are not counted as classes", found(with_files))


def _no_images(storage: Storage, skipped: Sequence[Quarantined], ignored: Counter[str]) -> NoImagesError:
    others = [f"{count} {extension or 'without extension'}" for extension, count in ignored.most_common(5)]
    found = "; ".join(filter(None, (describe_skipped(skipped), ", ".join(others))))
    but = f", but {found}" if found else " and no other files"
    kinds = (each for each in IMAGE_TYPES if each.by_pillow and each.name not in MISSING_CODECS)
    read = (part for each in kinds for part in each.parts)
    known = " ".join(f".{part}" for part in sorted(read))
    error = NoImagesError(f"{storage} holds no images ({known}){but}; {_LAYOUTS}")
    error.ignored = ignored
    return error


def _files(storage: Storage, folders: MutableSet[Ends]) -> Iterator[Item]:
    """Yield all files that are not hidden, sorted by the bytes of their paths and labelled by their folders.

    On a disk, add the folders to `folders`.
    """
    root = storage.local_path("")
    if root is None:
        for name, listed in sorted(storage.listing().items(), key=lambda entry: name_bytes(entry[0])):
            if not is_hidden(name):
                yield Item(name, _ends(name), listed.size, identity_of(listed.size, listed.tag))
        return
    with map_os_errors(root):
        if not root.exists():
            raise NotFoundError(f"{root} does not exist; name the directory of the images")
        if not root.is_dir():
            raise ConfigError(
                f"{root} is not a directory; expected a directory of images, a table (.csv, .tsv, .jsonl, .parquet), a "
                "COCO set (.json) or a tar (.tar)"
            )
        base = os.fsencode(root)

        def item(path: bytes) -> Item:
            name = name_of(path)
            return Item(name, _ends(name), *file_state(os.path.join(base, path)))

        yield from map_in_threads(item, _walk(base, folders))


def _walk(base: bytes, folders: MutableSet[Ends]) -> Iterator[bytes]:
    """Yield the paths of files below a directory. Memory holds only the remaining names of open folders."""
    stack = [(b"", *_enter(base, frozenset()))]
    while stack:
        prefix, names, above = stack[-1]
        if not names:
            stack.pop()
            continue
        path = prefix + names.pop()
        if path.endswith(b"/"):
            folders.add(_ends(name_of(path)))
            stack.append((path, *_enter(os.path.join(base, path), above)))
        else:
            yield path


def _enter(folder: bytes, above: frozenset[tuple[int, int]]) -> tuple[list[bytes], frozenset[tuple[int, int]]]:
    """Return the names in a folder, in reverse order (folders with a slash), and the set of all folders above."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return [], above  # a link to a folder above, whose images are listed anyway
    with os.scandir(folder) as entries:
        names = [
            entry.name + b"/" if is_folder(entry) else entry.name
            for entry in entries
            if not entry.name.startswith(b".")
        ]
    names.sort(reverse=True)
    return names, above | {here}


def _ends(path: str) -> Ends:
    parts = path.split("/", 2)
    return (parts[0] if len(parts) > 1 else None), (parts[1] if len(parts) > 2 else None)


def _detect_layout(unlabelled: Items, root: object, *, is_labelled: bool) -> Callable[[Ends], tuple[str, str | None]]:
    """Return a function from the two folders of an image to its split and class name."""
    name = str(root).rstrip("/").rpartition("/")[2].lower()
    shown = unquote if str(root).startswith(("http:", "https:")) else str  # the links of a page are percent-encoded
    said = split_words(name) if _LIKE_A_SPLIT.fullmatch(name) else ()
    split = next(iter(said), "train")  # `shardflow pack photos/test_images photos-test`
    ends = set(unlabelled.labels)
    tops = {top for top, _ in ends if top is not None}
    if not tops:
        return lambda _: (split, None)

    def example(matches: Callable[[Ends], bool]) -> str:
        return repr(next(each.path for each in unlabelled if matches(each.label)))

    split_like = {top for top in tops if top.lower() in SPLITS}
    others = tops - split_like
    if held_out := {each for each in ends if each[0] in others and str(each[1]).lower() in SPLITS[1:]}:
        path = example(held_out.__contains__)
        message = f"{root} has {path}, in a folder named like a split below another one, and would train on it"
        raise ConfigError(f"{message}; move splits to the top, or pack {root}/{min(str(each[0]) for each in held_out)}")
    if not is_labelled and not split_like:
        _refuse_splits(root, tops)
        return lambda _: (split, None)
    if (None, None) in ends:
        direct = example(lambda pair: pair[0] is None)
        remedy = _LAYOUTS if split_like else f"{_LAYOUTS}; {_NO_LABELS}"
        raise ConfigError(f"{root} mixes images, such as {direct}, and folders of images; {remedy}")
    if not others and not is_labelled:
        return lambda pair: (str(pair[0]).lower(), None)
    if not others:
        if len({second is None for _, second in ends}) == 2:
            deep, shallow = example(lambda pair: pair[1] is not None), example(lambda pair: pair[1] is None)
            message = f"{root} mixes images with a class, such as {deep}, and without, such as {shallow}"
            apart = split_like - {str(top) for top, second in ends if second is not None}
            remedy = f"move {', '.join(sorted(apart))} elsewhere, and pack it by itself" if apart else _LAYOUTS
            raise ConfigError(f"{message}; {remedy}; {_NO_LABELS}")
        return lambda pair: (str(pair[0]).lower(), None if pair[1] is None else shown(pair[1]))
    if not is_labelled or any(top in split_like and second is not None for top, second in ends):
        message = f"{root} mixes splits ({', '.join(sorted(split_like))}) and other folders, such as"
        raise ConfigError(f"{message} {min(others)!r}; splits are named {', '.join(SPLITS)}; {_LAYOUTS}")
    if len(tops) == 1 and all(second is not None for _, second in ends):
        images, top = plural(len(unlabelled), "image"), min(tops)
        logger.warning(
            "%s, all of the class %r, in folders below it; to use those as classes, pack %s/%s", images, top, root, top
        )
    return lambda pair: (split, None if pair[0] is None else shown(pair[0]))
