from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from torchvision.transforms import v2

import shardflow
from shardflow.errors import DeadlineError, IntegrityError, NotFoundError, WorkerError
from tests.helpers.folders import cached_bytes
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import Server
from tests.helpers.warm_python import python

SIZES = [20, 9, 31, 16, 24]
TOTAL = sum(SIZES)

Open = Callable[..., shardflow.Loader]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 100 labelled samples in five uneven shards, on the disk."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


@pytest.fixture
def url(server: Server, prefix: str, local: Path) -> str:
    """The same dataset in a bucket."""
    return server.put(prefix, local)


def loader(url: str | Path, **options: Any) -> shardflow.Loader:
    """A loader whose pixels depend on every source of randomness a transform can use."""
    shuffle = shardflow.Shuffle(buffer=16, streams=2)
    chosen = {"batch_size": 7, "num_workers": 2, "tail": "short", "shuffle": shuffle, **options}
    return shardflow.Loader(
        url, decoder=shardflow.decoders.RandomResizedCrop(12), transform=v2.RandomErasing(0.5), **chosen
    )


@pytest.fixture
def far(server: Server, url: str, tmp_path: Path) -> Open:
    """A loader of the dataset in the bucket, with a cache of its own."""

    def open_loader(endpoint: str | None = None, **options: Any) -> shardflow.Loader:
        return loader(url, storage_options=server.options(endpoint), **{"cache": tmp_path / "cache", **options})

    return open_loader


def contents(batches: Any) -> list[tuple[bytes, list[int]]]:
    """The pixels and labels of all batches."""
    return [(images.numpy().tobytes(), numbers.tolist()) for images, numbers in batches]


def transfers(proxy: Proxy) -> Counter[str]:
    """How often the beginning of each tar, or the whole of it, was asked for."""
    return Counter(
        urlsplit(target).path.rpartition("/")[2]
        for method, target, part in proxy.log
        if method == "GET" and ".tar" in target and (not part or part.startswith("bytes=0-"))
    )


@pytest.mark.parametrize("limit", ["100GB", "60kB"])
def test_batches_are_those_of_the_directory(local: Path, far: Open, tmp_path: Path, limit: str) -> None:
    """From a bucket come the very batches that come from the directory: two epochs, and a resume within each."""
    expected = [contents(batches) for batches in itertools.repeat(loader(local), 2)]
    cache = shardflow.Cache(tmp_path / "cache", limit)
    whole = far(cache=cache)
    assert [contents(batches) for batches in itertools.repeat(whole, 2)] == expected
    for epoch, stop in ((0, 5), (1, 9)):
        stopped = far(cache=cache)
        stopped.set_epoch(epoch)
        before = contents(itertools.islice(stopped, stop))
        resumed = far(cache=cache)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert before + contents(resumed) == expected[epoch]


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_only_the_url_changes(server: Server, url: str, local: Path, tmp_path: Path, context: str) -> None:
    """With the usual environment variables the URL is all that differs, under every start method."""
    script = f"""
import shardflow, torch

if __name__ == "__main__":
    decoder = shardflow.decoders.CenterCrop(8)
    workers = shardflow.Workers(1, multiprocessing_context="{context}")
    there, here = (
        shardflow.Loader(url, batch_size=7, decoder=decoder, num_workers=count)
        for url, count in (({url!r}, workers), ({str(local)!r}, 0))
    )
    for (images, labels), (expected, expected_labels) in zip(there, here, strict=True):
        assert torch.equal(images, expected) and torch.equal(labels, expected_labels)
"""
    (tmp_path / "train.py").write_text(script)
    # In a process of its own, because a fork server keeps the environment of the moment when it was first needed.
    environment = {**os.environ, **server.environment(), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([python(), tmp_path / "train.py"], env=environment, check=True, timeout=100)
    assert len(list((tmp_path / "shardflow/blobs").iterdir())) == 2 * len(SIZES)


def test_samples_and_mix_take_the_same_arguments(server: Server, url: str, local: Path, tmp_path: Path) -> None:
    """Samples by number, samples in order, and a mix read from a bucket what they read from the directory."""
    options = {"storage_options": server.options(), "cache": tmp_path / "cache"}
    there, here = shardflow.open(url, **options)["train"], shardflow.open(local)["train"]
    assert [sample["jpg"] for sample in there] == [sample["jpg"] for sample in here]
    assert there[0]["__url__"] == f"{url}/train/000000.tar"
    assert [sample["__key__"] for sample in shardflow.samples(url, **options)] == [
        sample["__key__"] for sample in shardflow.samples(local)
    ]
    common = {"batch_size": 10, "num_workers": 0, "decoder": shardflow.decoders.CenterCrop(8)}
    mixes = shardflow.Mix([(url, 1)], **common, **options), shardflow.Mix([(local, 1)], **common)
    assert contents(mixes[0]) == contents(mixes[1])


def test_what_fits_is_transferred_once(proxy: Proxy, far: Open) -> None:
    """Every shard is asked for once, by all workers of all loaders together, and in later epochs none is."""
    some = far(proxy.endpoint)
    for _ in range(2):
        assert len(contents(some)) == len(some)
    assert len(contents(far(proxy.endpoint, num_workers=0))) == len(some)
    assert transfers(proxy) == {f"{number:06}.tar": 1 for number in range(len(SIZES))}


def test_what_does_not_fit_is_transferred_about_once_per_epoch(
    proxy: Proxy, server: Server, prefix: str, tmp_path: Path
) -> None:
    """A dataset several times as large as the cache streams through it, and the limit holds all the while."""
    shards = 24
    root = make_dataset(tmp_path / "set", [8] * shards)
    limit = 8 * max(path.stat().st_size for path in root.glob("train/*.tar"))
    some = loader(
        server.put(prefix, root),
        storage_options=server.options(proxy.endpoint),
        cache=shardflow.Cache(tmp_path / "cache", limit),
        batch_size=4,
        shuffle=shardflow.Shuffle(buffer=8, streams=2),
        # A worker that the machine holds up stays within what the small cache keeps for it.
        num_workers=shardflow.Workers(2, prefetch_factor=1),
    )
    for epoch in range(1, 4):
        assert sorted(label for _, labels in some for label in labels.tolist()) == list(range(8 * shards))
        assert sum(transfers(proxy).values()) <= epoch * (shards + 2)  # two streams: a shard can end one, begin another
        assert cached_bytes(tmp_path / "cache") <= limit
    assert sum(transfers(proxy).values()) > 2 * (shards - 8)


def test_store_that_fails_now_and_then_changes_nothing(proxy: Proxy, far: Open, local: Path) -> None:
    """Refused and broken requests, and bytes damaged on the way, are met with another attempt, and the batches same."""
    proxy.add(Fault(status=503, code="SlowDown"), contains=".tar", first=0, times=2)
    proxy.add(Fault(reset_after=1000), contains=".tar", first=3, times=2)
    proxy.add(Fault(flip=5000), contains="000002.tar", times=1)
    assert contents(far(proxy.endpoint)) == contents(loader(local))


def test_damaged_shard_is_never_a_batch(proxy: Proxy, far: Open, local: Path, tmp_path: Path) -> None:
    """A shard that arrives damaged every time is an IntegrityError that names it, and is never in the cache."""
    proxy.add(Fault(flip=5000), contains="000002.tar")
    with pytest.raises(IntegrityError, match=r"train/000002\.tar: expected SHA-256"):
        list(far(proxy.endpoint))
    assert not (tmp_path / "cache/blobs" / shardflow.open(local).manifest.splits["train"][2].sha256).exists()


def test_missing_shard_is_a_typed_error_in_its_batch(server: Server, prefix: str, url: str, far: Open) -> None:
    """A shard that is missing is a NotFoundError once it is needed; the batches before it arrive."""
    server.storage(prefix).remove("train/000004.tar")
    received = 0
    with pytest.raises(NotFoundError, match=f"{url}/train/000004.tar"):  # noqa: PT012 - what came before is counted
        for _, labels in far(shuffle=False, num_workers=1):
            received += len(labels)
    assert 70 <= received <= 76


@pytest.mark.parametrize("fault", [Fault(status=503, code="SlowDown"), Fault(hang=True)], ids=["503", "hang"])
def test_store_that_stops_answering_is_an_error_within_its_deadline(
    proxy: Proxy, server: Server, url: str, tmp_path: Path, fault: Fault
) -> None:
    """Training hears of a store that answers no more, when `deadline_s` has passed."""
    some = loader(url, storage_options={**server.options(proxy.endpoint), "deadline_s": 4}, cache=tmp_path / "cache")
    proxy.add(fault)
    with pytest.raises(DeadlineError, match=r"tried .* in \d s: run it again when the store answers"):
        next(iter(some))


def test_an_index_that_never_arrives_is_one_wait(proxy: Proxy, server: Server, url: str, tmp_path: Path) -> None:
    """A loader that cannot get the index it is made with is an error after one deadline, before the first batch."""
    proxy.add(Fault(status=503, code="SlowDown"), contains=".npy")
    options = {**server.options(proxy.endpoint), "deadline_s": 3}
    with pytest.raises(DeadlineError, match=r"\.npy: .* in \d s: run it again when the store answers"):
        loader(url, storage_options=options, cache=tmp_path / "cache")


def test_worker_killed_in_a_transfer_is_named_at_once(proxy: Proxy, far: Open) -> None:
    """A worker that dies while it waits for a shard is a WorkerError that says so without waiting for the shard."""
    some = far(
        proxy.endpoint, num_workers=shardflow.Workers(1, multiprocessing_context="fork")
    )  # this process's child in any Python
    hung = threading.Event()
    proxy.add(Fault(hang=True, before=hung.set), contains=".tar")
    before = children()

    def kill() -> None:
        hung.wait(60)
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    begun = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0: s3://tests/.*/train/\d+\.tar, record \d+ and 6 more"):
        next(iter(some))
    assert time.monotonic() - begun < 15
    killer.join()


def test_exit_does_not_wait_for_a_transfer(proxy: Proxy, server: Server, url: str, tmp_path: Path) -> None:
    """A training process that ends while a bucket does not answer ends soon, and says nothing."""
    script = f"""
import shardflow
some = shardflow.Loader(
    {url!r}, batch_size=7, num_workers=0, shuffle=False, decoder=shardflow.decoders.CenterCrop(8),
    storage_options={server.options(proxy.endpoint)!r}, cache={str(tmp_path / "cache")!r},
)
for _ in some:
    break
print("read", flush=True)
"""
    proxy.add(Fault(hang=True), contains="000003.tar")
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
    assert time.monotonic() - begun < 30


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    listed = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return {int(pid) for pid in listed.stdout.split()}
