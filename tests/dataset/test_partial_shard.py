from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardflow
from shardflow.dataset import reader as reader_module
from shardflow.dataset.open_dataset import Split
from shardflow.dataset.sample import Sample
from shardflow.errors import TransientError
from shardflow.formats import ustar
from shardflow.storage import cache_directory, retry
from shardflow.storage.cache import STALL_TIMEOUT_S, Cache, FetchResult
from shardflow.storage.cache_directory import CacheDirectory
from tests.helpers.counting import CountingStorage, SlowStorage
from tests.helpers.making import make_dataset

SAMPLES = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of one shard."""
    return make_dataset(tmp_path / "set", [SAMPLES])


@pytest.fixture
def storage(root: Path, tmp_path: Path) -> SlowStorage:
    """A storage that has sent half of the shard."""
    storage = SlowStorage(root, tmp_path / "log")
    storage.first_bytes = (root / "train/000000.tar").stat().st_size // 2
    return storage


@pytest.fixture
def split(root: Path, storage: SlowStorage, tmp_path: Path) -> Split:
    """The split in that storage."""
    return Split(storage, "train", shardflow.open(root).manifest.splits["train"], Cache(tmp_path / "cache"))


@pytest.fixture
def fetching(split: Split, storage: SlowStorage) -> Iterator[threading.Thread]:
    """A thread that downloads the shard."""

    def fetch() -> None:
        try:
            split.reader.fetch(0)
        except TransientError:
            assert storage.fails

    thread = threading.Thread(target=fetch)
    thread.start()
    assert storage.begun.wait(10)
    yield thread
    storage.go_on.set()
    thread.join()


def read(split: Split, record: int) -> Sample:
    """Return a sample of the shard, read as the loader reads it."""
    return split.reader.read(0, record, sequential=True)


def parts(sample: Sample) -> dict[str, bytes]:
    """Return the parts of a sample as bytes."""
    return {part: bytes(payload) for part, payload in sample.parts.items()}


@pytest.mark.usefixtures("fetching")
def test_arrived_samples_are_read_before_the_rest(root: Path, split: Split, storage: SlowStorage) -> None:
    """While half of a shard is being downloaded, samples of the other half are read, with keys and image sizes."""
    local = shardflow.open(root)["train"]
    for number in range(SAMPLES // 2 - 2):
        sample = read(split, number)
        assert {"__key__": sample.key, **parts(sample)} == {
            name: value for name, value in local[number].items() if name != "__url__"
        }
        assert (sample.url, sample.shard, sample.record) == (split.reader.url(0), 0, number)
        assert sample.image_size == read(local, number).image_size == (48 + number % 3, 40 + number % 5)
    assert not split.reader.is_local(0)
    assert storage.reads()["train/000000.tar"] == 0  # it is counted when it is whole


def test_index_is_downloaded_with_its_tar(split: Split, storage: SlowStorage) -> None:
    """The index is downloaded at the same time as its tar, and is in the cache when the download ends."""

    def before(name: str) -> None:
        if name.endswith(".npy"):
            assert storage.begun.wait(10)  # the tar has begun
            storage.go_on.set()
            time.sleep(0.2)  # and ends before the index

    storage.before = before
    assert split.reader.fetch(0) is FetchResult.CACHED
    assert split.reader.cache is not None
    assert split.reader.cache.has(split.shards[0].index_sha256)
    assert storage.reads() == {"train/000000.npy": 1, "train/000000.tar": 1}


@pytest.mark.parametrize("times", [1, 2])
def test_failed_index_is_requested_again(root: Path, tmp_path: Path, times: int) -> None:
    """An index that failed beside its tar is requested again after the tar; a second error is raised."""
    failures = [TransientError("not now")] * times

    def before(name: str) -> None:
        if name.endswith(".npy") and failures:
            raise failures.pop()

    storage, cache = CountingStorage(root, tmp_path / "log", before=before), Cache(tmp_path / "cache")
    split = Split(storage, "train", shardflow.open(root).manifest.splits["train"], cache)
    if times == 1:
        assert split.reader.fetch(0) is FetchResult.CACHED
    else:
        with pytest.raises(TransientError, match="not now"):
            split.reader.fetch(0)
    assert split.reader.is_local(0)
    assert cache.has(split.shards[0].index_sha256) == (times == 1)
    assert storage.reads() == {"train/000000.npy": 2, "train/000000.tar": 1}


def test_sample_that_has_not_arrived_is_waited_for(
    split: Split, storage: SlowStorage, fetching: threading.Thread
) -> None:
    """A sample that has not arrived is waited for: it comes from the partial file, or from the whole shard."""
    began = time.monotonic()
    threading.Timer(0.2, storage.go_on.set).start()
    last = read(split, SAMPLES - 1)
    assert time.monotonic() - began > 0.1
    assert parts(last)["cls"] == b"%d" % (SAMPLES - 1)
    fetching.join()
    assert split.reader.is_local(0)
    assert parts(read(split, SAMPLES - 1)) == parts(last)
    assert split.reader._read_partial(0, 0) is None


@pytest.mark.parametrize("damage", ["payload", "header", "zeros"])
def test_damaged_sample_is_not_returned(root: Path, split: Split, storage: SlowStorage, damage: str) -> None:
    """A sample that arrived damaged is not returned: the reader waits for the whole shard, which is verified."""

    def change(data: bytearray) -> None:
        if damage == "zeros":
            data[:] = bytes(len(data))
        else:
            data[ustar.BLOCK if damage == "payload" else 3] ^= 1

    storage.change = change
    thread = threading.Thread(target=split.reader.fetch, args=(0,))
    thread.start()
    assert storage.begun.wait(10)
    began = time.monotonic()
    threading.Timer(0.2, storage.go_on.set).start()
    assert parts(read(split, 0)) == parts(read(shardflow.open(root)["train"], 0))
    assert time.monotonic() - began > 0.1
    thread.join()
    assert split.reader.is_local(0)


def test_failed_download_is_not_waited_for(split: Split, storage: SlowStorage, fetching: threading.Thread) -> None:
    """If the download fails, waiting ends at once, and reading raises the error."""
    storage.fails = True
    assert split.reader._read_partial(0, 0) is not None
    storage.go_on.set()
    fetching.join()
    began = time.monotonic()
    assert split.reader._read_partial(0, 0) is None
    assert time.monotonic() - began < 5
    with pytest.raises(TransientError, match="failed"):
        read(split, 0)


def test_no_partial_sample_without_a_download(root: Path, split: Split, tmp_path: Path) -> None:
    """There is no partial sample without a download, from the leftover of a killed process, or on a local disk."""
    assert split.reader._read_partial(0, 0) is None
    partial = tmp_path / "cache/partial" / f"{split.shards[0].sha256}.left"
    partial.write_bytes((root / "train/000000.tar").read_bytes())
    assert split.reader._read_partial(0, 0) is None
    assert shardflow.open(root)["train"].reader._read_partial(0, 0) is None


def test_damaged_index_needs_the_whole_shard(
    root: Path, split: Split, storage: SlowStorage, request: pytest.FixtureRequest
) -> None:
    """A shard with a damaged index is read when it is whole, with a rebuilt index."""
    (root / "train/000000.npy").write_bytes(b"damaged")
    fetching = request.getfixturevalue("fetching")
    threading.Timer(0.2, storage.go_on.set).start()
    assert split.reader._read_partial(0, 0) is None
    fetching.join()
    assert parts(read(split, 0))["cls"] == b"0"


def test_locks_and_requests_of_a_sample_are_one_wait(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that waits for stalled downloads of a tar and its index begins its own while it has time left."""
    now, waited, real_pause = [0.0], dict[str, float](), cache_directory.pause

    def pause(seconds: float) -> None:
        """Let the clock of the reader go on; the thread that touches locks really waits."""
        if threading.current_thread() is not threading.main_thread():
            real_pause(seconds)
        else:
            now[0] += seconds

    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for module in (cache_directory, reader_module):
        monkeypatch.setattr(module, "pause", pause)
    shard, cache = shardflow.open(root).manifest.splits["train"][0], Cache(tmp_path / "cache")
    storage = CountingStorage(
        root, tmp_path / "log", before=lambda name: waited.setdefault(name, retry.current_wait().idle_s())
    )
    far = Split(storage, "train", [shard], cache)
    locks = CacheDirectory(cache.directory)
    with locks.lock(shard.sha256, 0, stall_timeout_s=0), locks.lock(shard.index_sha256, 0, stall_timeout_s=0):
        assert read(far, 0).record == 0
    assert now[0] < STALL_TIMEOUT_S + 1
    assert waited.keys() == {shard.name, shard.index_name}
    assert all(STALL_TIMEOUT_S <= seconds < STALL_TIMEOUT_S + 1 for seconds in waited.values())
    assert retry.RetryPolicy().idle_timeout_s > STALL_TIMEOUT_S
