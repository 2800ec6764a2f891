"""The corruption matrix: every kind of damage to the files of a dataset, at every place.

`verify` names each damaged file, and readers deliver the sample that was packed, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import shardflow as sf
from shardflow.errors import ShardflowError
from shardflow.formats import tar_members, ustar
from tests.helpers.folders import encoded, write_tree
from tests.helpers.hostile import picture
from tests.helpers.tars import TarInMemory

SHARD_SAMPLES = 3
SAMPLES = 2 * SHARD_SAMPLES
TAR, OTHER = "train/000000.tar", "train/000001.tar"
INDEX, OTHER_INDEX = "train/000000.npy", "train/000001.npy"
MANIFEST = "shardflow.json"
PAGE = 4096

Files = Mapping[str, bytes]  # file -> what it holds
Damage = Mapping[str, bytes | None]  # file -> what it holds then; None when it is missing
Sample = tuple[object, ...]


class Whole:
    """A small dataset, and everything that its readers may ever deliver."""

    def __init__(self, folder: Path) -> None:
        images = {f"{'ab'[n % 2]}/{n}.jpg": picture(24, 16 + n) for n in range(SAMPLES)}
        write_tree(folder / "src", {name: encoded(image, "JPEG") for name, image in images.items()})
        self.root = folder / "set"
        sf.pack(folder / "src", self.root, shard_samples=SHARD_SAMPLES, executor="serial", short_side=512)
        self.files = {name: (self.root / name).read_bytes() for name in (TAR, OTHER, INDEX, OTHER_INDEX, MANIFEST)}
        self.opened = self._opened()
        self.loaded = self._loaded()
        assert None not in self.opened
        assert len(self.loaded) == SAMPLES

    def _opened(self) -> list[object]:
        """Return each sample as `shardflow.open` gives it; None where that is an error of the project's own."""
        try:
            split = sf.open(self.root)["train"]
        except ShardflowError:
            return []
        found: list[object] = []
        for number in range(len(split)):
            try:
                found.append(split[number])
            except ShardflowError:
                found.append(None)
        return found

    def _loaded(self) -> list[Sample]:
        """Return what the loader delivers: key, label and pixels; damaged samples are replaced."""
        try:
            loader = sf.Loader(
                self.root,
                split="train",
                batch_size=SAMPLES,
                decoder=sf.decoders.CenterCrop(16),
                fields=("key", "label", "image"),
                shuffle=False,
                num_workers=0,
                max_errors=100,
            )
            return [
                (key, int(label), image.numpy().tobytes())
                for keys, labels, images in loader
                for key, label, image in zip(keys, labels, images, strict=True)
            ]
        except ShardflowError:
            return []

    def harm(self, damage: Damage) -> Harm:
        """Damage files, record the effects, and restore the files.

        Raises:
            AssertionError: A wrong sample was delivered. Errors that are not the project's own come through.
        """
        assert any(self.files[name] != data for name, data in damage.items())
        try:
            self._put(damage)
            try:
                named = {finding.file for finding in sf.verify(self.root)}
            except ShardflowError:
                named = {MANIFEST}
            opened, loaded = self._opened(), self._loaded()
        finally:
            self._put({name: self.files[name] for name in damage})
        wrong = [found for found, right in zip(opened, self.opened, strict=False) if found not in (None, right)]
        assert not wrong, "shardflow.open delivered a wrong sample"
        assert set(loaded) <= set(self.loaded), "the loader delivered a wrong sample"
        lost = SAMPLES - sum(found is not None for found in opened)
        changed = {name for name, data in damage.items() if self.files[name] != data}
        return Harm(found=changed <= named, lost=lost)

    def _put(self, damage: Damage) -> None:
        for name, data in damage.items():
            path = self.root / name
            path.unlink(missing_ok=True)  # writing over a file waits for the disk
            if data is not None:
                path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class Harm:
    """The effects of a damage: whether `verify` named every file of it, and how many samples were unreadable."""

    found: bool
    lost: int


def _members(files: Files) -> list[tar_members.Member]:
    return list(tar_members.members(TarInMemory(files[TAR])))


DAMAGES: dict[str, Callable[[Files], Iterator[Damage]]] = {
    "a bit of a header flipped": lambda files: _flips(
        files, TAR, *((member.offset - ustar.BLOCK, member.offset) for member in _members(files))
    ),
    "a bit of a payload flipped": lambda files: _flips(
        files, TAR, *((member.offset, member.offset + member.size) for member in _members(files))
    ),
    "a bit of padding flipped": lambda files: _flips(
        files, TAR, *((m.offset + m.size, m.offset + m.size + ustar.padding(m.size)) for m in _members(files))
    ),
    "a bit of the end flipped": lambda files: _flips(files, TAR, (len(files[TAR]) - len(ustar.END), len(files[TAR]))),
    "a bit of an index flipped": lambda files: _flips(files, INDEX, (0, len(files[INDEX]))),
    # Nothing depends on the versions of the tools, and so no digest does.
    "a bit of the manifest flipped": lambda files: _flips(
        files,
        MANIFEST,
        (0, files[MANIFEST].index(b'"tools"')),
        (files[MANIFEST].index(b'"version"'), len(files[MANIFEST])),
    ),
    "a shard cut at 512 bytes": lambda files: _cuts(files, TAR, ustar.BLOCK),
    "an index cut at 64 bytes": lambda files: _cuts(files, INDEX, 64),
    "the manifest cut at 64 bytes": lambda files: _cuts(files, MANIFEST, 64),
    "a block of 512 zeroed": lambda files: _zeroed(files, ustar.BLOCK),
    "a page of 4096 zeroed": lambda files: _zeroed(files, PAGE),
    "bytes appended": lambda files: ({name: data + b"\0" * n} for name, data in files.items() for n in (1, 512)),
    "a file missing": lambda files: ({name: None} for name in files),
    "files exchanged": lambda files: _exchanged(files),
    "members taken out": lambda files: _rebuilt(files, lambda kept, n: kept[:n] + kept[n + 1 :]),
    "members doubled": lambda files: _rebuilt(files, lambda kept, n: [*kept[: n + 1], *kept[n:]]),
    "members moved": lambda files: _rebuilt(files, lambda kept, n: [*kept[n:], *kept[:n]]),
    "payloads exchanged": lambda files: _crossed(files),
}
"""Every kind of damage: each returns all of its cases for the files of a dataset."""


def _flips(files: Files, name: str, *spans: tuple[int, int]) -> Iterator[Damage]:
    for first, last in spans:
        for position in range(first, last):
            data = bytearray(files[name])
            data[position] ^= 1 << position % 8
            yield {name: bytes(data)}


def _cuts(files: Files, name: str, step: int) -> Iterator[Damage]:
    return ({name: files[name][:size]} for size in range(0, len(files[name]), step))


def _zeroed(files: Files, size: int) -> Iterator[Damage]:
    for name, data in files.items():
        for start in range(0, len(data), size):
            zeroed = data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
            if zeroed != data:
                yield {name: zeroed}


def _exchanged(files: Files) -> Iterator[Damage]:
    shards, indexes = {TAR: files[OTHER], OTHER: files[TAR]}, {INDEX: files[OTHER_INDEX], OTHER_INDEX: files[INDEX]}
    yield from (shards, indexes, {**shards, **indexes}, {TAR: files[OTHER]}, {INDEX: files[OTHER_INDEX]})
    yield from ({TAR: files[INDEX]}, {INDEX: files[TAR]}, {MANIFEST: files[INDEX]})


def _rebuilt(files: Files, change: Callable[[list[bytes], int], list[bytes]]) -> Iterator[Damage]:
    data, members = files[TAR], _members(files)
    ends = [member.offset + member.size + ustar.padding(member.size) for member in members]
    whole = [data[member.offset - ustar.BLOCK : end] for member, end in zip(members, ends, strict=True)]
    for number in range(len(members)):
        damaged = b"".join(change(whole, number)) + ustar.END
        if damaged != data:
            yield {TAR: damaged}


def _crossed(files: Files) -> Iterator[Damage]:
    """Put the payload of a member in the place of another's of the same size: the classes of two samples."""
    members = _members(files)
    for one in members:
        for other in members:
            if one.size == other.size and one.offset < other.offset:
                data = bytearray(files[TAR])
                data[one.offset : one.offset + one.size] = files[TAR][other.offset : other.offset + other.size]
                data[other.offset : other.offset + other.size] = files[TAR][one.offset : one.offset + one.size]
                if bytes(data) != files[TAR]:
                    yield {TAR: bytes(data)}
