"""Removing: a new version of a dataset has shards without some samples; a purge then deletes all earlier versions.

New shards have the next numbers, in the places of the old ones; columns and receipts follow, and keys stay. As with an
extension, only the manifest changes. `removals/DIGEST.json` records the removed keys and digests, the time and the
rule, but no content. It is written before the new version, which names it; a record that no manifest names belongs to a
removal that was killed and never repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardflow._wording import first_few
from shardflow.dataset.column_files import decode, encode
from shardflow.dataset.columns import publish_version, write_file
from shardflow.dataset.leftovers import remove_leftovers
from shardflow.dataset.open_dataset import Dataset, Split, open_dataset
from shardflow.dataset.own_files import has_our_form, is_own, job_files, kept_manifests, read_removal, refuse_foreign
from shardflow.dataset.sample_table import select
from shardflow.dataset.selection import Mask, shard_keys
from shardflow.dataset.shard_rows import ShardRows, read_index
from shardflow.dataset.subsetting import find_keys
from shardflow.dataset.virtual_dataset import refuse_virtual
from shardflow.dataset.write_lock import WriteLock, abort_uploads, acquire_to_extend, clean_up
from shardflow.errors import ConfigError, DatasetExistsError, FormatError, NotFoundError, StoreError
from shardflow.formats import image_array, manifest, quarantine, ustar
from shardflow.formats import receipt as receipts
from shardflow.formats.annotations import image_stem
from shardflow.formats.columns import ColumnFiles, file_name
from shardflow.formats.coordinates import read_coordinates
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import sample_labels
from shardflow.formats.manifest import Manifest, removal_name
from shardflow.formats.receipt import UNREAD, Receipt
from shardflow.formats.shard import OnShard, Shard
from shardflow.formats.shard_layout import job_name
from shardflow.formats.statistics import Statistics
from shardflow.storage.cache import Cache
from shardflow.storage.interface import TEMPORARY, Storage, Writer
from shardflow.storage.local_files import map_os_errors

from . import shard_writer
from .base_version import BaseVersion
from .sample_recipe import count_annotations

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalReport:
    """The result of a removal.

    Attributes:
        fingerprint: Identity of the version without the samples.
        removed: Split → number of samples that this call removed; empty if an earlier call had.
        shards: Number of shards that were rewritten.
        receipt: Path or URL of the record of the removal, "" if this call removed nothing.
        purged, purged_bytes: Number and size of the deleted files of earlier versions.
        left: Files that a purge kept although they have names of a dataset, because shardflow did not write them, or
            they are damaged.
    """

    fingerprint: str
    removed: Mapping[str, int]
    shards: int
    receipt: str
    purged: int
    purged_bytes: int
    left: tuple[str, ...] = ()


def remove(
    url: str | os.PathLike[str],
    *,
    keys: Collection[str] | None = None,
    where: str | None = None,
    purge: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> RemovalReport:
    """Remove samples from a dataset: a new version has shards without them. After a kill the same call continues.

    Other samples keep their keys, order and bytes. Without `purge`, earlier versions still have the samples. Mean,
    standard deviation and sizes before packing still describe all images that were packed.

    >>> shardflow.remove("photos256", keys=["train:000000042"], purge=True)

    Args:
        url: A dataset with its receipts, a directory or a URL; not a virtual dataset.
        keys: The keys of the samples; "train:000000042" if several splits have the key.
        where: Or a condition, as for `shardflow.subset`. With neither, only a purge is done.
        purge: Delete all earlier versions: manifests, tars, indexes, receipts and columns, and copies of the removed
            shards in the user's cache on this machine. A bucket with versioning or soft delete keeps deleted objects.
        storage_options: Options of fsspec's file system, if `url` is a URL.
        progress: Called with each old shard after it was rewritten.

    Raises:
        NotFoundError: The dataset or one of its receipts is missing.
        ConfigError: An argument is wrong, no sample or every sample is selected, or the dataset is virtual.
        IntegrityError: A shard is damaged.
        DatasetExistsError: Another process made a new version meanwhile.
        StoreError: The dataset cannot be read or written, or another process is writing to it.
    """
    if (keys is None) == (where is None) and not (purge and keys is None):
        raise ConfigError("remove needs either keys or where, to select the samples; or purge alone")
    if isinstance(keys, str):
        raise ConfigError(f"keys must be a list of keys, found {keys!r}")
    dataset = open_dataset(url, storage_options=storage_options)  # before a directory is made for a missing one
    elsewhere = "make the tars without the samples, and index them again"
    refuse_virtual(dataset, "tars", "remove the samples from", elsewhere)
    # The text of a condition may be a removed value, such as a name, which no record must keep.
    rule: dict[str, Any] = {"where_sha256": hashlib.sha256(str(where).encode()).hexdigest()}
    rule = rule if keys is None else {"keys": len(set(keys))}
    with dataset.storage.exclusive_writer() as writer:
        dataset = open_dataset(url, storage_options=storage_options)
        masks: dict[str, Mask] = {}
        fingerprint, shards, record = dataset.fingerprint, 0, ""
        records = list(_records(dataset.storage, dataset.manifest))
        if keys is not None:
            gone = {key for each in records for split in each["samples"] for key in each["samples"][split]}
            gone |= {f"{split}:{key}" for each in records for split, some in each["samples"].items() for key in some}
            masks = find_keys(dataset, keys, gone=gone)
        elif where is not None:
            masks = {name: select(split, dataset.classes, where) for name, split in dataset.items()}
            if re.search(r"\bsource\b", where, re.IGNORECASE):
                _refuse_equal_sources(dataset, masks)
        removed = {split: int(mask.sum()) for split, mask in masks.items() if mask.any()}
        if sum(removed.values()) == dataset.manifest.samples:
            raise ConfigError(f"no sample would be left; to remove all samples, delete all files below {dataset.url}")
        if removed:
            fingerprint, shards, name = _remove(dataset, masks, rule, writer, progress)
            record = dataset.storage.url(name)
        elif (where is not None and all(each["rule"] != rule for each in records)) or (keys is not None and not keys):
            raise ConfigError(f"no sample of {dataset.url} is selected; check keys or where")
        else:
            clean_up(dataset.storage)
        purged, purged_bytes, left = _purge(dataset.storage, fingerprint, writer) if purge else (0, 0, ())
    return RemovalReport(
        fingerprint=fingerprint,
        removed=removed,
        shards=shards,
        receipt=record,
        purged=purged,
        purged_bytes=purged_bytes,
        left=left,
    )


def contents_of(dataset: Dataset) -> set[str]:
    """Return the SHA-256s of the files of a dataset, and of earlier files with samples that were removed."""
    shards = {sha256 for shard in dataset.shards for sha256 in (shard.sha256, shard.index_sha256)}
    columns = {file.sha256 for split in dataset.values() for file in split.columns.files()}
    return shards | columns | _removed_contents(dataset.storage, dataset.manifest)


def _removed_contents(storage: Storage, version: Manifest) -> set[str]:
    return {sha256 for each in _records(storage, version) for sha256 in each["files"]}


def _records(storage: Storage, version: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the records of the removals of a version and of earlier versions."""
    for name in version.removal_names:
        try:
            yield read_removal(storage.read(name))
        except NotFoundError:
            continue
        except FormatError as error:
            raise FormatError(f"{storage.url(name)} is not a record of a removal; restore or delete it") from error


def _refuse_equal_sources(dataset: Dataset, masks: Mapping[str, Mask]) -> None:
    """Refuse to remove several samples of one source, which `extend --on-conflict add` makes, by this source."""
    for name, mask in masks.items():
        split, shards = dataset[name], range(len(dataset[name].shards)) if mask.any() else ()
        sources = [source for shard in shards for source in split.shard_sources(shard)]
        counts = Counter(sources[number] for number in np.flatnonzero(mask).tolist())
        if several := [source for source, count in counts.items() if count > 1]:
            keys = [key for shard in shards for key in shard_keys(split, shard)]
            named = [f"{name}:{key}" for key, source in zip(keys, sources, strict=True) if source == several[0]]
            message = f"{len(named)} samples of {dataset.url} have the source {several[0]!r}: {first_few(named, 5)}"
            raise ConfigError(f"{message}; name those to remove by keys= or --keys")


def _remove(
    dataset: Dataset,
    masks: Mapping[str, Mask],
    rule: Mapping[str, Any],
    writer: Writer,
    progress: OnShard,
) -> tuple[str, int, str]:
    """Rewrite the shards, and publish the version; return its fingerprint, the number of shards, and the record."""
    storage, base = dataset.storage, BaseVersion.read(dataset)
    for name, split in dataset.items():  # fails before the lock is taken
        ends = np.cumsum(split.shard_samples)
        for place in np.unique(np.searchsorted(ends, np.flatnonzero(masks[name]), side="right")).tolist():
            read_index(storage, split.shards[place])
    content = [dataset.fingerprint.encode(), *(split.encode() + mask.tobytes() for split, mask in masks.items())]
    work = hashlib.sha256(b"".join(content)).hexdigest()
    lock = acquire_to_extend(storage, lambda: f"remove {work}", dataset.fingerprint, writer)
    if lock.blob is None:
        lock.read_version()  # another process may have made a version since the dataset was opened
    remove_leftovers(storage.local_path(""))
    version = _NewVersion(dataset, base, lock, writer.staging)
    removed: dict[str, list[str]] = {}
    for name, split in dataset.items():
        removed[name] = version.add_split(name, split, masks[name], progress)
    lock.check()
    new = replace(version.manifest(), removals=(*dataset.manifest.removals, work))
    manifest.from_bytes(new.to_bytes())
    abort_uploads(storage, {shard.name for shards in new.splits.values() for shard in shards})
    record = {
        "version": 1,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rule": dict(rule),
        "from": dataset.fingerprint,
        "to": new.fingerprint,
        "samples": {split: keys for split, keys in removed.items() if keys},
        "files": sorted(_contents(storage, dataset.manifest, set(version.retired))),
    }
    with contextlib.suppress(DatasetExistsError):  # written by an attempt that was killed
        storage.put(removal_name(work), json.dumps(record, indent=1).encode() + b"\n", new=True)
    return publish_version(dataset, lock, new), len(version.retired), removal_name(work)


def _contents(storage: Storage, current: Manifest, jobs: Collection[str]) -> set[str]:
    """Return the SHA-256s of the tars and indexes of jobs, and of their columns in all versions."""
    found: set[str] = set()
    for each in (current, *dict(kept_manifests(storage, storage.listing())).values()):
        for split, shards in each.splits.items():
            for number, shard in enumerate(shards):
                if shard.name.removesuffix(".tar") in jobs:
                    files = (column.file(split, number, shard) for column in each.columns.values())
                    found |= {shard.sha256, shard.index_sha256, *(file.sha256 for file in files if file is not None)}
    return found


class _NewVersion:
    """A version without some samples, built split by split.

    Attributes:
        retired: Names of the jobs whose shards were rewritten.
    """

    def __init__(self, dataset: Dataset, base: BaseVersion, lock: WriteLock, staging: Path) -> None:
        self._dataset, self._base, self._lock, self._staging = dataset, base, lock, staging
        self.retired: list[str] = []
        self._splits: dict[str, list[Shard]] = {}
        self._removed = Counter[str]()
        self._statistics = dict(dataset.manifest.statistics or {})
        self._columns = dict(dataset.manifest.columns)

    def add_split(self, name: str, split: Split, mask: Mask, progress: OnShard) -> list[str]:
        """Rewrite the shards of a split that have samples to remove; return the keys of these samples."""
        keys: list[str] = []
        shards, end = self._splits.setdefault(name, []), 0
        files: dict[str, list[tuple[int, str]]] = {column: [] for column in self._columns}
        nulls = Counter[str]()
        number = self._base.sharding.jobs.get(name, 0)
        for place, shard in enumerate(split.shards):
            gone = mask[end : (end := end + shard.samples)]
            new: Shard | None = shard
            if gone.any():
                old = self._base.receipts[shard.name.removesuffix(".tar")]
                keys += np.array(old.keys())[gone].tolist()
                rewriting = _Rewriting(self._dataset, self._lock, self._staging, shard, old, gone)
                made = rewriting.run(job_name(name, number))
                number, new = number + 1, made.shard
                self.retired.append(shard.name.removesuffix(".tar"))
                if name in self._statistics:
                    self._statistics[name] -= old.statistics - made.statistics
            for column in self._columns:
                if (found := self._column(column, name, place, shard, new, gone, nulls)) is not None:
                    files[column].append(found)
            if new is not None:
                shards.append(new)
            if gone.any() and progress is not None:
                progress(shard)
        self._removed[name] += len(keys)
        for column, entry in self._columns.items():
            if (before := entry.splits.get(name)) is not None:
                sizes, sha256s = tuple(size for size, _ in files[column]), "".join(sha for _, sha in files[column])
                after = ColumnFiles(bytes=sizes, sha256=sha256s, nulls=before.nulls - nulls[column])
                self._columns[column] = replace(entry, splits={**entry.splits, name: after})
        return keys

    def _column(
        self, name: str, split: str, place: int, shard: Shard, new: Shard | None, gone: Mask, nulls: Counter[str]
    ) -> tuple[int, str] | None:
        """Return size and SHA-256 of the file of a column for a shard, which is written if the shard changed."""
        column, reader = self._columns[name], self._dataset[split].columns
        if (file := self._dataset.manifest.columns[name].file(split, place, shard)) is None or not gone.any():
            return None if file is None else (file.bytes, file.sha256)
        values = decode(reader.read_bytes(file), name, column.kind, shard.samples)
        nulls[name] += int((~values.present[gone]).sum())
        if new is None:
            return None
        data = encode(name, column.kind, values.take(~gone))
        write_file(self._lock, file_name(new, column.stem), data)
        return len(data), hashlib.sha256(data).hexdigest()

    def manifest(self) -> Manifest:
        """Return the manifest, after all splits were added."""
        old = self._dataset.manifest
        return replace(
            old,
            splits=self._splits,
            inputs=old.inputs - self._removed.total(),
            statistics=None if old.statistics is None else self._statistics,
            sharding=self._base.sharding.without(self._removed, self.retired),
            columns=self._columns,
        )


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """Rewrites a shard without the records that are gone."""

    dataset: Dataset
    lock: WriteLock
    staging: Path
    shard: Shard
    old: Receipt
    gone: Mask

    def run(self, name: str) -> Receipt:
        """Publish tar, index and receipt of job `name`, in this order; return the receipt. May be repeated."""
        storage, slots = self.dataset.storage, self.old.packed_slots()
        absent = {*self.old.removed, *(slot for slot, gone in zip(slots, self.gone.tolist(), strict=True) if gone)}
        removed = tuple(sorted(absent))
        if (made := self._finished(name, removed)) is not None:
            return made
        names = job_files(name)
        refuse_foreign(storage, names)
        if storage.local_path("") is not None:
            storage.remove(f"{name}.json")  # a receipt of another attempt must not stand for the new tar
        folder, _, base = self.shard.name.rpartition("/")
        source = self.staging / folder / f"{TEMPORARY}{base}"
        with map_os_errors(source):
            source.parent.mkdir(exist_ok=True)
            source.unlink(missing_ok=True)
        storage.get(self.shard.name, source, size=self.shard.bytes, sha256=self.shard.sha256)
        try:
            rows = ShardRows.from_index(read_index(storage, self.shard), self.shard.samples)
            statistics = self.old.statistics - self._statistics(source, rows, slots)
            new, index = self._write(source, rows, name)
        finally:
            source.unlink(missing_ok=True)
        identities = (self.old.identities[at : at + 16] for at in range(0, len(self.old.identities), 16))
        made = replace(
            self.old,
            sources=tuple(path for path, is_gone in zip(self.old.sources, self.gone, strict=True) if not is_gone),
            bytes_in=statistics.counts["bytes_before"],
            statistics=statistics,
            shard=new,
            index_bytes=len(index),
            sizes=tuple(-1 if slot in absent else size for slot, size in enumerate(self.old.sizes)),
            identities="".join(UNREAD if slot in absent else digits for slot, digits in enumerate(identities)),
            removed=removed,
        )
        storage.put(f"{name}.json", made.to_bytes())
        self.lock.confirm(names)
        return made

    def _finished(self, name: str, removed: tuple[int, ...]) -> Receipt | None:
        """Return the receipt of an earlier attempt that wrote the same shard, if any."""
        storage = self.dataset.storage
        with contextlib.suppress(NotFoundError, FormatError):
            made = receipts.from_bytes(storage.read(f"{name}.json", most_bytes=receipts.MAX_BYTES))
            same = (self.old.items_sha256, self.old.first, removed) == (made.items_sha256, made.first, made.removed)
            sizes = {} if made.shard is None else {f"{name}.tar": made.shard.bytes, f"{name}.npy": made.index_bytes}
            found = {each: storage.version(each) for each in sizes}
            if same and all(version is not None and version.size == sizes[each] for each, version in found.items()):
                return made
        return None

    def _statistics(self, source: Path, rows: ShardRows, slots: list[int]) -> Statistics:
        """Return the statistics of the removed samples: sizes as packed, bytes, classes, and annotations."""
        counted, declared = Statistics(), self.dataset.manifest.annotations
        further = set(map(image_stem, declared.images))
        with map_os_errors(source), open(source, "rb") as tar:
            for record in np.flatnonzero(self.gone).tolist():
                parts = {name.decode(): (offset, size) for _, name, offset, size, *_ in rows.of_record(record)}

                def read(part: str, parts: Mapping[str, tuple[int, int]] = parts) -> bytes | None:
                    offset, size = parts.get(part, (0, -1))
                    return None if size < 0 else os.pread(tar.fileno(), size, offset)

                counted.classes.update(sample_labels(read) or ())
                counted.counts["bytes_before"] += max(0, self.old.sizes[slots[record]])
                if (array := read(image_array.PART)) is not None:
                    counted.counts[image_array.kind(*image_array.shape(array)[2:])] += 1
                for _, name, _, size, _, width, height in rows.of_record(record):
                    part = name.decode()
                    if part in IMAGE_PARTS or image_stem(part) in further:
                        counted.count(before=(0, 0), after=(width, height), labels=(), bytes_after=size)
                    if part in IMAGE_PARTS and declared.parts:
                        found = read_coordinates(declared, read, (width, height))
                        counted.counts.update(count_annotations(declared, found))
                        if found.boxes is not None:
                            counted.counts["boxes_outside"] += int((~found.boxes.any(axis=1)).sum())  # packed as zeros
        return counted

    def _write(self, source: Path, rows: ShardRows, name: str) -> tuple[Shard | None, bytes]:
        """Publish tar and index of the remaining records; return them, or None and b"" if there are none."""
        if self.gone.all():
            return None, b""
        storage, base = self.dataset.storage, name.rpartition("/")[2]
        begins = [rows.key_span(record)[0] for record in range(self.shard.samples)]
        begins.append(self.shard.bytes - len(ustar.END))
        target = source.with_name(f"{TEMPORARY}{base}.tar")
        kept = source.with_name(f"{TEMPORARY}{base}.{self.old.first:09d}")
        size = crc32 = 0
        try:
            with map_os_errors(kept), open(source, "rb") as tar, open(kept, "wb") as written:
                for record in np.flatnonzero(~self.gone).tolist():
                    tar.seek(begins[record])
                    left = begins[record + 1] - begins[record]
                    while left and (chunk := tar.read(min(left, _CHUNK_BYTES))):
                        crc32, left = zlib.crc32(chunk, crc32), left - len(chunk)
                        size += written.write(chunk)
            partial = shard_writer.PartialTar(name=kept.name, samples=int((~self.gone).sum()), size=size, crc32=crc32)
            shard, index = shard_writer.assemble(target, f"{name}.tar", [(kept, partial)])
            storage.put(shard.name, target)
        finally:
            for path in (kept, target):
                path.unlink(missing_ok=True)
        storage.put(shard.index_name, index)
        return shard, index


def _purge(storage: Storage, fingerprint: str, writer: Writer) -> tuple[int, int, tuple[str, ...]]:
    """Delete the files of all other versions; return their number and size, and the files left. May be repeated.

    Void locks are deleted first, so that a suspended process with such a lock withdraws its later writes. Manifests are
    next, so that no manifest names a deleted file.
    """
    lock = acquire_to_extend(storage, lambda: "purge", fingerprint, writer)
    clean_up(storage)
    current = manifest.from_bytes(lock.read_version()[0])
    kept = _with_indexes({*current.file_names(), quarantine.version_name(fingerprint)})
    purged = size = 0
    old, left = set[str](), list[str]()
    for where in ("manifests/", ""):
        listing = storage.listing()  # the second listing has the files of a repair that ran meanwhile
        for name in sorted({*current.file_names()} - {*listing}):  # the newest files, which a late listing lacks
            if storage.version(name) is not None:
                message = f"{storage.url(name)} exists, but the listing lacks it, as it may lack files to delete"
                raise StoreError(f"{message}; run the same command again later")
        for name, each in kept_manifests(storage, listing):
            old |= _with_indexes({name, *each.file_names(), quarantine.version_name(each.fingerprint)})
        doomed = [name for name in listing if name.startswith(where) and name not in kept and has_our_form(name)]
        for name in sorted(doomed, key=lambda name: not name.endswith(".idx")):  # recognised by their tars
            if name in old or is_own(storage, name):
                storage.remove(name)
                purged, size = purged + 1, size + max(0, listing[name].size)
            elif not where:
                left.append(name)
    remove_leftovers(storage.local_path(""))
    Cache(None).remove_contents(_removed_contents(storage, current))
    lock.release()
    return purged, size, tuple(left)


def _with_indexes(names: set[str]) -> set[str]:
    """Return names of files, with those of the indexes of Energon and DALI for the tars among them."""
    tars = {name.removesuffix(".tar") for name in names if name.endswith(".tar")}
    return names | {f"{tar}{end}" for tar in tars for end in (".idx", ".tar.idx")}
