"""Promises of local storage beyond those of the protocol."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardflow.errors import AccessDeniedError, ConfigError, DatasetExistsError, NotFoundError, StoreError
from shardflow.storage import local, local_files
from shardflow.storage.interface import TEMPORARY
from shardflow.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An empty storage that does not exist yet."""
    return LocalStorage(tmp_path / "store")


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory that cannot be written, with a blob `secret` that cannot be read, also for root."""
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


def test_readers_see_whole_blobs(storage: LocalStorage) -> None:
    """While a blob is replaced again and again, a reader gets one of its contents whole."""
    contents = [bytes([value]) * (1 << 20) for value in range(2)]
    storage.put("a", contents[0])
    with ThreadPoolExecutor(1) as pool:
        writes = [pool.submit(storage.put, "a", contents[n % 2]) for n in range(40)]
        while not writes[-1].done():
            assert storage.read("a") in contents
    assert [write.result() for write in writes] == [None] * 40


@pytest.mark.parametrize("another", [False, True])
def test_root_that_vanishes_is_not_made_again(storage: LocalStorage, another: bool) -> None:
    """A writer whose directory was renamed publishes nothing in its place; without a writer, a blob makes the root."""
    with storage.exclusive_writer():
        storage.put("a/b", b"1", new=True)
        storage.root.rename(storage.root.with_name("elsewhere"))
        if another:
            storage.root.mkdir()
        with pytest.raises(NotFoundError, match=r"vanished.*replaced"):
            storage.put("c", b"2", new=True)
    assert storage.root.exists() == another
    assert storage.listing() == {}
    storage.put("c", b"2", new=True)
    assert storage.read("c") == b"2"


@pytest.mark.parametrize("create_only", [False, True])
@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt(), ConfigError("mine")])
def test_failure_in_the_body_leaves_nothing(storage: LocalStorage, create_only: bool, failure: BaseException) -> None:
    """When the body of `writing` fails, its error comes out as it is, and neither name nor leftover appears."""
    storage.put("b", b"before")

    def write(name: str) -> None:
        with storage.writing(name, create_only=create_only) as temporary:
            temporary.write_bytes(b"half")
            assert len(storage.listing()) == 2
            raise failure

    for name in ("a", "b"):
        with pytest.raises(type(failure)) as caught:
            write(name)
        assert caught.value is failure
    assert (list(storage.listing()), storage.read("b")) == (["b"], b"before")


def test_nothing_written_is_an_error(storage: LocalStorage) -> None:
    """A body that writes no file is a NotFoundError, and nothing is published."""
    with pytest.raises(NotFoundError), storage.writing("a"):
        pass
    assert storage.listing() == {}


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
    command = [sys.executable, "-c", code, str(storage.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        child.kill()
    (leftover,) = storage.listing()
    assert leftover.startswith(f"train/{TEMPORARY}a.")
    storage.remove(leftover)
    assert storage.listing() == {}


def race(root: Path, number: int, barrier: Any, results: Any) -> None:
    """One of several writers that all want the same names."""
    won = []
    for n in range(40):
        barrier.wait()
        with contextlib.suppress(DatasetExistsError):
            LocalStorage(root).put(f"blob{n}", b"%d" % number * 1000, new=True)
            won.append(n)
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
    assert list(storage.listing()) == sorted(f"blob{n}" for n in range(40))
    assert [storage.read(f"blob{n}") for n in range(40)] == [b"%d" % winners[n] * 1000 for n in range(40)]


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
    assert list(storage.listing()) == ["a/b"]


def test_a_listing_follows_links(storage: LocalStorage, tmp_path: Path) -> None:
    """Files behind a link to a folder are listed, but not those above; a link that dangles is not left out."""
    storage.put("a/b", b"12")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "0.tar").write_bytes(b"1")
    (storage.root / "linked").symlink_to(tmp_path / "disk")
    (storage.root / "a" / "above").symlink_to(storage.root)
    assert list(storage.listing()) == ["a/b", "linked/0.tar"]
    (storage.root / "a" / "1.tar").symlink_to(tmp_path / "gone.tar")
    assert list(storage.listing()) == ["a/1.tar", "a/b", "linked/0.tar"]
    (storage.root / "a" / "unmounted").symlink_to(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"a/unmounted is a link to .*gone, which does not exist; restore that, or"):
        storage.listing()


def test_a_folder_that_cannot_be_listed_is_access_denied(unprivileged: Path) -> None:
    """Files in a closed folder are not left out, unless it is one of the system's."""
    storage = LocalStorage(unprivileged)
    with _as_owner(unprivileged):
        for name in ("lost+found", ".Trash-0"):
            (unprivileged / name).mkdir(mode=0)
    assert list(storage.listing()) == ["secret"]
    with _as_owner(unprivileged):
        (unprivileged / "cats").mkdir(mode=0)
    with pytest.raises(AccessDeniedError, match=r"/cats: permission denied"):
        storage.listing()


@contextlib.contextmanager
def _as_owner(folder: Path) -> Iterator[None]:
    """Let the body write into a folder as its owner."""
    user, owner = os.geteuid(), folder.stat().st_uid
    if user != owner:
        os.seteuid(owner)
    folder.chmod(0o755)
    yield
    folder.chmod(0o555)
    if user != owner:
        os.seteuid(user)


def test_no_right_to_read_is_access_denied(unprivileged: Path) -> None:
    """A blob without read permission is an AccessDeniedError with path and remedy."""
    with pytest.raises(AccessDeniedError, match=r"/secret: permission"):
        LocalStorage(unprivileged).read("secret")


def test_no_right_to_write_is_access_denied(unprivileged: Path) -> None:
    """Every write into a root without write permission is an AccessDeniedError, and the root is unchanged."""
    storage = LocalStorage(unprivileged)
    for name in ("a", "b/c", "secret"):
        for new in (False, True):
            with pytest.raises(AccessDeniedError, match="permission denied"):
                storage.put(name, b"", new=new)
    with pytest.raises(AccessDeniedError):
        storage.remove("secret")
    with pytest.raises(AccessDeniedError), LocalStorage(unprivileged / "new").exclusive_writer():
        pass
    assert list(storage.listing()) == ["secret"]


def test_full_disk_is_a_store_error(storage: LocalStorage) -> None:
    """A full disk is a StoreError with the remedy, and no file is left."""

    def fill() -> None:
        with storage.writing("a") as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_bytes(b"x")

    with pytest.raises(StoreError, match=r"space.*device"):
        fill()
    assert storage.listing() == {}


def test_file_too_large_is_a_store_error(storage: LocalStorage) -> None:
    """A write or copy that the kernel cuts off is a StoreError that names the file, and leaves nothing."""
    storage.put("a", bytes(5000))
    code = """
import functools, hashlib, pathlib, resource, sys
from shardflow.errors import StoreError
from shardflow.storage.local import LocalStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
store = LocalStorage(sys.argv[1])
known = {"size": 5000, "sha256": hashlib.sha256(bytes(5000)).hexdigest()}
copy = lambda name, _: store.get("a", store.root / name, **known)
for write in (store.put, functools.partial(store.put, new=True), copy):
    try:
        write("b", bytes(5000))
    except StoreError as error:
        print(type(error).__name__, error, list(store.listing()))
"""
    done = subprocess.run([sys.executable, "-c", code, storage.root], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(said.startswith("StoreError") and said.endswith("['a']") for said in lines)
    assert all("b: File too large" in said for said in lines)


FAKED_CLOCK = """
#include <errno.h>
#include <time.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    return flags & TIMER_ABSTIME ? EINVAL : 0;
}
"""

WAIT_FOR_A_LOCK = """
import fcntl, os, sys, threading
from pathlib import Path
from shardflow.storage.cache import Cache
cache = Cache(sys.argv[1])
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
threading.Timer(0.05, fcntl.flock, [descriptor, fcntl.LOCK_UN]).start()
print(cache.fetch("0" * 64, 1, lambda path: path.write_bytes(b"1")).name)
"""


def test_waiting_survives_a_faked_clock(tmp_path: Path) -> None:
    """Where a faked clock makes the system refuse to sleep until a point in time, a lock is waited for all the same."""
    (tmp_path / "clock.c").write_text(FAKED_CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", WAIT_FOR_A_LOCK, tmp_path / "cache"],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("CACHED\n", "")


def test_a_root_that_vanished_is_not_another_writer(storage: LocalStorage) -> None:
    """Replacing a blob in a directory that was exchanged meanwhile says so, and not that a process changed the blob."""
    storage.put("blob", b"1")
    version = storage.version("blob")
    assert version is not None
    with storage.exclusive_writer():
        shutil.copytree(storage.root, aside := storage.root.with_name("aside"))
        storage.root.rename(storage.root.with_name("old"))
        aside.rename(storage.root)
        with pytest.raises(NotFoundError, match="vanished or was replaced"):
            storage.put("blob", b"2", replaces=version.tag)


def test_a_blob_that_is_replaced_just_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that gets the lock of the file that another has replaced meanwhile does not replace the new one."""
    storage, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    storage.put("blob", b"old")
    version = storage.version("blob")
    assert version is not None

    def late(descriptor: int) -> bool:
        monkeypatch.setattr(local, "flock", local_files.flock)
        other.put("blob", b"theirs", replaces=version.tag)
        return local_files.flock(descriptor)

    monkeypatch.setattr(local, "flock", late)
    with pytest.raises(DatasetExistsError):
        storage.put("blob", b"ours", replaces=version.tag)
    assert storage.read("blob") == b"theirs"
