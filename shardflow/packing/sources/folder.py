"""A folder: the images below a directory or a URL, with their splits and labels.

Which layout a tree has is read off the images' paths alone, after one walk:

    x.jpg                   flat: one split "train", no labels
    CLASS/.../x.jpg         ImageFolder: one split "train", the label is the top folder
    train/CLASS/.../x.jpg   every top folder is named like a split, and holds class folders
    train/x.jpg             every top folder is named like a split, and holds images: no labels

Anything between two of them is refused: guessing would make wrong labels that nobody notices. Names that start with a
dot are not looked at, and neither are files whose extension is not an image's; those are counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shardflow.dataset.label_numbering import Classes, LabelNumbering
from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.manifest import SPLITS
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage

from .items import Item, Items, more
from .reader import Reader
from .source import Source

_LAYOUTS = "expected CLASS/x.jpg, or train/CLASS/x.jpg, or x.jpg directly, or train/x.jpg"


class NoImagesError(ConfigError):
    """A folder without images; `ignored` says what is there instead."""

    ignored: Mapping[str, int] = {}


class _File(NamedTuple):
    """A file of the tree; `tag` is what a store has in the place of a time."""

    path: str
    size: int
    changed_ns: int
    tag: str


@dataclass(frozen=True, slots=True)
class Folder:
    """The images below a directory or URL.

    Args:
        url: `photos/`, `s3://bucket/photos`.
        parts: What lies beside each image under the same name, and goes along with it: ("txt", "json", "mask.png")
            for `x.txt`, `x.json` and `x.mask.png` beside `x.jpg`. An image that lacks one of them is quarantined.
        classes: Class names in the order of their labels, or a file with one a line; None for the folders' names,
            sorted.
        storage_options: What fsspec's file system takes.

    Example:
        >>> shardflow.pack(shardflow.Folder("photos/", parts=("txt",)), "photos256/")  # doctest: +SKIP
    """

    url: str | os.PathLike[str]
    _: KW_ONLY
    parts: tuple[str, ...] = ()
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def list(self) -> Source:
        """List the images.

        Raises:
            ConfigError: There are none, or their paths mix two layouts, or a class is not among those given.
            StoreError: A directory cannot be read.
        """
        storage = open_storage(self.url, self.storage_options)
        ignored: Counter[str] = Counter()
        beside: dict[str, _File] = {}
        images: Iterable[_File] = self._images(storage, beside, ignored)
        if self.parts:  # what is beside an image may come after it
            images = list(images)
        items = Items.of(self._item(file, beside) for file in images)
        if not items:
            raise _no_images(storage, ignored)
        place = _placing(items, storage)
        labels = LabelNumbering(self.classes, {place(ends)[1] for ends in items.labels()}, storage)
        splits = items.grouped(lambda ends: place(ends)[0])
        splits = {split: one.relabelled(lambda ends: labels.number(place(ends)[1])) for split, one in splits.items()}
        return Source(
            reader=Reader.at(storage, os.fspath(self.url), self.storage_options),
            splits=splits,
            classes=labels.classes,
            ignored=ignored,
        )

    def _images(self, storage: Storage, beside: dict[str, _File], ignored: Counter[str]) -> Iterator[_File]:
        """Yield the images, sorted by the bytes of their paths; fill in what is beside them, and what is neither."""
        for file in _files(storage):
            part = next((part for part in self.parts if file.path.endswith(f".{part}")), None)
            extension = os.path.splitext(file.path)[1].lower()
            if part is not None:
                beside[file.path] = file
            elif extension[1:] in SOURCE_PARTS:
                yield file
            else:
                ignored[extension] += 1

    def _item(self, file: _File, beside: Mapping[str, _File]) -> Item:
        """Return an item whose label is not known yet: in its place stand the folders that decide on it."""
        stem = os.path.splitext(file.path)[0]
        found = {part: beside[f"{stem}.{part}"] for part in self.parts if f"{stem}.{part}" in beside}
        missing = ", ".join(part for part in self.parts if part not in found)
        about = more(
            parts={part: [other.path] for part, other in found.items()},
            listed=[[other.size, other.tag] for other in found.values()],
            tag=file.tag,
            bad=f"lacks {missing}, which were asked for beside each image" if missing else "",
        )
        changed_ns = max(file.changed_ns, *(other.changed_ns for other in found.values()), 0)
        return Item(file.path, _folders(file.path), file.size, changed_ns, about)  # type: ignore[arg-type]


def _no_images(storage: Storage, ignored: Counter[str]) -> NoImagesError:
    found = ", ".join(f"{count} {extension or 'without extension'}" for extension, count in ignored.most_common(5))
    known = " ".join(f".{part}" for part in sorted(SOURCE_PARTS))
    error = NoImagesError(f"{storage} holds no images ({known}), but {found or 'no files at all'}; {_LAYOUTS}")
    error.ignored = ignored
    return error


def _files(storage: Storage) -> Iterator[_File]:
    """Yield all files that are not hidden, sorted by the bytes of their paths."""
    root = storage.local_path("")
    if root is None:
        for name, listed in sorted(storage.listing().items(), key=lambda entry: os.fsencode(entry[0])):
            if not any(part.startswith(".") for part in name.split("/")):
                yield _File(name, listed.size, 0, listed.tag)
        return
    with map_os_errors(root):
        if not root.exists():
            raise NotFoundError(f"{root} does not exist; give the directory that holds the images")
        if not root.is_dir():
            raise ConfigError(f"{root} is not a directory; give the directory that holds the images")
        yield from _walk(root)


def _walk(root: Path) -> Iterator[_File]:
    """Yield the files below a directory. Of a folder that was begun no more is kept than the names that are left."""
    base = os.fspath(root)
    begun = [("", *_entered(base, frozenset()))]
    while begun:
        prefix, names, above = begun[-1]
        if not names:
            begun.pop()
            continue
        path = prefix + os.fsdecode(names.pop())
        if path.endswith("/"):
            begun.append((path, *_entered(os.path.join(base, path), above)))
        else:
            yield _file(path, os.path.join(base, path))


def _entered(folder: str, above: frozenset[tuple[int, int]]) -> tuple[list[bytes], frozenset[tuple[int, int]]]:
    """Return the names in a folder, the last one first, and the identities of all folders down to it.

    A folder's name ends in a slash, and sorts as such: so do the paths of what is in it.
    """
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return [], above  # a link back to a folder above: its images are found there
    with os.scandir(folder) as entries:
        names = [
            os.fsencode(f"{entry.name}/" if _is_folder(entry) else entry.name)
            for entry in entries
            if not entry.name.startswith(".")
        ]
    names.sort(reverse=True)
    return names, above | {here}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself: an input all the same
        return False


def _file(path: str, place: str) -> _File:
    try:
        status = os.stat(place)
    except OSError:  # such as a link to nothing: an input all the same, and reading it says what is wrong
        return _File(path, 0, 0, "")
    return _File(path, status.st_size, status.st_ctime_ns, "")


def _folders(path: str) -> tuple[str | None, str | None]:
    """Return the two folders that may be split and class: the first, and the second; None where there is none."""
    parts = path.split("/", 2)
    return (parts[0] if len(parts) > 1 else None), (parts[1] if len(parts) > 2 else None)


def _placing(items: Items, root: object) -> Callable[[tuple[str | None, str | None]], tuple[str, str | None]]:
    """Return what makes split and class name of the two folders that an image is in."""
    ends = set(items.labels())
    tops = {top for top, _ in ends if top is not None}
    if not tops:
        return lambda _: ("train", None)

    def example(wanted: Callable[[tuple[str | None, str | None]], bool]) -> str:
        return repr(next(item.path for item in items if wanted(_folders(item.path))))

    if (None, None) in ends:
        direct = example(lambda pair: pair[0] is None)
        raise ConfigError(f"{root} holds both images, such as {direct}, and folders with images; {_LAYOUTS}")
    split_like = {top for top in tops if top.lower() in SPLITS}
    others = tops - split_like
    if not others:
        if len({second is None for _, second in ends}) == 2:
            deep, shallow = example(lambda pair: pair[1] is not None), example(lambda pair: pair[1] is None)
            message = f"{root} holds images with a class, such as {deep}, and without, such as {shallow}"
            raise ConfigError(f"{message}; {_LAYOUTS}")
        return lambda pair: (str(pair[0]).lower(), pair[1])
    if any(top in split_like and second is not None for top, second in ends):
        message = f"{root} holds splits ({', '.join(sorted(split_like))}) beside other folders, such as"
        raise ConfigError(f"{message} {min(others)!r}; splits are named {', '.join(SPLITS)}; {_LAYOUTS}")
    return lambda pair: ("train", pair[0])
