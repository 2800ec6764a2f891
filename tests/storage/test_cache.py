from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from shardflow._validation import size_in_bytes
from shardflow.errors import AccessDeniedError, ConfigError, IntegrityError, NotFoundError, StoreError
from shardflow.storage import cache_directory, cache_eviction
from shardflow.storage.cache import Cache, Download, FetchResult, as_cache, default_directory

SIZE = 1000

FETCHER = """
import hashlib, os, sys, time
from pathlib import Path
from shardflow.storage import cache_directory
from shardflow.storage.cache import Cache
cache_directory.STUCK_AFTER_S = 600
content = b"x" * 1000

def fill(target):
    target.write_bytes(content[:500])
    with open(sys.argv[2], "a") as log:
        log.write("fetched\\n")
    print("fetching", flush=True)
    time.sleep(float(sys.argv[3]))
    target.write_bytes(content)

print("asking", flush=True)
with Cache(sys.argv[1]).open(hashlib.sha256(content).hexdigest(), 1000, fill) as file:
    assert file.read() == content
print("got it", flush=True)
"""
X = b"x" * SIZE


def sha(content: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(content).hexdigest()


def content(number: int) -> bytes:
    """One of many contents of the same size."""
    return bytes([number % 256, number // 256]) * (SIZE // 2)


def filler(data: bytes, log: list[bytes] | None = None) -> Download:
    """A transfer of that content, which notes that it took place."""

    def fill(target: Path) -> None:
        if log is not None:
            log.append(data)
        target.write_bytes(data)

    return fill


def get(cache: Cache, data: bytes, log: list[bytes] | None = None) -> bytes:
    """Read a content through the cache."""
    with cache.open(sha(data), len(data), filler(data, log)) as file:
        return file.read()


def never(target: Path) -> None:
    """A transfer that must not take place."""
    raise AssertionError(target)


def files(cache: Cache) -> dict[str, int]:
    """All files of the cache but its tag, with their sizes; locks have none of their own."""
    return {path.name: path.stat().st_size for path in cache.directory.rglob("*/*") if path.is_file()}


@contextlib.contextmanager
def fetchers(count: int, cache: Cache, log: Path, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that begin to read the same content, whose transfer takes a while."""
    command = [sys.executable, "-c", FETCHER, str(cache.directory), str(log), str(seconds)]
    with contextlib.ExitStack() as stack:
        processes = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count))
        running = [stack.enter_context(process) for process in processes]
        for process in running:
            stack.callback(process.kill)
        assert [line(process.stdout) for process in running] == ["asking"] * count
        yield running


def line(stream: IO[str] | None) -> str:
    """Return the next line that a process prints."""
    assert stream is not None
    return stream.readline().strip()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache for three contents."""
    return Cache(tmp_path / "cache", 3 * SIZE)


def test_content_is_fetched_once(cache: Cache) -> None:
    """A file that was fetched once is read from the cache, also by other readers, and no other file lies there."""
    log: list[bytes] = []
    for _ in range(3):
        assert get(cache, X, log) == X
    assert get(Cache(cache.directory), X, log) == X
    assert log == [X]
    assert files(cache) == {sha(X): SIZE}


def test_directories_are_private(cache: Cache) -> None:
    """The directory and those in it are for their owner alone."""
    get(cache, X)
    directories = [path for path in [cache.directory, *cache.directory.rglob("*")] if path.is_dir()]
    assert len(directories) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}


def test_default_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By default the cache lies below XDG_CACHE_HOME if that is absolute, and otherwise below ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value, expected in (("", "home/.cache"), ("relative", "home/.cache"), (str(tmp_path / "c"), "c")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_directory() == tmp_path / expected / "shardflow"
    assert Cache().directory == tmp_path / "c/shardflow"
    assert stat.S_IMODE((tmp_path / "c/shardflow").stat().st_mode) == 0o700


def test_a_user_without_a_home_is_told_to_choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the user has no home, as in some containers, the error names the ways to choose a directory."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"`cache=` .*`--cache-dir`.*XDG_CACHE_HOME"):
        Cache()
    Cache(tmp_path)


@pytest.mark.parametrize("name", ["", "blobs", "partial", "locks", "decoded"])
@pytest.mark.parametrize("how", ["link", "file", "writable"])
def test_unsafe_directories_are_refused(tmp_path: Path, name: str, how: str) -> None:
    """A link, a file, or a directory that others can write to is no cache, nor a part of one."""
    place = tmp_path / "cache" / name
    Cache(tmp_path / "cache")
    shutil.rmtree(place)
    if how == "writable":
        place.mkdir()
        place.chmod(0o770)
    elif how == "file":
        place.write_bytes(b"")
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"name the directory itself|your own cache directory"):
        Cache(tmp_path / "cache")
    assert not list((tmp_path / "elsewhere").glob("*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away takes root")
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """A directory that belongs to another user is no cache."""
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 65534, -1)
    with pytest.raises(ConfigError, match=r"65534;.*directory"):
        Cache(tmp_path / "cache")


def test_a_url_is_not_a_cache(tmp_path: Path) -> None:
    """A cache is a local directory: a URL is refused, and a file URL is its path."""
    with pytest.raises(ConfigError, match="local directory"):
        Cache("s3://bucket/cache")
    assert Cache(f"file://{tmp_path}/cache").directory == tmp_path / "cache"


def test_directory_that_cannot_be_made_is_named() -> None:
    """A directory that cannot be created is an error only when a file is fetched; the message names the remedy."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as closed:  # pytest's own cannot even be entered by another user
        os.chmod(closed, 0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            cache = Cache(f"{closed}/cache")
            assert cache.blobs() == []
            assert not cache.has(sha(X))
            for use in (cache.open, cache.fetch):
                with pytest.raises(AccessDeniedError, match=r"another.*directory"):
                    use(sha(X), SIZE, never)
        finally:
            os.seteuid(user)
            os.chmod(closed, 0o700)


def test_a_disk_that_cannot_be_written_is_named(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning a read-only disk is a StoreError."""
    get(cache, X)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match="Read-only file system"):
        cache.prune(0)


def test_sizes() -> None:
    """Sizes are numbers of bytes, or texts with a unit."""
    sizes = {5: 5, 0: 0, "5B": 5, "1kB": 1000, "500 MB": 5 * 10**8, "1.5TB": 15 * 10**11, "64GiB": 2**36}
    assert {text: size_in_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "much", "500", "0", "-1", -1, "1 GB more", "1.GB", "iB", "1eB", None, "0x10"])
def test_invalid_sizes_are_refused(text: str, tmp_path: Path) -> None:
    """A limit that is not a size is a ConfigError with examples."""
    with pytest.raises(ConfigError, match="'64GiB', found"):
        Cache(tmp_path / "cache", text)


def test_limit_of_pixels(tmp_path: Path) -> None:
    """The limit of decoded images is a size or None; anything else is a ConfigError."""
    assert Cache(tmp_path).pixel_limit_bytes is None
    assert Cache(tmp_path, "1GB", "50GB").pixel_limit_bytes == 50 * 10**9
    with pytest.raises(ConfigError, match="'64GiB', found 'much'"):
        Cache(tmp_path, pixels="much")


def test_a_cache_is_named_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache stays as it is, a path is the cache in that directory, and None the one of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = Cache(tmp_path / "cache", pixels=0)
    assert as_cache(cache) is cache
    assert as_cache(str(cache.directory)).directory == cache.directory
    assert as_cache(None).directory == tmp_path / "shardflow"


def test_least_recently_used_is_evicted(cache: Cache) -> None:
    """The least recently used file is evicted; opening and fetching count as use."""
    for number in range(3):
        get(cache, content(number))
    get(cache, content(0))
    assert cache.fetch(sha(content(1)), SIZE, never) is FetchResult.CACHED
    get(cache, content(3))
    assert set(files(cache)) == {sha(content(number)) for number in (0, 1, 3)}
    assert [blob.path.name for blob in cache.blobs()] == [sha(content(number)) for number in (0, 1, 3)]


def test_limit_holds_at_every_moment(cache: Cache) -> None:
    """While many threads fill a cache, it never exceeds its limit, and each reader gets the right bytes."""
    most, done = 0, threading.Event()

    def work(first: int) -> None:
        mine = Cache(cache.directory, cache.limit_bytes)
        for number in range(first, first + 25):
            assert get(mine, content(number % 40)) == content(number % 40)

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            held = 0
            for path in [*cache.directory.glob("blobs/*"), *cache.directory.glob("partial/*")]:
                with contextlib.suppress(FileNotFoundError):
                    held += path.stat().st_size
            most = max(most, held)

    with ThreadPoolExecutor(6) as pool:
        watcher = pool.submit(watch)
        try:
            list(pool.map(work, range(0, 40, 8)))
        finally:
            done.set()
    watcher.result()
    # One more: the watcher may count a file that is removed during the count, and the one that replaces it.
    assert 2 * SIZE <= most <= 4 * SIZE
    assert sum(files(cache).values()) <= 3 * SIZE


def test_unknown_sizes_are_counted_afterwards(cache: Cache) -> None:
    """A file of unknown size evicts others once it has arrived."""
    for number in range(3):
        get(cache, content(number))
    with cache.open(sha(X), None, filler(X)) as file:
        assert file.read() == X
    assert set(files(cache)) == {sha(content(1)), sha(content(2)), sha(X)}


def test_eviction_leaves_readers_their_bytes(cache: Cache) -> None:
    """A reader that has mapped or opened a file can read it after its eviction."""
    data = b"y" * SIZE
    with cache.open(sha(data), SIZE, filler(data)) as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for number in range(4):
            get(cache, content(number))
        assert sha(data) not in files(cache)
        assert file.read() == mapped[:] == data
    mapped.close()


def test_many_cold_readers_make_one_transfer(cache: Cache, tmp_path: Path) -> None:
    """Of many processes that want the same file at once, one downloads it and all get it."""
    log = tmp_path / "log"
    with fetchers(8, cache, log, 0.3) as running:
        for process in running:
            assert process.wait(timeout=60) == 0
    assert log.read_text() == "fetched\n"
    assert files(cache) == {sha(X): SIZE}


def test_killed_downloader_is_replaced_at_once(cache: Cache, tmp_path: Path) -> None:
    """When a downloader is killed, a waiting process takes over at once, and no file of the dead one remains."""
    log = tmp_path / "log"
    with fetchers(1, cache, log, 600) as (first,):
        assert line(first.stdout) == "fetching"
        with fetchers(3, cache, log, 0.1) as waiting:
            assert len(list(cache.directory.glob("partial/*"))) == 1
            first.kill()
            for process in waiting:  # less long than until a downloader counts as stuck
                assert process.wait(timeout=60) == 0
    assert log.read_text() == "fetched\n" * 2
    assert files(cache) == {sha(X): SIZE}


def test_stopped_downloader_is_replaced(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a downloader was stopped, another process takes over, says so once, and keeps the file for all; if the
    stopped one goes on, it gets the file as well."""
    monkeypatch.setattr(cache_directory, "STUCK_AFTER_S", 0.5)
    log = tmp_path / "log"
    with fetchers(1, cache, log, 1) as (first,):
        assert line(first.stdout) == "fetching"
        first.send_signal(signal.SIGSTOP)
        assert get(cache, X) == X
        assert files(cache) == {sha(X): SIZE}
        (record,) = caplog.records
        assert f"process {first.pid} keeps {cache.directory}/locks/{sha(X)} and does nothing" in record.getMessage()
        assert get(Cache(cache.directory), X) == X
        first.send_signal(signal.SIGCONT)
        assert line(first.stdout) == "got it"
        assert first.wait(timeout=60) == 0
    assert files(cache) == {sha(X): SIZE}
    assert log.read_text() == "fetched\n"


HOLDER = """
import os, signal, sys
from pathlib import Path
from shardflow.storage.cache_directory import CacheDirectory
directory = CacheDirectory(Path(sys.argv[1]))
held = [directory.try_lock(name) for name in sys.argv[2:]]
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextlib.contextmanager
def stopped_holder(cache: Cache, *names: str) -> Iterator[None]:
    """A process that was stopped while it held these locks."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(cache.directory), *names], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert line(process.stdout) == "held"
            os.waitpid(process.pid, os.WUNTRACED)
            yield
        finally:
            process.kill()


def test_a_stopped_process_costs_one_wait(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many locks a stopped process holds, that for counting among them, others wait for it once."""
    monkeypatch.setattr(cache_directory, "STUCK_AFTER_S", 0.5)
    numbers = range(3)
    with stopped_holder(cache, "eviction", *(sha(content(number)) for number in numbers)):
        assert get(cache, content(0)) == content(0)

        def wait(_: float) -> None:
            raise AssertionError("another wait")

        for module in (cache_directory, cache_eviction):
            monkeypatch.setattr(module, "pause", wait)
        for number in numbers:
            assert get(cache, content(number)) == content(number)
    assert len(caplog.records) == 1
    assert files(cache) == {sha(content(number)): SIZE for number in numbers}


def test_a_process_that_runs_is_not_stuck(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A downloader that makes no progress, but is alive, keeps its lock: the storage decides when it gives up."""
    monkeypatch.setattr(cache_directory, "STUCK_AFTER_S", 0.5)
    monkeypatch.setattr(cache_directory, "_TOUCH_S", 0.05)
    monkeypatch.setattr(cache_directory, "_touchers", {})  # one of an earlier test may be in its pause
    log: list[bytes] = []
    started = threading.Event()

    def hang(target: Path) -> None:
        started.set()
        time.sleep(1.5)
        filler(X, log)(target)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.open, sha(X), SIZE, hang)
        started.wait()
        assert get(cache, X, log) == X
        first.result().close()
    assert log == [X]


def test_late_downloader_does_not_publish(cache: Cache) -> None:
    """A process whose lock was taken meanwhile keeps its file for itself: no room is reserved for it any more."""

    def fill(target: Path) -> None:
        target.write_bytes(X)
        (cache.directory / "locks" / sha(X)).unlink()

    with cache.open(sha(X), SIZE, fill) as file:
        assert file.read() == X
    assert files(cache) == {}


def test_a_download_that_was_cut_short_is_repeated(cache: Cache) -> None:
    """A file that became shorter before it was published is downloaded again."""
    log: list[bytes] = []

    def fill(target: Path) -> None:
        target.write_bytes(X[: SIZE if log else SIZE // 2])
        log.append(X)

    with cache.open(sha(X), SIZE, fill) as file:
        assert file.read() == X
    assert len(log) == 2
    assert files(cache) == {sha(X): SIZE}


@contextlib.contextmanager
def without_rights() -> Iterator[Path]:
    """A directory of a user whom a mode can forbid something, and this process as that user."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot even be entered by another user
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize("kind", ["blobs", "partial", "locks", "eviction"])
@pytest.mark.parametrize("how", ["mode", "directory"])
def test_a_file_that_cannot_be_used_is_worked_around(kind: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file of the cache that cannot be opened is replaced; one that cannot be deleted is named once, with the remedy,
    and everything is read all the same."""
    with without_rights() as folder:
        cache = Cache(folder / "cache", 4 * SIZE + 4096)  # a directory counts with its size
        name = {"partial": f"{sha(X)}.{'0' * 16}", "eviction": "eviction"}.get(kind, sha(X))
        path = cache.directory / ("locks" if kind == "eviction" else kind) / name
        if how == "directory":
            path.mkdir()
        else:
            path.touch()
            path.chmod(0)
        for data in (content(1), X, content(2)):
            for _ in range(2):
                assert get(cache, data) == data
        left = {path.name} if how == "directory" else set()
        blobs = {sha(content(1)), sha(content(2)), sha(X)}
        assert {file.name for file in cache.directory.glob("*/*")} == blobs | left
        messages = [record.getMessage() for record in caplog.records]
        if how == "mode":
            assert messages == []
        else:
            (message,) = messages
            assert f"{path} (Is a directory)" in message
            assert "delete it, or choose another cache directory" in message
        cache.prune_damaged()
        cache.prune(0)
        assert {file.name for file in cache.directory.glob("*/*")} == left


@pytest.mark.parametrize("happens", [PermissionError, FileNotFoundError])
def test_a_lock_may_change_while_it_is_taken(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, happens: type[OSError]
) -> None:
    """A lock that is given to another user, or deleted, in the moment in which it is taken, is made anew."""
    utime, times = os.utime, []

    def once(file: object, *arguments: object, **options: object) -> None:
        if isinstance(file, str) and "/locks/" in file and len(times) < 2:
            times.append(file)
            code = errno.EACCES if happens is PermissionError else errno.ENOENT
            raise happens(code, os.strerror(code))  # as the real one, without the name of the file
        utime(file, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "utime", once)
    assert get(cache, X) == X
    assert len(times) == 2
    assert not list(cache.directory.glob("locks/*"))


def test_growing_download_is_waited_for(cache: Cache) -> None:
    """A reader waits for a download of another process as long as it grows, also beyond the timeout."""
    log: list[bytes] = []
    started = threading.Event()

    def slow(target: Path) -> None:
        log.append(X)
        for _ in range(10):
            with open(target, "ab") as file:
                file.write(X[:100])
            started.set()
            time.sleep(0.25)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.open, sha(X), SIZE, slow)
        started.wait()
        with cache.open(sha(X), SIZE, filler(X, log), stall_timeout_s=1.5) as file:
            assert file.read() == X
        first.result().close()
    assert log == [X]


def test_forked_child_keeps_no_lock(cache: Cache) -> None:
    """A process that was forked during a download, and lives on, blocks no reader after the download."""
    child = 0

    def fork_and_fail(_: Path) -> None:
        nonlocal child
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError, match="gone"):
        cache.open(sha(X), SIZE, fork_and_fail)
    try:
        assert cache.fetch(sha(X), SIZE, filler(X)) is FetchResult.CACHED
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "error", [NotFoundError("gone"), IntegrityError("wrong"), StoreError("down"), KeyboardInterrupt()]
)
def test_failed_transfer_leaves_nothing(cache: Cache, error: BaseException) -> None:
    """An error of a download is raised unchanged; no file and no lock remains, and the next attempt starts anew."""

    def fail(target: Path) -> None:
        target.write_bytes(b"half")
        raise error

    for attempt in (cache.open, cache.fetch):
        with pytest.raises(type(error)) as caught:
            attempt(sha(X), SIZE, fail)
        assert caught.value is error
        assert files(cache) == {}
    assert get(cache, X) == X


def test_fetch_does_not_wait(cache: Cache) -> None:
    """`fetch` returns BUSY at once while another download runs, and CACHED afterwards."""
    found = []

    def fill(target: Path) -> None:
        found.append(cache.fetch(sha(X), SIZE, never))
        target.write_bytes(X)

    assert cache.fetch(sha(X), SIZE, fill) is FetchResult.CACHED
    assert cache.fetch(sha(X), SIZE, never) is FetchResult.CACHED
    assert found == [FetchResult.BUSY]


def test_larger_than_the_cache(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    """A file larger than the cache becomes a private file; nothing is evicted, and one warning is logged."""
    get(cache, X)
    data = b"z" * (3 * SIZE + 1)
    assert cache.fetch(sha(data), len(data), never) is FetchResult.FULL
    for _ in range(2):
        assert get(cache, data) == data
    assert files(cache) == {sha(X): SIZE}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "raise the limit of the cache" in record.message


def test_full_disk(cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk of the cache is full, files become unnamed temporary files, and one warning is logged.

    One that has a name because its process was killed in the middle of the download is removed by the next.
    """
    elsewhere = cache.directory.parent / "tmp"
    (elsewhere / f"shardflow-staging-{os.getuid()}-killed").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def fill(target: Path) -> None:
        if target.is_relative_to(cache.directory):
            full_disk(target)
        target.write_bytes(X)

    assert cache.fetch(sha(X), SIZE, fill) is FetchResult.FULL
    for _ in range(2):
        with cache.open(sha(X), SIZE, fill) as file:
            assert file.read() == X
    assert files(cache) == {}
    assert not list(elsewhere.iterdir())
    (record,) = caplog.records
    assert "no room, on its disk or within its limit" in record.message
    with pytest.raises(StoreError, match=r"neither.*1,000"):
        cache.open(sha(X), SIZE, full_disk)


def full_disk(target: Path) -> None:
    """A download onto a full disk."""
    try:
        target.write_bytes(b"")
        Path("/dev/full").write_bytes(X)
    except OSError as error:
        raise StoreError("no space") from error


def test_least_free_space_is_left(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too little of the disk is free, the cache evicts its files and accepts none, and reading goes on."""
    get(cache, X)
    monkeypatch.setattr(cache_eviction, "_LEAST_FREE_SHARE", 1.0)
    monkeypatch.setattr(cache_eviction, "_LEAST_FREE_BYTES", 1 << 60)
    assert get(cache, content(1)) == content(1)
    assert files(cache) == {}


@pytest.mark.parametrize("moment", ["before", "during", "after writing"])
def test_cache_may_be_deleted_at_any_time(cache: Cache, moment: str) -> None:
    """Deleting the whole directory costs one more download and nothing else."""
    log: list[bytes] = []
    get(cache, content(1))

    def fill(target: Path) -> None:
        if moment == "during" and not log:
            shutil.rmtree(cache.directory)
        filler(X, log)(target)
        if moment == "after writing" and len(log) == 1:
            shutil.rmtree(cache.directory)

    if moment == "before":
        shutil.rmtree(cache.directory)
    with cache.open(sha(X), SIZE, fill) as file:
        assert file.read() == X
    assert files(cache) == {sha(X): SIZE}
    assert len(log) == {"before": 1, "during": 2, "after writing": 2}[moment]
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_a_file_of_unknown_size_finds_room_before_it_is_there(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds at every moment, also while a file of unknown size is put into a full cache."""
    seen: list[int] = []
    replace = os.replace

    def counted(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append(sum(blob.bytes for blob in cache.blobs()))

    monkeypatch.setattr(os, "replace", counted)
    for number in range(2 * cache.limit_bytes // SIZE):
        with cache.open(sha(content(number)), None, filler(content(number), [])):
            pass
    assert len(seen) == 2 * cache.limit_bytes // SIZE
    assert max(seen) <= cache.limit_bytes
    assert max(seen) > cache.limit_bytes - SIZE


def test_cache_deleted_right_after_a_transfer(cache: Cache) -> None:
    """A downloaded file is returned, also if the directory is deleted before it is counted."""
    log: list[bytes] = []

    def fill(target: Path) -> None:
        filler(X, log)(target)
        shutil.rmtree(cache.directory / "locks")

    with cache.open(sha(X), None, fill) as file:
        assert file.read() == X
    assert log == [X]


def test_cache_deleted_again_and_again(cache: Cache) -> None:
    """Reading goes on, also if the directory is deleted again and again."""

    def fill(target: Path) -> None:
        target.write_bytes(X)
        shutil.rmtree(cache.directory, ignore_errors=True)

    with cache.open(sha(X), SIZE, fill) as file:
        assert file.read() == X
    assert cache.fetch(sha(X), SIZE, fill) is FetchResult.BUSY


def test_wrong_size_is_fetched_again(cache: Cache) -> None:
    """A file of the wrong size, as after a crash of the host, counts as missing."""
    get(cache, X)
    (cache.directory / "blobs" / sha(X)).write_bytes(X[:-1])
    assert get(cache, X) == X
    assert files(cache) == {sha(X): SIZE}


def test_wrong_size_is_forgotten(cache: Cache) -> None:
    """The size of a damaged file does not count for the file that replaces it: the limit holds."""
    for number in (1, 2):
        (cache.directory / "blobs" / sha(content(number))).write_bytes(b"short")
    for number in (3, 1, 2, 4):  # the first one counts those that are damaged
        assert get(cache, content(number)) == content(number)
    assert sum(files(cache).values()) == 3 * SIZE


def test_leftovers_of_killed_processes_are_removed(cache: Cache, tmp_path: Path) -> None:
    """Eviction and pruning remove partial files of dead processes, and never one that is being written."""
    with fetchers(1, cache, tmp_path / "log", 600) as (first,):
        assert line(first.stdout) == "fetching"
        dead = cache.directory / f"partial/{sha(b'dead')}.{'0' * 16}"
        dead.write_bytes(b"half")
        (cache.directory / f"locks/{sha(b'dead')}").touch()
        lost = cache.directory / f"partial/{sha(b'lost')}.{'0' * 16}"  # its lock was deleted by hand
        lost.write_bytes(b"half")
        get(cache, content(1))
        assert not dead.exists()
        assert not lost.exists()
        cache.prune(0)
        (left,) = cache.directory.glob("partial/*")
        assert left.name.startswith(sha(X))
        first.kill()
        first.wait()
    cache.prune(0)
    assert files(cache) == {}


def test_reserved_room_is_kept_for_downloads(cache: Cache) -> None:
    """A download counts with its full size from the start, so that two do not use the same room."""

    def fill(target: Path) -> None:
        for number in range(3):
            get(cache, content(number))
        target.write_bytes(X)

    with cache.open(sha(X), SIZE, fill):
        assert set(files(cache)) == {sha(content(1)), sha(content(2)), sha(X)}


def test_written_bytes_need_no_more_room(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that is nearly full, a download needs only the bytes that are still missing."""
    monkeypatch.setattr(cache_eviction, "spare_bytes", lambda _: SIZE)

    def fill(target: Path) -> None:
        target.write_bytes(X)
        get(cache, content(1))

    with cache.open(sha(X), SIZE, fill):
        assert set(files(cache)) == {sha(X), sha(content(1))}


def test_prune(cache: Cache) -> None:
    """Pruning evicts the least recently used files until the limit holds, and returns them."""
    for number in range(3):
        get(cache, content(number))
    assert [blob.path.name for blob in cache.prune(2 * SIZE)] == [sha(content(0))]
    assert cache.prune(2 * SIZE) == []
    assert [blob.bytes for blob in cache.prune(0)] == [SIZE, SIZE]
    assert files(cache) == {}


def test_prune_damaged(cache: Cache) -> None:
    """Files whose content does not have the SHA-256 of their name are removed, and no others."""
    for number in range(3):
        get(cache, content(number))
    damaged = cache.directory / "blobs" / sha(content(1))
    damaged.write_bytes(X)
    assert [blob.path for blob in cache.prune_damaged()] == [damaged]
    assert set(files(cache)) == {sha(content(0)), sha(content(2))}
    assert cache.prune_damaged() == []


def test_prune_damaged_removes_what_cannot_be_read() -> None:
    """A file that cannot be read is removed as a damaged one, and does not end the search."""
    with without_rights() as folder:
        cache = Cache(folder / "cache")
        for number in range(3):
            get(cache, content(number))
        closed = cache.directory / "blobs" / sha(content(1))
        closed.chmod(0)
        assert [blob.path for blob in cache.prune_damaged()] == [closed]
