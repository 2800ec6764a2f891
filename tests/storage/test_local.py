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
def store(tmp_path: Path) -> LocalStorage:
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


def test_blob_comes_back(store: LocalStorage) -> None:
    """What was put can be read, has a size and a name, and lies where `path` says; folders are made."""
    store.put("train/000000.tar", b"abc")
    store.put("a", b"")
    assert (store.read("train/000000.tar"), store.read("a")) == (b"abc", b"")
    assert (store.size("train/000000.tar"), store.size("a"), store.size("b"), store.size("a/b")) == (3, 0, None, None)
    assert store.names() == ["a", "train/000000.tar"]
    assert store.path("train/000000.tar").read_bytes() == b"abc"


def test_put_replaces_and_put_new_does_not(store: LocalStorage) -> None:
    """`put` takes the place of a blob; `put_new` leaves it untouched and says that it exists."""
    store.put("a", b"1")
    store.put("a", b"2")
    with pytest.raises(DatasetExistsError, match="a exists already"):
        store.put_new("a", b"3")
    store.put_new("b", b"4")
    assert (store.read("a"), store.read("b"), store.names()) == (b"2", b"4", ["a", "b"])


def test_remove_is_satisfied_when_nothing_is_there(store: LocalStorage) -> None:
    """Removing a blob a second time, or one that never was, is no error."""
    store.put("a", b"1")
    for _ in range(2):
        store.remove("a")
    store.remove("b/c")
    assert store.names() == []


def test_names_of_a_store_that_does_not_exist(store: LocalStorage) -> None:
    """A root that does not exist holds nothing."""
    assert store.names() == []


def test_readers_see_whole_blobs(store: LocalStorage) -> None:
    """While a blob is replaced again and again, whoever reads it gets one of its contents whole."""
    contents = [bytes([value]) * (1 << 20) for value in range(2)]
    store.put("a", contents[0])
    done = threading.Event()

    def write() -> None:
        for n in range(40):
            store.put("a", contents[n % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.read("a") in contents
    writer.join()


@pytest.mark.parametrize("create_only", [False, True])
@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt(), ConfigError("mine")])
def test_failure_in_the_body_leaves_nothing(store: LocalStorage, create_only: bool, failure: BaseException) -> None:
    """When the body of `writing` fails, its error comes out as it is, and neither name nor leftover appears."""
    store.put("b", b"before")

    def write(name: str) -> None:
        with store.writing(name, create_only=create_only) as temporary:
            temporary.write_bytes(b"half")
            assert len(store.names()) == 2
            raise failure

    for name in ("a", "b"):
        with pytest.raises(type(failure)) as caught:
            write(name)
        assert caught.value is failure
    assert (store.names(), store.read("b")) == (["b"], b"before")


def test_nothing_written_is_an_error(store: LocalStorage) -> None:
    """A body that writes no file is a NotFoundError, and nothing is published."""
    with pytest.raises(NotFoundError), store.writing("a"):
        pass
    assert store.names() == []


def test_killed_writer_leaves_a_leftover_and_no_blob(store: LocalStorage) -> None:
    """A writer killed in the middle leaves a name that starts with the mark of temporaries, and not the blob's."""
    code = """
import sys
from shardflow.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).writing("train/a") as temporary:
    temporary.write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()
"""
    with process(code, store.root) as child:
        assert line(child.stdout) == "half"
        child.send_signal(signal.SIGKILL)
        child.wait()
    (leftover,) = store.names()
    assert leftover.startswith(f"train/{TEMPORARY}a.")
    store.remove(leftover)
    assert store.names() == []


def race(root: Path, number: int, barrier: Any, results: Any) -> None:
    """One of several writers that all want the same names."""
    store = LocalStorage(root)
    won = []
    for n in range(40):
        barrier.wait()
        try:
            store.put_new(f"blob{n}", b"%d" % number * 1000)
            won.append(n)
        except DatasetExistsError:
            pass
    results.put((number, won))


def test_one_of_racing_writers_wins(store: LocalStorage) -> None:
    """Of several processes that create the same blob at once, exactly one succeeds, and the blob is its own."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    racers = [context.Process(target=race, args=(store.root, n, barrier, results)) for n in range(3)]
    for racer in racers:
        racer.start()
    winners = {n: number for number, won in (results.get(timeout=60) for _ in racers) for n in won}
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert store.names() == sorted(f"blob{n}" for n in range(40))
    assert [store.read(f"blob{n}") for n in range(40)] == [b"%d" % winners[n] * 1000 for n in range(40)]


def test_sole_writer_keeps_others_out(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process writes, another is refused with the place and what to do; afterwards it is let in."""
    monkeypatch.setattr(store_module, "_LOCK_PATIENCE_S", 0.1)
    with process(HOLD, store.root) as child:
        assert line(child.stdout) == "held"
        with pytest.raises(StoreError, match=r"another process is writing to .*store"), store.sole_writer():
            pass
        child.communicate("")
        assert child.returncode == 0
        with store.sole_writer():
            assert store.names() == []


def test_sole_writer_is_let_go_by_a_kill(store: LocalStorage) -> None:
    """A writer that is killed with SIGKILL leaves neither a lock nor a file."""
    with process(HOLD, store.root) as child:
        assert line(child.stdout) == "held"
        child.send_signal(signal.SIGKILL)
        child.wait()
        with store.sole_writer():
            pass
    assert store.names() == []


@pytest.mark.parametrize("seconds", [0.4, 60])
def test_sole_writer_waits_for_the_workers_of_a_dead_one(store: LocalStorage, seconds: float) -> None:
    """A worker that inherited the lock of a killed writer still holds it; a moment is waited for it, no longer."""
    with process(HOLD_WITH_WORKER, store.root, seconds) as child:
        worker = int(line(child.stdout))
        child.send_signal(signal.SIGKILL)
        child.wait()
        try:
            if seconds < 1:
                with store.sole_writer():
                    pass
            else:
                with pytest.raises(StoreError, match="another process"), store.sole_writer():
                    pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def test_sole_writer_is_one_at_a_time_in_a_process_too(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is let go when the body ends, with an error or without."""
    monkeypatch.setattr(store_module, "_LOCK_PATIENCE_S", 0.0)

    def enter_twice() -> None:
        with store.sole_writer():
            with pytest.raises(StoreError), store.sole_writer():
                pass
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        enter_twice()
    with store.sole_writer():
        pass


def test_what_is_not_there_is_not_found(store: LocalStorage) -> None:
    """Reading a blob that is missing, or below something that is a file, is a NotFoundError that names the path."""
    store.put("a", b"")
    for name in ("b", "b/c", "a/b"):
        with pytest.raises(NotFoundError, match=f"store/{name} does not exist") as caught:
            store.read(name)
        assert isinstance(caught.value.__cause__, OSError)


def test_a_directory_is_no_blob(store: LocalStorage) -> None:
    """A directory in a blob's place is a StoreError, for the reader and for the writer."""
    store.put("a/b", b"")
    for access in (lambda: store.read("a"), lambda: store.put("a", b"")):
        with pytest.raises(StoreError, match="directory"):
            access()
    assert store.names() == ["a/b"]


def test_no_right_to_read_is_access_denied(unprivileged: Path) -> None:
    """A blob that may not be read is an AccessDeniedError that names the path and the remedy."""
    with pytest.raises(AccessDeniedError, match=r"/secret: permission denied; check the owner and mode"):
        LocalStorage(unprivileged).read("secret")


def test_no_right_to_write_is_access_denied(unprivileged: Path) -> None:
    """Whatever writes into a root that may not be written is an AccessDeniedError, and the root stays as it was."""
    store = LocalStorage(unprivileged)
    for name in ("a", "b/c", "secret"):
        for put in (store.put, store.put_new):
            with pytest.raises(AccessDeniedError, match="permission denied"):
                put(name, b"")
    with pytest.raises(AccessDeniedError):
        store.remove("secret")
    with pytest.raises(AccessDeniedError), LocalStorage(unprivileged / "new").sole_writer():
        pass
    assert store.names() == ["secret"]


def test_full_disk_is_a_store_error(store: LocalStorage) -> None:
    """No space left, as the kernel reports it, is a StoreError that says to free some, and leaves nothing."""

    def fill() -> None:
        with store.writing("a") as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_bytes(b"x")

    with pytest.raises(StoreError, match="No space left on device; free some space"):
        fill()
    assert store.names() == []


def test_file_too_large_is_a_store_error(store: LocalStorage) -> None:
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
    done = subprocess.run([sys.executable, "-c", code, store.root], capture_output=True, text=True, check=True)
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


def test_a_full_disk_leaves_no_copy(store: LocalStorage, tmp_path: Path) -> None:
    """When the kernel cuts a copy off in the middle, `get` raises a StoreError that names the copy, and removes it."""
    store.put("a", bytes(5000))
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
    command = [sys.executable, "-c", code, str(store.root), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "copy: File too large" in done.stdout
    assert not (tmp_path / "copy").exists()
