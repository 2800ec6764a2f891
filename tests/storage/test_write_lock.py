from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from shardflow.errors import ConfigError, DatasetExistsError, StoreError
from shardflow.formats import manifest
from shardflow.storage import write_lock
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage, Writer
from shardflow.storage.write_lock import acquire, acquire_to_extend, clean_up, lock_directory, release
from tests.helpers.making import make_dataset

HOLD = """
import pathlib, sys
from shardflow.storage.write_lock import lock_directory
with lock_directory(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
HOLD_WITH_WORKER = """
import pathlib, subprocess, sys
from shardflow.storage.write_lock import lock_directory
with lock_directory(pathlib.Path(sys.argv[1])) as descriptor:
    worker = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[descriptor], stdout=subprocess.DEVNULL)
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that does not exist yet."""
    return tmp_path / "storage"


@contextlib.contextmanager
def process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process until the body ends."""
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line(stream: IO[str] | None) -> str:
    """Return the next line that a process prints."""
    assert stream is not None
    return stream.readline().strip()


def test_a_locked_directory_keeps_others_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process writes, another is refused, with the place and the remedy; afterwards it may write."""
    monkeypatch.setattr(write_lock, "LOCK_TIMEOUT_S", 0.1)
    with process(HOLD, path) as child:
        assert line(child.stdout) == "held"
        with pytest.raises(StoreError, match=r"another process is writing to .*storage; wait"), lock_directory(path):
            pass
        child.communicate("")
        assert child.returncode == 0
        with lock_directory(path):
            assert list(path.iterdir()) == []


def test_a_killed_process_releases_its_lock(path: Path) -> None:
    """A writer that is killed with SIGKILL leaves neither a lock nor a file."""
    with process(HOLD, path) as child:
        assert line(child.stdout) == "held"
        child.send_signal(signal.SIGKILL)
        child.wait()
        with lock_directory(path):
            pass
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("seconds", [0.4, 60])
def test_the_workers_of_a_killed_process_are_waited_for(path: Path, seconds: float) -> None:
    """A worker that inherited the lock of a killed writer still holds it; the next writer waits until the timeout."""
    with process(HOLD_WITH_WORKER, path, seconds) as child:
        worker = int(line(child.stdout))
        child.send_signal(signal.SIGKILL)
        child.wait()
        try:
            if seconds < 1:
                with lock_directory(path):
                    pass
            else:
                with pytest.raises(StoreError, match="another process"), lock_directory(path):
                    pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def test_a_process_locks_a_directory_once(path: Path) -> None:
    """A second lock is refused in the same process too; the end of the body releases the lock, also after an error."""

    def lock_twice() -> None:
        with lock_directory(path):
            with pytest.raises(StoreError), lock_directory(path, timeout_s=0):
                pass
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        lock_twice()
    with lock_directory(path):
        pass


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, path: Path, prefix: str) -> Storage:
    """An empty storage."""
    return open_storage(path if request.param == "directory" else f"memory://{prefix}")


def writer(*, is_alone: bool) -> Writer:
    """A writer; only whether it is alone matters to the blob."""
    return Writer(Path(), -1, is_alone)


SHARED, ALONE = writer(is_alone=False), writer(is_alone=True)


def dataset(storage: Storage, tmp_path: Path) -> str:
    """Put the manifest of a dataset into a storage, and return its fingerprint."""
    data = (make_dataset(tmp_path / "set", [2]) / manifest.FILE_NAME).read_bytes()
    storage.put(manifest.FILE_NAME, data)
    return manifest.from_bytes(data).fingerprint


@pytest.mark.parametrize("which", [None, SHARED])
def test_a_lock_is_for_one_content(storage: Storage, which: Writer | None) -> None:
    """A lock may be acquired again for the same content, and not for another, until it is released."""
    for _ in range(2):
        acquire(storage, "ours", which)
    assert json.loads(storage.read(write_lock.FILE_NAME)) == {"content": "ours"}
    for other in (None, SHARED, ALONE):
        with pytest.raises(ConfigError, match="with other inputs or settings"):
            acquire(storage, "theirs", other)
    release(storage)
    acquire(storage, "theirs", which)


def test_a_writer_that_is_alone_needs_no_blob(storage: Storage) -> None:
    """Where the kernel keeps other writers out, no blob is written."""
    acquire(storage, "ours", ALONE)
    assert storage.listing() == {}


@pytest.mark.parametrize("which", [None, SHARED, ALONE])
def test_a_dataset_is_not_locked(storage: Storage, tmp_path: Path, which: Writer | None) -> None:
    """Where a dataset is, the lock is refused and removed."""
    dataset(storage, tmp_path)
    with pytest.raises(DatasetExistsError, match="already holds a dataset"):
        acquire(storage, "ours", which)
    assert list(storage.listing()) == [manifest.FILE_NAME]


def test_a_dataset_is_locked_to_extend_it(storage: Storage, tmp_path: Path) -> None:
    """The lock of an extension is for one content, and for the version that it extends."""
    fingerprint = dataset(storage, tmp_path)
    for _ in range(2):
        acquire_to_extend(storage, "ours", fingerprint, SHARED)
    with pytest.raises(ConfigError, match="with other inputs or settings"):
        acquire_to_extend(storage, "theirs", fingerprint, SHARED)
    with pytest.raises(DatasetExistsError, match="extended by another process meanwhile"):
        acquire_to_extend(storage, "ours", "sha256:" + "0" * 64, SHARED)
    release(storage)
    acquire_to_extend(storage, "ours", fingerprint, ALONE)
    assert list(storage.listing()) == [manifest.FILE_NAME]


def test_the_lock_of_a_committed_extension_is_replaced(storage: Storage, tmp_path: Path) -> None:
    """A lock to extend an older version belongs to a writer that was killed after its commit, and is void."""
    fingerprint = dataset(storage, tmp_path)
    storage.put(write_lock.FILE_NAME, json.dumps({"content": "old", "extends": "sha256:" + "0" * 64}).encode())
    acquire_to_extend(storage, "new", fingerprint, SHARED)
    assert json.loads(storage.read(write_lock.FILE_NAME)) == {"content": "new", "extends": fingerprint}


def test_clean_up_spares_a_running_extension(storage: Storage, tmp_path: Path) -> None:
    """The leftovers of a commit are removed, but not the lock of an extension of this very version."""
    fingerprint = dataset(storage, tmp_path)
    acquire_to_extend(storage, "ours", fingerprint, SHARED)
    clean_up(storage)
    assert write_lock.FILE_NAME in storage.listing()
    storage.put(write_lock.FILE_NAME, b'{"content": "of a pack"}')
    if isinstance(storage, LocalStorage):
        (storage.root / f".tmp-{manifest.FILE_NAME}.1234").touch()
    clean_up(storage)
    assert list(storage.listing()) == [manifest.FILE_NAME]
