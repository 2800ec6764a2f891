"""Known inputs: what the receipts of a dataset say of its inputs, and which inputs of a source are those.

Inputs are found by their paths. Whether one is still what was packed is asked in this order, so that nothing is read
without need: its identity, its size, and a digest of its content.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from shardflow.errors import SampleError
from shardflow.formats.receipt import InputRecord, Receipt

from .jobs import content_digits, identity_digits
from .sources.items import Item, Items
from .sources.reader import Reader

_READS = 32
"""Inputs that are read at the same time: most of the time is spent waiting for a disk or a server."""

_CHUNK = 1024


class State(enum.IntEnum):
    """What an input of a source is to a dataset."""

    NEW = 0  # none has its path, or none that could be packed
    KNOWN = 1  # it is in the dataset
    CHANGED = 2  # one with its path is in the dataset, with another content
    UNSURE = 3  # only its content can tell


class KnownInputs:
    """The inputs in some receipts by their paths. One takes little more than an entry in a dictionary."""

    def __init__(self, receipts: Iterable[Receipt]) -> None:
        self._receipts = list(receipts)
        self._firsts: list[int] = []  # number of the first input of each receipt
        self._numbers: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}  # where several inputs have the same path
        number = 0
        for receipt in self._receipts:
            self._firsts.append(number)
            for path in receipt.inputs():
                if path in self._numbers:
                    self._more.setdefault(path, []).append(number)
                else:
                    self._numbers[path] = number
                number += 1

    def named(self, path: str) -> list[InputRecord]:
        """Return the record of each input with a path."""
        if path not in self._numbers:
            return []
        return [self._record(number) for number in (self._numbers[path], *self._more.get(path, ()))]

    def _record(self, number: int) -> InputRecord:
        receipt = bisect.bisect_right(self._firsts, number) - 1
        return self._receipts[receipt].record(number - self._firsts[receipt])


def compare_inputs(items: Items, known: KnownInputs, reader: Reader) -> npt.NDArray[np.int8]:
    """Return the `State` of each item as int8 [items]. Inputs whose identity differs are read, several at a time."""
    states = np.array([_state(item, known.named(item.path)) for item in items], dtype=np.int8)
    with ThreadPoolExecutor(_READS) as threads:
        unsure = np.flatnonzero(states == State.UNSURE)
        for start in range(0, len(unsure), _CHUNK):
            rows = unsure[start : start + _CHUNK]
            states[rows] = list(threads.map(lambda row: _state_by_content(items[int(row)], known, reader), rows))
    return states


def _state(item: Item, records: Sequence[InputRecord]) -> State:
    if not records:
        return State.NEW
    identity = identity_digits(item)
    if any(record.identity == identity for record in records):
        return State.KNOWN
    if any(record.size >= 0 and item.size in (-1, record.size) for record in records):
        return State.UNSURE
    return _state_of_other(records)


def _state_by_content(item: Item, known: KnownInputs, reader: Reader) -> State:
    records, content = known.named(item.path), content_now(item, reader)
    same = any(record.content == content for record in records)
    return State.KNOWN if same else _state_of_other(records)


def _state_of_other(records: Sequence[InputRecord]) -> State:
    """Return the state of an input that is none of those with its path."""
    return State.CHANGED if any(record.is_packed for record in records) else State.NEW


def content_now(item: Item, reader: Reader) -> str:
    """Return the digest of what an input holds now; "" if it cannot be read."""
    try:
        return content_digits(reader.read(item), item.label)
    except SampleError:
        return ""
