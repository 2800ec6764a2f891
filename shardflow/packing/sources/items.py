"""Items: millions of inputs in a few arrays.

As Python objects, an input takes more than 500 bytes; here it takes its path and some 30 bytes. Rows become objects
when they are read. A source is first listed as *unlabelled inputs*: items with the facts that determine split and label
instead of the label. All of them together determine the class numbers (`Items.divided`).
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
        path: The name in the ledger, without secrets: a path below the source, or an absolute path or URL.
        label: Class number, tuple of class numbers, or None; for an unlabelled input, any hashable value.
        size: Size of the image in bytes at the time of listing, -1 if unknown.
        identity: A number that changes if a file of the input may have changed, see `identity_of`; 0 if unknown, or if
            `more` distinguishes contents.
        more: Further facts for the reader, see `Reader`; empty if the image is the file at `path`. A resume packs an
            input again if its `more` differs.
    """

    path: str
    label: Any
    size: int
    identity: int
    more: bytes = b""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of many rows. `text` has path, a zero byte and `more` of each; `codes` index a table of labels."""

    text: bytes
    ends: npt.NDArray[np.uint64]
    codes: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    identities: npt.NDArray[np.int64]

    @classmethod
    def of(cls, items: Iterable[Item]) -> tuple[_Columns, tuple[Any, ...]]:
        """Return the columns of items, and the table of different labels."""
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
        labels: The different labels, possibly with some that no item has.
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

    __hash__ = None  # type: ignore[assignment] # compared by value

    def __reduce__(self) -> tuple[Callable[[Iterable[Item]], Items], tuple[tuple[Item, ...]]]:
        return Items.of, (tuple(self),)

    def take(self, numbers: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Items:
        """Return the items with these numbers, or those where a bool array is True."""
        return Items(self._columns, self.labels, self._rows[numbers])

    def relabelled(self, label: Callable[[Any], Any]) -> Items:
        """Return the same items with other labels; the function is called once for each different label."""
        return Items(self._columns, [label(old) for old in self.labels], self._rows)

    def divided(self, place: Callable[[Any], tuple[str, Label]]) -> dict[str, Items]:
        """Return sorted split → items; `place` maps each different unlabelled label to split and label."""
        places = [place(old) for old in self.labels]
        labels = [label for _, label in places]
        codes, divided = self._columns.codes[self._rows], {}
        for split in sorted({split for split, _ in places}):
            own = [code for code, (other, _) in enumerate(places) if other == split]
            divided[split] = Items(self._columns, labels, self._rows[np.isin(codes, own)])
        return divided


def identity_of(*known: object) -> int:
    """Return the identity of an input: 64 bits of a digest of its files' metadata.

    For a file these are inode, size, mtime and ctime; for an object, size and tag. A replaced file with equal size and
    mtime is noticed by its inode or ctime. The device number is left out, as a reboot or remount can change it. A mount
    that also changes inodes costs only work: inputs are packed, or read and compared, again.
    """
    return int.from_bytes(hashlib.blake2b(repr(known).encode(), digest_size=8).digest(), "big", signed=True)


def encode_more(**content: object) -> bytes:
    """Return the `more` of an item, see `Reader`, as canonical bytes."""
    kept = {name: value for name, value in content.items() if value or value is False}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() if kept else b""
