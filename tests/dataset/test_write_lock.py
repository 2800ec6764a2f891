from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

import pytest

from shardflow.dataset import write_lock
from shardflow.dataset.write_lock import abort_uploads, acquire, acquire_to_extend, clean_up
from shardflow.errors import AccessDeniedError, ConfigError, DatasetExistsError, StoreError, TransientError
from shardflow.formats import manifest
from shardflow.storage.interface import Storage, Writer
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from tests.helpers.counting import CountingStorage
from tests.helpers.making import make_dataset
from tests.helpers.s3_server import Server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that does not exist yet."""
    return tmp_path / "storage"


@pytest.fixture(params=["directory", "S3"])
def storage(request: pytest.FixtureRequest, path: Path, prefix: str) -> Storage:
    """An empty storage."""
    if request.param == "directory":
        return open_storage(path)
    server: Server = request.getfixturevalue("server")
    return server.storage(prefix)


def writer(*, is_exclusive: bool) -> Writer:
    """A writer; only whether it is alone matters to the blob."""
    return Writer(Path(), -1, is_exclusive)


SHARED, ALONE = writer(is_exclusive=False), writer(is_exclusive=True)
GONE = "sha256:" + "0" * 64  # a version that was replaced, or never was


def ours() -> str:
    """The content of one lock."""
    return "ours"


def theirs() -> str:
    """The content of another."""
    return "theirs"


def unasked() -> str:
    """A content that nothing needs."""
    raise AssertionError("the content of a lock is not needed here")


def dataset(storage: Storage, tmp_path: Path) -> str:
    """Put the manifest of a dataset into a storage, and return its fingerprint."""
    return put_manifest(storage, tmp_path / "set", 2)


def extended(storage: Storage, tmp_path: Path) -> str:
    """Put the manifest of another version in its place, and return the fingerprint."""
    return put_manifest(storage, tmp_path / "extended", 3)


def put_manifest(storage: Storage, root: Path, samples: int) -> str:
    """Put the manifest of a dataset that is made at `root` into a storage, and return its fingerprint."""
    data = (make_dataset(root, [samples]) / manifest.FILE_NAME).read_bytes()
    storage.put(manifest.FILE_NAME, data)
    return manifest.from_bytes(data).fingerprint


@pytest.mark.parametrize("which", [None, SHARED])
def test_a_lock_is_for_one_content(storage: Storage, which: Writer | None) -> None:
    """A lock may be acquired again for the same content, and not for another, until it is released."""
    for _ in range(2):
        lock = acquire(storage, ours, which)
    assert storage.read(write_lock.FILE_NAME) == b'{\n "content": "ours"\n}\n'
    assert acquire(storage, ours, ALONE).blob is None
    for other in (None, SHARED, ALONE):
        with pytest.raises(ConfigError, match=r"inputs.*remove"):
            acquire(storage, theirs, other)
    lock.release()
    acquire(storage, theirs, which)


def test_a_writer_that_is_alone_needs_no_blob(storage: Storage) -> None:
    """Where the kernel keeps other writers out, no blob is written, and its content is not computed."""
    for lock in (acquire(storage, unasked, ALONE), acquire_to_extend(storage, unasked, GONE, ALONE)):
        lock.check()
        lock.put("quarantine.jsonl", b"1")
        lock.release()
        assert list(storage.listing()) == ["quarantine.jsonl"]


@pytest.mark.parametrize("which", [None, SHARED, ALONE])
def test_a_dataset_is_not_locked(storage: Storage, tmp_path: Path, which: Writer | None) -> None:
    """Where a dataset is, the lock is refused and removed."""
    dataset(storage, tmp_path)
    with pytest.raises(DatasetExistsError, match=r"already holds a dataset; choose another destination$"):
        acquire(storage, ours, which)
    assert list(storage.listing()) == [manifest.FILE_NAME]


def test_a_dataset_is_locked_to_extend_it(storage: Storage, tmp_path: Path) -> None:
    """The lock of an extension is for one content, and named by the version that it extends."""
    fingerprint = dataset(storage, tmp_path)
    assert acquire_to_extend(storage, unasked, fingerprint, ALONE).read_version()[0] == storage.read(manifest.FILE_NAME)
    for _ in range(2):
        lock = acquire_to_extend(storage, ours, fingerprint, SHARED)
    assert lock.name == f"unfinished-{fingerprint.removeprefix('sha256:')}.json"
    with pytest.raises(ConfigError, match=rf"inputs.*{lock.name}"):
        acquire_to_extend(storage, theirs, fingerprint, SHARED)
    with pytest.raises(DatasetExistsError, match=r"extended.*meanwhile"):
        acquire_to_extend(storage, ours, GONE, SHARED)
    lock.release()
    assert list(storage.listing()) == [manifest.FILE_NAME]


def test_the_lock_of_an_older_version_is_void(storage: Storage, tmp_path: Path) -> None:
    """A lock to extend a version that was replaced keeps no writer out, and is cleaned up; other files stay."""
    old = acquire_to_extend(storage, ours, dataset(storage, tmp_path), SHARED)
    new = acquire_to_extend(storage, theirs, extended(storage, tmp_path), SHARED)
    assert old.name != new.name
    with pytest.raises(DatasetExistsError, match=r"extended.*meanwhile"):
        acquire_to_extend(storage, ours, old.extends, SHARED)
    foreign = f"unfinished-{'a' * 64}.json"
    storage.put(old.name, old.blob or b"")
    storage.put(foreign, b"{}")
    clean_up(storage)
    assert sorted(storage.listing()) == sorted([manifest.FILE_NAME, new.name, foreign])
    new.check()


def test_clean_up_spares_a_running_extension(storage: Storage, tmp_path: Path) -> None:
    """The leftovers of a commit are removed, but not the lock of an extension of this very version; all stays where the
    manifest is damaged or missing.
    """
    storage.put(write_lock.FILE_NAME, b'{"content": "of a pack"}')
    clean_up(storage)
    storage.put(manifest.FILE_NAME, b"{}")
    clean_up(storage)
    assert sorted(storage.listing()) == sorted([manifest.FILE_NAME, write_lock.FILE_NAME])
    lock = acquire_to_extend(storage, ours, dataset(storage, tmp_path), SHARED)
    if isinstance(storage, LocalStorage):
        (storage.root / f".tmp-{manifest.FILE_NAME}.1234").touch()
    clean_up(storage)
    assert sorted(storage.listing()) == sorted([manifest.FILE_NAME, lock.name])


def test_a_lock_that_is_lost_is_noticed(storage: Storage, tmp_path: Path) -> None:
    """A check fails after the commit of a twin, and after the blob was removed, with what to do."""
    lock = acquire(storage, ours, SHARED)
    lock.check()
    lock.release()
    with pytest.raises(StoreError, match=r"unfinished\.json,.*write"):
        lock.check()
    lock = acquire_to_extend(storage, ours, dataset(storage, tmp_path), SHARED)
    storage.put(lock.name, b"another's")
    with pytest.raises(StoreError, match=r"unfinished-.*\.json,.*write"):
        lock.check()
    extended(storage, tmp_path)
    with pytest.raises(DatasetExistsError, match=r"extended.*meanwhile"):
        lock.check()


def test_what_belongs_to_a_version_is_written_before_its_commit(storage: Storage, tmp_path: Path) -> None:
    """A writer that wakes up after the commit of its twin does not put its file over that of a later version."""
    lock = acquire_to_extend(storage, ours, dataset(storage, tmp_path), SHARED)
    for data in (b"1", b"2", b"2"):
        lock.put("quarantine.jsonl", data)
    extended(storage, tmp_path)
    lock.release()
    storage.put("quarantine.jsonl", b"3")
    with pytest.raises(DatasetExistsError, match=r"extended.*meanwhile"):
        lock.put("quarantine.jsonl", b"2")
    assert storage.read("quarantine.jsonl") == b"3"


class CleanedStorage(CountingStorage):
    """A storage in which another process removes a lock once, right after it was created."""

    is_cleaned = False

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob."""
        super().put(name, content, new=new, replaces=replaces)
        if new and not self.is_cleaned:
            self.is_cleaned = True
            self.remove(name)


def test_a_void_lock_that_is_cleaned_up_at_once(tmp_path: Path) -> None:
    """A storage whose locks another process cleans up is not taken for one that ignores conditions."""
    storage = CleanedStorage(tmp_path / "storage", tmp_path / "log")
    acquire(storage, ours, SHARED).check()


class RacedStorage(CountingStorage):
    """A storage in which another writer is faster in some of the writes, and which lists no uploads."""

    races = 0

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Find a new blob that the other writer removes at once; replace a blob after the other writer."""
        if self.races and (new or replaces):
            self.races -= 1
            if new:
                raise DatasetExistsError(name)
            super().put(name, b"%d" % self.races)
        super().put(name, content, new=new, replaces=replaces)

    def abort_uploads(self, names: Collection[str]) -> None:
        """Refuse."""
        raise AccessDeniedError(f"no right to list {sorted(names)}")


def test_a_twin_may_be_faster(tmp_path: Path) -> None:
    """A file that a twin replaces meanwhile is read and replaced again, seven times."""
    storage = RacedStorage(tmp_path / "storage", tmp_path / "log")
    lock = acquire(storage, ours, SHARED)
    lock.put("quarantine.jsonl", b"first")
    storage.races = 7
    lock.put("quarantine.jsonl", b"last")
    assert storage.read("quarantine.jsonl") == b"last"
    storage.races = 8
    with pytest.raises(DatasetExistsError, match=r"changed.*meanwhile"):
        lock.put("quarantine.jsonl", b"never")


def test_a_lock_that_comes_and_goes(tmp_path: Path) -> None:
    """A lock that is released as soon as it is found is asked for again, seven times."""
    storage = RacedStorage(tmp_path / "storage", tmp_path / "log")
    storage.races = 8
    with pytest.raises(TransientError, match=r"appears and disappears.*again"):
        acquire(storage, ours, SHARED)
    storage.races = 7
    acquire(storage, ours, SHARED).check()


def test_uploads_that_cannot_be_listed_are_left(tmp_path: Path) -> None:
    """A lack of the right to abort uploads does not stop the commit."""
    abort_uploads(RacedStorage(tmp_path / "storage", tmp_path / "log"), {"train/000000.tar"})


class CarelessStorage(CountingStorage):
    """A storage that knows no conditions, as some servers and proxies: it ignores them."""

    ignores_new, ignores_tags = True, True

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Replace an existing one, and any other one."""
        known = None if self.ignores_tags else replaces
        super().put(name, content, new=new and not self.ignores_new, replaces=known)


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_storage_that_ignores_conditions_is_refused(tmp_path: Path, ignored: str) -> None:
    """Where a write succeeds although its condition does not hold, no lock is left, and the error has the remedy."""
    storage = CarelessStorage(tmp_path / "storage", tmp_path / "log")
    storage.ignores_new, storage.ignores_tags = ignored == "If-None-Match", ignored == "If-Match"
    fingerprint = dataset(storage, tmp_path)
    with pytest.raises(StoreError, match=r"ignores.*conditions"):
        acquire_to_extend(storage, ours, fingerprint, SHARED)
    assert list(storage.listing()) == [manifest.FILE_NAME]
    storage.remove(manifest.FILE_NAME)
    for which in (SHARED, None):
        with contextlib.nullcontext() if ignored == "If-Match" else pytest.raises(StoreError, match="ignores the cond"):
            acquire(storage, ours, which).release()
    assert storage.listing() == {}


def test_a_storage_without_conditional_writes(tmp_path: Path, prefix: str) -> None:
    """A dataset behind any other URL of fsspec is not extended there; a new one can be written."""
    storage = open_storage(f"memory://{prefix}")
    lock = acquire(storage, ours, SHARED)
    for data in (b"1", b"2"):
        lock.put("quarantine.jsonl", data)
    assert storage.read("quarantine.jsonl") == b"2"
    storage.remove("quarantine.jsonl")
    lock.release()
    fingerprint = dataset(storage, tmp_path)
    with pytest.raises(StoreError, match=r"conditional writes, .*S3.*shardflow"):
        acquire_to_extend(storage, unasked, fingerprint, SHARED)
    assert list(storage.listing()) == [manifest.FILE_NAME]
