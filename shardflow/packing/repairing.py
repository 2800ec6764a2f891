"""Repairing: damaged and missing files of a dataset are restored, and no other file is changed.

A shard comes from a copy of the dataset, or is packed again from the source, and must have the SHA-256 in the manifest.
An index is rebuilt from its shard. Receipts come from a copy. The quarantine comes from a copy, or from the receipts if
none is missing and no image was skipped.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.dataset.leftovers import remove_leftovers
from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.receipts import find_receipt, read_receipt
from shardflow.dataset.shard_rows import LOST_INDEX, read_index_bytes
from shardflow.dataset.tar_file import open_tar
from shardflow.dataset.tar_scan import scan_tar
from shardflow.dataset.verifying import Finding, verify_columns, verify_dataset, verify_records, verify_shard
from shardflow.dataset.virtual_dataset import refuse_virtual
from shardflow.dataset.write_lock import refuse_purged
from shardflow.errors import DatasetExistsError, FormatError, IntegrityError, NotFoundError, ShardflowError
from shardflow.formats import quarantine, shard_index
from shardflow.formats.columns import ColumnFile
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.shard import OnShard, Shard
from shardflow.storage.interface import Storage
from shardflow.storage.local import LocalStorage
from shardflow.storage.staging import temporary_staging

from .executors import Executor, make_executor
from .ledger import Ledger
from .origin import find_inputs, job_again, open_sources
from .pack_plan import PackPlan
from .recipe import codec_versions
from .run import run
from .sample_recipe import SampleRecipe
from .sources.source import Source

RepairSource = Callable[[Shard, Path], None]
"""Writes the original tar of a shard to a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        found: All damage before the repair.
        repaired: Names of the files that were replaced.
        failed: Name of a shard or a column's file → why it could not be repaired.
        left: Damage that remains.
    """

    found: tuple[Finding, ...]
    repaired: tuple[str, ...]
    failed: Mapping[str, str]
    left: tuple[Finding, ...]


def repair(
    url: str | os.PathLike[str],
    source: Any = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    progress: OnShard = None,
) -> RepairReport:
    """Read a whole dataset, and restore damaged and missing files; of a virtual dataset, only indexes of whole tars.

    >>> report = shardflow.repair("photos256", "s3://bucket/photos256")

    Args:
        url: The dataset; its manifest must be intact.
        source: A copy of the dataset, or its source, as for `pack`; None repairs only indexes and the quarantine.
            Receipts and columns need a copy.
        storage_options, source_options: Options of fsspec's file systems for `url` and `source`, if these are URLs.
        workers: Processes for packing again; None for one per core.
        progress: Called with each shard after it was read.

    Raises:
        NotFoundError: The dataset or `source` does not exist.
        ManifestError: The manifest is damaged.
        ConfigError: `source` is neither a copy nor a source, or given for a virtual dataset, or `workers` is below 1.
        DatasetExistsError: The version was purged meanwhile.
        StoreError: The dataset cannot be reached, or another process is writing to it.
    """
    executor = make_executor("processes", workers)
    dataset = open_dataset(url, storage_options=storage_options)
    if source is not None:
        refuse_virtual(dataset, "shards", "repair", "without FROM, --repair rebuilds their indexes; restore lost tars")
    found = verify_dataset(dataset, progress=progress)
    touched = {finding.file for finding in found}
    broken = [shard for shard in dataset.shards if touched & {shard.name, shard.index_name}]
    columns = [file for split in dataset.values() for file in split.columns.files() if file.name in touched]
    lost = [name for name, found in _receipts(dataset, dataset.manifest.receipt_names, dataset) if found is None]
    if _quarantine(dataset) is None:
        lost.append(quarantine.FILE_NAME)
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(dataset.storage.exclusive_writer())
        remove_leftovers(dataset.storage.local_path(""))
        copy = _open_copy(source, source_options) if broken or lost or columns else None
        repaired = _restore_records(dataset, lost, copy)
        repair_source: RepairSource | None = None
        if copy is not None:
            names = {shard.sha256: shard.name for shard in copy.shards}
            repair_source = functools.partial(_copy_shard, copy, names)
        elif source is not None and broken:
            opened = stack.enter_context(open_sources(dataset, [source], source_options))
            repair_source = functools.partial(_pack_again, dataset, opened, executor)
        repairs = {shard.name: functools.partial(_repair_shard, dataset, shard, repair_source) for shard in broken}
        if copy is not None:
            repairs |= {file.name: functools.partial(_copy_column, dataset, file, copy) for file in columns}
        for name, repair_file in repairs.items():
            try:
                repaired += repair_file()
            except DatasetExistsError:
                raise
            except ShardflowError as error:
                failed[name] = str(error)
        left = [*verify_records(dataset), *verify_columns(dataset)]
        left += (finding for shard in broken for finding in verify_shard(dataset, shard))
    return RepairReport(found=tuple(found), repaired=tuple(repaired), failed=failed, left=tuple(left))


def _open_copy(source: Any, options: Mapping[str, Any] | None) -> Dataset | None:
    """Open a copy of a dataset; None if `source` is not a dataset."""
    if isinstance(source, str | os.PathLike):
        with contextlib.suppress(NotFoundError):
            return open_dataset(source, storage_options=options)
    return None


def _restore_records(dataset: Dataset, lost: Sequence[str], copy: Dataset | None) -> list[str]:
    """Restore lost records from a copy, or the quarantine from the receipts; return their names."""
    restored = []
    receipts = [name for name in lost if name != quarantine.FILE_NAME]
    for name, receipt in () if copy is None else _receipts(dataset, receipts, copy):
        if receipt is not None:
            _put(dataset, name, receipt.to_bytes())
            restored.append(name)
    if quarantine.FILE_NAME in lost:
        found = _quarantine(copy) if copy is not None and copy.fingerprint == dataset.fingerprint else None
        if found is None:
            own = _receipts(dataset, dataset.manifest.receipt_names, dataset)
            found = sorted(bad for _, receipt in own if receipt is not None for bad in receipt.quarantined)
        if len(found) == dataset.manifest.inputs - dataset.manifest.samples:
            name = quarantine.version_name(dataset.fingerprint)  # which readers prefer
            _put(dataset, name, quarantine.to_bytes(found))
            restored.append(name)
    return restored


def _receipts(dataset: Dataset, names: Iterable[str], holder: Dataset) -> Iterator[tuple[str, Receipt | None]]:
    """Yield (name, receipt) of a dataset's receipts in `holder`, the dataset or a copy; None for one that it lacks."""
    shards = {shard.receipt_name: shard for shard in dataset.shards}
    return ((name, find_receipt(holder.storage, name, shards.get(name))) for name in names)


def _quarantine(dataset: Dataset) -> list[Quarantined] | None:
    """Return the quarantine of a dataset; None if it is lost."""
    with contextlib.suppress(FormatError):
        found = dataset.quarantine()
        if len(found) == dataset.manifest.inputs - dataset.manifest.samples:
            return found
    return None


def _copy_shard(copy: Dataset, names: Mapping[str, str], shard: Shard, target: Path) -> None:
    """Fetch a shard from a copy, where its name may differ: `names` maps SHA-256s to names there."""
    if (name := names.get(shard.sha256)) is None:
        message = f"{copy.url} has no shard with the content of {shard.name}"
        raise NotFoundError(f"{message}; name a copy of this dataset")
    copy.storage.get(name, target, size=shard.bytes, sha256=shard.sha256)


def _copy_column(dataset: Dataset, file: ColumnFile, copy: Dataset) -> list[str]:
    """Replace a file of a column by that of a copy; return its name."""
    with temporary_staging() as (folder, _):
        copy.storage.get(file.name, folder / "column", size=file.bytes, sha256=file.sha256)
        _put(dataset, file.name, folder / "column")
    return [file.name]


def _pack_again(dataset: Dataset, sources: Sequence[Source], executor: Executor, shard: Shard, target: Path) -> None:
    """Pack a shard again from its source, which may have more inputs now; refuse other bytes."""
    try:
        receipt = read_receipt(dataset.storage, shard.receipt_name, shard)
    except FormatError as error:
        raise IntegrityError(f"{error}; restore it, or repair from a copy") from error
    if receipt.removed:
        raise NotFoundError(f"{shard.name} was written by `shardflow remove`; repair it from a copy")
    recipe, slots = SampleRecipe.of(dataset.manifest), range(receipt.items)
    found = find_inputs(sources, [(shard, receipt, slots)])
    with temporary_staging() as (folder, _):
        ledger = Ledger(folder / "again")
        source, job = job_again(shard, receipt, slots, found, recipe, ledger.url)
        assert dataset.manifest.sharding is not None
        plan = PackPlan(ledger=ledger, source=source, recipe=recipe, sharding=dataset.manifest.sharding, jobs=[job])
        with ledger.storage.exclusive_writer() as writer:
            run(plan, writer, executor)
        again = from_bytes(ledger.storage.read(shard.receipt_name))
        records = zip(receipt.inputs(), map(receipt.record, slots), map(again.record, slots), strict=True)
        if changed := [path for path, before, after in records if before.content != after.content]:
            others = f", nor are {len(changed) - 1} others" if len(changed) > 1 else ""
            raise IntegrityError(f"{changed[0]!r} is not the input from which {shard.name} was packed{others}")
        if again.shard != shard:
            ours = codec_versions()
            theirs = {name: dataset.manifest.tools.get(name) for name in ours}
            versions = f"it was packed with {theirs}, here are {ours}"
            reason = "its inputs have changed" if ours == theirs else versions
            raise IntegrityError(f"packing {shard.name} again gave other bytes: {reason}")
        shutil.move(folder / "again" / shard.name, target)


def _put(dataset: Dataset, name: str, content: bytes | Path) -> None:
    """Publish a file of a version, unless the version was purged meanwhile: removed samples must not come back.

    A purge deletes the manifest of a version before it lists files: either it finds this file, or the second check here
    finds no manifest.
    """
    refuse_purged(dataset.storage, dataset.fingerprint)
    dataset.storage.put(name, content)
    refuse_purged(dataset.storage, dataset.fingerprint, [name])


def _repair_shard(dataset: Dataset, shard: Shard, repair_source: RepairSource | None) -> list[str]:
    """Replace the damaged files of a shard and its index; return their names."""
    storage, repaired = dataset.storage, []
    lacks_index = not _has_index(storage, shard)
    with temporary_staging() as (folder, _):
        tars, name = storage, shard.name
        if lacks_tar := not _has_tar(storage, shard):
            if repair_source is None:
                refuse_virtual(dataset, "shards", "repair", "restore them, or index again")
                raise NotFoundError(f"{shard.name} is lost; name a copy of the dataset, or its source")
            tars, name = LocalStorage(folder), "shard.tar"
            repair_source(shard, folder / name)
        rebuilt = _rebuilt_index(dataset, shard, tars, name)
        if lacks_tar:
            _put(dataset, shard.name, folder / name)
            repaired.append(shard.name)
        if lacks_index:
            _put(dataset, shard.index_name, rebuilt)
            repaired.append(shard.index_name)
    return repaired


def _rebuilt_index(dataset: Dataset, shard: Shard, tars: Storage, name: str) -> bytes:
    """Return the index of a shard, rebuilt from the tar of that name in `tars`."""
    if not dataset.manifest.roots:
        with open_tar(tars, name) as tar:
            return shard_index.rebuild(tar, shard.index_sha256)
    data = shard_index.to_bytes(scan_tar(tars, name, dataset.manifest.annotations).index)
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        raise IntegrityError(f"its index has not all samples of the tar, so it cannot be rebuilt; {LOST_INDEX}")
    return data


def _has_tar(storage: Storage, shard: Shard) -> bool:
    with contextlib.suppress(NotFoundError), open_tar(storage, shard.name, hashed=True) as tar:
        return tar.size == shard.bytes and tar.sha256() == shard.sha256
    return False


def _has_index(storage: Storage, shard: Shard) -> bool:
    with contextlib.suppress(NotFoundError, IntegrityError):
        read_index_bytes(storage, shard)
        return True
    return False
