"""Items: millions of inputs in a few arrays.

As tuples of Python objects an input costs more than half a kilobyte; here it costs its path and some 30 bytes. Rows
are made into `Item`s when somebody looks at them; a slice is a view.
"""

from __future__ import annotations

import json
import operator
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from shardflow.formats.labels import Label


class Item(NamedTuple):
    """One input.

    Attributes:
        path: Its name in the ledger: unique enough to find it again, and without anything secret. Below the source, or
            a path or URL of its own.
        label: Its class or classes.
        size: Of the image in bytes when it was listed, -1 when that was not asked.
        changed_ns: When it was changed last (ctime, which a copy with an old mtime and a new mode touch as well); 0
            where `more` tells other contents.
        more: What the reader needs besides, see `Reader`; empty when the image is the file at `path` and nothing else.
            All of it counts as what the input *is*: a resume does an input again whose `more` is another one.
    """

    path: str
    label: Label
    size: int
    changed_ns: int
    more: bytes = b""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the rows say. `text` has path, a zero byte, and `more` of each row; `labels` are numbers in the table."""

    text: bytes
    ends: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    changed_ns: npt.NDArray[np.int64]


class Items(Sequence[Item]):
    """Inputs in order; it does not change. Made by `Items.of`.

    Args:
        columns: Of all inputs.
        table: The different labels.
        rows: Which of them, in which order.
    """

    def __init__(self, columns: _Columns, table: Sequence[Any], rows: npt.NDArray[np.int64]) -> None:
        self._columns = columns
        self._table = table
        self._rows = rows

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Take in items one by one. Their labels may still be anything that can be a key, see `grouped`."""
        text, ends, labels = bytearray(), array("Q"), array("i")
        sizes, changed_ns = array("q"), array("q")
        table: dict[Any, int] = {}
        for path, label, size, changed, more in items:
            text += os.fsencode(path) + b"\0" + more
            ends.append(len(text))
            labels.append(table.setdefault(label, len(table)))
            sizes.append(size)
            changed_ns.append(changed)
        columns = _Columns(
            bytes(text),
            np.frombuffer(ends, np.uint64),
            np.frombuffer(labels, np.int32),
            np.frombuffer(sizes, np.int64),
            np.frombuffer(changed_ns, np.int64),
        )
        return cls(columns, tuple(table), np.arange(len(ends)))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> Items: ...
    def __getitem__(self, number: int | slice) -> Item | Items:
        if isinstance(number, slice):
            return Items(self._columns, self._table, self._rows[number])
        row, columns = int(self._rows[number]), self._columns
        start = int(columns.ends[row - 1]) if row else 0
        path, _, more = columns.text[start : int(columns.ends[row])].partition(b"\0")
        label = self._table[columns.labels[row]]
        return Item(os.fsdecode(path), label, int(columns.sizes[row]), int(columns.changed_ns[row]), more)

    def __iter__(self) -> Iterator[Item]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment] # as of any sequence that is compared by what is in it

    def __reduce__(self) -> tuple[Callable[[Iterable[Item]], Items], tuple[tuple[Item, ...]]]:
        return Items.of, (tuple(self),)

    def labels(self) -> Sequence[Any]:
        """Return the different labels."""
        return self._table

    def take(self, numbers: npt.NDArray[Any]) -> Items:
        """Return the items of these numbers, or those where an array of bool is true."""
        return Items(self._columns, self._table, self._rows[numbers])

    def relabelled(self, label: Callable[[Any], Label]) -> Items:
        """Return the same with other labels; the function is asked once for each different one."""
        return Items(self._columns, [label(old) for old in self._table], self._rows)

    def grouped(self, group: Callable[[Any], str]) -> dict[str, Items]:
        """Return the items by the group that a function of their label names, sorted by its name."""
        names = [group(label) for label in self._table]
        numbers = self._columns.labels[self._rows]
        return {name: self.take(np.isin(numbers, _places(names, name))) for name in sorted(set(names))}


def _places(names: Sequence[str], name: str) -> list[int]:
    return [number for number, each in enumerate(names) if each == name]


def more(**content: object) -> bytes:
    """Return what an item tells its reader, see `Reader`, as bytes that are the same whenever the content is."""
    kept = {name: value for name, value in content.items() if value}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() if kept else b""
