"""The shards of a split in columns: 100 bytes per shard instead of 700 for objects; `shardflow.json` is read into them.

A dataset of 500,000 shards has a manifest of 128 MB. As JSON objects it would take a rank 7 CPU-seconds and over a
gigabyte, and each forked worker would copy the objects as soon as it touched their reference counts.
"""

from __future__ import annotations

import functools
import re
from array import array
from binascii import unhexlify
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .shard import MAX_SAMPLES, SHA256, Shard, is_name

I64 = npt.NDArray[np.int64]

_ENTRY = """
   {
    "bytes": %s,
    "index_sha256": "%s",
    "name": "%s",
    "samples": %s,
    "sha256": "%s"
   }"""
"""An entry as `json` writes it in a manifest, with sorted keys and an indent of 1."""

_COMPACT_ENTRY = "".join(_ENTRY.split())
_SHA256 = "([0-9a-f]{64})"
_COUNT = "([1-9][0-9]{0,18})"
_TAR = r"([A-Za-z0-9._/-]*\.tar)"
_WRITTEN_ENTRY = re.compile((_ENTRY % (_COUNT, _SHA256, _TAR, _COUNT, _SHA256)).encode() + b"(,?)")
_SPLITS = b'\n "splits": {'
_SPLIT = re.compile(rb'\n  "([A-Za-z0-9._-]+)": \[')
_PIECE = 1000  # entries per chunk of JSON


class ShardTable(Sequence[Shard]):
    """The shards of a split, in order. Indexing creates a `Shard`; a slice is a tuple of shards.

    Attributes:
        samples: int64 [N], number of samples of each, read-only.
        bytes: int64 [N], size of each tar, read-only.
    """

    def __init__(self, names: bytes, samples: array[int], sizes: array[int], digests: bytes) -> None:
        """Take checked columns: names that end in newlines, and 64 bytes of digests for each shard."""
        self.samples: I64 = np.array(samples, dtype=np.int64)
        self.bytes: I64 = np.array(sizes, dtype=np.int64)
        self.samples.flags.writeable = self.bytes.flags.writeable = False
        self._names = names
        self._name_ends = np.flatnonzero(np.frombuffer(names, dtype=np.uint8) == ord("\n"))
        self._digests = digests

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardTable:
        """Return the table of these shards; a table is returned unchanged."""
        if isinstance(shards, cls):
            return shards
        columns = _Columns()
        for each in shards:
            columns.add(each.name.encode(), each.samples, each.bytes, each.sha256, each.index_sha256)
        return columns.table()

    @property
    def names(self) -> list[str]:
        """The names of the shards, as a new list."""
        return self._names.decode().split("\n")[:-1]

    @property
    def contents(self) -> Container[str]:
        """The SHA-256s of the tars and their indexes."""
        return _Contents(self._digests)

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, number: int) -> Shard: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Shard, ...]: ...

    def __getitem__(self, number: int | slice) -> Shard | tuple[Shard, ...]:
        if isinstance(number, slice):
            return tuple(self[each] for each in range(len(self))[number])
        number = range(len(self))[number]
        begin = int(self._name_ends[number - 1]) + 1 if number else 0
        sha256s = self._digests[64 * number : 64 * number + 64].hex()
        return Shard(
            name=self._names[begin : int(self._name_ends[number])].decode(),
            samples=int(self.samples[number]),
            bytes=int(self.bytes[number]),
            sha256=sha256s[:64],
            index_sha256=sha256s[64:],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardTable):
            return NotImplemented
        return (
            (self._names, self._digests) == (other._names, other._digests)
            and np.array_equal(self.samples, other.samples)
            and np.array_equal(self.bytes, other.bytes)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShardTable({list(self)!r})"

    def canonical(self) -> Iterator[bytes]:
        """Yield the chunks of a JSON list of the entries, compact and with sorted keys."""
        names, samples, sizes = self.names, self.samples.tolist(), self.bytes.tolist()
        for first in range(0, len(self), _PIECE):
            yield b"," if first else b"["
            hexadecimal = self._digests[64 * first : 64 * (first + _PIECE)].hex()
            sha256s = [hexadecimal[at : at + 64] for at in range(0, len(hexadecimal), 64)]
            piece = slice(first, first + _PIECE)
            values = zip(sizes[piece], sha256s[1::2], names[piece], samples[piece], sha256s[::2], strict=True)
            yield ",".join(map(_COMPACT_ENTRY.__mod__, values)).encode()
        yield b"]" if len(self) else b"[]"


class _Columns:
    """The columns of a table that is being built, shard by shard."""

    def __init__(self) -> None:
        self.samples, self.sizes = array("q"), array("q")
        self.names, self.digests = bytearray(), bytearray()

    def add(self, name: bytes, samples: int, size: int, sha256: Any, index_sha256: Any) -> None:
        """Add a shard with hexadecimal digests; raise an OverflowError if a number has more than 63 bits."""
        self.names += name + b"\n"
        self.samples.append(samples)
        self.sizes.append(size)
        self.digests += unhexlify(sha256 + index_sha256)

    def table(self) -> ShardTable:
        """Return the table."""
        return ShardTable(bytes(self.names), self.samples, self.sizes, bytes(self.digests))


class _Contents(Container[str]):
    """A set of SHA-256s that does not hold an object for each digest."""

    def __init__(self, digests: bytes) -> None:
        self._digests = digests

    @functools.cached_property
    def _index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
        """The first 8 bytes of each digest, sorted, and the number of each."""
        heads = np.frombuffer(self._digests, dtype=np.uint64)[::4]
        order = np.argsort(heads)
        return heads[order], order

    def __contains__(self, sha256: object) -> bool:
        if not (isinstance(sha256, str) and SHA256.fullmatch(sha256)):
            return False
        digest, (heads, order) = unhexlify(sha256), self._index
        head = np.frombuffer(digest[:8], dtype=np.uint64)[0]
        begin, end = np.searchsorted(heads, head, side="left"), np.searchsorted(heads, head, side="right")
        return any(self._digests[32 * at : 32 * at + 32] == digest for at in order[begin:end].tolist())


def cut_tables(data: bytes) -> tuple[bytes, dict[str, ShardTable]] | None:
    """Cut the shards out of a manifest in the form that `Manifest.to_bytes` writes.

    Return the unchecked manifest with an empty list in the place of each split's shards, and the shards, whose values
    are in their ranges. Return None if a list of shards has another form, or there is none.
    """
    kept = data.find(_SPLITS)
    rest, tables, at = [data[: max(0, kept)]], dict[str, ShardTable](), kept + len(_SPLITS)
    while kept >= 0 and (split := _SPLIT.match(data, at)):
        rest.append(data[kept : split.end()])
        table, kept = _cut_entries(data, split.end())
        if table is None:
            return None
        tables[split[1].decode()] = table
        at = kept + len("],")
    return (b"".join((*rest, data[kept:])), tables) if tables else None


def _cut_entries(data: bytes, at: int) -> tuple[ShardTable | None, int]:
    """Return the shards of the list whose entries begin at `at`, and the place where the list ends."""
    columns, comma = _Columns(), b""
    while entry := _WRITTEN_ENTRY.match(data, at):
        size, index_sha256, name, samples, sha256, comma = entry.groups()
        try:
            columns.add(name, int(samples), int(size), sha256, index_sha256)
        except OverflowError:
            return None, at
        at = entry.end()
        if not comma:
            break
    table = columns.table()
    if comma or max(columns.samples, default=0) > MAX_SAMPLES or not all(map(is_name, table.names)):
        return None, at
    return table, at + len("\n  ") if len(table) else at
