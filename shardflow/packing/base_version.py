"""The base version of an extension: a dataset with the records of its inputs.

Inputs are found by their paths. To read as little as possible, an input is compared by its identity, then its size,
then a digest of its content.
"""

from __future__ import annotations

import bisect
import enum
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardflow._wording import first_few, plural
from shardflow.dataset.open_dataset import Dataset, Split
from shardflow.dataset.receipts import read_receipt
from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.annotations import image_stem
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.receipt import UNREAD, InputRecord, Receipt
from shardflow.formats.shard_layout import Sharding

from .jobs import content_now, digest_of, identity_digits
from .sources.items import Item, Items
from .sources.reader import Reader
from .sources.source import Source

logger = logging.getLogger(__name__)

_RECORD = re.compile(r"\.tar#\d+$")

_READS = 32
"""Inputs that are read at the same time, as most of the time is spent waiting for a disk or server."""

_CHUNK = 1024

_COMPARED = 64
"""Approximate number of new inputs that are looked for under other names."""

_HANDFUL = 8
"""Number of inputs that may be in the dataset under other names."""


class State(enum.IntEnum):
    """The relation of a source's input to a dataset."""

    NEW = 0  # no packed input has its path
    KNOWN = 1  # it is in the dataset
    CHANGED = 2  # the dataset has its path with another content, or in another split
    UNSURE = 3  # its content must be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """A version of a dataset to which inputs can be added."""

    manifest: Manifest
    sharding: Sharding
    receipts: Mapping[str, Receipt]  # job name → receipt
    skipped: Sequence[Quarantined]  # images that were left out because their kind was unsupported
    parts: frozenset[str]  # the parts that all samples have, except image and label
    labelled: Mapping[str, bool]  # split with samples → whether they have labels: in a packed split, all or none

    @classmethod
    def read(cls, dataset: Dataset) -> BaseVersion:
        """Read the records of the inputs of a dataset; see `extend` for the errors."""
        storage, made = dataset.storage, dataset.manifest
        if made.roots:
            message = f"{storage} is a virtual dataset, over the tars that `shardflow info {storage}` lists"
            remedy = "extend the dataset of these tars, or index all tars, and create this one again"
            raise ConfigError(f"{message}; {remedy}; `split --keep {storage}` then leaves its images in their splits")
        if (sharding := made.sharding) is None:
            message = f"{storage} cannot be extended: it does not record how its inputs were divided into shards"
            raise ConfigError(f"{message}; pack it again")
        shards = {shard.name: shard for shard in dataset.shards}
        try:
            receipts = {
                name: read_receipt(storage, f"{name}.json", shards.get(f"{name}.tar")) for name in sharding.names()
            }
        except (NotFoundError, FormatError) as error:
            raise NotFoundError(f"extending needs all receipts: {error}") from error
        skipped = [bad for bad in dataset.quarantine() if bad.stage == SKIPPED]
        if len(skipped) != made.skipped:
            message = f"{storage} lacks its quarantine, which names {plural(made.skipped, 'skipped image')}"
            raise NotFoundError(f"{message}; restore it from the machine that packed the dataset")
        may_lack = set(map(image_stem, made.annotations.images))
        counts = {name: _part_counts(split) for name, split in dataset.items() if len(split)}
        first = {name: dataset[name].shard_samples[0] for name in counts}
        in_all = [{part for part, count in found.items() if count == first[name]} for name, found in counts.items()]
        shared = set.intersection(*in_all) - IMAGE_PARTS - {*LABEL_PARTS}
        parts = frozenset(part for part in shared if image_stem(part) not in may_lack)
        labelled = {name: not found.keys().isdisjoint(LABEL_PARTS) for name, found in counts.items()}
        return cls(manifest=made, sharding=sharding, receipts=receipts, skipped=skipped, parts=parts, labelled=labelled)

    def shard_names(self) -> list[str]:
        """Return the job names of the base's shards, in order."""
        return [shard.name.removesuffix(".tar") for shards in self.manifest.splits.values() for shard in shards]

    def compare(self, source: Source) -> dict[str, npt.NDArray[np.int8]]:
        """Return split → `State` of each input; refuse a source whose inputs have other names in the base."""
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
                states[row] = State.CHANGED  # a file that moved, say from train to val, would be in both
        return states

    def refuse_copies(self, new: Source) -> None:
        """Refuse new inputs if most are in the base under other names, judged by the contents of a few."""
        step = max(1, new.inputs // _COMPARED)
        items = [item for items in new.splits.values() for item in items[::step]]
        sizes = {size for receipt in self.receipts.values() for size in receipt.sizes}
        alike = [item for item in items if item.size < 0 or item.size in sizes]
        if len(alike) <= max(_HANDFUL, len(items) // 2):
            return
        found = _contents_now(alike, new.reader)
        wanted, known = set(found) - self._removed_contents(), dict[str, str]()  # removed ones are named apart
        for receipt in self.receipts.values():
            for slot, path in zip(receipt.packed_slots(), receipt.sources, strict=True):
                if (content := receipt.contents[16 * slot : 16 * slot + 16]) in wanted:
                    known[content] = path
        copies = [(item.path, known[content]) for item, content in zip(alike, found, strict=True) if content in known]
        if len(copies) > max(_HANDFUL, len(items) // 2):
            raise ConfigError(
                f"{len(copies)} of {len(items)} compared new inputs (of {new.inputs}) are in the dataset under other "
                f"names: {copies[0][0]!r} is {copies[0][1]!r}. Name the source as before, pack a new dataset, or "
                "pass on_conflict= or --on-conflict add"
            )

    def warn_of_same_images(self, changed: Source) -> None:
        """Warn of inputs with a known path whose images have as many bytes as the packed ones."""
        known = _KnownInputs(self.receipts.values() if changed.splits else ())
        items = (item for items in changed.splits.values() for item in items)
        same = [item.path for item in items if any(each.size == item.size >= 0 for each in known.named(item.path))]
        if same:
            logger.warning(
                "%s, such as %s, with as many bytes as an image of the dataset of this path: if only label, split or "
                "columns differ, images come twice; `shardflow remove` the earlier samples",
                plural(len(same), "input"),
                first_few(same, 3),
            )

    def without_removed(self, new: Source) -> Source:
        """Return a source without inputs whose samples were removed; if there are such, this reads all inputs."""
        if not (removed := self._removed_contents()):
            return new
        splits, gone = {}, list[str]()
        for split, items in new.splits.items():
            is_removed = np.isin(_contents_now(items, new.reader), [*removed])
            gone += [items[row].path for row in np.flatnonzero(is_removed).tolist()]
            splits[split] = items.take(np.flatnonzero(~is_removed))
        if gone:
            count = plural(len(gone), "input")
            logger.warning("left out: %s with the content of removed samples (%s)", count, first_few(gone, 10))
        return replace(new, splits={split: items for split, items in splits.items() if len(items)})

    def _removed_contents(self) -> set[str]:
        return {receipt.record(slot).content for receipt in self.receipts.values() for slot in receipt.removed}

    def check_removed(self, new: Source, *, refuse: bool) -> None:
        """Warn of known contents, or refuse removed ones; if samples were removed, this reads all new inputs.

        They are refused before anything is packed, because the files of an unfinished extension stay.
        """
        if any(receipt.removed for receipt in self.receipts.values()):
            items = [item for items in new.splits.values() for item in items]
            contents = bytes.fromhex("".join(_contents_now(items, new.reader)))
            self.check_contents(contents, [item.path for item in items], refuse=refuse)

    def check_contents(self, new: bytes, paths: Sequence[str] = (), *, refuse: bool = False) -> None:
        """Warn of new inputs, given 8 bytes of content each, that the base has under other names or had before.

        With their paths, the message names the first ones.

        Raises:
            ConfigError: With `refuse`, and instead of warnings: the base had some before.
        """
        known, removed, added = [], [], np.frombuffer(new, np.uint64)
        for receipt in self.receipts.values():
            contents, slots = np.frombuffer(bytes.fromhex(receipt.contents), np.uint64), list(receipt.removed)
            removed.append(contents[slots])
            known.append(np.delete(contents, slots))
        again = "pass on_conflict= or --on-conflict skip to leave them out, or add to pack them again"
        for old, found, remedy in (
            (known, "inputs of the dataset under other names", "if files were moved, pack all into a new dataset"),
            (removed, "removed samples", again),
        ):
            rows = np.flatnonzero(np.isin(added, np.concatenate(old)) & (added != 0)).tolist()
            if rows:
                named = f" ({first_few([paths[row] for row in rows], 10)})" if paths else ""
                message = f"the content is that of {found}{named}; {remedy}"
                message = f"{len(rows)} of {plural(len(added), 'new input')}: {message}"
                if not refuse:
                    logger.warning("%s", message)
                elif old is removed:
                    raise ConfigError(message)

    def _refuse_fewer_parts(self, source: Source) -> None:
        """Refuse a source whose first samples lack a part of all samples, which would end training in mid-epoch."""
        for items in source.splits.values():
            more = json.loads(items[0].more) if items[0].more else {}
            if "bad" not in more and (missing := self.parts.difference(more.get("parts", ()))):
                raise ConfigError(
                    f"{items[0].path!r} of the source lacks the part {min(missing)!r} of all samples of the dataset; "
                    "name it as for `pack`, with --parts, --caption-column or a source's arguments (a table's json has "
                    "its further columns)"
                )

    def _refuse_other_dataset(self, source: Source) -> None:
        """Refuse another dataset than the one in the receipts, if both name samples by shard and record."""
        for split, items in source.splits.items():
            rows = {item.path: row for row, item in enumerate(items) if _RECORD.search(item.path)}
            for name, receipt in self._of_split(split):
                if receipt.removed:
                    continue  # its digest includes unknown inputs
                paths = [path for path in receipt.inputs() if _RECORD.search(path)]
                found = items.take(np.array([rows[path] for path in paths if path in rows], dtype=np.int64))
                if not len(found) or (len(found) == len(paths) and _is_same(found, receipt, source.reader)):
                    continue
                raise ConfigError(
                    f"the source is not the dataset from which shard {name} was packed, but its sample "
                    f"{found[0].path!r} has the same name, so new samples cannot be told from old ones; pack it "
                    "separately, and combine both with `shardflow merge`"
                )

    def _of_split(self, split: str) -> Iterator[tuple[str, Receipt]]:
        return ((name, receipt) for name, receipt in self.receipts.items() if name.partition("/")[0] == split)


def _is_same(found: Items, receipt: Receipt, reader: Reader) -> bool:
    """Return whether these are the inputs of a receipt.

    An index that was made in another directory names its tars differently; then the content of two samples decides.
    """
    if digest_of(found, receipt.first) == receipt.items_sha256:
        return True
    known = _KnownInputs([receipt])
    return all(_state_by_content(found[row], known, reader) == State.KNOWN for row in (0, -1))


def _part_counts(split: Split) -> dict[str, int]:
    """Return the parts of the first shard's samples, with their numbers."""
    names, counts = np.unique(split.reader.index(0)["part"], return_counts=True)
    return {name.decode(): count for name, count in zip(names.tolist(), counts.tolist(), strict=True)}


def _contents_now(items: Iterable[Item], reader: Reader) -> list[str]:
    """Return the digest of the current content of each item; `UNREAD` if it cannot be read."""
    with ThreadPoolExecutor(_READS) as threads:
        return list(threads.map(lambda item: content_now(item, reader) or UNREAD, items))


class _KnownInputs:
    """The inputs in some receipts, by path. An input takes little more memory than an entry of a dictionary."""

    def __init__(self, receipts: Iterable[Receipt]) -> None:
        self._receipts = list(receipts)
        self._firsts: list[int] = []  # number of the first input of each receipt
        self._numbers: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}  # path → further inputs of the same path
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
    """Return the state of an input that differs from all those with its path."""
    return State.CHANGED if any(record.is_packed for record in records) else State.NEW
