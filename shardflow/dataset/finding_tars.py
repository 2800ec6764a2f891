"""Finding tars: the ones that a path or URL with braces and wildcards names, and the splits of files by their names."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import braceexpand

from shardflow._wording import plural
from shardflow.errors import ConfigError, FormatError, IntegrityError, NotFoundError, StoreError
from shardflow.formats import manifest
from shardflow.formats.manifest import SPLITS
from shardflow.storage.file_names import is_below, is_hidden, name_bytes, name_of
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import divide_query, strip_file_scheme

_ALL = "**/*.tar"
_TRAIN = SPLITS[0]
_WORD = re.compile(r"[a-z]+")
_SPECIAL = re.compile(r"[{*?\[]")

_OTHER_WORDS = {"training": "train", "dev": "validation", "testing": "test", "eval": "test", "evaluation": "test"}
"""Other words for splits, as on the Hugging Face Hub."""


class RootAndPattern(NamedTuple):
    """A directory or URL, and the pattern of the tars below it; None if all files below it are meant."""

    root: str
    pattern: str | None


def split_pattern(url: str | os.PathLike[str]) -> RootAndPattern:
    """Split a path or URL into its root and its pattern. The name of an existing file or directory is not a pattern.

    A `?` begins the query of a web URL, which stays with the root: it can be the signature of every request.
    """
    text, query = divide_query(strip_file_scheme(url))
    if ".tar::" in text and text.endswith(".tar") and not os.path.exists(text):
        raise ConfigError(f"{text!r} has '::', which webdataset divides; name the tars by braces: {{a,b}}.tar")
    special = None if os.path.exists(text) else _SPECIAL.search(text)
    if special or text.endswith(".tar"):
        folder, slash, _ = text[: special.start() if special else None].rpartition("/")
        return RootAndPattern((folder or slash or ".") + query, text[len(folder + slash) :])
    return RootAndPattern((text.rstrip("/") or text) + query, None)


def expand_braces(pattern: str) -> list[str]:
    """Return the names, or patterns without braces, of a pattern with braces."""
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:  # UnbalancedBracesError is a subclass
        raise ConfigError(f"{pattern!r} is not a pattern: {error}; expected such as {{00000..00099}}.tar") from error


def find_tars(
    storage: Storage,
    pattern: str | None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    tagged: bool = False,
) -> dict[str, str]:
    """Return the names of the tars that match a pattern, sorted, each with the tag of its content; "" if unknown.

    Braces need no listing, which may be long, and which some servers lack. `tagged` lists a bucket all the
    same, because its listing has the tags.

    Raises:
        ConfigError: No tar matches, one belongs to a packed dataset, or a name in the listing leads elsewhere.
        NotFoundError: The storage has no files.
    """
    root = storage.local_path("")
    if pattern is None and root is not None and root.is_file():
        raise ConfigError(f"{storage} is not a tar by its name; give a folder, a .tar or a pattern")
    patterns = expand_braces(name_of(pattern or _ALL) if root is not None else pattern or _ALL)
    paths = [storage.local_path(one) for one in patterns]
    are_named = not any(map(has_wildcards, patterns)) and all(path is None or path.is_file() for path in paths)
    if are_named and (root is not None or not tagged or str(storage).startswith(("http:", "https:"))):
        _refuse_packed(storage, patterns, None, storage_options)
        return dict.fromkeys(sorted(patterns, key=name_bytes), "")
    listing = storage.listing()
    if not listing:
        raise NotFoundError(f"{storage} does not exist, or is empty; check the path")
    found: set[str] = set()
    for one in patterns:
        matched = [one] if one in listing else matching(listing, one)
        refuse_unread(matching(listing, "**") if pattern is None else matched, ".tar", str(storage))
        names = [each for each in matched if each.endswith(".tar")]
        if not names:
            tars = sum(name.endswith(".tar") for name in listing)
            raise ConfigError(
                f"{storage} has no tar {one!r}: it has {plural(tars, 'tar')} among {plural(len(listing), 'file')}"
                + "; decompress .gz files first" * any(name.endswith((".gz", ".tgz")) for name in listing)
            )
        found.update(names)
    foreign = next((name for name in found if root is None and ("://" in name or not is_below(name))), None)
    if foreign is not None:
        raise ConfigError(f"{storage} lists the tar {foreign!r}, which is not the name of a file below it; rename it")
    _refuse_packed(storage, found, listing, storage_options)
    return {name: listing[name].tag for name in sorted(found, key=name_bytes)}


def _refuse_packed(
    storage: Storage, names: Iterable[str], listing: Container[str] | None, storage_options: Mapping[str, Any] | None
) -> None:
    """Refuse tars in a split of a packed dataset: with them are those of its other versions, and removed samples."""
    local = storage.local_path("")
    root = str(storage) if local is None else str(local.resolve())
    for folder in sorted({name.rpartition("/")[0] for name in names}):
        place, _, split = f"{root}/{folder}".rstrip("/").rpartition("/")
        name = f"{folder.rpartition('/')[0]}/{manifest.FILE_NAME}".lstrip("/")
        if split not in SPLITS or place.endswith(":/") or (folder and listing is not None and name not in listing):
            continue
        # A web server may answer anything for a missing file.
        with contextlib.suppress(StoreError, FormatError, IntegrityError):
            content = (storage if folder else open_storage(place, storage_options)).read(name)
            if not manifest.from_bytes(content).roots:
                raise ConfigError(
                    f"{place} is a packed dataset, and its folders can hold tars of several versions: name {place} "
                    "itself to `shardflow pack`, `subset` or `merge`, or leave it out by a pattern or other folders"
                )


def refuse_unread(names: Iterable[str], extension: str, where: str) -> None:
    """Raise ConfigError for a compressed file, or one with another case of the extension, which would be left out."""
    unread = re.compile(rf".*\{extension}(\.(gz|bz2|xz|zst|lz4))?|.*\.(tgz|tbz2?|txz)", re.I | re.S)
    for name in names:
        if unread.fullmatch(name) and not name.endswith(extension):
            message = f"{where} has {name!r}, which would be left out: only files that end in {extension} are read"
            raise ConfigError(
                f"{message}; unpack or rename it, or choose files with a pattern such as '**/*{extension}'"
            )


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that a pattern without braces matches: `*` stays within a folder, `**` is any folders.

    As in a shell, wildcards do not match a name that begins with a dot.
    """
    wanted = pattern.split("/")
    return [name for name in names if _matches(name.split("/"), wanted)]


def _matches(parts: list[str], wanted: list[str]) -> bool:
    if not parts or not wanted:
        return not parts and not wanted
    if wanted[0] == "**":
        shown = next((number for number, part in enumerate(parts) if is_hidden(part)), len(parts))
        if len(wanted) == 1:
            return shown == len(parts)
        return any(_matches(parts[start:], wanted[1:]) for start in range(shown + 1))
    if is_hidden(parts[0]) and not wanted[0].startswith("."):
        return False
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern, with its braces expanded, needs a listing."""
    return _SPECIAL.search(pattern) is not None


def splits_of_files(root: str, names: Iterable[str]) -> dict[str, str]:
    """Return the split of each file below a root.

    A word of the file's name says it, as in `photos-val-000.tar`, or else a word of its folders. If no file says its
    split, all belong to that after which the root is named, such as `val2017`, or to "train".

    Raises:
        ConfigError: Only some files say their split, or one says several.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        *folders, file = name.split("/")
        found[name] = split_words(file) or set().union(*map(split_words, folders))
    named = [name for name, splits in found.items() if splits]
    unnamed = [name for name, splits in found.items() if not splits]
    remedy = f"splits are {', '.join(SPLITS)}; rename it, or name one kind with a pattern such as {{train,val}}/*"
    if several := next((name for name in named if len(found[name]) > 1), None):
        raise ConfigError(f"{root} has {several!r}, which names several splits; {remedy}")
    if named and unnamed:  # others than train may be held out, or the same again: minival, trainval
        message = f"{root} has {named[0]!r}, which names its split, and {unnamed[0]!r}, which does not"
        raise ConfigError(f"{message}; {remedy}")
    folder = divide_query(root).place.rpartition("/")[2]
    is_one_word = not named and len(_WORD.findall(folder.lower())) == 1
    default = next(iter(split_words(folder)), _TRAIN) if is_one_word else _TRAIN
    return {name: next(iter(splits), default) for name, splits in found.items()}


def split_words(text: str) -> set[str]:
    """Return the splits that a name says: by their names, as in `image_info_test-dev2017`, or else by other words."""
    words = _WORD.findall(text.lower())
    return set(SPLITS).intersection(words) or {_OTHER_WORDS[word] for word in words if word in _OTHER_WORDS}
