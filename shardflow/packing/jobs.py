"""Jobs: each makes one shard from a fixed slice of the inputs, known before any work begins.

A job writes only its shard, so any executor can run it. Its *pieces*, of a few inputs each, may run in several
processes; each piece leaves a partial tar, and `Finish` assembles these. The slots of a split are numbered whether or
not their inputs are packed, so a sample's key depends only on its slot.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shardflow.dataset.own_files import job_files
from shardflow.dataset.write_lock import WriteLock
from shardflow.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    FormatError,
    NotFoundError,
    SampleError,
    StoreError,
    TooLargeError,
)
from shardflow.formats.labels import Label
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import UNREAD, Receipt, from_bytes
from shardflow.formats.shard_layout import sample_key
from shardflow.formats.statistics import PixelSums, Statistics
from shardflow.storage.file_names import name_bytes
from shardflow.storage.interface import TEMPORARY, Storage
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.resolve import open_storage

from . import shard_writer
from .sample_recipe import PackedSample, SampleRecipe
from .sources.items import Item
from .sources.reader import Input, Reader

PIECE_ITEMS = 32
"""Inputs per piece: few, so that a hundred inputs keep several processes busy, and a dead process loses little."""

_STAGES = {DecodeError: "decode", EncodeError: "encode", TooLargeError: "decode"}

Announce = Callable[[int | None], None]
"""Called with the ordinal of each input before its processing, and with None at the end: shows where a process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work to make one shard."""

    name: str  # of the shard, without an extension: "train/000000"
    first: int  # ordinal of the first input in its split
    items: Sequence[Item]
    reader: Reader
    dst: str  # path or URL
    recipe: SampleRecipe
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    staging: Path = Path()  # local directory for the partial tars; a plan leaves it to the run
    lock: WriteLock | None = field(default=None, repr=False)  # None if no other process can write to dst

    @property
    def items_sha256(self) -> str:
        """Digest of the inputs."""
        return digest_of(self.items, self.first)

    @property
    def identities(self) -> str:
        """The identities of the inputs, in the form of a receipt."""
        return "".join(map(identity_digits, self.items))

    def receipt(self, storage: Storage) -> Receipt | None:
        """Return the stored receipt if it has the same inputs, wherever their files are, and settings; else None."""
        with contextlib.suppress(NotFoundError, FormatError):
            found = from_bytes(storage.read(f"{self.name}.json"))
            if (found.items_sha256, found.recipe_sha256) == (self.items_sha256, self.recipe.digest):
                return found
        return None

    def pieces(self) -> list[Piece]:
        """Return the parts of the job that can run in parallel."""
        count = max(PIECE_ITEMS, self.reader.chunk_items)
        return [
            Piece(job=replace(self, items=tuple(self.items[at : at + count]), first=self.first + at))
            for at in range(0, len(self.items), count)
        ]


def digest_of(items: Iterable[Item], first: int) -> str:
    """Return the SHA-256 of the inputs' paths, labels, sizes and `more`, and of their place in the split."""
    lines = (b"%b\0%a %d\0%b" % (name_bytes(path), label, size, more) for path, label, size, _, more in items)
    return hashlib.sha256(b"%d\0" % first + b"".join(lines)).hexdigest()


def identity_digits(item: Item) -> str:
    """Return a digest of all that is known of an input before it is read, except its path: 16 hexadecimal digits."""
    known = b"%a %d %d\0%b" % (item.label, item.size, item.identity, item.more)
    return hashlib.blake2b(known, digest_size=8).hexdigest()


def content_digits(found: Input, label: Label) -> str:
    """Return a digest of a sample's content (image, label, other parts), as 16 hexadecimal digits."""
    digest = hashlib.sha256(found.image)  # processors have instructions for it
    if label is not None or found.parts:
        digest.update(b"\0%a" % (label,))
    for part, payload in sorted(found.parts.items()):
        digest.update(b"\0%b\0%d\0%b" % (part.encode(errors="replace"), len(payload), payload))
    return digest.hexdigest()[:16]


def content_now(item: Item, reader: Reader) -> str:
    """Return the digest of an input's current content; "" if it cannot be read."""
    try:
        return content_digits(reader.read(item), item.label)
    except SampleError:
        return ""


def why_unread(item: Item, reader: Reader) -> str:
    """Return the reason why an input cannot be read; "" if it can."""
    try:
        reader.read(item)
    except SampleError as error:
        return str(error)
    return ""


class InputResult(NamedTuple):
    """The result of an input. Size and content have the form of a receipt."""

    path: str
    size: int
    content: str
    quarantined: Quarantined | None


class PieceResult(NamedTuple):
    """The result of a piece: its partial tar, and the result of each input."""

    partial: shard_writer.PartialTar
    inputs: tuple[InputResult, ...]
    pixels: PixelSums
    statistics: Statistics


Outcome = PieceResult | Receipt
"""The result of a piece or of a whole job."""

Done = Callable[[Job, Outcome], None]
"""Called in the calling thread with each outcome and its job, in any order; the receipt of a job comes last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A few inputs of a job."""

    job: Job  # with only these inputs
    crashing_inputs: Mapping[int, str] = field(default_factory=dict)  # ordinal → reason, of inputs that end a process

    def run(self, announce: Announce = lambda _: None) -> PieceResult:
        """Process the inputs and write the partial tar; may be repeated. Bad inputs are part of the result."""
        job = self.job
        members: list[bytes] = []
        inputs: list[InputResult] = []
        pixels, statistics = PixelSums(), Statistics()
        results = zip(job.items, self.outcomes(announce), strict=True)
        for ordinal, (item, (result, packed)) in enumerate(results, job.first):
            inputs.append(result)
            if packed is not None:
                members.append(shard_writer.sample(sample_key(ordinal), packed.parts))
                pixels += packed.count_in(statistics, item.label)
        folder, _, base = job.name.rpartition("/")
        name = f"{folder}/{TEMPORARY}{base}.{job.first:09d}"
        data = b"".join(members)
        path = job.staging / name
        with map_os_errors(path):
            path.parent.mkdir(exist_ok=True)  # not parents: if the disk is gone, its mount point must stay empty
            path.write_bytes(data)  # not synced: after a crash the piece is repeated
        tar = shard_writer.PartialTar(name=name, samples=len(members), size=len(data), crc32=zlib.crc32(data))
        return PieceResult(tar, tuple(inputs), pixels, statistics)

    def outcomes(self, announce: Announce = lambda _: None) -> Iterator[tuple[InputResult, PackedSample | None]]:
        """Yield the result of each input, and its sample or None if it is quarantined. Nothing is written."""
        with contextlib.ExitStack() as stack:
            reads: list[Callable[[], Input]] = [partial(self.job.reader.read, item) for item in self.job.items]
            if self.job.reader.remote:  # request all inputs at once
                threads = ThreadPoolExecutor(PIECE_ITEMS)
                stack.callback(threads.shutdown, cancel_futures=True)
                reads = [threads.submit(read).result for read in reads]
            for ordinal, (item, read) in enumerate(zip(self.job.items, reads, strict=True), self.job.first):
                announce(ordinal)
                size, content, packed, bad = -1, UNREAD, None, None
                try:
                    if ordinal in self.crashing_inputs:
                        raise DecodeError(self.crashing_inputs[ordinal])
                    found = read()
                    size, content = len(found.image), content_digits(found, item.label)
                    packed = self.job.recipe.pack(found, item.label)
                except SampleError as error:
                    bad = Quarantined(item.path, _STAGES.get(type(error), "read"), str(error))
                yield InputResult(item.path, size, content, bad), packed
            announce(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a job: its partial tars, in order, become the shard."""

    job: Job
    results: tuple[PieceResult, ...]

    def run(self, announce: Announce = lambda _: None) -> Receipt:  # noqa: ARG002 - no input is touched
        """Publish tar, index and receipt, in this order, and return the receipt; may be repeated."""
        job = self.job
        storage = open_storage(job.dst, job.storage_options)
        partials = [(job.staging / result.partial.name, result.partial) for result in self.results]
        if not all(path.exists() for path, _ in partials):
            # An attempt that was killed before it could return may have removed them.
            if (receipt := job.receipt(storage)) is not None:
                return receipt
            message = f"{job.staging}: parts of {job.name} have vanished; make sure that no process deletes"
            raise StoreError(f"{message} files there, and run the same command again")
        shard, index = None, b""
        receipt_name = f"{job.name}.json"
        # A receipt of older settings must not describe the new tar. On a remote storage the write lock excludes such
        # receipts, and nothing is removed: another process with the same work may read or have committed the files.
        is_disk = storage.local_path(receipt_name) is not None
        if is_disk:
            storage.remove(receipt_name)
        if any(partial.samples for _, partial in partials):
            folder, _, base = job.name.rpartition("/")
            tar = job.staging / folder / f"{TEMPORARY}{base}.tar"
            try:
                with map_os_errors(tar):
                    shard, index = shard_writer.assemble(tar, f"{job.name}.tar", partials)
            except FormatError as error:
                message = f"{storage.url(job.name)}.tar cannot be indexed: {error}"
                raise ConfigError(f"{message}; choose fewer samples per shard (--shard-samples)") from error
            storage.put(shard.name, tar)
            storage.put(shard.index_name, index)
        elif is_disk:
            storage.remove(f"{job.name}.tar")
            storage.remove(f"{job.name}.npy")
        inputs = [each for result in self.results for each in result.inputs]
        statistics = sum((result.statistics for result in self.results), Statistics())
        receipt = Receipt(
            first=job.first,
            items_sha256=job.items_sha256,
            recipe_sha256=job.recipe.digest,
            sources=tuple(each.path for each in inputs if each.quarantined is None),
            skipped=tuple(slot for slot, each in enumerate(inputs) if each.quarantined is not None),
            quarantined=tuple(each.quarantined for each in inputs if each.quarantined is not None),
            bytes_in=statistics.counts["bytes_before"],
            pixels=sum((result.pixels for result in self.results), PixelSums()),
            statistics=statistics,
            shard=shard,
            index_bytes=len(index),
            sizes=tuple(each.size for each in inputs),
            contents="".join(each.content for each in inputs),
            identities=job.identities,
        )
        storage.put(receipt_name, receipt.to_bytes())
        if job.lock is not None:
            replace(job.lock, storage=storage).confirm(job_files(job.name))  # pickling dropped the lock's credentials
        with map_os_errors(job.staging):
            for path, _ in partials:
                path.unlink(missing_ok=True)
        return receipt


def content_of(jobs: Iterable[Job]) -> str:
    """Return a digest of all that the output of jobs depends on, by which a writer recognises its lock."""
    lines = "".join(f"{job.name} {job.items_sha256} {job.recipe.digest}\n" for job in jobs)
    return hashlib.sha256(lines.encode()).hexdigest()
