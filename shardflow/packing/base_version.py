"""The base version of an extension: a dataset with the records of its inputs.

Inputs are found by their paths. Whether one is still what was packed is asked in this order, so that nothing is read
without need: its identity, its size, and a digest of its content.
"""

from __future__ import annotations

import bisect
import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardflow.dataset.open_dataset import Dataset, Split
from shardflow.dataset.receipts import read_receipt
from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.annotations import image_stem
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.receipt import InputRecord, Receipt
from shardflow.formats.shard_layout import Sharding

from .jobs import content_now, digest_of, identity_digits
from .sources.items import Item, Items
from .sources.reader import Reader
from .sources.source import Source

_TAR = re.compile(r"([^/]+\.tar)(?=[/#])")

_READS = 32
"""Inputs that are read at the same time: most of the time is spent waiting for a disk or a server."""

_CHUNK = 1024

_COMPARED = 64
"""About how many new inputs are looked for under other names."""

_HANDFUL = 8
"""Inputs that may always be there under other names."""


class State(enum.IntEnum):
    """The relation of a source's input to a dataset."""

    NEW = 0  # none has its path, or none that could be packed
    KNOWN = 1  # it is in the dataset
    CHANGED = 2  # one with its path is in the dataset, with another content or in another split
    UNSURE = 3  # only its content can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """A version of a dataset to which inputs can be added."""

    manifest: Manifest
    sharding: Sharding  # how its inputs were cut into shards
    receipts: Mapping[str, Receipt]  # the receipts of all jobs by their names
    skipped: Sequence[Quarantined]  # images that are not in it because their kind was not read
    parts: frozenset[str]  # the parts that all samples have, other than image and label

    @classmethod
    def read(cls, dataset: Dataset) -> BaseVersion:
        """Read the records of the inputs of a dataset; see `extend` for the errors."""
        storage, made = dataset.storage, dataset.manifest
        if made.roots:
            message = f"{storage} is made of tars that are elsewhere (`shardflow info {storage}` says where)"
            remedy = "extend the dataset that they belong to, or index all tars again; and make this one again"
            raise ConfigError(f"{message}: {remedy}")
        if (sharding := made.sharding) is None:
            message = f"{storage} does not record how its inputs were divided into shards, so it cannot be extended"
            raise ConfigError(f"{message}; pack it again")
        shards = {shard.name: shard for shard in dataset.shards}
        try:
            receipts = {
                name: read_receipt(storage, f"{name}.json", shards.get(f"{name}.tar")) for name in sharding.names()
            }
        except (NotFoundError, FormatError) as error:
            message = f"extending needs the .json file next to each shard, the list of its inputs ({error})"
            raise NotFoundError(f"{message}; restore them from where it was packed") from error
        skipped = [bad for bad in dataset.quarantine() if bad.stage == SKIPPED]
        if len(skipped) != made.skipped:
            message = f"{storage} lacks its quarantine, which names the {made.skipped} images that were skipped"
            raise NotFoundError(f"{message}; restore it from where it was packed")
        may_lack = set(map(image_stem, made.annotations.images))
        parts = frozenset.intersection(*(_parts(split) for split in dataset.values() if len(split)))
        parts = frozenset(part for part in parts if image_stem(part) not in may_lack)
        return cls(manifest=made, sharding=sharding, receipts=receipts, skipped=skipped, parts=parts)

    def shard_names(self) -> list[str]:
        """Return the names of the jobs whose shards the base has, in its order."""
        return [shard.name.removesuffix(".tar") for shards in self.manifest.splits.values() for shard in shards]

    def compare(self, source: Source) -> dict[str, npt.NDArray[np.int8]]:
        """Return the `State` of each input of a source, by split; refuse inputs that have other names in the base."""
        self._refuse_other_names(source)
        self._refuse_fewer_parts(source)
        if source.is_dataset:
            self._refuse_other_dataset(source)
        return {split: self._compare_split(split, items, source.reader) for split, items in source.splits.items()}

    def _compare_split(self, split: str, items: Items, reader: Reader) -> npt.NDArray[np.int8]:
        own = {name for name, _ in self._of_split(split)}
        states = _compare_inputs(items, _KnownInputs(self.receipts[name] for name in own), reader)
        others = _KnownInputs(receipt for name, receipt in self.receipts.items() if name not in own)
        rows = np.flatnonzero(states == State.NEW)
        is_elsewhere = _compare_inputs(items.take(rows), others, reader) == State.KNOWN
        for row in rows[is_elsewhere].tolist():
            if any(record.is_packed for record in others.named(items[row].path)):
                states[row] = State.CHANGED  # the file moves from train to val, and would be in both
        return states

    def refuse_copies(self, new: Source) -> None:
        """Refuse new inputs if most are in the base under other names, judged by the contents of a few."""
        step = max(1, new.inputs // _COMPARED)
        items = [item for items in new.splits.values() for item in items[::step]]
        sizes = {size for receipt in self.receipts.values() for size in receipt.sizes}
        alike = [item for item in items if item.size < 0 or item.size in sizes]
        if len(alike) <= max(_HANDFUL, len(items) // 2):
            return
        with ThreadPoolExecutor(_READS) as threads:
            found = list(threads.map(lambda item: content_now(item, new.reader), alike))
        wanted, known = set(found), dict[str, str]()
        for receipt in self.receipts.values():
            for slot, path in zip(receipt.packed_slots(), receipt.sources, strict=True):
                if (content := receipt.contents[16 * slot : 16 * slot + 16]) in wanted:
                    known[content] = path
        copies = [(item.path, known[content]) for item, content in zip(alike, found, strict=True) if content in known]
        if len(copies) > max(_HANDFUL, len(items) // 2):
            raise ConfigError(
                f"{len(copies)} of {len(items)} new inputs that were compared, of {new.inputs}, are in the dataset "
                f"under other names: {copies[0][0]!r} is {copies[0][1]!r}. Name the source as before, pack all into a "
                "new dataset, or add further samples with on_conflict= or --on-conflict add"
            )

    def _refuse_fewer_parts(self, source: Source) -> None:
        """Refuse a source whose first samples lack a part that all samples have: training would end in mid-epoch."""
        for items in source.splits.values():
            more = json.loads(items[0].more) if items[0].more else {}
            if "bad" not in more and (missing := self.parts.difference(more.get("parts", ()))):
                raise ConfigError(
                    f"all samples of the dataset have the part {min(missing)!r}, which {items[0].path!r} of the source "
                    "lacks; name it as it was named for `pack`, with --parts, --caption-column or a source's arguments"
                )

    def _refuse_other_names(self, source: Source) -> None:
        """Refuse tars that were packed in the other way: samples have a number in an index, and a key in a tar."""
        if source.is_dataset:
            before, now, packed_by, remedy = "/", "#", "their names", "a pattern of tars"
        else:
            before, now, packed_by, remedy = "#", "/", "an index", "that index"
        packed = _tars((path for receipt in self.receipts.values() for path in receipt.sources), before)
        if packed and (both := packed & _tars((item.path for items in source.splits.values() for item in items), now)):
            raise ConfigError(
                f"{min(both)!r} is among the tars that were packed by {packed_by}, and the source leads to its samples "
                f"in another way, so that old ones cannot be told from new ones; extend with {remedy}, as before"
            )

    def _refuse_other_dataset(self, source: Source) -> None:
        """Refuse another dataset than the one in the receipts: samples of all datasets have the same names."""
        for split, items in source.splits.items():
            rows = {item.path: row for row, item in enumerate(items)}
            for name, receipt in self._of_split(split):
                if receipt.removed:
                    continue  # its digest is of inputs that are not known any more
                paths = receipt.inputs()
                found = items.take(np.array([rows[path] for path in paths if path in rows], dtype=np.int64))
                if len(found) and (len(found) < len(paths) or digest_of(found, receipt.first) != receipt.items_sha256):
                    raise ConfigError(
                        f"the source is another dataset than the one from which shard {name} was packed: its sample "
                        f"{found[0].path!r} has the same name there, so new samples cannot be told from old ones; pack "
                        "it by itself, and combine both with `shardflow merge`"
                    )

    def _of_split(self, split: str) -> Iterator[tuple[str, Receipt]]:
        return ((name, receipt) for name, receipt in self.receipts.items() if name.partition("/")[0] == split)


def _parts(split: Split) -> frozenset[str]:
    """Return the parts that all samples of the first shard have, other than image and label."""
    names, counts = np.unique(split.reader.index(0)["part"], return_counts=True)
    parts = {
        name.decode() for name, count in zip(names.tolist(), counts, strict=True) if count == split.shard_samples[0]
    }
    return frozenset(parts - IMAGE_PARTS - {*LABEL_PARTS})


def _tars(paths: Iterable[str], mark: str) -> set[str]:
    """Return the names of the tars in paths of samples, where this mark follows the name."""
    found = (_TAR.search(path) for path in paths)
    return {match[1] for match in found if match and match.string[match.end()] == mark}


class _KnownInputs:
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


def _compare_inputs(items: Items, known: _KnownInputs, reader: Reader) -> npt.NDArray[np.int8]:
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


def _state_by_content(item: Item, known: _KnownInputs, reader: Reader) -> State:
    records, content = known.named(item.path), content_now(item, reader)
    same = any(record.content == content for record in records)
    return State.KNOWN if same else _state_of_other(records)


def _state_of_other(records: Sequence[InputRecord]) -> State:
    """Return the state of an input that is none of those with its path."""
    return State.CHANGED if any(record.is_packed for record in records) else State.NEW
