from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from shardflow.errors import AccessDeniedError, ConfigError, DatasetExistsError, NotFoundError, StoreError
from shardflow.storage import local as store_module
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import TEMPORARY

HOLD = """
import sys
from shardflow.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).sole_writer():
    print("held", flush=True)
    sys.stdin.read()
"""
HOLD_WITH_WORKER = """
import os, subprocess, sys
from shardflow.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).sole_writer() as descriptor:
    worker = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[descriptor], stdout=subprocess.DEVNULL)
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An empty store that does not exist yet."""
    return LocalStorage(tmp_path / "store")


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory that cannot be written, with a blob `secret` that cannot be read, whoever runs the tests."""
    root = Path(tempfile.mkdtemp())
    (root / "secret").write_bytes(b"1")
    (root / "secret").chmod(0)
    root.chmod(0o555)
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)
    try:
        yield root
    finally:
        if privileged:
            os.seteuid(0)
        root.chmod(0o755)
        shutil.rmtree(root)


@contextlib.contextmanager
def process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said one line."""
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line(stream: IO[str] | None) -> str:
    """The next line that a process says."""
    assert stream is not None
    return stream.readline().strip()


def test_blob_comes_back(storage: LocalStorage) -> None:
    """What was put can be read, has a size and a name, and lies where `path` says; folders are made."""
    storage.put("train/000000.tar", b"abc")
    storage.put("a", b"")
    assert (storage.read("train/000000.tar"), storage.read("a")) == (b"abc", b"")
    assert (storage.size("train/000000.tar"), storage.size("a"), storage.size("b"), storage.size("a/b")) == (
        3,
        0,
        None,
        None,
    )
    assert storage.names() == ["a", "train/000000.tar"]
    assert storage.path("train/000000.tar").read_bytes() == b"abc"


def test_put_replaces_and_put_new_does_not(storage: LocalStorage) -> None:
    """`put` takes the place of a blob; `put_new` leaves it untouched and says that it exists."""
    storage.put("a", b"1")
    storage.put("a", b"2")
    with pytest.raises(DatasetExistsError, match="a exists already"):
        storage.put_new("a", b"3")
    storage.put_new("b", b"4")
    assert (storage.read("a"), storage.read("b"), storage.names()) == (b"2", b"4", ["a", "b"])


def test_remove_is_satisfied_when_nothing_is_there(storage: LocalStorage) -> None:
    """Removing a blob a second time, or one that never was, is no error."""
    storage.put("a", b"1")
    for _ in range(2):
        storage.remove("a")
    storage.remove("b/c")
    assert storage.names() == []


def test_names_of_a_store_that_does_not_exist(storage: LocalStorage) -> None:
    """A root that does not exist holds nothing."""
    assert storage.names() == []


def test_readers_see_whole_blobs(storage: LocalStorage) -> None:
    """While a blob is replaced again and again, whoever reads it gets one of its contents whole."""
    contents = [bytes([value]) * (1 << 20) for value in range(2)]
    storage.put("a", contents[0])
    done = threading.Event()

    def write() -> None:
        for n in range(40):
            storage.put("a", contents[n % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert storage.read("a") in contents
    writer.join()


@pytest.mark.parametrize("create_only", [False, True])
@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt(), ConfigError("mine")])
def test_failure_in_the_body_leaves_nothing(storage: LocalStorage, create_only: bool, failure: BaseException) -> None:
    """When the body of `writing` fails, its error comes out as it is, and neither name nor leftover appears."""
    storage.put("b", b"before")

    def write(name: str) -> None:
        with storage.writing(name, create_only=create_only) as temporary:
            temporary.write_bytes(b"half")
            assert len(storage.names()) == 2
            raise failure

    for name in ("a", "b"):
        with pytest.raises(type(failure)) as caught:
            write(name)
        assert caught.value is failure
    assert (storage.names(), storage.read("b")) == (["b"], b"before")


def test_nothing_written_is_an_error(storage: LocalStorage) -> None:
    """A body that writes no file is a NotFoundError, and nothing is published."""
    with pytest.raises(NotFoundError), storage.writing("a"):
        pass
    assert storage.names() == []


def test_killed_writer_leaves_a_leftover_and_no_blob(storage: LocalStorage) -> None:
    """A writer killed in the middle leaves a name that starts with the mark of temporaries, and not the blob's."""
    code = """
import sys
from shardflow.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).writing("train/a") as temporary:
    temporary.write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()
"""
    with process(code, storage.root) as child:
        assert line(child.stdout) == "half"
        child.send_signal(signal.SIGKILL)
        child.wait()
    (leftover,) = storage.names()
    assert leftover.startswith(f"train/{TEMPORARY}a.")
    storage.remove(leftover)
    assert storage.names() == []


def race(root: Path, number: int, barrier: Any, results: Any) -> None:
    """One of several writers that all want the same names."""
    storage = LocalStorage(root)
    won = []
    for n in range(40):
        barrier.wait()
        try:
            storage.put_new(f"blob{n}", b"%d" % number * 1000)
            won.append(n)
        except DatasetExistsError:
            pass
    results.put((number, won))


def test_one_of_racing_writers_wins(storage: LocalStorage) -> None:
    """Of several processes that create the same blob at once, exactly one succeeds, and the blob is its own."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    racers = [context.Process(target=race, args=(storage.root, n, barrier, results)) for n in range(3)]
    for racer in racers:
        racer.start()
    winners = {n: number for number, won in (results.get(timeout=60) for _ in racers) for n in won}
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert storage.names() == sorted(f"blob{n}" for n in range(40))
    assert [storage.read(f"blob{n}") for n in range(40)] == [b"%d" % winners[n] * 1000 for n in range(40)]


def test_sole_writer_keeps_others_out(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process writes, another is refused with the place and what to do; afterwards it is let in."""
    monkeypatch.setattr(store_module, "_LOCK_PATIENCE_S", 0.1)
    with process(HOLD, storage.root) as child:
        assert line(child.stdout) == "held"
        with pytest.raises(StoreError, match=r"another process is writing to .*store"), storage.sole_writer():
            pass
        child.communicate("")
        assert child.returncode == 0
        with storage.sole_writer():
            assert storage.names() == []


def test_sole_writer_is_let_go_by_a_kill(storage: LocalStorage) -> None:
    """A writer that is killed with SIGKILL leaves neither a lock nor a file."""
    with process(HOLD, storage.root) as child:
        assert line(child.stdout) == "held"
        child.send_signal(signal.SIGKILL)
        child.wait()
        with storage.sole_writer():
            pass
    assert storage.names() == []


@pytest.mark.parametrize("seconds", [0.4, 60])
def test_sole_writer_waits_for_the_workers_of_a_dead_one(storage: LocalStorage, seconds: float) -> None:
    """A worker that inherited the lock of a killed writer still holds it; a moment is waited for it, no longer."""
    with process(HOLD_WITH_WORKER, storage.root, seconds) as child:
        worker = int(line(child.stdout))
        child.send_signal(signal.SIGKILL)
        child.wait()
        try:
            if seconds < 1:
                with storage.sole_writer():
                    pass
            else:
                with pytest.raises(StoreError, match="another process"), storage.sole_writer():
                    pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def test_sole_writer_is_one_at_a_time_in_a_process_too(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is let go when the body ends, with an error or without."""
    monkeypatch.setattr(store_module, "_LOCK_PATIENCE_S", 0.0)

    def enter_twice() -> None:
        with storage.sole_writer():
            with pytest.raises(StoreError), storage.sole_writer():
                pass
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        enter_twice()
    with storage.sole_writer():
        pass


def test_what_is_not_there_is_not_found(storage: LocalStorage) -> None:
    """Reading a blob that is missing, or below something that is a file, is a NotFoundError that names the path."""
    storage.put("a", b"")
    for name in ("b", "b/c", "a/b"):
        with pytest.raises(NotFoundError, match=f"store/{name} does not exist") as caught:
            storage.read(name)
        assert isinstance(caught.value.__cause__, OSError)


def test_a_directory_is_no_blob(storage: LocalStorage) -> None:
    """A directory in a blob's place is a StoreError, for the reader and for the writer."""
    storage.put("a/b", b"")
    for access in (lambda: storage.read("a"), lambda: storage.put("a", b"")):
        with pytest.raises(StoreError, match="directory"):
            access()
    assert storage.names() == ["a/b"]


def test_no_right_to_read_is_access_denied(unprivileged: Path) -> None:
    """A blob that may not be read is an AccessDeniedError that names the path and the remedy."""
    with pytest.raises(AccessDeniedError, match=r"/secret: permission denied; check the owner and mode"):
        LocalStorage(unprivileged).read("secret")


def test_no_right_to_write_is_access_denied(unprivileged: Path) -> None:
    """Whatever writes into a root that may not be written is an AccessDeniedError, and the root stays as it was."""
    storage = LocalStorage(unprivileged)
    for name in ("a", "b/c", "secret"):
        for put in (storage.put, storage.put_new):
            with pytest.raises(AccessDeniedError, match="permission denied"):
                put(name, b"")
    with pytest.raises(AccessDeniedError):
        storage.remove("secret")
    with pytest.raises(AccessDeniedError), LocalStorage(unprivileged / "new").sole_writer():
        pass
    assert storage.names() == ["secret"]


def test_full_disk_is_a_store_error(storage: LocalStorage) -> None:
    """No space left, as the kernel reports it, is a StoreError that says to free some, and leaves nothing."""

    def fill() -> None:
        with storage.writing("a") as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_bytes(b"x")

    with pytest.raises(StoreError, match="No space left on device; free some space"):
        fill()
    assert storage.names() == []


def test_file_too_large_is_a_store_error(storage: LocalStorage) -> None:
    """A write that the kernel cuts off in the middle is a StoreError, and leaves nothing."""
    code = """
import resource, sys
from shardflow.errors import StoreError
from shardflow.storage.local import LocalStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
store = LocalStorage(sys.argv[1])
for put in (store.put, store.put_new):
    try:
        put("a", bytes(5000))
    except StoreError as error:
        print(type(error).__name__, error, store.names())
"""
    done = subprocess.run([sys.executable, "-c", code, storage.root], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(said.startswith("StoreError") and "File too large" in said and said.endswith("[]") for said in lines)


def test_paths_and_file_urls_are_served(tmp_path: Path) -> None:
    """A path, as text or not, and a `file://` URL with escapes lead to the same store."""
    root = tmp_path / "with space # and %"
    LocalStorage(root).put("a", b"1")
    for url in (root, str(root), root.as_uri(), f"file://localhost{root.as_uri().removeprefix('file://')}"):
        assert open_storage(url).read("a") == b"1"
        assert str(open_storage(url)) == str(root)


def test_relative_paths_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one below the working directory, whatever it looks like."""
    monkeypatch.chdir(tmp_path)
    for path in ("a", "./b", "c:d", "[e", "[f/g"):
        open_storage(path).put("x", b"1")
        assert (tmp_path / path / "x").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["nothing://x", "x://", "1s3://bucket", "://x"])
def test_other_schemes_are_refused(url: str) -> None:
    """A scheme that is not served is a ConfigError that repeats the URL."""
    with pytest.raises(ConfigError) as caught:
        open_storage(url)
    assert url.rstrip("/") in str(caught.value)


def test_a_directory_takes_no_options(tmp_path: Path) -> None:
    """storage_options for a local path are a ConfigError: they were meant for something else."""
    with pytest.raises(ConfigError, match="leave them out"):
        open_storage(tmp_path, {"key": "x"})


def test_a_full_disk_leaves_no_copy(storage: LocalStorage, tmp_path: Path) -> None:
    """When the kernel cuts a copy off in the middle, `get` raises a StoreError that names the copy, and removes it."""
    storage.put("a", bytes(5000))
    code = """
import hashlib, pathlib, resource, sys
from shardflow.errors import StoreError
from shardflow.storage.local import LocalStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    sha256 = hashlib.sha256(bytes(5000)).hexdigest()
    LocalStorage(sys.argv[1]).get("a", pathlib.Path(sys.argv[2]), size=5000, sha256=sha256)
except StoreError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(storage.root), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "copy: File too large" in done.stdout
    assert not (tmp_path / "copy").exists()
