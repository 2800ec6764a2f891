from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow.errors import DecodeError, IntegrityError, WorkerError
from tests.helpers.loading import PROJECT, labels, open_files, until, with_workers
from tests.helpers.making import flip, jpeg, make_dataset, write_dataset
from tests.helpers.warm_python import python


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of 60 labelled samples in three shards."""
    return make_dataset(tmp_path / "set", [20, 20, 20])


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of small crops; its workers are this process's children, as they are not by default in Python 3.14."""
    small: dict[str, Any] = {"batch_size": 4, "decoder": shardflow.decoders.RandomResizedCrop(8)}
    return shardflow.Loader(
        url, **with_workers({**small, "num_workers": 2, "multiprocessing_context": "fork", **options})
    )


def damage(url: Path, numbers: list[int]) -> None:
    """Flip a byte in the image of each of these samples."""
    dataset = shardflow.open(url)["train"]
    for number in numbers:
        path = url / f"train/{number // 20:06}.tar"
        payload = dataset[number]["jpg"]
        flip(path, path.read_bytes().index(payload) + len(payload) // 2)


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    listed = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return {int(pid) for pid in listed.stdout.split()}


def shared_memory_of(*pids: int) -> list[str]:
    """The names in /dev/shm that carry one of these process numbers, as torch's do."""
    return [name for name in os.listdir("/dev/shm") if {str(pid) for pid in pids} & set(name.split("_"))]


class KillsItself:
    """A transform that kills its worker at one image."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Die with SIGKILL when the time has come."""
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return image


def test_killed_worker_is_a_typed_error_that_names_samples(dataset: Path) -> None:
    """A worker that dies while making a batch raises WorkerError within seconds, naming a shard and sample.

    The training process keeps no shard open for that.
    """
    some = loader(dataset, transform=KillsItself(9))
    begun = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0: .*\.tar, sample \d{9}\b"):
        list(some)
    assert time.monotonic() - begun < 30
    assert not open_files(dataset / "train")


class RemovesShardsAndItself(KillsItself):
    """A transform in whose process the shards vanish, and then the process."""

    def __init__(self, at: int, folder: Path) -> None:
        super().__init__(at)
        self.folder = folder

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Remove the shards and die when the time has come."""
        if not self.left:
            for tar in self.folder.glob("*.tar"):
                tar.unlink()
        return super().__call__(image)


def test_a_worker_that_is_killed_when_its_shards_are_gone(dataset: Path) -> None:
    """The error is that of the worker, with the record where its key cannot be read."""
    with pytest.raises(WorkerError, match=r"worker 0: .*\.tar, record \d+\b"):
        list(loader(dataset, num_workers=1, transform=RemovesShardsAndItself(9, dataset / "train")))


def test_a_dead_pin_memory_thread_is_a_typed_error(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread that pins batches ends, as when it can receive no more of them, that is a WorkerError."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # which earlier versions of PyTorch ask
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "_pin_memory_loop", lambda *_: None)
    with pytest.raises(WorkerError, match=r"Pin memory thread.*/dev/shm"):
        next(iter(loader(dataset, pin_memory=True)))


def test_worker_killed_during_the_callers_step_is_raised_by_the_loader(
    dataset: Path, request: pytest.FixtureRequest
) -> None:
    """A worker killed while the loop's body runs lets the body finish; the loader raises, and its state is right.

    What its workers held is free at once, not when cycles of references are collected.
    """
    gc.disable()
    request.addfinalizer(gc.enable)
    some = loader(dataset, prefetch_factor=1)
    before = children()
    batches = iter(some)
    handed_out = 1
    next(batches)
    iteration = weakref.ref(some._pool.data_loader._iterator)
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)  # where torch would raise from its signal handler
    with pytest.raises(WorkerError):  # noqa: PT012 - what comes before the error is counted
        for _ in batches:
            handed_out += 1
    assert iteration() is None
    assert some.state_dict()["position"] == 4 * handed_out
    whole = [numbers.tolist() for _, numbers in loader(dataset)]
    some.load_state_dict(some.state_dict())
    assert [numbers.tolist() for _, numbers in some] == whole[handed_out:]


def test_worker_killed_while_the_first_epoch_begins_is_raised_by_the_loader(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose death torch reports before its iterator exists is a WorkerError, too."""
    start = torch.utils.data.DataLoader._get_iterator

    def start_and_kill(of: Any) -> Any:
        iterator = start(of)
        iterator._workers[0].kill()
        os.waitid(os.P_PID, iterator._workers[0].pid, os.WEXITED | os.WNOWAIT)  # then torch's signal handler raises
        return iterator

    monkeypatch.setattr(torch.utils.data.DataLoader, "_get_iterator", start_and_kill)
    with pytest.raises(WorkerError, match=r"is killed by signal"):
        next(iter(loader(dataset, num_workers=1)))


def test_worker_killed_between_epochs_is_raised_by_the_loader(dataset: Path) -> None:
    """A worker killed between two epochs is a WorkerError of the next one, which then starts again from its start."""
    some = loader(dataset)
    list(some)
    os.kill(next(iter(children() & set(some._pool.pids()))), signal.SIGKILL)
    with pytest.raises(WorkerError):
        next(iter(some))
    whole = loader(dataset)
    whole.set_epoch(1)
    assert [numbers.tolist() for _, numbers in some] == [numbers.tolist() for _, numbers in whole]


def test_nothing_is_left_behind_after_an_error(dataset: Path) -> None:
    """After a decode error no worker and no shared memory remains, even while the exception is kept."""
    damage(dataset, [30])
    before = children()
    gc.disable()
    try:
        with pytest.raises(IntegrityError) as caught:
            list(loader(dataset))
        assert until(lambda: children() <= before)
        assert caught.value.key == "000000030"
    finally:
        gc.enable()
    assert not shared_memory_of(os.getpid())


@pytest.mark.parametrize(
    ("how", "context"),
    [
        *((how, "fork") for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)),
        (signal.SIGKILL, "forkserver"),
    ],
)
def test_no_orphans_when_the_training_process_ends(dataset: Path, how: signal.Signals, context: str) -> None:
    """However the training process ends, its workers end soon after, and no shared memory stays."""
    script = f"""
import os
from pathlib import Path
from tests.loading import test_faults as this
some = this.loader(Path({str(dataset)!r}), samples_per_epoch=4_000_000, multiprocessing_context={context!r})
batches = iter(some)
next(batches)
print(os.getpid(), *some._pool.pids(), flush=True)
for _ in batches:
    pass
"""
    command = [python(), "-c", script]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=PROJECT, **pipes) as training:
        assert training.stdout is not None
        own, *workers = [int(pid) for pid in training.stdout.readline().split()]
        assert len(workers) == 2
        training.send_signal(how)
        training.communicate(timeout=60)
    assert training.returncode != 0
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), seconds=30)
    assert not shared_memory_of(own, *workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_substitute_keeps_shapes_and_names_what_it_replaced(
    dataset: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged samples give way to others of their batch, on any number of workers alike, and are named once each."""
    damage(dataset, [3, 30, 31])
    some = loader(dataset, max_errors=3, num_workers=workers)
    with caplog.at_level(logging.WARNING, "shardflow"):
        epochs = [[numbers.tolist() for _, numbers in some] for _ in range(2)]
    assert {len(numbers) for epoch in epochs for numbers in epoch} == {4}
    assert set(itertools.chain(*epochs[0])) == set(range(60)) - {3, 30, 31}
    assert len(some.replaced) == len(caplog.records) == 3
    assert all(any(f"sample {n:09}" in problem for problem in some.replaced) for n in (3, 30, 31))
    alone = loader(dataset, max_errors=3, num_workers=0)
    assert epochs[0] == [numbers.tolist() for _, numbers in alone]


def test_substitutes_are_not_valid(tmp_path: Path) -> None:
    """An evaluation counts each sample once: substitutes are not valid, whether a CRC-32, or the decoder, fails."""
    dataset = make_dataset(tmp_path / "set", [20, 20, 20], undecodable=[20])
    damage(dataset, [3])
    some = loader(dataset, max_errors=2, fields=("index", "image", "valid"), shuffle=False)
    found = [number for numbers, _, valid in some for number in numbers[valid].tolist()]
    assert found == sorted(set(range(60)) - {3, 20})


def test_substitute_covers_images_that_do_not_decode(tmp_path: Path) -> None:
    """The decoder's failures are replaced in the same way."""
    dataset = make_dataset(tmp_path / "set", [20, 20, 20], undecodable=[20])
    some = loader(dataset, max_errors=1)
    assert set(labels(some)) == set(range(60)) - {20}
    (problem,) = some.replaced
    assert "sample 000000020: the image cannot be decoded" in problem
    with pytest.raises(DecodeError, match=r"; max_errors= replaces damaged samples$"):
        list(loader(dataset))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("field", ["json", "txt", "label", "labels"])
def test_substitute_covers_what_cannot_be_parsed(tmp_path: Path, field: str, workers: int) -> None:
    """A JSON, text or label that cannot be parsed is damage if it is among the fields, with images or without."""
    parts: dict[str, bytes] = {"json": b'{"a": 1}', "txt": b"a", "cls": b"1"}
    bad = {"json": b"[" * 200_000, "txt": b"\xff", "cls": b"one"}
    samples = [(f"{n}", {"jpg": jpeg(n), **parts, **(bad if n == 5 else {})}) for n in range(8)]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("a", "b"))
    for names in ((field, "key", "valid"), (field, "key", "valid", "image")):
        options: dict[str, Any] = {"fields": names, "shuffle": False, "num_workers": workers}
        some = loader(url, max_errors=1, **options)
        found = [(key, bool(valid)) for _, keys, each, *_ in some for key, valid in zip(keys, each, strict=True)]
        assert found == [(str(n), True) if n != 5 else ("6", False) for n in range(8)]
        (problem,) = some.replaced
        assert "sample 5" in problem
        remedy = "max_errors= replace it" if field in ("json", "txt") else "run `shardflow verify`"
        with pytest.raises(DecodeError, match=f"sample 5: .*; .*{remedy}"):
            list(loader(url, **options))
    assert not loader(url, max_errors=1, fields=("key",), num_workers=0).replaced


def test_substitute_stops_at_its_limit(dataset: Path) -> None:
    """More different bad samples than `max_errors` stop the loader."""
    damage(dataset, [3, 30, 31])
    with pytest.raises(IntegrityError, match=r"\b3\b.*max_errors allows 2\b"):
        list(loader(dataset, max_errors=2))


def test_a_batch_without_a_good_sample_is_an_error(dataset: Path) -> None:
    """When a whole batch is damaged nothing can replace them, so it is raised."""
    damage(dataset, list(range(4)))
    with pytest.raises(IntegrityError, match="sample 000000000"):
        list(loader(dataset, max_errors=100, shuffle=False))


def zero_header(url: Path) -> None:
    """Zero the tar header of the first member of sample 20."""
    shard = url / "train/000001.tar"
    data = bytearray(shard.read_bytes())
    data[:512] = bytes(512)
    shard.write_bytes(data)


def test_a_damaged_header_does_not_matter_to_what_it_does_not_hold(dataset: Path) -> None:
    """Images and labels are found by the index and checked one by one; the key alone is read from the header."""
    before = [images for images, _ in loader(dataset, shuffle=False)]
    zero_header(dataset)
    for was, (images, _) in zip(before, loader(dataset, shuffle=False), strict=True):
        assert torch.equal(images, was)
    with pytest.raises(IntegrityError, match=r"000001.tar: record 0"):
        list(loader(dataset, fields=("key",)))


def test_substitute_covers_damaged_headers(dataset: Path) -> None:
    """A sample whose tar header is damaged has no readable key, and gives way where keys are asked for."""
    zero_header(dataset)
    some = loader(dataset, max_errors=1, fields=("key", "label"))
    assert set(labels(some)) == set(range(60)) - {20}
    (problem,) = some.replaced
    assert "000001.tar" in problem
    assert "record 0" in problem


def test_damaged_copies_cost_no_sample(dataset: Path, tmp_path: Path) -> None:
    """Bits that are flipped in the cache, in headers and payloads, epoch after epoch, change no batch."""
    options: dict[str, Any] = {"fields": ("key", "label", "image"), "num_workers": 0}
    cache = tmp_path / "cache"
    near = loader(dataset, **options)
    far = loader(f"local://{dataset}", cache=cache, max_errors=1, **options)  # type: ignore[arg-type]
    for position in (8, 2000, 1030):  # the name of a class, an image, the name of an image
        for (keys, numbers, images), expected in zip(far, near, strict=True):
            assert (keys, numbers.tolist()) == (expected[0], expected[1].tolist())
            assert torch.equal(images, expected[2])
        for shard in shardflow.open(dataset).shards:
            flip(cache / "blobs" / shard.sha256, position)
    assert far.replaced == set()
