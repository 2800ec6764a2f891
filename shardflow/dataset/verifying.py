"""Verify: finds all problems of a dataset.

Each shard is compared with the manifest (size, SHA-256), the tar format and its index, and each member with its CRC-32.
With the native kernel, seek tables that readers use are compared with their scans. A finding names the file and, if it
concerns one sample, the sample.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardflow import native
from shardflow._wording import plural
from shardflow.errors import DecodeError, FormatError, IntegrityError, NotFoundError, StoreError
from shardflow.formats import quarantine, receipt, seek_table, shard_index, ustar
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import IMAGE_PARTS, is_jpeg
from shardflow.formats.labels import LABEL_PARTS, MAX_LABEL_BYTES, parse_labels
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import MAX_SAMPLE_BYTES, OnShard, Shard
from shardflow.formats.shard_index import Index, Row
from shardflow.formats.tar_members import crc32
from shardflow.storage.interface import Storage

from .open_dataset import Dataset
from .receipts import read_receipt
from .shard_rows import ShardRows, member_key
from .tar_file import TarFile, open_tar

logger = logging.getLogger(__name__)

_MOST_READS = 4  # of a tar whose bytes differ each time


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a dataset.

    Attributes:
        file: Name of the file, below the dataset.
        problem: What is wrong, and the remedy if there is one.
        key: The key of the sample; None if the problem does not concern one sample.
    """

    file: str
    problem: str
    key: str | None = None

    def __post_init__(self) -> None:
        # Errors of readers advise the command that makes these findings.
        problem = self.problem.replace("run `shardflow verify` and ", "").replace("; run `shardflow verify`", "")
        object.__setattr__(self, "problem", problem)

    @property
    def where(self) -> str:
        """The file, and the sample if there is one."""
        return self.file if self.key is None else f"{self.file}, sample {self.key}"

    def __str__(self) -> str:
        base, named, _ = self.problem.partition(f"{self.file} ")  # messages of storages begin with the path
        begins_with_path = self.key is None and named and ": " not in base
        return self.problem if begins_with_path else f"{self.where}: {self.problem}"


def verify_dataset(dataset: Dataset, *, progress: OnShard = None) -> list[Finding]:
    """Read a whole dataset and return all damage, by split and shard; `progress` is called after each shard.

    A remote dataset is read at its URL, not in the cache. A single unreadable file is a finding.

    Raises:
        StoreError: The dataset cannot be reached.
    """
    tars: dict[str, list[Shard]] = {}  # shards of a virtual dataset can share a tar, which is read once
    for shard in dataset.shards:
        tars.setdefault(dataset.storage.url(shard.name), []).append(shard)
    findings: list[Finding] = []
    tables = dataset.manifest.packed_tables
    if any(shard.name in tables for shard in dataset.shards) and not native.available():
        reason = native.describe()
        logger.warning("seek tables are not compared with their images, which needs the native kernel: %s", reason)
    for shards in tars.values():
        for shard, found in zip(shards, _verify_tar(dataset, shards), strict=True):
            findings += found
            if progress is not None:
                progress(shard)
    return findings + verify_columns(dataset) + verify_records(dataset)


def verify_records(dataset: Dataset) -> list[Finding]:
    """Return the damage of a dataset's records of its inputs: the quarantine and the receipts."""
    return _check_quarantine(dataset) + _check_receipts(dataset)


def verify_columns(dataset: Dataset) -> list[Finding]:
    """Return the files of columns that are missing or damaged."""
    findings = []
    for split in dataset.values():
        for file in split.columns.files():
            try:
                split.columns.read_bytes(file)
            except (StoreError, IntegrityError) as error:
                findings.append(Finding(file.name, str(error)))
    return findings


def _check_quarantine(dataset: Dataset) -> list[Finding]:
    """Return the damage of the quarantine, if the manifest says that inputs were left out."""
    made = dataset.manifest
    if (left_out := made.inputs - made.samples) <= 0:
        return []
    name = quarantine.version_name(made.fingerprint) if made.roots else quarantine.FILE_NAME
    try:
        if (record := dataset.read_quarantine()) is None:
            problem = f"does not exist, but by the manifest it lists {plural(left_out, 'input')}"
            return [Finding(name, f"{problem}; restore it from a copy")]
        name, data = record
        quarantine.from_bytes(data, inputs=left_out)
    except (StoreError, FormatError) as error:
        return [Finding(name, str(error))]
    return []


def _check_receipts(dataset: Dataset) -> list[Finding]:
    """Return the damage of receipts, which extending and repairing need."""
    findings = []
    shards = {shard.receipt_name: shard for shard in dataset.shards}
    for name in dataset.manifest.receipt_names:
        try:
            if name in shards:
                read_receipt(dataset.storage, name, shards[name])
            else:  # of a job without a tar, or whose samples were all removed
                receipt.from_bytes(dataset.storage.read(name, most_bytes=receipt.MAX_BYTES))
        except NotFoundError as error:
            if dataset.manifest.sharding is not None:
                findings.append(Finding(name, str(error)))
        except (StoreError, IntegrityError, FormatError) as error:
            findings.append(Finding(name, str(error)))
    return findings


def verify_shard(dataset: Dataset, shard: Shard) -> list[Finding]:
    """Return all problems of a shard of a dataset."""
    return _verify_tar(dataset, [shard])[0]


def _verify_tar(dataset: Dataset, shards: Sequence[Shard]) -> list[list[Finding]]:
    """Return the findings of each of the shards that share a tar.

    A remote tar with a wrong SHA-256 is read again: damage in transit differs each time, stored damage does not.
    """
    storage, name, digests = dataset.storage, shards[0].name, list[str]()
    while True:
        checks = [_ShardCheck(storage, shard, dataset.manifest) for shard in shards]
        try:
            with open_tar(storage, name, hashed=True) as tar:
                _check_tar(tar, checks)
                digests.append(tar.sha256())
        except StoreError as error:
            return [[*check.index_findings, Finding(check.shard.name, str(error))] for check in checks]
        is_wrong = any(digests[-1] != shard.sha256 for shard in shards)
        is_stored = storage.local_path(name) is not None or digests[-1] in digests[:-1] or len(digests) == _MOST_READS
        if not is_wrong or is_stored:
            return [check.findings(tar.size, digests[-1]) for check in checks]


def _check_tar(tar: TarFile, checks: Sequence[_ShardCheck]) -> None:
    """Check the samples of the shards of a tar, which is read once from its start to its end."""
    if not checks[0].manifest.roots:
        checks[0].check_shard(tar)
        return
    begins = [
        (min((row[2] for row in check.rows.of_record(record)), default=0), number, record)
        for number, check in enumerate(checks)
        if check.rows is not None
        for record in range(check.shard.samples)
    ]
    for _, number, record in sorted(begins):
        checks[number].check_record(tar, record)


class _ShardCheck:
    """The check of one shard, and its findings so far."""

    def __init__(self, storage: Storage, shard: Shard, manifest: Manifest) -> None:
        self.shard, self.manifest = shard, manifest
        self._has_tables = shard.name in manifest.packed_tables
        remedy = "--repair rebuilds it if its tar has no other samples" if manifest.roots else "readers rebuild it"
        self.index_findings, self.index = _read_index(storage, shard, remedy)
        self.rows = None if self.index is None else ShardRows.from_index(self.index, shard.samples)
        self._found: list[Finding] = []
        self._keys: dict[int, str] = {}  # record → key
        self._labelled: set[int] = set()

    def findings(self, size: int, sha256: str) -> list[Finding]:
        """Return all problems of the shard, given the size and SHA-256 of its tar."""
        whole = []
        if size != self.shard.bytes:
            whole.append(Finding(self.shard.name, f"has {size} bytes, but the manifest says {self.shard.bytes}"))
        if sha256 != self.shard.sha256:
            whole.append(Finding(self.shard.name, "its SHA-256 differs from the manifest's"))
        unlabelled = self._keys.keys() - self._labelled if self._labelled else set()  # a split may have no labels
        without = [Finding(self.shard.name, "has no label", key=self._keys[record]) for record in sorted(unlabelled)]
        return [*self.index_findings, *whole, *self._found, *without]

    def check_shard(self, tar: TarFile) -> None:
        """Check a tar that shardflow packed: all of its members, by their headers."""
        rows = shard_index.IndexRows()
        try:
            for key, row in shard_index.read_rows(tar):
                self._keys[row.record] = key
                rows.append(row)
                self._check_content(tar, row, key)
        except FormatError as error:
            self._found, self._labelled, self._keys = [], set(), {}
            self._add(str(error))
            if self.index is not None and not self.index_findings and tar.size == self.shard.bytes:
                for record in range(self.shard.samples):
                    self.check_record(tar, record, reported=str(error))
            return
        if len(self._keys) != self.shard.samples:
            self._add(f"has {plural(len(self._keys), 'sample')}, but the manifest says {self.shard.samples}")
        if self.index is not None:
            self._compare_indexes(self.index, rows.index())

    def check_record(self, tar: TarFile, record: int, *, reported: str = "") -> None:
        """Check a record at its place in the index: in a tar of a virtual dataset, or in one that cannot be walked
        because of a damage that was `reported`.
        """
        assert self.rows is not None
        key = f"record {record}"
        try:
            begin, end = self.rows.key_span(record)
            key = self.rows.key(record, tar.read(begin, end - begin), begin)
            for row in () if record in self.rows.keys else self.rows.of_record(record):
                member_key(bytes(tar.read(row[2] - ustar.BLOCK, ustar.BLOCK)), row)
            self.rows.payload_span(record)
        except IntegrityError as error:
            if not reported or reported not in str(error):
                self._add(str(error))
        self._keys[record] = key
        for row in map(Row._make, self.rows.of_record(record)):
            if crc32(tar, row.offset, row.size) != row.crc32:
                self._add(f"part {row.part.decode()!r}: its CRC-32 differs", key)
            self._check_content(tar, row, key)

    def _add(self, problem: str, key: str | None = None) -> None:
        self._found.append(Finding(self.shard.name, problem, key))

    def _compare_indexes(self, index: Index, rebuilt: Index) -> None:
        """Compare the index of the shard with the index rebuilt from its tar, member by member."""
        if len(index) != len(rebuilt):
            problem = f"has {len(index)} members, but the shard has {len(rebuilt)}"
            self._found.append(Finding(self.shard.index_name, problem))
        columns = shard_index.DTYPE.names or ()
        common = min(len(index), len(rebuilt))
        for at in np.flatnonzero(index[:common] != rebuilt[:common]):
            expected, found = index[at].item(), rebuilt[at].item()
            differing = [name for name, a, b in zip(columns, expected, found, strict=True) if a != b]
            problem = f"part {found[1].decode()!r} differs from the index in {', '.join(differing)}"
            self._add(problem, self._keys[found[0]])

    def _check_content(self, tar: TarFile, row: Row, key: str) -> None:
        """Check a label, or the seek table of an image in a shard whose tables readers use."""
        part = row.part.decode()
        if part in IMAGE_PARTS and self._has_tables and row.size <= MAX_SAMPLE_BYTES:
            if problem := _table_problem(tar.read(row.offset, row.size), row, self.manifest.recipe):
                self._add(problem, key)
        elif part in LABEL_PARTS and self.manifest.classes is not None:
            self._labelled.add(row.record)
            payload = tar.read(row.offset, min(row.size, MAX_LABEL_BYTES + 1))
            # Tars of other tools may have leading zeros, and a line break after a number.
            strict = not self.manifest.roots
            try:
                parse_labels(part, payload, classes=len(self.manifest.classes), strict=strict)
            except DecodeError as error:
                self._add(str(error), key)


def _table_problem(image: memoryview, row: Row, recipe: Mapping[str, Any]) -> str:
    """Return the problem of an image's seek table; "" if it has none, or without the kernel."""
    if not native.available() or not is_jpeg(image) or (segment := seek_table.find(image)) is None:
        return ""
    # A merge of datasets with different recipes has no limit.
    most = recipe.get("max_pixels", MAX_PIXELS) if recipe else max(MAX_PIXELS, row.width * row.height)
    is_right = segment == native.seek_table(image, max_pixels=most)
    return "" if is_right else "its seek table does not belong to its scan, so crops of it can be wrong"


def _read_index(storage: Storage, shard: Shard, remedy: str) -> tuple[list[Finding], Index | None]:
    """Return the findings of an index, and its rows if it is the right one: a damaged one would accuse the tar."""
    try:
        data = storage.read(shard.index_name)
    except NotFoundError:
        return [Finding(shard.index_name, f"does not exist; {remedy}")], None
    except (StoreError, IntegrityError) as error:
        return [Finding(shard.index_name, str(error))], None
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        return [Finding(shard.index_name, f"its SHA-256 differs from the manifest's; {remedy}")], None
    try:
        return [], shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except FormatError as error:
        return [Finding(shard.index_name, str(error))], None
