"""Datasets and caches on file systems as machines share them: NFS, Lustre, SMB, and buckets mounted in user space."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import shardflow as sf
from shardflow.dataset.write_lock import acquire, acquire_to_extend
from shardflow.errors import (
    ConfigError,
    DatasetExistsError,
    DeadlineError,
    PackIncompleteError,
    StoreError,
)
from shardflow.storage import local_files
from shardflow.storage.cache import Cache
from shardflow.storage.local import LocalStorage
from shardflow.storage.retry import RetryPolicy
from shardflow.storage.staging import temporary_staging
from tests.helpers.folders import image_folder
from tests.helpers.making import make_dataset
from tests.helpers.shared_file_system import fault, faults, processes

Run = Callable[..., object]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """Two processes on a shared file system."""
    with processes(tmp_path_factory.mktemp("library"), 2) as pool:
        yield pool


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory on it."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def run(pool: ProcessPoolExecutor, shared: Path) -> Run:
    """A call of a function with the directory, and arguments, in one of the processes."""
    return lambda function, *arguments: pool.submit(function, shared, *arguments).result()


NO_LINKS = fault("link", "EPERM")
NEITHER = NO_LINKS + fault("renameat2", "EINVAL")


def _pack_and_extend(shared: Path, rules: str) -> None:
    source, more = (
        image_folder(shared.parent / name, 6, 40 + size, 32) for size, name in enumerate(("source", "more"))
    )
    with faults(rules):
        sf.pack(source, shared / "data", workers=1)
        with pytest.raises(DatasetExistsError):
            sf.pack(more, shared / "data", workers=1)
        sf.extend(more, shared / "data", on_conflict="add", workers=1)
        assert sf.verify(shared / "data") == []
    assert len(sf.open(shared / "data")["train"]) == 12
    sf.pack(source, shared.parent / "local", workers=1)
    sf.extend(more, shared.parent / "local", on_conflict="add", workers=1)
    assert sf.open(shared / "data").fingerprint == sf.open(shared.parent / "local").fingerprint
    names = {path.name for path in (shared / "data").iterdir() if not path.name.startswith(".nfs")}
    assert names == {path.name for path in (shared.parent / "local").iterdir()}


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(
            NEITHER + fault("flock", "ENOLCK") + fault("fsync_directory", "EINVAL") + fault("unlink_lie"), id="lacking"
        ),
        pytest.param(fault("link_lie", "EEXIST") + fault("rename_lie", "ENOENT") + fault("flock_lie"), id="lying"),
    ],
)
def test_pack_and_extend(run: Run, rules: str) -> None:
    """A dataset is the same where the system has neither links, locks nor syncs of directories, and keeps removed
    files; and where the server denies what it has done, and gives everybody every lock."""
    run(_pack_and_extend, rules)


def _create(shared: Path, rules: str) -> list[str]:
    outcomes = []
    with faults(rules):
        for name in ("first", "second"):
            try:
                LocalStorage(shared).put("blob", name.encode(), new=True)
                outcomes.append(name)
            except DatasetExistsError:
                pass
    assert LocalStorage(shared).read("blob") == b"first"
    assert os.listdir(shared) == ["blob"]
    return outcomes


@pytest.mark.parametrize(
    "rules", [NO_LINKS, NEITHER, fault("link_lie", "EEXIST"), NEITHER + fault("rename_lie", "ENOENT")]
)
def test_one_of_two_creates(run: Run, rules: str) -> None:
    """Of two writers that create a blob, the first one does, and the second one is refused."""
    assert run(_create, rules) == ["first"]


def _write_late(shared: Path, call: str, error: str) -> None:
    storage = LocalStorage(shared)
    with faults(fault(call, error, times=1)):
        with pytest.raises(StoreError, match=rf"{shared}/.*free some space"):
            storage.put("blob", b"content", new=True)
        assert [*storage.listing()] == []
        storage.put("blob", b"content", new=True)


@pytest.mark.parametrize(("call", "error"), [("close", "ENOSPC"), ("fsync", "EDQUOT")])
def test_what_could_not_be_written_is_not_published(run: Run, call: str, error: str) -> None:
    """A server that refuses the bytes only when a file is closed or synced makes an error, and no file appears."""
    run(_write_late, call, error)


def _pack_late(shared: Path, call: str) -> None:
    source = image_folder(shared.parent / "source", 6, 40, 32)
    with faults(fault(call, "ENOSPC", skip=1, times=1)):
        with pytest.raises((StoreError, PackIncompleteError), match="No space left"):
            sf.pack(source, shared / "data", workers=1)
        assert not (shared / "data" / "shardflow.json").exists()
    sf.pack(source, shared / "data", workers=1)
    assert sf.verify(shared / "data") == []


@pytest.mark.parametrize("call", ["close", "fsync"])
def test_a_pack_sees_late_errors_before_its_commit(run: Run, call: str) -> None:
    """No manifest is written after an error of a shard's file that comes late; the same call then goes on."""
    run(_pack_late, call)


def _read(shared: Path, rules: str, is_replaced: bool) -> None:
    make_dataset(shared / "data", [4, 4])
    expected = [bytes(each["jpg"]) for each in _samples(shared)]
    split = sf.open(shared / "data")["train"]
    split.reader.read(0, 0)
    if is_replaced:
        for tar in (shared / "data/train").glob("*.tar"):
            os.replace(shutil.copy(tar, shared.parent / "copy"), tar)
    with mock.patch.object(local_files, "RetryPolicy", partial(RetryPolicy, backoff_s=0.001)):
        for skip in range(2):
            with faults(rules.replace("SKIP", str(skip))):
                assert bytes(split.reader.read(0, 1).parts["jpg"]) == expected[1]
                assert [bytes(each["jpg"]) for each in _samples(shared)] == expected
                assert sf.verify(shared / "data") == []
                images = [len(batch[0]) for batch in sf.Loader(shared / "data", batch_size=2, num_workers=0)]
                assert images == [2] * 4


def _samples(shared: Path) -> list[dict[str, memoryview]]:
    split = sf.open(shared / "data")["train"]
    return [dict(split.reader.read(number // 4, number % 4).parts) for number in range(8)]


@pytest.mark.parametrize("call", ["read", "open", "stat"])
@pytest.mark.parametrize("error", ["ESTALE", "EIO", "ETIMEDOUT"])
def test_a_file_is_read_again(run: Run, call: str, error: str) -> None:
    """A stale handle, or a server that fails for a while, is no error: the path is opened anew."""
    run(_read, f"{call} {fault('', error).split()[0]} SKIP 2;", error == "ESTALE")


def _give_up(shared: Path, error: str) -> None:
    make_dataset(shared / "data", [4])
    split = sf.open(shared / "data")["train"]
    split.reader.read(0, 0)
    policy = partial(RetryPolicy, idle_timeout_s=0.2, backoff_s=0.001)
    tar = str(shared / "data/train/000000.tar")
    with mock.patch.object(local_files, "RetryPolicy", policy), faults(fault("read", error)):
        with pytest.raises(DeadlineError) as caught:
            split.reader.read(0, 1)
        assert tar in str(caught.value)
        assert "server" in str(caught.value)
        with pytest.raises(DeadlineError, match=str(shared / "data/shardflow.json")):
            sf.open(shared / "data")
    local = make_dataset(shared.parent / "local", [4])
    assert local_files.is_shared(shared)
    assert not local_files.is_shared(local)


@pytest.mark.parametrize("error", ["ESTALE", "EIO"])
def test_a_server_that_stays_away(run: Run, error: str) -> None:
    """The error names the file when the one deadline has passed."""
    run(_give_up, error)


def _list(shared: Path) -> None:
    storage = LocalStorage(shared)
    storage.put("a/blob", b"")
    (shared / ".nfs0000000000000001").touch()
    with mock.patch.object(local_files, "RetryPolicy", partial(RetryPolicy, idle_timeout_s=0.2, backoff_s=0.001)):
        with faults(fault("opendir", "ESTALE", skip=1, times=1)):
            assert [*storage.listing()] == ["a/blob"]
        with faults(fault("opendir", "EIO", skip=1)), pytest.raises(DeadlineError):
            storage.listing()


def test_a_listing_is_whole_or_an_error(run: Run) -> None:
    """A directory that cannot be listed does not count as empty; files that NFS keeps until they are closed do not
    count at all."""
    run(_list)


def _two_writers(shared: Path) -> None:
    storage = LocalStorage(shared)
    with faults(fault("flock_lie")), ExitStack() as held:
        first, second = (held.enter_context(storage.exclusive_writer()) for _ in range(2))
        lock = acquire(storage, lambda: "first", first)
        with pytest.raises(ConfigError, match="other inputs or settings"):
            acquire(storage, lambda: "second", second)
        lock.release()
        make_dataset(shared, [2])
        fingerprint = sf.open(shared).fingerprint
        acquire_to_extend(storage, lambda: "first", fingerprint, first)
        with pytest.raises(ConfigError, match="other inputs or settings"):
            acquire_to_extend(storage, lambda: "second", fingerprint, second)


def test_machines_that_do_not_see_each_others_locks(run: Run) -> None:
    """A directory that is being written to from one machine is refused to other work of another one."""
    run(_two_writers)


def _stage(shared: Path) -> None:
    with (
        mock.patch.object(tempfile, "tempdir", str(shared)),
        faults(fault("flock_lie")),
        temporary_staging() as (first, _),
        temporary_staging(),
    ):
        assert first.is_dir()


def test_staging_directories_of_other_machines_stay(run: Run) -> None:
    """Where locks do not tell whether another process lives, its temporary files are left alone."""
    run(_stage)


def _look_at_old_attributes(shared: Path, rules: str) -> tuple[str, str]:
    storage = LocalStorage(shared / "data")
    with faults(rules):
        storage.version("shardflow.json")
        before = sf.open(shared / "data").fingerprint
        other = make_dataset(shared / "other", [4, 4])
        for path in (other / "train").iterdir():
            os.replace(path, shared / "data/train" / path.name)
        os.replace(other / "shardflow.json", shared / "data/shardflow.json")
        assert sf.verify(shared / "data") == []
        return before, sf.open(shared / "data").fingerprint


def test_old_attributes_do_readers_no_harm(run: Run, shared: Path) -> None:
    """While a client has the attributes of an older version, the newer one is read whole."""
    make_dataset(shared / "data", [4])
    before, after = run(_look_at_old_attributes, fault("stat_lie"))  # type: ignore[misc]
    assert before != after


CONTENTS = [bytes([number]) * (300_000 + number) for number in range(6)]


def _share_cache(shared: Path, rules: str, number: int) -> int:
    """Read all contents often through a cache that has room for some; return how many were read."""
    cache, done = Cache(shared / "cache", 1_000_000), 0
    (shared / f"{number}").touch()
    while not (shared / f"{1 - number}").exists():  # both begin together
        time.sleep(0.001)
    with faults(rules):
        for turn in range(60):
            content = CONTENTS[(turn * (number + 1)) % len(CONTENTS)]

            def download(target: Path, content: bytes = content) -> None:
                with local_files.new_file(target) as file:
                    chunks = (content[at : at + 10_000] for at in range(0, len(content), 10_000))
                    sha256 = hashlib.sha256(content).hexdigest()
                    local_files.write_verified(chunks, file, "source", size=len(content), sha256=sha256)

            with cache.open(hashlib.sha256(content).hexdigest(), len(content), download) as file:
                assert file.read() == content
            done += 1
    return done


@pytest.mark.parametrize(
    "rules", [fault("flock_lie"), fault("flock", "ENOLCK"), fault("unlink_lie"), fault("rename_lie", "ENOENT")]
)
def test_a_cache_without_locks_has_the_right_bytes(pool: ProcessPoolExecutor, shared: Path, rules: str) -> None:
    """Two processes that believe to be alone in a cache read nothing but the content that they ask for."""
    both: list[Future[int]] = [pool.submit(_share_cache, shared, rules, number) for number in range(2)]
    assert [each.result() for each in both] == [60, 60]
    for path in (shared / "cache/blobs").iterdir():
        if not path.name.startswith(".nfs"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def _cache_late(shared: Path) -> None:
    content = CONTENTS[0]
    name, cache = hashlib.sha256(content).hexdigest(), Cache(shared / "cache")

    def download(target: Path, error: str) -> None:
        with faults(fault("close", error, times=1)), local_files.new_file(target) as file:
            file.write(content)

    with mock.patch.object(tempfile, "tempdir", str(shared.parent)):
        with pytest.raises(StoreError, match="Input/output error"):
            cache.open(name, len(content), partial(download, error="EIO"))
        assert not cache.has(name)
        with cache.open(name, len(content), partial(download, error="EDQUOT")) as file:
            assert file.read() == content  # from a private file
        assert not cache.has(name)


def test_a_cache_keeps_nothing_that_could_not_be_written(run: Run) -> None:
    """A download whose bytes the server refuses when the file is closed does not get into the cache."""
    run(_cache_late)


def _cache_stale(shared: Path) -> None:
    content = CONTENTS[0]
    name, cache = hashlib.sha256(content).hexdigest(), Cache(shared / "cache")
    downloads = []

    def download(target: Path) -> None:
        downloads.append(target)
        target.write_bytes(content)

    cache.open(name, len(content), download).close()
    with faults(fault("open", "ESTALE", times=1)), cache.open(name, len(content), download) as file:
        assert file.read() == content
    with faults(fault("read", "ESTALE", times=1)):
        assert cache.read(name, len(content), download, "url") == content
    assert len(downloads) == 3
    assert cache.has(name)


def test_a_stale_file_of_the_cache_is_downloaded_again(run: Run) -> None:
    """A file of the cache that another machine has removed is replaced."""
    run(_cache_stale)
