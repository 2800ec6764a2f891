"""The reader of a source: reads the bytes of an item's image and other parts.

One reader serves every kind of source. The `more` of an item is a JSON object with up to four entries:

    image   the location of the image, if it is not the file at the item's path; False without an image
    parts   part → its location, or its text
    size    width and height of the image to which the annotations belong
    bad     why the input cannot be used, if the listing found a reason

A *location* is a list: [place], a whole file; or [place, offset, size, crc32], a slice of one. A place is the name of a
file below the base, an absolute name, or a URL; names are UTF-8 in any locale, see `storage.file_names`.

Below a remote base a place is never a local file, because the owner of the server chooses it; see `refusal`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from shardflow.errors import SampleError, ShardflowError
from shardflow.formats.shard import MAX_SAMPLE_BYTES
from shardflow.formats.virtual_roots import SCHEMES
from shardflow.storage.file_names import is_below, name_bytes, path_of
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.stores import store_of
from shardflow.storage.urls import divide_query, is_remote, public_host, shown_url, strip_file_scheme, url_text

from .items import Item, identity_of

_WHOLE_FILE: tuple[Any, ...] = ("", 0, -1, -1)  # a location's default values
_QUERY = re.compile(r"\?\S*")
_THREADS, _CHUNK = 16, 64  # a chunk of files on a local disk takes longer than passing it to a thread

T = TypeVar("T")
R = TypeVar("R")


class Input(NamedTuple):
    """The bytes of an input: its image file, and every other part by name.

    `size` is the width and height of the image to which the annotations belong, if the source states it. Without an
    image, `image` is empty and `has_image` is False.
    """

    image: bytes
    parts: Mapping[str, bytes]
    size: tuple[int, int] | None = None
    has_image: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads inputs. A reader can be pickled and used by several threads; reading an item may be repeated.

    Args:
        base: Directory or URL of relative places.
        remote: Whether requests are so slow that several should be made at once.
        chunk_items: How many consecutive items are read at little more than the cost of one item. They are shuffled
            together, and packed by one process.
        storage_options: Options of fsspec's file system: for `base` if it is a URL, otherwise for every URL.
    """

    base: str = field(repr=False)  # its query can be a signature
    remote: bool = False
    chunk_items: int = 1
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def at(cls, storage: Storage, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Reader:
        """Return the reader of a storage, given the path or URL by which it was opened."""
        base = url_text(url).rstrip("/") if is_remote(url) else str(storage)
        return cls(base=base, remote=is_remote(base), storage_options=storage_options)

    def read(self, item: Item) -> Input:
        """Return an input.

        Raises:
            SampleError: The input cannot be read, is too large, or has changed since it was listed.
        """
        more: dict[str, Any] = json.loads(item.more) if item.more else {}
        if "bad" in more:
            raise SampleError(more["bad"])
        if problem := too_many_bytes(item.size):
            raise SampleError(problem)
        try:
            found = self._input(item, more)
        except SampleError:
            raise
        except ShardflowError as error:
            raise SampleError(_QUERY.sub("", str(error))) from error  # a query can be a signature
        except OSError as error:
            raise SampleError(error.strerror or str(error)) from error
        if item.size not in (-1, len(found.image)):
            message = f"had {item.size} bytes when it was listed and has {len(found.image)} now"
            raise SampleError(f"{message}; run the same command again")
        return found

    def _input(self, item: Item, more: Mapping[str, Any]) -> Input:
        location = more.get("image", [item.path])
        image = self._bytes(location, item.identity) if location else b""
        parts = {}
        for part, place in more.get("parts", {}).items():
            try:
                text = isinstance(place, str)
                parts[part] = place.encode(errors="replace") if text else self._bytes(place, item.identity)
            except OSError as error:  # name the part, because the reason is listed under the name of the image
                named = "" if place[1:] else f" {public_name(place[0])!a}"
                raise SampleError(f"{part}{named}: {error.strerror or error}") from error
        return Input(image, parts, tuple(more["size"]) if "size" in more else None, bool(location))

    def _bytes(self, location: Sequence[Any], identity: int) -> bytes:
        place, offset, size, crc32 = [*location, *_WHOLE_FILE[len(location) :]]
        if reason := refusal(place, self.base):
            raise SampleError(reason)
        path = local_path(self.base, place)
        if path is not None:
            data = _file(path, offset, size, identity if crc32 < 0 else 0)
        else:
            root, name = split_url(place) if is_remote(place) else (self.base, place)
            own = not is_remote(self.base) or split_url(root)[0] == split_url(self.base)[0]
            storage = process_storage(root, StorageOptions(self.storage_options if own else None))
            if problem := too_many_bytes(size):
                raise SampleError(problem)
            data = (
                storage.read(name, most_bytes=MAX_SAMPLE_BYTES)
                if size < 0
                else storage.read_range(name, offset, offset + size)
            )
        if crc32 >= 0 and zlib.crc32(data) != crc32:
            raise SampleError("has changed since it was listed: its CRC-32 differs; run the same command again")
        return data


def too_many_bytes(size: int) -> str:
    """Return why an input, or a sample of a tar, of `size` bytes is not packed; "" if the size is allowed."""
    most = f"{MAX_SAMPLE_BYTES:,} is the most for one input"
    return f"has {size:,} bytes; {most}: leave it out, or make it smaller" if size > MAX_SAMPLE_BYTES else ""


def local_path(base: str, place: str) -> str | None:
    """Return the local path of a place; None if the place or the base is a URL."""
    if is_remote(base) or is_remote(place):
        return None
    if place.startswith("file://"):
        return path_of(strip_file_scheme(place))
    return os.path.join(base, path_of(place))


def refusal(place: str, url: str) -> str:
    """Return why a place in a listing or a table at `url` must not be read; "" if it may be read.

    Remote listings and tables may name places below their base and URLs of stores, but never local files.
    """
    if not is_place(place):
        return f"{place!a} is not a file name"
    if not is_remote(url):
        return ""
    root, name = split_url(place) if "://" in place else ("", place)
    scheme = root.partition("://")[0]
    if root and root != split_url(url)[0] and (scheme not in SCHEMES or "::" in root or "\\" in root):
        reason = f"is not a URL of {', '.join(sorted(SCHEMES))}"
    elif not is_below(name.partition("?")[0] if root else name):
        reason = "begins with '/' or has '..' in it"
    else:
        return ""
    message = f"{public_name(place)!a} {reason}, as a name that comes from a URL must not"
    return f"{message}; rename it, or copy the table to a disk if you trust it"


def file_state(path: str | bytes | os.PathLike[str]) -> tuple[int, int]:
    """Return size and identity of a file; zeros if there is an error, which reading the file then reports."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, _identity(status)


def _identity(status: os.stat_result) -> int:
    return identity_of(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def map_in_threads(function: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
    """Yield the results of a function in order, with several calls in parallel, as for a distant file server."""
    rest, pending = iter(values), deque[Future[list[R]]]()

    def call(chunk: Sequence[T]) -> list[R]:
        return [function(value) for value in chunk]

    with ThreadPoolExecutor(_THREADS) as pool:
        while chunk := list(itertools.islice(rest, _CHUNK)):
            pending.append(pool.submit(call, chunk))
            if len(pending) > 2 * _THREADS:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def place_state(base: str, place: str) -> tuple[int, int]:
    """Return size and identity of a file; for a URL -1, and an identity that is the base's for relative places."""
    if (path := local_path(base, place)) is not None:
        return file_state(path)
    return -1, 0 if is_remote(place) else identity_of(public_name(base))


def is_place(text: str) -> bool:
    """Return whether a text can be a file name."""
    try:
        return b"\0" not in name_bytes(text)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        return False


def split_url(url: str) -> tuple[str, str]:
    """Return the root of a URL (such as its bucket, host or repository) and the name below the root."""
    place, query = divide_query(url)
    scheme, _, rest = place.partition("://")
    root = store_of(place).match_root(rest)
    return f"{scheme}://{root}", rest[len(root) + 1 :] + query


def public_name(place: str) -> str:
    """Return a place without secrets: a URL without user, password and query. In a bucket, a name may contain `?`."""
    if "://" not in place:
        return place
    scheme, _, rest = place.partition("://")
    if not store_of(place).keys_may_have_queries:
        if "::" in rest:
            return shown_url(place)
        rest = rest.partition("?")[0]
    host, slash, name = rest.partition("/")
    return f"{scheme}://{public_host(scheme, host)}{slash}{name}"


def _file(path: str, offset: int, size: int, identity: int) -> bytes:
    """Return a file or a slice of it; for a slice without a checksum, check the file's identity, 0 if not known."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise SampleError("not a regular file")
    if problem := too_many_bytes(found.st_size if size < 0 else size):
        raise SampleError(problem)
    with open(path, "rb") as file:
        if size >= 0:
            if identity and _identity(os.fstat(file.fileno())) != identity:
                raise SampleError("has changed since it was listed; run the same command again")
            file.seek(offset)
            return file.read(size)
        data = file.read(found.st_size + 1)
    if len(data) > found.st_size:
        raise SampleError("grew while it was read; run the same command again")
    return data


class StorageOptions:
    """Hashable storage_options, compared by content."""

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self.options = options
        self._text = repr(sorted(options.items()) if options else None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@functools.lru_cache(maxsize=64)
def process_storage(root: str, options: StorageOptions) -> Storage:
    """Return this process's storage of a root, cached: opening one takes 0.1 s, and it holds the connections."""
    return open_storage(root, options.options)
