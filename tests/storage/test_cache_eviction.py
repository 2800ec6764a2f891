from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardflow.storage import cache_eviction
from shardflow.storage.cache_directory import CachedFile, CacheDirectory
from shardflow.storage.cache_eviction import Evictor, eviction_order, spare_bytes

A, B, C, D, X, Y, Z = (letter * 64 for letter in "abcd123")
TOKEN = "0" * 16


@pytest.fixture
def directory(tmp_path: Path) -> CacheDirectory:
    """A cache with three blobs of 10 bytes, the first of them the least recently used."""
    found = CacheDirectory(tmp_path / "cache")
    found.create()
    for number, name in enumerate((A, B, C)):
        (found.blobs / name).write_bytes(bytes(10))
        os.utime(found.blobs / name, (1, number))
    return found


def names(directory: CacheDirectory) -> list[str]:
    """Return the names of the blobs."""
    return sorted(os.listdir(directory.blobs))


def test_order() -> None:
    """Unused files go first; then those read for this epoch, by falling SHA-256; then the rest by their last use."""

    def blob(name: str, unused_s: int, *, is_finished: bool = False) -> CachedFile:
        used_ns = time.time_ns() - unused_s * 10**9
        return CachedFile(path=Path(name), bytes=1, used_ns=used_ns, is_finished=is_finished)

    unused = [blob("0a", 7300), blob("ff", 3601, is_finished=True)]
    finished = [blob("fe", 10, is_finished=True), blob("0b", 3590, is_finished=True)]
    order = [*unused, *finished, blob("aa", 3590), blob("bb", 1)]
    assert eviction_order(reversed(order)) == order


@pytest.mark.parametrize(
    ("size", "limit_bytes", "fits", "left"),
    [(10, 40, True, "abc"), (10, 39, True, "bc"), (10, 20, True, "c"), (10, 10, True, ""), (11, 10, False, "abc")],
)
def test_no_more_is_evicted_than_is_needed(
    directory: CacheDirectory, size: int, limit_bytes: int, fits: bool, left: str
) -> None:
    """Blobs go until what is reserved fits beside the others; where it never can, all stay."""
    with directory.lock(X, size, stall_timeout_s=0):
        assert Evictor(directory).make_room(size, limit_bytes) is fits
    assert "".join(name[0] for name in names(directory)) == left


def test_a_disk_needs_room_for_what_is_not_written_yet(
    directory: CacheDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that a download has written no longer need a free disk; where too little is free, all is evicted."""
    monkeypatch.setattr(cache_eviction, "spare_bytes", lambda _: 0)
    with directory.lock(X, 10, stall_timeout_s=0), directory.lock(Y, 5, stall_timeout_s=0):
        for name, size in ((X, 6), (X, 4), (Y, 5)):
            (directory.partial / f"{name}.{size:016}").write_bytes(bytes(size))
        assert Evictor(directory).make_room(10, 45)
        assert names(directory) == [A, B, C]
        (directory.partial / f"{X}.{6:016}").write_bytes(bytes(5))
        assert not Evictor(directory).make_room(10, 100)
        assert names(directory) == []


def test_pruning(directory: CacheDirectory) -> None:
    """The least recently used files go, decoded images too, until the rest is within the limit; leftovers go first."""
    (directory.decoded / D).write_bytes(bytes(4096))
    os.utime(directory.decoded / D, (1, 0.5))
    for number in range(8):
        (directory.partial / f"{number:064}.{TOKEN}").touch()
        (directory.locks / f"{number:064}").touch()
    with contextlib.ExitStack() as stack:
        for name in (X, Y, Z):
            stack.enter_context(directory.lock(name, 10, stall_timeout_s=0))
        assert [file.path.name for file in Evictor(directory).prune(20)] == [A, D]
        assert names(directory) == [B, C]
        assert (os.listdir(directory.partial), sorted(os.listdir(directory.locks))) == ([], [X, Y, Z])


def test_some_of_the_disk_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 % of a small disk, and 10 GB of a large one."""
    for blocks, spare in ((10**6, 4096 * (10**5 - 20_000)), (10**9, 4096 * 10**5 - 10 * 10**9)):
        disk = SimpleNamespace(f_bavail=10**5, f_blocks=blocks, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda _, disk=disk: disk)
        assert spare_bytes(Path()) == spare
