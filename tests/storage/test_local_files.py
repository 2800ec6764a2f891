from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from shardflow.errors import DatasetExistsError, IntegrityError, NotFoundError, StoreError
from shardflow.storage import local_files
from shardflow.storage.local import LocalStorage
from shardflow.storage.local_files import file_sha256, lock_directory, map_os_errors, new_file, write_verified

HOLD = """
import pathlib, sys
from shardflow.storage.local_files import lock_directory
with lock_directory(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
HOLD_WITH_WORKER = """
import pathlib, subprocess, sys
from shardflow.storage.local_files import lock_directory
with lock_directory(pathlib.Path(sys.argv[1])) as descriptor:
    worker = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[descriptor], stdout=subprocess.DEVNULL)
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory."""
    (tmp_path / "storage").mkdir()
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


def test_errors_of_calls_with_bytes(path: Path) -> None:
    """A path that the system got as bytes is named as a text."""
    with pytest.raises(NotFoundError, match=f"^{path}/none does not exist"), map_os_errors(path):
        os.listdir(os.fsencode(path / "none"))


def test_too_many_open_files(path: Path) -> None:
    """The remedy of too many open files is their limit, not the disk."""
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    with pytest.raises(StoreError, match=r"Too many open files; raise .*ulimit -n"), map_os_errors(path):
        raise error


def test_a_locked_directory_keeps_others_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process writes, another is refused, with the place and the remedy; afterwards it may write."""
    monkeypatch.setattr(local_files, "LOCK_TIMEOUT_S", 0.1)
    with process(HOLD, path) as child:
        assert line(child.stdout) == "held"
        with pytest.raises(StoreError, match=r"another process"), lock_directory(path):
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


def test_chunks_are_verified_as_a_whole(tmp_path: Path) -> None:
    """Chunks are written where size and SHA-256 are those of all of them."""
    data = bytes(range(256)) * 5000  # more than is read at once
    sha256 = hashlib.sha256(data).hexdigest()
    with new_file(tmp_path / "a") as file:
        for chunks, said in (
            ([data[:-1]], f"^u: expected {len(data)} bytes, found {len(data) - 1}; "),
            ([data[:1000]] * 2000, f"^u: expected {len(data)} bytes, found more than {len(data)}; "),
            ([data[:-1], b"x"], rf"^u: expected SHA-256 {sha256}, found \w+; "),
        ):
            with pytest.raises(IntegrityError, match=said):
                write_verified(chunks, file, "u", size=len(data), sha256=sha256)
        write_verified([data[:1000], data[1000:]], file, "u", size=len(data), sha256=sha256)
    assert file_sha256(tmp_path / "a") == sha256


def _refusing(code: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("renames", [True, False])
def test_a_new_file_where_there_are_no_hard_links(
    path: Path, code: int, renames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system refuses links, a blob is created all the same, by one of several writers; none is replaced.

    So it is where a file cannot be renamed only if the new name is free.
    """
    monkeypatch.setattr(os, "link", _refusing(code))
    if not renames:
        monkeypatch.setattr(local_files, "_rename_new", _refusing(errno.EINVAL))
    storage = LocalStorage(path)
    storage.put("a", b"first", new=True)
    outcomes: list[object] = []

    def create(number: int) -> None:
        try:
            outcomes.append(storage.put("b", b"%d" % number, new=True))
        except DatasetExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["None", *["refused"] * 7]
    with pytest.raises(DatasetExistsError, match="exists already"):
        storage.put("a", b"second", new=True)
    assert storage.read("a") == b"first"
    assert {each.name for each in path.iterdir()} == {"a", "b"}
