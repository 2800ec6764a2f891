from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.dataset import tar_file
from shardflow.dataset.tar_file import TarFile, open_tar
from shardflow.errors import NotFoundError, StoreError
from shardflow.storage.local import LocalStorage
from shardflow.storage.transfers import TransferPool
from tests.helpers.counting import CountingStorage

DATA = np.random.default_rng(0).bytes(1000)
READS = st.lists(st.tuples(st.integers(-20, 1100), st.integers(0, 300)), max_size=20)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of 64 bytes, of which 6 are kept."""
    monkeypatch.setattr(tar_file, "BLOCK_BYTES", 64)
    monkeypatch.setattr(tar_file, "KEPT_BLOCKS", 6)


@pytest.mark.usefixtures("small_blocks")
@given(reads=READS, hashed=st.booleans(), far=st.booleans())
def test_any_order(
    tmp_path_factory: pytest.TempPathFactory, *, reads: list[tuple[int, int]], hashed: bool, far: bool
) -> None:
    """Whatever is read in whatever order has the bytes of the file, and so has the SHA-256."""
    root = tmp_path_factory.getbasetemp() / "tars"
    root.mkdir(exist_ok=True)
    (root / "a.tar").write_bytes(DATA)
    storage = CountingStorage(root, root / "log") if far else LocalStorage(root)
    with open_tar(storage, "a.tar", hashed=hashed) as tar:
        assert tar.size == len(DATA)
        for offset, size in reads:
            assert tar.read(offset, size) == (DATA[offset : offset + size] if offset >= 0 else b"")
        assert not hashed or tar.sha256() == hashlib.sha256(DATA).hexdigest()


@pytest.mark.usefixtures("small_blocks")
def test_a_remote_tar_is_read_once(tmp_path: Path) -> None:
    """Of a tar that is read in order, with looks back and a gap, each block is requested once, and few are kept."""
    (tmp_path / "a.tar").write_bytes(DATA)
    requests: list[int] = []

    def fetch(start: int, stop: int) -> bytes:
        requests.append(start)
        return DATA[start:stop]

    with TransferPool(4) as pool:
        tar = TarFile(fetch, len(DATA), "far://a.tar", pool=pool, hashed=True)
        for offset in (0, *range(200, len(DATA), 50)):
            tar.read(offset, 50)
            tar.read(max(0, offset - 150), 50)
            assert len(tar._blocks) <= 6
        tar.sha256()
    assert sorted(requests) == list(range(0, len(DATA), 64))


def test_a_tar_that_becomes_shorter(tmp_path: Path) -> None:
    """A tar that is cut while it is read is a StoreError, and so is one that is not there."""
    path = tmp_path / "a.tar"
    path.write_bytes(DATA)
    with open_tar(LocalStorage(tmp_path), "a.tar") as tar:
        os.truncate(path, 500)
        assert tar.read(0, 500) == DATA[:500]
        with pytest.raises(StoreError, match=r"a\.tar.*shorter"):
            tar.read(400, 200)
    for storage in (LocalStorage(tmp_path), CountingStorage(tmp_path, tmp_path / "log")):
        with pytest.raises(NotFoundError, match=r"b\.tar does not exist"), open_tar(storage, "b.tar"):
            pass


def test_pools_end_with_the_pool_around_them() -> None:
    """When a pool ends by an error, the transfers of the pools that its threads have made are cancelled too."""
    inner: list[TransferPool] = []
    made = threading.Event()

    def work() -> None:
        inner.append(TransferPool(1))
        made.set()

    waiting = Future[None]()

    def fail() -> None:
        with TransferPool(1) as pool:
            pool.submit(work)
            assert made.wait(10)
            inner[0].track(waiting)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert waiting.cancelled()
    inner[0].shutdown()


@pytest.mark.usefixtures("small_blocks")
def test_a_remote_tar_is_of_one_version(tmp_path: Path) -> None:
    """A tar that is replaced while it is read is an error, and not a mixture of both."""
    (tmp_path / "a.tar").write_bytes(DATA)
    storage = CountingStorage(tmp_path, tmp_path / "log")
    with open_tar(storage, "a.tar") as tar:
        assert tar.read(0, 10) == DATA[:10]
        (tmp_path / "new.tar").write_bytes(DATA[::-1])
        (tmp_path / "new.tar").replace(tmp_path / "a.tar")
        with pytest.raises(StoreError, match=r"replaced.*writes"):
            tar.read(900, 100)
