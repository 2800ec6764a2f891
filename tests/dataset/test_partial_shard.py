from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardflow
from shardflow.dataset.dataset import Split
from shardflow.dataset.mapped_shard import MappedShard
from shardflow.dataset.partial_shard import PartialSample
from shardflow.errors import TransientError
from shardflow.formats import ustar
from shardflow.storage.cache import Cache, FetchResult
from tests.helpers.counting import CountingStorage, SlowStorage
from tests.helpers.making import make_dataset

SAMPLES = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of one shard."""
    return make_dataset(tmp_path / "set", [SAMPLES])


@pytest.fixture
def storage(root: Path, tmp_path: Path) -> SlowStorage:
    """A store that has sent half of the shard."""
    storage = SlowStorage(root, tmp_path / "log")
    storage.first_bytes = (root / "train/000000.tar").stat().st_size // 2
    return storage


@pytest.fixture
def split(root: Path, storage: SlowStorage, tmp_path: Path) -> Split:
    """The split behind it."""
    return Split(storage, "train", shardflow.open(root).manifest.splits["train"], Cache(tmp_path / "cache"))


@pytest.fixture
def fetching(split: Split, storage: SlowStorage) -> Iterator[threading.Thread]:
    """Somebody who fetches the shard."""

    def fetch() -> None:
        try:
            split.fetch(0)
        except TransientError:
            assert storage.fails

    thread = threading.Thread(target=fetch)
    thread.start()
    assert storage.begun.wait(10)
    yield thread
    storage.go_on.set()
    thread.join()


def parts(sample: MappedShard | PartialSample) -> dict[str, bytes]:
    """The parts of a sample, or of a shard's first one."""
    return {part: bytes(payload) for part, payload in sample.sample(0, check=True).items()}


@pytest.mark.usefixtures("fetching")
def test_what_has_arrived_is_read_before_the_rest(root: Path, split: Split, storage: SlowStorage) -> None:
    """While half of a shard is still on its way, samples of the other half are read, with their keys."""
    local = shardflow.open(root)["train"]
    for number in range(SAMPLES // 2 - 2):
        sample = split.arrived(0, number)
        assert sample is not None
        assert {"__key__": sample.key(number), **parts(sample)} == {
            name: value for name, value in local[number].items() if name != "__url__"
        }
        assert sample.url == split.url(0)
    assert not split.at_hand(0)
    assert storage.reads()["train/000000.tar"] == 0  # it is counted when it is whole


def test_index_comes_with_its_tar(split: Split, storage: SlowStorage) -> None:
    """The index is asked for while its tar is on its way, and is there when the fetching is over."""

    def before(name: str) -> None:
        if name.endswith(".npy"):
            assert storage.begun.wait(10)  # the tar has begun
            storage.go_on.set()
            time.sleep(0.2)  # and ends before the index

    storage.before = before
    assert split.fetch(0) is FetchResult.CACHED
    assert split.cache is not None
    assert split.cache.has(split.shards[0].index_sha256)
    assert storage.reads() == {"train/000000.npy": 1, "train/000000.tar": 1}


@pytest.mark.parametrize("times", [1, 2])
def test_an_index_that_fails_is_tried_once_more(root: Path, tmp_path: Path, times: int) -> None:
    """An index that did not come with its tar is asked for again when that is here; who fetches learns of an error."""
    failures = [TransientError("not now")] * times

    def before(name: str) -> None:
        if name.endswith(".npy") and failures:
            raise failures.pop()

    storage, cache = CountingStorage(root, tmp_path / "log", before=before), Cache(tmp_path / "cache")
    split = Split(storage, "train", shardflow.open(root).manifest.splits["train"], cache)
    if times == 1:
        assert split.fetch(0) is FetchResult.CACHED
    else:
        with pytest.raises(TransientError, match="not now"):
            split.fetch(0)
    assert split.at_hand(0)
    assert cache.has(split.shards[0].index_sha256) == (times == 1)
    assert storage.reads() == {"train/000000.npy": 2, "train/000000.tar": 1}


def test_what_has_not_arrived_is_waited_for(split: Split, storage: SlowStorage, fetching: threading.Thread) -> None:
    """A sample on its way is waited for; it comes out of the file or, once that is sealed, out of the shard."""
    threading.Timer(0.2, storage.go_on.set).start()
    began = time.monotonic()
    last = split.soonest(0, SAMPLES - 1)
    assert time.monotonic() - began > 0.1
    assert bytes(last.sample(SAMPLES - 1, check=True)["cls"]) == b"%d" % (SAMPLES - 1)
    fetching.join()
    assert split.at_hand(0)
    assert bytes(split.shard(0).sample(SAMPLES - 1, check=True)["cls"]) == b"%d" % (SAMPLES - 1)
    assert split.arrived(0, 0) is None


@pytest.mark.parametrize("damage", ["payload", "header", "zeros"])
def test_what_is_damaged_is_not_handed_out(root: Path, split: Split, storage: SlowStorage, damage: str) -> None:
    """A sample that came damaged, payload or header, is waited for: the whole shard is fetched until it is sound."""

    def change(data: bytearray) -> None:
        if damage == "zeros":
            data[:] = bytes(len(data))
        else:
            data[ustar.BLOCK if damage == "payload" else 3] ^= 1

    storage.change = change
    thread = threading.Thread(target=split.fetch, args=(0,))
    thread.start()
    assert storage.begun.wait(10)
    threading.Timer(0.2, storage.go_on.set).start()
    began = time.monotonic()
    assert parts(split.soonest(0, 0)) == parts(shardflow.open(root)["train"].shard(0))
    assert time.monotonic() - began > 0.1
    thread.join()
    assert split.at_hand(0)


def test_who_fails_is_not_waited_for(split: Split, storage: SlowStorage, fetching: threading.Thread) -> None:
    """When the shard cannot be fetched after all, waiting ends at once, and `shard` will say why."""
    storage.fails = True
    assert split.arrived(0, 0) is not None
    storage.go_on.set()
    fetching.join()
    began = time.monotonic()
    assert split.arrived(0, 0) is None
    assert time.monotonic() - began < 5
    with pytest.raises(TransientError, match="failed"):
        split.shard(0)


def test_nobody_fetches(root: Path, split: Split, tmp_path: Path) -> None:
    """Where nobody fetches the shard, where a killed process left a piece of it, or on a local disk, nothing comes."""
    assert split.arrived(0, 0) is None
    partial = tmp_path / "cache/partial" / f"{split.shards[0].sha256}.left"
    partial.write_bytes((root / "train/000000.tar").read_bytes())
    assert split.arrived(0, 0) is None
    assert shardflow.open(root)["train"].arrived(0, 0) is None


def test_without_an_index_the_whole_is_waited_for(
    root: Path, split: Split, storage: SlowStorage, request: pytest.FixtureRequest
) -> None:
    """A shard whose index is damaged is read when it is whole, from an index that is rebuilt."""
    (root / "train/000000.npy").write_bytes(b"damaged")
    fetching = request.getfixturevalue("fetching")
    threading.Timer(0.2, storage.go_on.set).start()
    assert split.arrived(0, 0) is None
    fetching.join()
    assert bytes(split.shard(0).sample(0, check=True)["cls"]) == b"0"
