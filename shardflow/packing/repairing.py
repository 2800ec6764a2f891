"""Repairing: the damaged and missing shards of a dataset are restored, and no other file is changed.

A shard comes from a copy of the dataset, or from the source, whose inputs are packed again, and is accepted only with
the SHA-256 of the manifest. An index is rebuilt from its shard, and needs neither.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.shard_rows import read_index_bytes
from shardflow.dataset.tar_file import open_tar
from shardflow.dataset.verifying import Finding, verify_dataset, verify_shard
from shardflow.dataset.virtual_dataset import refuse_virtual
from shardflow.errors import FormatError, IntegrityError, NotFoundError, ShardflowError
from shardflow.formats import shard_index
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.shard import Shard
from shardflow.storage.interface import Storage
from shardflow.storage.local import LocalStorage
from shardflow.storage.staging import temporary_staging

from .executors import Executor, make_executor
from .image.codec_versions import codec_versions
from .ledger import Ledger
from .origin import find_inputs, job_again, open_sources, read_receipt
from .pack_plan import PackPlan
from .run import run
from .sample_recipe import SampleRecipe
from .sources.source import Source

RepairSource = Callable[[Shard, Path], None]
"""Writes the tar of a shard, as it was packed, to a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        found: All damage that was found.
        repaired: Names of the files that were replaced.
        failed: Name of a shard → why it could not be repaired.
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
    progress: Callable[[Shard], None] | None = None,
) -> RepairReport:
    """Read a whole dataset, and replace the files that are not what was packed.

    Args:
        url: The dataset; its manifest must be intact.
        source: A copy of the dataset, or what it was packed from, as for `pack`; None repairs indexes alone.
        storage_options, source_options: Options of fsspec's file systems, where these are URLs.
        workers: Processes for packing again; None for one per core.
        progress: Called after each shard that was read.

    Raises:
        NotFoundError: There is no dataset, or nothing at `source`.
        ManifestError: The manifest is damaged.
        ConfigError: `source` is neither a copy nor a source, the dataset is virtual, or `workers` is below 1.
        StoreError: The dataset cannot be reached, or another process is writing to it.
    """
    executor = make_executor("processes", workers)
    dataset = open_dataset(url, storage_options=storage_options)
    refuse_virtual(dataset, "shards", "create it again if an index is lost, or repair", "restore them, or index anew")
    found = verify_dataset(dataset, progress=progress)
    touched = {finding.file for finding in found}
    files = {name for shard in dataset.shards for name in (shard.name, shard.index_name)}
    broken = [shard for shard in dataset.shards if touched & {shard.name, shard.index_name}]
    repaired: list[str] = []
    failed: dict[str, str] = {}
    left = [finding for finding in found if finding.file not in files]
    with contextlib.ExitStack() as stack:
        stack.enter_context(dataset.storage.exclusive_writer())
        repair_source = None
        if source is not None and broken:
            repair_source = stack.enter_context(_open_source(dataset, source, source_options, executor))
        for shard in broken:
            try:
                repaired += _repair_shard(dataset.storage, shard, repair_source)
            except ShardflowError as error:
                failed[shard.name] = str(error)
            left += verify_shard(dataset, shard)
    return RepairReport(found=tuple(found), repaired=tuple(repaired), failed=failed, left=tuple(left))


@contextlib.contextmanager
def _open_source(
    dataset: Dataset, source: Any, options: Mapping[str, Any] | None, executor: Executor
) -> Iterator[RepairSource]:
    """Open a copy of a dataset, or a source of it."""
    copy = None
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(NotFoundError):  # not a copy, so a source
            copy = open_dataset(source, storage_options=options)
    if copy is not None:
        names = {shard.sha256: shard.name for shard in copy.shards}
        yield functools.partial(_copy_shard, copy, names)
        return
    with open_sources(dataset, [source], options) as opened:
        yield functools.partial(_pack_again, dataset, opened, executor)


def _copy_shard(copy: Dataset, names: Mapping[str, str], shard: Shard, target: Path) -> None:
    """Fetch a shard from a copy, where its name may differ: `names` has it by its SHA-256."""
    if (name := names.get(shard.sha256)) is None:
        message = f"{copy.url} has no shard with the content of {shard.name}"
        raise NotFoundError(f"{message}; is it a copy of this dataset?")
    copy.storage.get(name, target, size=shard.bytes, sha256=shard.sha256)


def _pack_again(dataset: Dataset, sources: Sequence[Source], executor: Executor, shard: Shard, target: Path) -> None:
    """Pack a shard again from its source, which may have grown since; refuse a result that is not what was packed."""
    try:
        receipt = read_receipt(dataset, shard.name.removesuffix(".tar"), shard)
    except FormatError as error:
        raise IntegrityError(f"{error}; restore it, or repair from a copy") from error
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
        if changed := _changed_inputs(receipt, again):
            others = f", nor are {len(changed) - 1} others" if len(changed) > 1 else ""
            raise IntegrityError(f"{changed[0]!r} is not the input from which {shard.name} was packed{others}")
        if again.shard != shard:
            ours = codec_versions()
            theirs = {name: dataset.manifest.tools.get(name) for name in ours}
            versions = f"it was packed with {theirs}, here are {ours}"
            reason = "its inputs have changed" if ours == theirs else versions
            raise IntegrityError(f"packing {shard.name} again gave other bytes: {reason}")
        shutil.move(folder / "again" / shard.name, target)


def _changed_inputs(before: Receipt, after: Receipt) -> list[str]:
    """Return the paths of the inputs whose content differs in two receipts of the same inputs."""
    differ = [before.record(slot).content != after.record(slot).content for slot in range(len(before.inputs()))]
    return list(itertools.compress(before.inputs(), differ))


def _repair_shard(storage: Storage, shard: Shard, repair_source: RepairSource | None) -> list[str]:
    """Replace the damaged files of a shard and its index; return their names."""
    repaired = []
    lacks_index = not _has_index(storage, shard)
    with temporary_staging() as (folder, _):
        tars, name = storage, shard.name
        if lacks_tar := not _has_tar(storage, shard):
            if repair_source is None:
                raise NotFoundError(f"{shard.name} is lost; name a copy of the dataset, or what it was packed from")
            tars, name = LocalStorage(folder), "shard.tar"
            repair_source(shard, folder / name)
        with open_tar(tars, name) as tar:
            rebuilt = shard_index.rebuild(tar, shard.index_sha256)
        if lacks_tar:
            storage.put(shard.name, folder / name)
            repaired.append(shard.name)
        if lacks_index:
            storage.put(shard.index_name, rebuilt)
            repaired.append(shard.index_name)
    return repaired


def _has_tar(storage: Storage, shard: Shard) -> bool:
    try:
        with open_tar(storage, shard.name, hashed=True) as tar:
            return tar.size == shard.bytes and tar.sha256() == shard.sha256
    except NotFoundError:
        return False


def _has_index(storage: Storage, shard: Shard) -> bool:
    try:
        read_index_bytes(storage, shard)
    except (NotFoundError, IntegrityError):
        return False
    return True
