"""Items: millions of inputs in a few arrays.

As a tuple of Python objects an input costs more than half a kilobyte; here it costs its path and some 30 bytes. Rows
become objects when they are read. A source is first listed as *unlabelled inputs*: items with the facts that decide on
split and label, instead of the label. All of them together decide on the numbers of classes (`Items.divided`).
"""

from __future__ import annotations

import hashlib
import json
import operator
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from shardflow.formats.labels import Label
from shardflow.storage.file_names import name_bytes, name_of


class Item(NamedTuple):
    """One input.

    Attributes:
        path: Its name in the ledger: unique enough to find it again, and without secrets. A path below the source, or a
            separate path or URL.
        label: Number of its class; numbers of its classes; or None. Of an unlabelled input, any hashable value.
        size: Size of the image in bytes when it was listed, -1 when that is not known.
        identity: Number that differs when one of its files may have been changed or replaced, see `identity_of`; 0
            where nothing is known, or `more` tells contents apart.
        more: Further facts for the reader, see `Reader`; empty if the image is the file at `path`.
            All of it counts as the identity of the input: a resume packs an input again whose `more` differs.
    """

    path: str
    label: Any
    size: int
    identity: int
    more: bytes = b""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of many rows. `text` has path, a zero byte, and `more` of each row; `codes` are places in a table."""

    text: bytes
    ends: npt.NDArray[np.uint64]
    codes: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    identities: npt.NDArray[np.int64]

    @classmethod
    def of(cls, items: Iterable[Item]) -> tuple[_Columns, tuple[Any, ...]]:
        """Return the columns of items, and the table of their different labels."""
        text, ends, codes = bytearray(), array("Q"), array("i")
        sizes, identities = array("q"), array("q")
        table: dict[Hashable, int] = {}
        for path, label, size, identity, more in items:
            text += name_bytes(path) + b"\0" + more
            ends.append(len(text))
            codes.append(table.setdefault(label, len(table)))
            sizes.append(size)
            identities.append(identity)
        columns = (np.frombuffer(column, column.typecode) for column in (ends, codes, sizes, identities))
        return cls(bytes(text), *columns), tuple(table)

    def row(self, row: int) -> tuple[str, int, int, int, bytes]:
        """Return path, code, size, identity and `more` of a row."""
        start = int(self.ends[row - 1]) if row else 0
        path, _, more = self.text[start : int(self.ends[row])].partition(b"\0")
        return name_of(path), int(self.codes[row]), int(self.sizes[row]), int(self.identities[row]), more


class Items(Sequence[Item]):
    """Inputs in order; immutable.

    Attributes:
        labels: The different labels, and perhaps more.
    """

    def __init__(self, columns: _Columns, labels: Sequence[Any], rows: npt.NDArray[np.int64]) -> None:
        self._columns, self.labels, self._rows = columns, labels, rows

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Store items one by one."""
        columns, labels = _Columns.of(items)
        return cls(columns, labels, np.arange(len(columns.ends)))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> Items: ...
    def __getitem__(self, number: int | slice) -> Item | Items:
        if isinstance(number, slice):
            return Items(self._columns, self.labels, self._rows[number])
        path, code, size, identity, more = self._columns.row(int(self._rows[number]))
        return Item(path, self.labels[code], size, identity, more)

    def __iter__(self) -> Iterator[Item]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment] # like any sequence that is compared by its content

    def __reduce__(self) -> tuple[Callable[[Iterable[Item]], Items], tuple[tuple[Item, ...]]]:
        return Items.of, (tuple(self),)

    def take(self, numbers: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Items:
        """Return the items of these numbers, or those where an array of bool is true."""
        return Items(self._columns, self.labels, self._rows[numbers])

    def relabelled(self, label: Callable[[Any], Any]) -> Items:
        """Return the same items with other labels; the function is called once for each different label."""
        return Items(self._columns, [label(old) for old in self.labels], self._rows)

    def divided(self, place: Callable[[Any], tuple[str, Label]]) -> dict[str, Items]:
        """Return the items of each split, sorted by its name; `place` returns split and label of each different one."""
        places = [place(old) for old in self.labels]
        labels = [label for _, label in places]
        codes, divided = self._columns.codes[self._rows], {}
        for split in sorted({split for split, _ in places}):
            own = [code for code, (other, _) in enumerate(places) if other == split]
            divided[split] = Items(self._columns, labels, self._rows[np.isin(codes, own)])
        return divided


def identity_of(*known: object) -> int:
    """Return the identity of an input: 64 bits of a digest of its files' metadata.

    On a disk that is inode, size, mtime and ctime; of an object, its size and its tag. So a file that was replaced is
    noticed though its size and mtime are those of the old one: it has another inode or ctime. Identities are compared
    with each other, never with a clock. The number of the device is left out: a reboot or another mount can change it.
    A mount that also changes inodes only makes more work: inputs are packed, or read and compared, again.
    """
    return int.from_bytes(hashlib.blake2b(repr(known).encode(), digest_size=8).digest(), "big", signed=True)


def encode_more(**content: object) -> bytes:
    """Return the `more` of an item, see `Reader`, as bytes that are the same whenever the content is."""
    kept = {name: value for name, value in content.items() if value or value is False}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() if kept else b""
