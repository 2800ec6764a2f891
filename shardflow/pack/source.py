"""The source: the images below a directory, in a fixed order, with their splits and labels.

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
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardflow.errors import ConfigError, SampleError
from shardflow.store import translated

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SPLITS = ("train", "val", "valid", "validation", "test")
MAX_INPUT_BYTES = 1 << 30

_LAYOUTS = "expected CLASS/x.jpg, or train/CLASS/x.jpg, or x.jpg directly, or train/x.jpg"


class Item(NamedTuple):
    """One input.

    Attributes:
        path: Below the source, with forward slashes, as `os.fsdecode` returns it.
        label: Number of its class, None where there are none.
        size: In bytes, when it was listed.
        changed_ns: When it was changed last (ctime, which a copy with an old mtime and a new mode touch as well).
    """

    path: str
    label: int | None
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """All inputs.

    Attributes:
        root: The directory.
        splits: Split → its inputs, sorted by the bytes of their paths.
        classes: Class names, label 0 first, shared by all splits; None without labels.
        ignored: Extension → number of files that are no inputs because of it.
    """

    root: Path
    splits: Mapping[str, tuple[Item, ...]]
    classes: tuple[str, ...] | None
    ignored: Mapping[str, int]

    @property
    def inputs(self) -> int:
        """Number of inputs of all splits."""
        return sum(len(items) for items in self.splits.values())


def list_source(root: str | os.PathLike[str]) -> Source:
    """List the images below `root`.

    Raises:
        ConfigError: There are none, or their paths mix two layouts.
        StoreError: A directory cannot be read.
    """
    root = Path(root)
    ignored: Counter[str] = Counter()
    with translated(root):
        if not root.is_dir():
            raise ConfigError(f"{root} is not a directory; give the directory that holds the images")
        found = sorted(_walk(root, ignored), key=lambda item: os.fsencode(item.path))
    if not found:
        others = ", ".join(f"{count} {extension or 'without extension'}" for extension, count in ignored.most_common(5))
        known = " ".join(sorted(EXTENSIONS))
        raise ConfigError(f"{root} holds no images ({known}), but {others or 'no files at all'}; {_LAYOUTS}")
    places = _places([item.path.split("/") for item in found], root)
    names = {name for _, name in places if name is not None}
    classes = tuple(sorted(names, key=os.fsencode)) if names else None
    labels = {name: label for label, name in enumerate(classes or ())}
    splits: dict[str, list[Item]] = {}
    for item, (split, name) in zip(found, places, strict=True):
        splits.setdefault(split, []).append(item if name is None else item._replace(label=labels[name]))
    return Source(
        root=root, splits={split: tuple(splits[split]) for split in sorted(splits)}, classes=classes, ignored=ignored
    )


def read(root: Path, item: Item) -> bytes:
    """Return the bytes of an input.

    Raises:
        SampleError: It cannot be read, is no regular file, too large, or not what was listed.
    """
    path = root / item.path
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SampleError("not a regular file")
        if found.st_size > MAX_INPUT_BYTES:
            raise SampleError(f"has {found.st_size} bytes; {MAX_INPUT_BYTES} at most are read")
        data = path.read_bytes()
    except OSError as error:
        raise SampleError(error.strerror or str(error)) from error
    if len(data) != item.size:
        raise SampleError(
            f"had {item.size} bytes when it was listed and has {len(data)} now; run the same command again"
        )
    return data


def _walk(root: Path, ignored: Counter[str]) -> Iterator[Item]:
    folders: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while folders:
        prefix, above = folders.pop()
        status = os.stat(root / prefix)
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue  # a link back to a folder above: its images are found there
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                extension = os.path.splitext(entry.name)[1].lower()
                if entry.is_dir():
                    folders.append((f"{prefix}{entry.name}/", above | {here}))
                elif extension in EXTENSIONS:
                    yield _item(prefix + entry.name, entry)
                else:
                    ignored[extension] += 1


def _item(path: str, entry: os.DirEntry[str]) -> Item:
    try:
        status = entry.stat()
    except OSError:  # such as a link to nothing: an input all the same, and reading it says what is wrong
        return Item(path, None, 0, 0)
    return Item(path, None, status.st_size, status.st_ctime_ns)


def _places(paths: list[list[str]], root: Path) -> list[tuple[str, str | None]]:
    """Return split and class name of each path, given as its parts."""
    if all(len(parts) == 1 for parts in paths):
        return [("train", None)] * len(paths)
    direct = next((parts for parts in paths if len(parts) == 1), None)
    if direct is not None:
        raise ConfigError(f"{root} holds both images, such as {direct[0]!r}, and folders with images; {_LAYOUTS}")
    split_like = {parts[0] for parts in paths if parts[0].lower() in SPLITS}
    others = {parts[0] for parts in paths} - split_like
    if not others:
        depths = {len(parts) > 2: "/".join(parts) for parts in paths}
        if len(depths) == 2:
            message = (
                f"{root} holds images with a class, such as {depths[True]!r}, and without, such as {depths[False]!r}"
            )
            raise ConfigError(f"{message}; {_LAYOUTS}")
        return [(parts[0].lower(), parts[1] if True in depths else None) for parts in paths]
    if any(parts[0] in split_like and len(parts) > 2 for parts in paths):
        message = f"{root} holds splits ({', '.join(sorted(split_like))}) beside other folders, such as"
        raise ConfigError(f"{message} {min(others)!r}; splits are named {', '.join(SPLITS)}; {_LAYOUTS}")
    return [("train", parts[0]) for parts in paths]
