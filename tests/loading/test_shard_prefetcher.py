from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

import shardflow
from shardflow.dataset.open_dataset import Split
from shardflow.errors import IntegrityError, NotFoundError, TransientError
from shardflow.loading.batch import Batch
from shardflow.loading.batch_sampler import BatchSampler, WorkerControl
from shardflow.loading.shard_prefetcher import IN_FLIGHT, prefetching
from shardflow.loading.source import EpochStart
from shardflow.loading.stages import Read
from shardflow.order.epochs import ShardSpan
from shardflow.order.rank_partition import RankPartition
from shardflow.order.shuffle_settings import Shuffle
from shardflow.storage.cache import Cache
from tests.helpers.counting import CountingStorage, SlowStorage
from tests.helpers.examples import examples
from tests.helpers.loading import (
    epochs_of,
    open_files,
    prefetching_threads,
    run_script,
    unread_split,
    until,
    whole_batches,
)
from tests.helpers.making import make_dataset

SHARDS = 24
SAMPLES = 8
TOTAL = SHARDS * SAMPLES
MANY = 200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 24 small shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [SAMPLES] * SHARDS)


class Stream:
    """A far split read in the plan's order, as a loader does up to decoding; iterating gives the next epoch's labels.

    The cache holds `shards_cached` shards, None for all; `far` are options of the store, the last two of the order.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        *,
        shards_cached: int | None = None,
        workers: int = 0,
        streams: int = 1,
        batch_size: int = 4,
        rank: int = 0,
        world_size: int = 1,
        far: dict[str, Any] | None = None,
        buffer: int = 1,
        **plan: Any,
    ) -> None:
        self.storage = CountingStorage(root, directory / "log", **(far or {}))
        self.cache = Cache(directory / "cache")
        shards = shardflow.open(root).manifest.splits["train"]
        if shards_cached is not None:
            index_bytes = max(path.stat().st_size for path in root.glob("train/*.npy"))
            self.cache.limit_bytes = shards_cached * (max(shard.bytes for shard in shards) + index_bytes)
        self.split = Split(self.storage, "train", shards, self.cache)
        plan = {"seed": 1, "shuffle": Shuffle(buffer=buffer), **plan}
        self.order = order = epochs_of(self.split, **plan)
        partition = RankPartition(
            length=order.length, batch_size=batch_size, tail="short", rank=rank, world_size=world_size
        )
        batch_plan = whole_batches(self.split, order, partition)
        self.shared, self.streams, self.epoch, self.steps = WorkerControl(workers), streams, -1, partition.steps()
        self.batches = wds.WebLoader(
            wds.DataPipeline(
                BatchSampler(batch_plan, self.shared),
                Read(batch_plan.sources),
                labels_of,
            ),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,  # so that no test waits for imports in workers
        )

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        self.shared.begin(0, self.steps, [EpochStart(self.epoch, 0, self.streams)])
        return iter(self.batches)

    def transfers(self) -> int:
        """How many tars have been fetched so far."""
        return sum(count for name, count in self.storage.reads().items() if name.endswith(".tar"))


def labels_of(batches: Iterator[Batch]) -> Iterator[list[int]]:
    """The last stage: the labels alone."""
    for batch in batches:
        yield [int(bytes(sample.parts["cls"])) for sample in batch.samples]


def stays_at(stream: Stream, transfers: int) -> bool:
    """Whether so many tars are fetched, and no more soon after."""
    reached = until(lambda: stream.transfers() == transfers)
    time.sleep(0.1)
    return reached and stream.transfers() == transfers


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    shuffle=st.just(False) | st.builds(Shuffle, buffer=st.integers(1, 64)),
    limit=st.none() | st.integers(1, 100),
    samples_per_epoch=st.none() | st.integers(1, 300),
    streams=st.integers(1, 6),
    epoch=st.integers(0, 3),
    topology=st.integers(1, 4).flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world))),
    data=st.data(),
)
@examples(200)
def test_needs_of_an_epoch_name_every_shard_in_time(
    sizes: list[int],
    streams: int,
    epoch: int,
    topology: tuple[int, int],
    data: st.DataObject,
    **options: Any,
) -> None:
    """From any position on, whatever a rank reads is needed then, also over several passes and in the next epoch."""
    split = unread_split(sizes)
    order = epochs_of(split, seed=3, **options)
    rank, world_size = topology
    first = data.draw(st.integers(0, order.length - 1))
    needs = list(order.needs(epoch, first, streams, rank, world_size))
    partition = RankPartition(length=order.length, batch_size=3, rank=rank, world_size=world_size, tail="short")
    for step in range(partition.steps(first)):
        positions, _ = partition.positions(first, step)
        located = order.locate(epoch, positions, streams).shards
        for position, shard in zip(positions.tolist(), located.tolist(), strict=True):
            assert any(need.shard == shard and need.begin <= position < need.end for need in needs)
    assert all(need.end > first and need.begin < order.length for need in needs)
    sampler, before = BatchSampler(whole_batches(split, order, partition), WorkerControl(0)), epoch * order.length
    endless = sampler.needs(0, EpochStart(epoch, first, streams))
    count = len(needs) + len(list(order.needs(epoch + 1, 0, streams, rank, world_size)))
    both = [ShardSpan(shard, begin - before, end - before) for shard, begin, end in itertools.islice(endless, count)]
    assert both[: len(needs)] == needs
    for step in range(partition.steps()):
        positions, _ = partition.positions(0, step)
        located = order.locate(epoch + 1, positions, streams).shards
        for position, shard in zip((positions + order.length).tolist(), located.tolist(), strict=True):
            assert any(need.shard == shard and need.begin <= position < need.end for need in both)
    if options["samples_per_epoch"] is None:
        assert [need.begin for need in needs] == sorted(need.begin for need in needs)


def test_local_shards_are_left_alone(root: Path) -> None:
    """For shards that are read where they lie there is neither a thread nor a list of needs."""
    with prefetching(shardflow.open(root)["train"], iter([]), workers=1, period=1) as advance:
        advance(0, 1)
        assert prefetching_threads() == 0


def test_fetches_in_order_within_the_budget_and_goes_on(root: Path, tmp_path: Path) -> None:
    """Shards are fetched in the order of need, as many as half of the cache holds, and more when some are done with.

    Until the first batch has been made, only what it needs is fetched.
    """
    stream = Stream(root, tmp_path, shards_cached=8)
    needs = iter([ShardSpan(shard, 10 * shard, 10 * shard + 10) for shard in range(SHARDS)])
    with prefetching(stream.split, needs, workers=IN_FLIGHT, period=10 * SHARDS) as advance:
        advance(0, 5)
        assert stays_at(stream, 1)
        for done in range(4):
            advance(10 * done, 10 * done + 5)
            assert stays_at(stream, 4 + done)
            tars = [name for name in (tmp_path / "log").read_text().split() if name.endswith(".tar")]
            assert tars == [f"train/{shard:06}.tar" for shard in range(4 + done)]


def test_ranks_of_a_host_share_the_budget(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several ranks run on a host, each looks ahead by its share of half of the cache that they share."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    stream = Stream(root, tmp_path, shards_cached=8)
    needs = iter([ShardSpan(shard, 10 * shard, 10 * shard + 10) for shard in range(SHARDS)])
    with prefetching(stream.split, needs, workers=1, period=10 * SHARDS) as advance:
        advance(0, 1)
        advance(0, 1)
        assert stays_at(stream, 2)


def test_what_is_needed_now_is_fetched_whatever_the_budget(root: Path, tmp_path: Path) -> None:
    """All shards of the first batch are fetched, even if they are more than half of the cache."""
    stream = Stream(root, tmp_path, shards_cached=8)
    needs = iter([ShardSpan(shard, shard // 7, 20) for shard in range(SHARDS)])
    with prefetching(stream.split, needs, workers=1, period=100) as advance:
        advance(0, 1)
        advance(0, 1)
        assert stays_at(stream, 7)


def test_looks_ahead_into_the_next_epoch(root: Path, tmp_path: Path) -> None:
    """Before an epoch ends, the shards that the next one begins with are there, within the same budget."""
    stream = Stream(root, tmp_path, shards_cached=8, batch_size=SAMPLES)
    batches = iter(stream)
    read = [next(batches) for _ in range(SHARDS)]
    assert len({label for labels in read for label in labels}) == TOTAL
    upcoming = [need.shard for need in stream.order.needs(1, 0, stream.streams, 0, 1)][:3]
    assert until(lambda: all(map(stream.split.reader.is_local, upcoming)))
    assert stream.transfers() <= SHARDS + 4
    assert next(batches, None) is None


def test_first_batches_do_not_wait_for_whole_shards(root: Path, tmp_path: Path) -> None:
    """Batches are read from the part of a shard that has arrived, while another thread fetches the rest."""
    split, storage = shardflow.open(root)["train"], SlowStorage(root, tmp_path / "log")
    storage.first_bytes = split.shards[0].bytes // 2
    far = Split(storage, "train", split.shards, Cache(tmp_path / "cache"))
    order = epochs_of(far, seed=1, shuffle=False)
    plan = whole_batches(far, order, RankPartition(length=TOTAL, batch_size=2))
    source, start = BatchSampler(plan, WorkerControl(0)), EpochStart(0, 0, 1)
    read = Read(plan.sources)
    with prefetching(far, source.needs(0, start), workers=1, period=TOTAL) as advance:
        advance(0, 2)
        assert until(lambda: any(tmp_path.glob(f"cache/partial/{split.shards[0].sha256}.*")))
        try:
            (batch,) = read(iter([plan.batch([start], 0)]))
            assert [bytes(sample.parts["cls"]) for sample in batch.samples] == [b"0", b"1"]
            assert [sample.key for sample in batch.samples] == ["000000000", "000000001"]
            assert not any(map(far.reader.is_local, range(SHARDS)))
        finally:
            storage.go_on.set()
        (batch,) = read(iter([plan.batch(plan.advance([start], 0, 3), 3)]))
        assert [bytes(sample.parts["cls"]) for sample in batch.samples] == [b"6", b"7"]


def test_a_shard_that_arrives_slowly_is_read_as_it_grows(root: Path, tmp_path: Path) -> None:
    """However long it takes, while there is progress its samples are read from what has arrived."""
    split, storage = shardflow.open(root)["train"], SlowStorage(root, tmp_path / "log")
    far = Split(storage, "train", split.shards, Cache(tmp_path / "cache"))
    far.reader.stall_timeout_s = 0.5
    fetching = threading.Thread(target=far.reader.fetch, args=(0,), daemon=True)
    fetching.start()
    assert storage.begun.wait(10)
    (path,) = tmp_path.glob(f"cache/partial/{split.shards[0].sha256}.*")

    def arrive() -> None:
        with open(root / split.shards[0].name, "rb") as tar, open(path, "ab") as partial:
            for _ in range(8):
                time.sleep(0.2)
                partial.write(tar.read(split.shards[0].bytes // 8))
                partial.flush()

    threading.Thread(target=arrive, daemon=True).start()
    last = int(split.shard_samples[0]) - 1
    try:
        assert bytes(far.reader.read(0, last, sequential=True).parts["cls"]) == str(last).encode()
        assert not far.reader.is_local(0)
    finally:
        storage.go_on.set()
        fetching.join(10)  # or it would meet the end of the folder


def test_nothing_is_looked_for_twice(root: Path, tmp_path: Path) -> None:
    """What comes again in the next pass is not looked for before this pass has used it."""
    stream = Stream(root, tmp_path)
    taken = []

    def needs() -> Iterator[ShardSpan]:
        for number in itertools.count():
            taken.append(number)
            yield ShardSpan(number % 3, number, number + 1)

    with prefetching(stream.split, needs(), workers=1, period=3) as advance:
        advance(0, 1)
        advance(0, 1)
        assert len(taken) == 4
        advance(1, 2)
        assert len(taken) == 5


def test_what_another_gave_up_is_fetched_after_all(root: Path, tmp_path: Path) -> None:
    """A shard that another process was fetching, in vain, is looked at again."""
    stream = Stream(root, tmp_path)
    shard, given_up, started = stream.split.shards[0], threading.Event(), threading.Event()

    def fail(_: Path) -> None:
        started.set()
        given_up.wait(10)
        raise TransientError("in vain")

    def other() -> None:
        with pytest.raises(TransientError):
            stream.cache.open(shard.sha256, shard.bytes, fail)

    thread = threading.Thread(target=other)
    thread.start()
    started.wait(10)
    needs = iter([ShardSpan(0, 0, 1), ShardSpan(1, 0, 1)])
    with prefetching(stream.split, needs, workers=IN_FLIGHT, period=2) as advance:
        advance(0, 1)
        assert until(lambda: stream.transfers() == 1)
        assert stream.storage.reads()["train/000001.tar"] == 1
        given_up.set()
        assert until(lambda: stream.storage.reads()["train/000000.tar"] == 1)
    thread.join()


@pytest.mark.parametrize("workers", [0, 2])
def test_first_batch_waits_for_one_transfer(root: Path, tmp_path: Path, workers: int) -> None:
    """The shards of the first batch are fetched at the same time, by all workers together, and each once."""
    stream = Stream(root, tmp_path, workers=workers, streams=8, batch_size=8, far={"delay_s": 0.5})
    begun = time.monotonic()
    batches = iter(stream)
    next(batches)
    assert time.monotonic() - begun < (1.0 if not workers else 2.0)
    assert max(stream.storage.reads().values()) == 1
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_fits_is_fetched_once(root: Path, tmp_path: Path, workers: int) -> None:
    """A dataset that fits into the cache is fetched in the first epoch and never again, indexes included."""
    stream = Stream(root, tmp_path, workers=workers, streams=3, buffer=16)
    for _ in range(3):
        assert sorted(itertools.chain.from_iterable(stream)) == list(range(TOTAL))
    taken = stream.storage.reads()
    assert len(taken) == 2 * SHARDS
    assert set(taken.values()) == {1}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_does_not_fit_streams_once_per_epoch(root: Path, tmp_path: Path, workers: int) -> None:
    """A dataset three times as large as the cache is fetched about once per epoch, and the limit holds."""
    stream = Stream(root, tmp_path, workers=workers, shards_cached=8, streams=2, buffer=8)
    for epoch in range(1, 5):
        assert sorted(itertools.chain.from_iterable(stream)) == list(range(TOTAL))
        # A shard on the border of the two streams is read at both ends of the epoch, and the next one has begun.
        assert stream.transfers() <= epoch * (SHARDS + 2) + 4
        assert sum(blob.bytes for blob in stream.cache.blobs()) <= stream.cache.limit_bytes
    assert stream.transfers() > 3 * (SHARDS - 8)


def test_shards_of_a_streamed_dataset_are_closed(root: Path, tmp_path: Path) -> None:
    """Files that were evicted are not kept on the disk by a reader that is done with them."""
    stream = Stream(root, tmp_path, shards_cached=8)
    for number, _ in enumerate(stream):
        if number % 5 == 0:
            assert len(open_files(tmp_path / "cache/blobs")) <= 3


@pytest.mark.parametrize(("buffer", "warned"), [(1, False), (16 * TOTAL, True)])
def test_a_limit_below_what_is_read_at_once_warns(
    buffer: int, warned: bool, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A buffer over all shards keeps each of them open, and on the disk, though most are evicted: a warning says so."""
    stream = Stream(root, tmp_path, shards_cached=8, buffer=buffer)
    for _ in range(2):
        assert sorted(itertools.chain.from_iterable(stream)) == list(range(TOTAL))
    warnings = [record.getMessage() for record in caplog.records if "at the same time" in record.message]
    assert len(warnings) == warned
    assert sum(blob.bytes for blob in stream.cache.blobs()) <= stream.cache.limit_bytes


def test_a_shard_that_several_streams_read_counts_once(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where all shards fit, no limit is exceeded, also if each shard is cut into parts of several streams."""
    stream = Stream(root, tmp_path, shards_cached=SHARDS, streams=4 * SHARDS, buffer=TOTAL)
    assert sorted(itertools.chain.from_iterable(stream)) == list(range(TOTAL))
    assert stream.transfers() == SHARDS
    assert not [record for record in caplog.records if "at the same time" in record.message]


def test_order_does_not_depend_on_the_store(root: Path, tmp_path: Path) -> None:
    """Through a cache, whatever its size, come the samples that come from the directory, in their order."""
    local = shardflow.samples(root, seed=1, shuffle=Shuffle(buffer=16, streams=3))
    expected = [int(sample["cls"]) for sample in local]
    for shards_cached in (1, 3, 8):
        directory = tmp_path / str(shards_cached)
        directory.mkdir()
        stream = Stream(root, directory, shards_cached=shards_cached, streams=3, buffer=16)
        assert list(itertools.chain.from_iterable(stream)) == expected


def fail_at(name: str, error: type[Exception], times: int = 1 << 30) -> Callable[[str], None]:
    """A store's failure at one blob, the first so many times."""
    left = [times]

    def before(wanted: str) -> None:
        if wanted == name and left[0] > 0:
            left[0] -= 1
            raise error(f"{wanted} failed")

    return before


@pytest.mark.parametrize("error", [NotFoundError, IntegrityError, TransientError])
def test_error_comes_with_the_batch_that_needs_the_shard(root: Path, tmp_path: Path, error: type[Exception]) -> None:
    """What the look-ahead met long before is raised, typed, in the batch that needs the shard, and not earlier."""
    stream = Stream(root, tmp_path, shuffle=False, far={"before": fail_at("train/000020.tar", error)})
    batches, received = iter(stream), []
    with pytest.raises(error, match=r"train/000020\.tar (failed|does not exist)"):  # noqa: PT012 - what came before is counted
        for batch in batches:
            time.sleep(0.002)
            received += batch
    assert received == list(range(20 * SAMPLES))


def test_error_that_is_over_when_the_shard_is_needed_is_never_seen(root: Path, tmp_path: Path) -> None:
    """A shard that the look-ahead did not get is tried again by the reader."""
    stream = Stream(root, tmp_path, shuffle=False, far={"before": fail_at("train/000020.tar", TransientError, 1)})
    assert list(itertools.chain.from_iterable(stream)) == list(range(TOTAL))
    assert stream.storage.reads()["train/000020.tar"] == 2


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_missing_or_damaged_index_is_rebuilt(tmp_path: Path, damage: str) -> None:
    """A far shard whose index is missing or damaged is read all the same."""
    root = make_dataset(tmp_path / "set", [5, 5])
    (root / "train/000001.npy").unlink() if damage == "missing" else (root / "train/000001.npy").write_bytes(b"other")
    assert list(itertools.chain.from_iterable(Stream(root, tmp_path, shuffle=False))) == list(range(10))


@pytest.mark.parametrize("is_open", [False, True])
def test_copy_damaged_on_the_disk_is_fetched_again(
    tmp_path: Path, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy whose bytes changed in the cache is replaced, before or while it is read, and a warning says so."""
    root = make_dataset(tmp_path / "set", [5, 5])
    stream = Stream(root, tmp_path, shuffle=False)
    expected = list(stream.split)
    split = stream.split if is_open else Stream(root, tmp_path, shuffle=False).split
    copy = stream.cache.directory / "blobs" / split.shards[1].sha256
    data = copy.read_bytes()
    with open(copy, "r+b") as file:
        file.seek(data.index(expected[7]["jpg"]))
        file.write(b"damaged")
    assert list(split) == expected
    assert stream.storage.reads()["train/000001.tar"] == 2
    assert copy.read_bytes() == data
    (record,) = caplog.records
    assert f"train/000001.tar in the cache {stream.cache.directory} is damaged: downloading it" in record.message


def test_damage_at_the_source_is_an_error(tmp_path: Path) -> None:
    """A far shard whose sample does not fit its index is looked at twice, and then an IntegrityError."""
    root = make_dataset(tmp_path / "set", [5])
    tar = root / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    data[data.index(shardflow.open(root)["train"][3]["jpg"]) + 100] ^= 1
    tar.write_bytes(data)
    shard = dataclasses.replace(
        shardflow.open(root).manifest.splits["train"][0], sha256=hashlib.sha256(data).hexdigest()
    )
    split = Split(CountingStorage(root, tmp_path / "log"), "train", (shard,), Cache(tmp_path / "cache"))
    with pytest.raises(IntegrityError, match=r"sample 000000003: .*'jpg'"):
        list(split)
    assert CountingStorage(root, tmp_path / "log").reads()["train/000000.tar"] == 1


def test_datasets_with_equal_names_never_mix(tmp_path: Path) -> None:
    """Shards of the same name and size from two datasets, or splits, share a cache and nothing else."""
    first = make_dataset(tmp_path / "one/set", {"train": [5], "val": [5]})
    second = make_dataset(tmp_path / "two/set", [5, 5])
    (tmp_path / "two/set/train/000000.tar").unlink()
    shifted = shardflow.open(second).manifest.splits["train"][1:]
    cache = Cache(tmp_path / "cache")
    one = Split(
        CountingStorage(first, tmp_path / "log"), "train", shardflow.open(first).manifest.splits["train"], cache
    )
    two = Split(CountingStorage(second, tmp_path / "log"), "train", shifted, cache)
    assert [int(sample["cls"]) for sample in one] == [0, 1, 2, 3, 4]
    assert [int(sample["cls"]) for sample in two] == [5, 6, 7, 8, 9]
    assert one[0]["__url__"] == f"far:/{first}/train/000000.tar"
    # The same content under another name is not fetched again.
    val = Split(CountingStorage(first, tmp_path / "log"), "val", shardflow.open(first).manifest.splits["val"], cache)
    assert [int(sample["cls"]) for sample in val] == [0, 1, 2, 3, 4]
    assert CountingStorage(first, tmp_path / "log").reads()["val/000000.tar"] == 0


def test_empty_far_split(tmp_path: Path) -> None:
    """A split without shards yields no samples from afar either."""
    root = make_dataset(tmp_path / "set", {"train": [1], "val": []})
    assert not list(shardflow.samples(f"local://{root}", split="val", cache=tmp_path / "cache"))
    assert len(list(shardflow.samples(f"local://{root}", cache=tmp_path / "cache"))) == 1


def test_threads_end_with_the_iteration(root: Path, tmp_path: Path) -> None:
    """Whether an epoch is finished or left early, its threads and descriptors are gone soon after, over many epochs."""
    stream = Stream(root, tmp_path, shards_cached=8, far={"delay_s": 0.002})
    descriptors = len(os.listdir("/proc/self/fd"))
    for epoch in range(12):
        batches = iter(stream)
        for _ in range(TOTAL if epoch % 2 else 2):
            if next(batches, None) is None:
                break
        assert prefetching_threads() <= 2 * IN_FLIGHT
        del batches
    assert until(lambda: prefetching_threads() == 0)
    assert len(os.listdir("/proc/self/fd")) - descriptors <= 4  # of shards still open
    assert not list(stream.cache.directory.glob("partial/*"))
    assert not list(stream.cache.directory.glob("locks/*"))


def test_exit_does_not_wait_for_a_transfer(root: Path, tmp_path: Path) -> None:
    """A process that ends while shards are being fetched ends at once, without a word."""
    script = f"""
from pathlib import Path
from tests.loading.test_shard_prefetcher import Stream, stall
some = Stream(Path({str(root)!r}), Path({str(tmp_path)!r}), shuffle=False, far={{"before": stall}})
batches = iter(some)
next(batches)
print("read", flush=True)
"""
    done = run_script(script)  # which waits for it less long than the transfer takes
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def stall(name: str) -> None:
    """A store that answers for the first shard alone."""
    if "000000" not in name:
        time.sleep(600)


def test_deleted_cache_is_filled_again(root: Path, tmp_path: Path) -> None:
    """Deleting the cache in the middle of an epoch changes no batch."""
    expected = list(Stream(root, tmp_path, streams=3, buffer=16))
    (tmp_path / "other").mkdir()
    stream = Stream(root, tmp_path / "other", streams=3, buffer=16, far={"delay_s": 0.005})
    received = []
    for number, batch in enumerate(stream):
        received.append(batch)
        if number % 10 == 3:
            with contextlib.suppress(OSError):
                shutil.rmtree(stream.cache.directory)
    assert received == expected


def fetched_by_epoch(counted: Stream, streams: list[Stream], epochs: int) -> list[int]:
    """Transfers of each epoch of streams that are read side by side, and whose storages write one log."""
    totals = [0]
    for _ in range(epochs):
        for _ in itertools.zip_longest(*streams):
            pass
        totals.append(counted.transfers())
    return [after - before for before, after in itertools.pairwise(totals)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 tiny shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "many", [4] * MANY)


def test_half_a_cache_keeps_half_of_the_data(many: Path, tmp_path: Path) -> None:
    """With room for half of the shards, about half are fetched in each epoch after the first: the others stay."""
    stream = Stream(many, tmp_path, shards_cached=MANY // 2, streams=2, buffer=8, batch_size=8)
    first, *later = fetched_by_epoch(stream, [stream], 2)
    assert first <= MANY + 10
    assert max(later) <= 0.6 * MANY  # with so few shards, those that are being read or fetched ahead are a twentieth


def test_runs_share_what_stays(many: Path, tmp_path: Path) -> None:
    """Two runs over one dataset, in other orders, keep the same shards; neither fetches more for the other."""
    streams = [
        Stream(many, tmp_path, shards_cached=MANY // 2, streams=2, buffer=8, batch_size=8, seed=seed) for seed in (1, 2)
    ]
    _, *later = fetched_by_epoch(streams[0], streams, 2)
    assert max(later) <= 2 * 0.6 * MANY


def test_an_unused_dataset_makes_room(many: Path, tmp_path: Path) -> None:
    """Shards that no run has used for an hour are evicted first, whatever their names."""
    stream = Stream(many, tmp_path, shards_cached=MANY // 2, streams=2, buffer=8, batch_size=8)
    old = [stream.cache.directory / "blobs" / f"{number:064x}" for number in range(50)]  # which would stay by name
    for path in old:
        path.write_bytes(bytes(stream.split.shards[0].bytes))
        os.utime(path, ns=(0, time.time_ns() - 2 * 3600 * 10**9))
    _, *later = fetched_by_epoch(stream, [stream], 2)
    assert not any(path.exists() for path in old)
    assert max(later) <= 0.6 * MANY
