"""The promises of the Storage protocol, tested on every kind of storage and on wrappers of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardflow.errors import DatasetExistsError, IntegrityError, NotFoundError, StoreError
from shardflow.storage.cache import Cache
from shardflow.storage.cached import CachedStorage
from shardflow.storage.interface import BlobTooLargeError, Storage
from shardflow.storage.local import LocalStorage
from shardflow.storage.remote import PIECE_BYTES, RemoteStorage, remote_storage
from shardflow.storage.rereading import RereadingStorage
from shardflow.storage.retry import RetryPolicy
from shardflow.storage.urls import RemoteUrl
from shardflow.storage.virtual import VirtualStorage
from shardflow.storage.wrapper import StorageWrapper
from tests.helpers import gcs_server
from tests.helpers.counting import CountingStorage, SlowStorage
from tests.helpers.web_server import ServedStorage

LOCAL = ("directory", "virtual, local roots", "virtual, mixed roots")
STORES = {"S3": "server", "gcs": "gcs", "azure": "azure"}  # kind → fixture
SERVED = ("web", "the_hub")  # tests write to the folder behind the server
WRAPPERS = ("cached", "reread", "wrapped", "counting", "slow")
REMOTE = ("memory", "read once", *STORES, *SERVED, "virtual, remote roots", *WRAPPERS)
SIZES = (0, 1, 1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 7)
TAR = "train/0/000000.tar"
HASTY = RetryPolicy(backoff_s=0.01)


@pytest.fixture(params=[*LOCAL, *REMOTE])
def storage(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Storage:
    """An empty storage of each kind. Where there is a root, its name is "0"."""
    directory = LocalStorage(tmp_path / "storage")
    memory, root = (remote_storage(f"memory://{prefix}/{name}", retry_policy=HASTY) for name in ("storage", "root"))
    if request.param in STORES:
        store = request.getfixturevalue(STORES[request.param])
        return remote_storage(store.url(f"{prefix}/storage"), store.options(), retry_policy=HASTY)
    if request.param in SERVED:
        store, folder = request.getfixturevalue(request.param)
        served = remote_storage(store.url(prefix), store.options(), retry_policy=HASTY)
        return ServedStorage(LocalStorage(folder.root / prefix), served)
    slow = SlowStorage(directory.root, tmp_path / "log")
    slow.first_bytes = 2
    slow.go_on.set()
    kinds: dict[str, Storage] = {
        "directory": directory,
        "memory": memory,
        "virtual, local roots": VirtualStorage(directory, {"0": LocalStorage(tmp_path / "root")}),
        "virtual, mixed roots": VirtualStorage(directory, {"0": root}),
        "virtual, remote roots": VirtualStorage(memory, {"0": root}),
        "read once": RemoteStorage(RemoteUrl(f"memory://{prefix}/storage", {}), HASTY, PIECE_BYTES),
        "cached": CachedStorage(memory, Cache(tmp_path / "cache")),
        "reread": RereadingStorage(memory, HASTY),
        "wrapped": StorageWrapper(CachedStorage(memory, Cache(tmp_path / "cache"))),
        "counting": CountingStorage(directory.root, tmp_path / "log"),
        "slow": slow,
    }
    return kinds[request.param]


def is_virtual(request: pytest.FixtureRequest) -> bool:
    """Return whether tars are in roots of their own."""
    return str(request.node.callspec.params["storage"]).startswith("virtual")


def content(size: int) -> bytes:
    """Bytes that repeat nowhere."""
    return random.Random(size).randbytes(size)


def size_of(storage: Storage, name: str) -> int:
    """Return the size of a blob, which must exist."""
    version = storage.version(name)
    assert version is not None
    return version.size


def tag_of(storage: Storage, name: str) -> str:
    """Return the tag of a blob, which must exist, for a conditional write; "" where there are none."""
    version = (storage.files if isinstance(storage, ServedStorage) else storage).version(name)
    assert version is not None
    return version.tag


def test_blob_comes_back(request: pytest.FixtureRequest, storage: Storage) -> None:
    """A blob has its content and its size; one that was not written has none. Virtual storages do not list tars."""
    storage.put(TAR, b"abc")
    storage.put("a", b"")
    assert (storage.read(TAR), storage.read("a")) == (b"abc", b"")
    assert (size_of(storage, TAR), size_of(storage, "a")) == (3, 0)
    assert storage.version("b") is storage.version("c/d") is None
    assert list(storage.listing()) == (["a"] if is_virtual(request) else ["a", TAR])


@pytest.mark.parametrize("size", SIZES)
def test_file_goes_there_and_back(storage: Storage, tmp_path: Path, size: int) -> None:
    """An uploaded file is the blob, the file is gone, and the blob comes back as the same file, whatever its size."""
    data = content(size)
    (tmp_path / "source").write_bytes(data)
    storage.put(TAR, tmp_path / "source")
    assert not (tmp_path / "source").exists()
    assert size_of(storage, TAR) == size
    storage.get(TAR, tmp_path / "target", size=size, sha256=hashlib.sha256(data).hexdigest())
    assert (tmp_path / "target").read_bytes() == data
    assert storage.read(TAR) == data


def test_wrong_bytes_are_refused(storage: Storage, tmp_path: Path) -> None:
    """A blob of another size or SHA-256 than expected is an IntegrityError that names it, and no file is left."""
    storage.put("a", b"1234")
    right = hashlib.sha256(b"1234").hexdigest()
    for size, sha256 in ((3, right), (5, right), (4, "0" * 64)):
        with pytest.raises(IntegrityError, match=r"/a: expected .*, found .*`shardflow index`"):
            storage.get("a", tmp_path / "target", size=size, sha256=sha256)
        assert list(tmp_path.glob("target*")) == []


def test_an_existing_file_stays(storage: Storage, tmp_path: Path) -> None:
    """`get` never writes over a file that exists."""
    storage.put("a", b"1234")
    (tmp_path / "target").write_bytes(b"mine")
    with pytest.raises(StoreError, match="target"):
        storage.get("a", tmp_path / "target", size=4, sha256=hashlib.sha256(b"1234").hexdigest())
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_listing(request: pytest.FixtureRequest, storage: Storage) -> None:
    """A listing has sizes and, if there are any, tags that follow the content and times of publication."""
    assert storage.listing() == {}
    storage.put("b", b"12345")
    storage.put("a/c", b"")
    before = storage.listing()
    unknown = request.node.callspec.params["storage"] == "web"  # its listing is links
    sizes = [("a/c", 0), ("b", 5)]
    assert [(name, listed.size) for name, listed in before.items()] == [
        (name, -1 if unknown else size) for name, size in sizes
    ]
    storage.put("b", b"54321")
    after = storage.listing()
    assert (after["b"].tag != before["b"].tag) == bool(before["b"].tag)
    times = [listed.modified_ns for listed in after.values() if listed.modified_ns is not None]
    assert len(times) in (0, 2)
    assert all(abs(time.time_ns() - modified_ns) < 60e9 for modified_ns in times)


@pytest.mark.parametrize(("storage", "page"), [("S3", 1000), ("gcs", gcs_server.PAGE)], indirect=["storage"])
def test_a_listing_of_two_pages(storage: Storage, page: int) -> None:
    """A listing has all blobs, also those that the store tells with its next answer."""
    names = {f"train/{number:06}.tar" for number in range(page + 3)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.put(name, b"1"), sorted(names)))
    assert storage.listing().keys() == names


@pytest.mark.parametrize("name", ["b", TAR])
def test_a_blob_that_is_too_large_is_not_read(storage: Storage, name: str) -> None:
    """A limit is the most that is returned; the error of a larger blob says its size, also in another process."""
    storage.put(name, b"12345")
    assert storage.read(name, most_bytes=5) == b"12345"
    with pytest.raises(BlobTooLargeError, match=r"5.*4") as caught:
        storage.read(name, most_bytes=4)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.size, again.sha256, str(again)) == (5, caught.value.sha256, str(caught.value))
    assert again.sha256 in ("", hashlib.sha256(b"12345").hexdigest())


@pytest.mark.parametrize("name", ["b", TAR])
def test_ranges(storage: Storage, name: str) -> None:
    """A range is cut at the end of the blob; one that begins there or later is empty."""
    storage.put(name, b"12345")
    assert (storage.read_range(name, 1, 3), storage.read_range(name, 3, 9)) == (b"23", b"45")
    for start, stop in ((2, 2), (3, 2), (5, 5), (5, 7), (8, 9)):
        assert storage.read_range(name, start, stop) == b""
    storage.put("empty", b"")
    assert storage.read_range("empty", 0, 4) == b""
    with pytest.raises(NotFoundError):
        storage.read_range("none", 0, 1)


@pytest.mark.parametrize("name", ["b", TAR])
def test_ranges_of_one_version(storage: Storage, name: str) -> None:
    """Ranges of a version are not mixed with those of another blob that has taken its place."""
    assert storage.version(name) is None
    storage.put(name, b"12345")
    version = storage.version(name)
    assert version is not None
    assert version.size == 5
    assert storage.read_range(name, 1, 3, version=version) == b"23"
    for other in (b"123456", *([b"54321"] if version.tag else [])):
        storage.remove(name)
        storage.put(name, other)
        with pytest.raises(StoreError, match="replaced while"):
            storage.read_range(name, 1, 3, version=version)


@pytest.mark.parametrize("name", ["b", TAR])
def test_put_replaces_and_a_new_blob_does_not(storage: Storage, tmp_path: Path, name: str) -> None:
    """Without a condition `put` replaces a blob; one that must be new leaves it unchanged and says that it exists."""
    source = tmp_path / "source"
    storage.put(name, b"1")
    storage.put(name, b"2")
    for content in (b"3", source):
        source.write_bytes(b"3")
        with pytest.raises(DatasetExistsError, match="exists already"):
            storage.put(name, content, new=True)
    storage.put("c", b"4", new=True)
    source.write_bytes(b"5")
    storage.put("d", source, new=True)
    assert (storage.read(name), storage.read("c"), storage.read("d")) == (b"2", b"4", b"5")


def test_one_of_racing_writers_wins(storage: Storage) -> None:
    """Of several writers that create a blob at once exactly one succeeds, and the blob is its own."""
    won: list[int] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        with contextlib.suppress(DatasetExistsError):
            storage.put("blob", b"%d" % number * 1000, new=True)
            won.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(won) == 1
    assert storage.read("blob") == b"%d" % won[0] * 1000


NO_TAG = '"00000000000000000000000000000000"'


@pytest.mark.parametrize("name", ["b", TAR])
def test_replace_needs_the_tag_of_the_blob(storage: Storage, name: str) -> None:
    """A tag changes the blob that has it, and no other; without tags it is refused."""
    storage.put(name, b"1")
    tag = tag_of(storage, name)
    if not tag:
        with pytest.raises(StoreError, match=r"no conditional writes;.*S3"):
            storage.put(name, b"2", replaces=NO_TAG)
        assert storage.read(name) == b"1"
        return
    storage.put(name, b"2", replaces=tag)
    for other in (tag, NO_TAG):
        with pytest.raises(DatasetExistsError, match=r"changed.*meanwhile"):
            storage.put(name, b"3", replaces=other)
    assert tag_of(storage, name) != tag
    assert storage.read(name) == b"2"
    with pytest.raises(DatasetExistsError, match=r"changed.*meanwhile"):
        storage.put("missing", b"3", replaces=tag)
    assert storage.version("missing") is None


def test_one_of_racing_writers_replaces(storage: Storage) -> None:
    """Of several writers that replace the same blob at once exactly one succeeds, and the blob is its own."""
    storage.put("blob", b"old")
    tag = tag_of(storage, "blob")
    if not tag:
        return
    won: list[int] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        with contextlib.suppress(DatasetExistsError):
            storage.put("blob", b"%d" % number * 1000, replaces=tag)
            won.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(won) == 1
    assert storage.read("blob") == b"%d" % won[0] * 1000


@pytest.mark.parametrize("name", ["a", TAR])
def test_removing_a_missing_blob_is_no_error(storage: Storage, name: str) -> None:
    """A blob may be removed again, and one that never existed may be removed."""
    storage.put(name, b"1")
    for _ in range(2):
        storage.remove(name)
    storage.remove("b/c")
    assert storage.version(name) is None
    assert storage.listing() == {}


def test_a_missing_blob_is_not_found(storage: Storage, tmp_path: Path) -> None:
    """Reading or getting a missing blob is a NotFoundError that names it, and no file or blob is left."""
    url = re.escape(storage.url("b").removeprefix("far:/"))  # which is a wrapper's
    with pytest.raises(NotFoundError, match=rf"{url}\b.*does.*exist"):
        storage.read("b")
    with pytest.raises(NotFoundError, match=rf"{url}\b.*does not exist"):
        storage.get("b", tmp_path / "target", size=1, sha256="0" * 64)
    assert (storage.listing(), list(tmp_path.glob("target*"))) == ({}, [])


@pytest.mark.parametrize("kind", [*STORES, *SERVED])
def test_the_root_of_a_bucket(request: pytest.FixtureRequest, kind: str, prefix: str) -> None:
    """A bucket, a container, a server or a repository is a storage itself, not only what is below it."""
    fixture = request.getfixturevalue(STORES.get(kind, kind))
    store, folder = fixture if kind in SERVED else (fixture, None)
    root = store.url("")
    name = f"{prefix}.json"
    for url in (root, root.rstrip("/")):
        storage = remote_storage(url, store.options(), retry_policy=HASTY)
        if folder is None:
            storage.put(name, b"1")
        else:
            (folder.root / name).write_bytes(b"1")
        assert storage.read(name) == b"1"
        assert name in storage.listing()
        assert storage.url(name) == f"{root.rstrip('/')}/{name}"


def test_messages_name_blobs_below_the_root(request: pytest.FixtureRequest, storage: Storage) -> None:
    """The URL of a blob is that of the root and its name; a tar of a virtual storage has that of its root."""
    assert storage.url("train/0") == f"{storage}/train/0"
    assert storage.url(TAR).endswith("/000000.tar")
    assert storage.url(TAR).startswith(f"{storage}/") != is_virtual(request)


@pytest.mark.parametrize("name", ["a", TAR])
def test_local_path_is_the_file_of_the_blob(request: pytest.FixtureRequest, storage: Storage, name: str) -> None:
    """The local path of a blob is known before it exists, and holds its content; a remote blob has none."""
    path = storage.local_path(name)
    storage.put(name, b"1")
    kind = request.node.callspec.params["storage"]
    assert (path is not None) == (kind in LOCAL and not (kind == "virtual, mixed roots" and name == TAR))
    assert path is None or path.read_bytes() == b"1"
    assert (storage.local_path("") is not None) == (kind in LOCAL)


def test_uploads_can_be_aborted_anywhere(storage: Storage) -> None:
    """Aborting the uploads of any blobs, also of none, leaves all blobs as they are."""
    storage.put(TAR, b"1")
    for names in (set[str](), {TAR, "train/0/000001.tar", "a"}):
        storage.abort_uploads(names)
    assert storage.read(TAR) == b"1"


def test_exclusive_writer_provides_a_staging_directory(request: pytest.FixtureRequest, storage: Storage) -> None:
    """A writer has a locked local directory, whose files can be published; a temporary one is removed afterwards."""
    with storage.exclusive_writer() as writer:
        assert os.path.samestat(os.fstat(writer.lock), writer.staging.stat())
        assert writer.is_exclusive == (request.node.callspec.params["storage"] in LOCAL)
        (writer.staging / ".tmp-x").write_bytes(b"1")
        storage.put("x", writer.staging / ".tmp-x")
        (writer.staging / ".tmp-y").write_bytes(b"2")
        if writer.is_exclusive:
            with pytest.raises(StoreError, match="another process"), storage.exclusive_writer():
                pass
        else:
            with storage.exclusive_writer() as other:
                assert other.staging != writer.staging
    assert storage.read("x") == b"1"
    assert writer.staging.exists() == writer.is_exclusive
    with storage.exclusive_writer():
        pass
