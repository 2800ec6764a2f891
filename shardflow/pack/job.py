"""A job makes one shard from a fixed slice of the inputs, known before any work begins.

It touches nothing outside its shard, so any executor will do. A job is done in *pieces* of a few inputs each, which
may run at the same time in several processes and leave a fragment of the shard each; `Finish` puts them together. The
slots of a split are numbered whatever becomes of the inputs in them, so a sample's key depends on its own slot alone.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardflow import keyed, manifest
from shardflow.errors import DecodeError, EncodeError, SampleError
from shardflow.store import TEMPORARY, LocalStore, open_store, translated

from . import writer
from .pixels import PixelSums
from .receipt import Quarantined, Receipt
from .recipe import Packed, Recipe
from .source import Item, Source, read

PIECE_ITEMS = 32
"""Small enough that a hundred inputs keep several processes busy, and that little is lost with a process that dies."""

Announce = Callable[[int | None], None]
"""Told which input (its ordinal) is begun, None when the last is over: if the process ends, somebody knows where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard to make.

    Args:
        name: The shard's name in the store without an extension: "train/000000".
        first: Ordinal in the split of the first of the inputs.
        items: The inputs in order.
        src: The directory they lie in.
        dst: The store's path or URL.
        spool: Local directory for the fragments.
        recipe: What to do with each.
        storage_options: Of the store; never shown.
    """

    name: str
    first: int
    items: tuple[Item, ...]
    src: Path
    dst: str
    spool: Path
    recipe: Recipe
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def items_sha256(self) -> str:
        """Digest of the inputs: their paths, labels and sizes, and where they stand in the split."""
        lines = (b"%b\0%a %d\0" % (os.fsencode(item.path), item.label, item.size) for item in self.items)
        return hashlib.sha256(b"%d\0" % self.first + b"".join(lines)).hexdigest()

    def pieces(self) -> list[Piece]:
        """Return the parts of the job that can run at the same time."""
        starts = range(0, len(self.items), PIECE_ITEMS)
        return [
            Piece(job=replace(self, items=self.items[at : at + PIECE_ITEMS], first=self.first + at)) for at in starts
        ]


class PieceResult(NamedTuple):
    """What became of a piece: its fragment, and the fate of each of its inputs."""

    fragment: writer.Fragment
    sources: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]
    bytes_in: int
    pixels: PixelSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A few inputs of a job.

    Args:
        job: The job, cut down to these inputs.
        deadly: Ordinal → reason, of inputs that must not be touched because they end the process.
    """

    job: Job
    deadly: Mapping[int, str] = field(default_factory=dict)

    def run(self, announce: Announce) -> PieceResult:
        """Process the inputs and write the fragment; may be repeated.

        Raises:
            StoreError: The destination failed. Whatever is wrong with an input is part of the result instead.
        """
        job = self.job
        members: list[bytes] = []
        sources: list[str] = []
        quarantined: list[Quarantined] = []
        pixels, bytes_in = PixelSums(), 0
        for ordinal, item in enumerate(job.items, job.first):
            announce(ordinal)
            outcome = self._process(ordinal, item)
            if isinstance(outcome, Quarantined):
                quarantined.append(outcome)
                continue
            parts = {"jpg": outcome.jpeg}
            if item.label is not None:
                parts["cls"] = b"%d" % item.label
            members.append(writer.sample(f"{ordinal:09d}", parts))
            sources.append(item.path)
            pixels += outcome.pixels
            bytes_in += item.size
        announce(None)
        folder, _, base = job.name.rpartition("/")
        name = f"{folder}/{TEMPORARY}{base}.{job.first:09d}"
        data = b"".join(members)
        path = job.spool / name
        with translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)  # not made durable: after a crash the piece is done again
        fragment = writer.Fragment(name=name, samples=len(sources), size=len(data), crc32=zlib.crc32(data))
        return PieceResult(fragment, tuple(sources), tuple(quarantined), bytes_in, pixels)

    def without(self, ordinal: int, reason: str) -> Piece:
        """Return the piece with one more input marked as deadly."""
        return replace(self, deadly={**self.deadly, ordinal: reason})

    def _process(self, ordinal: int, item: Item) -> Packed | Quarantined:
        if ordinal in self.deadly:
            return Quarantined(item.path, "decode", self.deadly[ordinal])
        try:
            return self.job.recipe.process(read(self.job.src, item))
        except SampleError as error:
            stages = {DecodeError: "decode", EncodeError: "encode"}
            return Quarantined(item.path, stages.get(type(error), "read"), str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a job: its fragments, in order, become the shard."""

    job: Job
    results: tuple[PieceResult, ...]

    def run(self, announce: Announce) -> Receipt:  # noqa: ARG002 - no input is touched
        """Publish tar, index and receipt, in this order; may be repeated.

        Raises:
            StoreError: The destination failed.
            IntegrityError: It does not hold what was written.
        """
        job = self.job
        store = open_store(job.dst, job.storage_options)
        shard, index = None, b""
        if isinstance(store, LocalStore):  # elsewhere the claim sees to it, and a twin may be reading this receipt
            store.remove(f"{job.name}.json")  # one of older settings must not vouch for the new tar
        if any(result.fragment.samples for result in self.results):
            fragments = [(job.spool / result.fragment.name, result.fragment) for result in self.results]
            folder, _, base = job.name.rpartition("/")
            tar = job.spool / folder / f"{TEMPORARY}{base}.tar"
            assembled = writer.assemble(tar, fragments)
            store.upload(f"{job.name}.tar", tar)
            index = assembled.index
            store.put(f"{job.name}.npy", index)
            shard = manifest.Shard(
                name=f"{job.name}.tar",
                samples=sum(result.fragment.samples for result in self.results),
                bytes=assembled.size,
                sha256=assembled.sha256,
                index_sha256=hashlib.sha256(index).hexdigest(),
            )
        else:
            store.remove(f"{job.name}.tar")
            store.remove(f"{job.name}.npy")
        receipt = Receipt(
            first=job.first,
            items_sha256=job.items_sha256,
            recipe_sha256=job.recipe.digest,
            sources=tuple(path for result in self.results for path in result.sources),
            quarantined=tuple(bad for result in self.results for bad in result.quarantined),
            bytes_in=sum(result.bytes_in for result in self.results),
            pixels=sum((result.pixels for result in self.results), PixelSums()),
            shard=shard,
            index_bytes=len(index),
        )
        store.put(f"{job.name}.json", receipt.to_bytes())
        for result in self.results:
            (job.spool / result.fragment.name).unlink(missing_ok=True)
        return receipt


def plan_jobs(
    source: Source,
    dst: str,
    recipe: Recipe,
    *,
    spool: Path,
    shard_samples: int,
    seed: int,
    shuffle: bool,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Cut the inputs of each split, shuffled by `seed` if asked, into jobs of `shard_samples` inputs."""
    jobs: list[Job] = []
    for split, items in source.splits.items():
        if shuffle:
            items = tuple(items[number] for number in keyed.permutation(keyed.key(seed, "pack", split), len(items)))
        for number, first in enumerate(range(0, len(items), shard_samples)):
            job = Job(
                name=f"{split}/{number:06d}",
                first=first,
                items=items[first : first + shard_samples],
                src=source.root,
                dst=dst,
                spool=spool,
                recipe=recipe,
                storage_options=storage_options,
            )
            jobs.append(job)
    return jobs
