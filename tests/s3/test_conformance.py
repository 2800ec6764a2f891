"""What every store promises, whatever is behind it."""

from __future__ import annotations

import hashlib
import random
import threading
from pathlib import Path

import pytest

from shardflow.errors import DatasetExistsError, IntegrityError, NotFoundError, StoreError
from shardflow.storage.remote import PIECE_BYTES
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from tests.helpers.s3_server import Server

SIZES = (0, 1, 1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7)


@pytest.fixture(params=["directory", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Storage:
    """An empty store of each kind."""
    if request.param == "directory":
        return open_storage(tmp_path / "store")
    if request.param == "memory":
        return open_storage(f"memory://{prefix}/store")
    server: Server = request.getfixturevalue("server")
    return open_storage(server.url(f"{prefix}/store"), server.options())


def content(size: int) -> bytes:
    """Bytes that repeat nowhere."""
    return random.Random(size).randbytes(size)


def test_blob_comes_back(storage: Storage) -> None:
    """What was put can be read, has a size and a name; what was not put has none."""
    storage.put("train/000000.tar", b"abc")
    storage.put("a", b"")
    assert (storage.read("train/000000.tar"), storage.read("a")) == (b"abc", b"")
    assert (storage.size("train/000000.tar"), storage.size("a"), storage.size("b")) == (3, 0, None)
    assert storage.names() == ["a", "train/000000.tar"]


@pytest.mark.parametrize("size", SIZES)
def test_file_goes_there_and_back(storage: Storage, tmp_path: Path, size: int) -> None:
    """An uploaded file is the blob, and comes back as the same file, whatever its size is to a request's."""
    data = content(size)
    (tmp_path / "source").write_bytes(data)
    storage.upload("x/y", tmp_path / "source")
    assert (storage.size("x/y"), storage.names()) == (size, ["x/y"])
    storage.get("x/y", tmp_path / "target", size=size, sha256=hashlib.sha256(data).hexdigest())
    assert (tmp_path / "target").read_bytes() == data
    assert storage.read("x/y") == data


def test_wrong_bytes_are_refused(storage: Storage, tmp_path: Path) -> None:
    """A blob of another size or content than promised is an IntegrityError that names it, and no file is left."""
    storage.put("a", b"1234")
    right = hashlib.sha256(b"1234").hexdigest()
    for size, sha256 in ((3, right), (5, right), (4, "0" * 64)):
        with pytest.raises(IntegrityError, match=r"/a: expected .*, found"):
            storage.get("a", tmp_path / "target", size=size, sha256=sha256)
        assert list(tmp_path.glob("target*")) == []


def test_a_file_that_is_there_stays(storage: Storage, tmp_path: Path) -> None:
    """`get` never writes over a file that exists."""
    storage.put("a", b"1234")
    (tmp_path / "target").write_bytes(b"mine")
    with pytest.raises(StoreError, match="target"):
        storage.get("a", tmp_path / "target", size=4, sha256=hashlib.sha256(b"1234").hexdigest())
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_listing_and_ranges(storage: Storage) -> None:
    """A listing has sizes, and tags that follow the content if there are any; ranges are cut at the end of the blob."""
    storage.put("b", b"12345")
    storage.put("a/c", b"")
    before = storage.listing()
    assert [(name, listed.size) for name, listed in before.items()] == [("a/c", 0), ("b", 5)]
    storage.put("b", b"54321")
    assert (storage.listing()["b"].tag != before["b"].tag) == bool(before["b"].tag)
    assert (storage.read_range("b", 1, 3), storage.read_range("b", 3, 9)) == (b"43", b"21")
    for start, stop in ((2, 2), (3, 2), (5, 5), (5, 7), (8, 9)):
        assert storage.read_range("b", start, stop) == b""
    assert storage.read_range("a/c", 0, 4) == b""
    with pytest.raises(NotFoundError):
        storage.read_range("none", 0, 1)


def test_put_replaces_and_put_new_does_not(storage: Storage) -> None:
    """`put` takes the place of a blob; `put_new` leaves it untouched and says that it exists."""
    storage.put("a", b"1")
    storage.put("a", b"2")
    with pytest.raises(DatasetExistsError, match=r"a:? exists already"):
        storage.put_new("a", b"3")
    storage.put_new("b", b"4")
    assert (storage.read("a"), storage.read("b"), storage.names()) == (b"2", b"4", ["a", "b"])


def test_one_of_racing_writers_wins(storage: Storage) -> None:
    """Of several writers that create a blob at once exactly one succeeds, and the blob is its own."""
    won: list[int] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        try:
            storage.put_new("blob", b"%d" % number * 1000)
            won.append(number)
        except DatasetExistsError:
            pass

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert storage.read("blob") == b"%d" % won[0] * 1000


def test_remove_is_satisfied_when_nothing_is_there(storage: Storage) -> None:
    """Removing a blob a second time, or one that never was, is no error."""
    storage.put("a", b"1")
    for _ in range(2):
        storage.remove("a")
    storage.remove("b/c")
    assert storage.names() == []


def test_what_is_not_there_is_not_found(storage: Storage, tmp_path: Path) -> None:
    """Reading or getting a missing blob is a NotFoundError that names it; nothing is made of it."""
    with pytest.raises(NotFoundError, match=r"/b\b.*does not exist; check the path"):
        storage.read("b")
    with pytest.raises(NotFoundError, match=r"/b\b.*does not exist"):
        storage.get("b", tmp_path / "target", size=1, sha256="0" * 64)
    assert (storage.names(), list(tmp_path.glob("target*"))) == ([], [])


def test_open_uploads_of_the_names_given_are_closed(server: Server, prefix: str) -> None:
    """What a killed writer has left open is given up for the blobs that are named, and for no other; blobs stay."""
    storage, client = server.storage(prefix), server.client()
    storage.put("train/0.tar", b"there")
    for name in ("train/0.tar", "train/0.tar", "train/1.tar"):
        client.call_s3("create_multipart_upload", Bucket=server.bucket, Key=f"{prefix}/{name}")
    assert len(server.open_uploads(prefix)) == 3
    storage.close_uploads({"train/0.tar", "train/2.tar"})
    assert [key for key, _ in server.open_uploads(prefix)] == [f"{prefix}/train/1.tar"]
    assert storage.read("train/0.tar") == b"there"


def test_messages_name_blobs_below_the_root(storage: Storage) -> None:
    """A blob's URL is the root's and its name."""
    assert storage.url("train/0.tar") == f"{storage}/train/0.tar"
