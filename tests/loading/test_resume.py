from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import pickle
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ResumeMismatchError
from tests.helpers.examples import stride
from tests.helpers.loading import PROJECT, labels
from tests.helpers.making import make_dataset
from tests.helpers.warm_python import python

SIZES = [20, 9, 31]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 labelled samples in three uneven shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader whose pixels depend on every source of randomness a transform can use."""
    options = {"batch_size": 7, "num_workers": 0, "tail": "short", "shuffle": shardflow.Shuffle(buffer=16), **options}
    decoder = shardflow.decoders.RandomResizedCrop(12)
    return shardflow.Loader(url, decoder=decoder, transform=v2.RandomErasing(0.5), **options)


def contents(batches: Any) -> list[tuple[bytes, list[int]]]:
    """The pixels and labels of all batches."""
    return [(images.numpy().tobytes(), numbers.tolist()) for images, numbers in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_any_batch_gives_the_rest(dataset: Path, workers: int) -> None:
    """Stopping after any batch and loading the state elsewhere gives exactly the rest, and then the next epoch."""
    whole = loader(dataset, num_workers=workers)
    expected = contents(whole) + contents(whole)
    per_epoch = len(whole)
    for stop in range(0, per_epoch + 1, stride(1)):
        stopped = loader(dataset, num_workers=workers)
        before = contents(itertools.islice(stopped, stop))
        resumed = loader(dataset, num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        rest = contents(resumed)
        assert before + rest == expected[:per_epoch]
        assert contents(resumed) == expected[per_epoch:]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda used: pickle.loads(pickle.dumps(used))])
def test_a_copy_moves_by_itself(dataset: Path, duplicate: Any) -> None:
    """A deep copy or pickle of a loader in use has its state and workers that follow it from epoch to epoch."""
    used = loader(dataset, num_workers=1)
    list(itertools.islice(used, 2))
    copied = duplicate(used)
    assert copied.state_dict() == used.state_dict()
    for _ in range(2):
        assert contents(copied) == contents(used)
    copied.close()
    used.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_forked_processes_do_not_share_a_loader(dataset: Path, workers: int) -> None:
    """A process that is forked with a loader, even a used one, has its own epochs and does not disturb others."""
    whole, used = loader(dataset), loader(dataset, num_workers=workers)
    expected = [contents(whole) for _ in range(3)]
    assert contents(used) == expected[0]
    iteration, (ours, theirs) = iter(used), multiprocessing.Pipe()
    batches = [next(iteration)]
    child = multiprocessing.get_context("fork").Process(target=_send_epochs, args=(used, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == expected[1:]
    child.join()
    batches += iteration
    assert contents(batches) == expected[1]


def _send_epochs(used: shardflow.Loader, connection: Connection) -> None:
    used.set_epoch(1)
    connection.send([contents(used) for _ in range(2)])


def test_a_loader_outlives_the_process_that_made_it(dataset: Path) -> None:
    """The workers of a loader that was pickled, as for a job on another machine, watch the process that starts them."""
    ours, theirs = multiprocessing.Pipe()
    maker = multiprocessing.get_context("fork").Process(
        target=lambda: theirs.send(pickle.dumps(loader(dataset, num_workers=1)))
    )
    maker.start()
    assert ours.poll(60)
    received = pickle.loads(ours.recv())
    maker.join()
    assert contents(received) == contents(loader(dataset))
    received.close()


def test_resume_in_a_new_process_gives_the_same_pixels(dataset: Path) -> None:
    """A fresh interpreter that loads the saved state delivers the rest with the same pixels, bit for bit."""
    whole = loader(dataset)
    stopped = loader(dataset)
    labels(itertools.islice(stopped, 4))
    script = f"""
import sys, json, pickle
from multiprocessing.connection import Connection
from pathlib import Path
from tests.loading import test_resume as this
resumed = this.loader(Path({str(dataset)!r}), num_workers=2)
resumed.load_state_dict(json.loads({json.dumps(stopped.state_dict())!r}))
sys.stdout.buffer.write(pickle.dumps(this.contents(resumed)))
"""
    command = [python(), "-c", script]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120, cwd=PROJECT)
    assert pickle.loads(done.stdout) == contents(whole)[4:]


@pytest.mark.parametrize(
    "after", [{"batch_size": 4}, {"world_size": 3}, {"world_size": 2, "num_workers": 2, "batch_size": 5}]
)
def test_resume_may_change_topology(dataset: Path, after: dict[str, Any]) -> None:
    """With another batch size, world size or number of workers, what was seen stays seen and the rest comes once."""
    before = [loader(dataset, group=(rank, 2), shuffle=shardflow.Shuffle(buffer=16, streams=2)) for rank in range(2)]
    seen = [label for rank in before for label in labels(itertools.islice(rank, 2))]
    state = before[0].state_dict()
    assert state == before[1].state_dict()
    rest = []
    others = {name: value for name, value in after.items() if name != "world_size"}
    for rank in range(world_size := after.get("world_size", 1)):
        resumed = loader(dataset, group=(rank, world_size), **others)
        resumed.load_state_dict(state)
        rest += labels(resumed)
    assert sorted(seen + rest) == list(range(TOTAL))


def test_state_inside_the_loop_counts_what_was_handed_out(dataset: Path) -> None:
    """In the body for batch k the state stands behind batch k, however much was prefetched."""
    some = loader(dataset, num_workers=shardflow.Workers(2, prefetch_factor=4))
    positions = [some.state_dict()["position"] for _ in some]
    assert positions == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert (some.state_dict()["epoch"], some.state_dict()["position"]) == (1, 0)


def test_state_of_a_finished_epoch_resumes_as_the_usual_loop_expects(dataset: Path) -> None:
    """Saved in the body of an epoch's last batch, a state resumes with nothing left of that epoch, then the next."""
    some = loader(dataset)
    for _ in some:
        state = some.state_dict()
    resumed = loader(dataset)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert labels(resumed) == []
    resumed.set_epoch(1)
    assert labels(resumed) == labels(some)


def test_set_epoch_after_load_keeps_the_position(dataset: Path) -> None:
    """The usual loop, which calls set_epoch with the epoch it resumes in, goes on where the state stood."""
    some = loader(dataset)
    expected = labels(some)
    stopped = loader(dataset)
    labels(itertools.islice(stopped, 3))
    resumed = loader(dataset)
    resumed.load_state_dict(stopped.state_dict())
    resumed.set_epoch(resumed.state_dict()["epoch"])
    assert labels(resumed) == expected[21:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 0 in the state and 1 here"),
        ({"shuffle": shardflow.Shuffle(buffer=8)}, "shuffle_buffer is 16 in the state and 8 here"),
        ({"shuffle": shardflow.Shuffle(buffer=16, streams=4)}, "streams is 8 in the state and 4 here"),
        ({"limit": 30}, "limit is None in the state and 30 here"),
        ({"samples_per_epoch": 16}, "samples_per_epoch is None in the state and 16 here"),
        ({"shuffle": False}, "shuffle is True in the state and False here"),
    ],
)
def test_state_of_another_order_is_refused(dataset: Path, change: dict[str, Any], message: str) -> None:
    """A state made with another seed, window, streams, limit or order is refused, and the difference named."""
    state = loader(dataset).state_dict()
    with pytest.raises(ResumeMismatchError, match=message):
        loader(dataset, **change).load_state_dict(state)


def test_state_of_another_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    """A state names its dataset by fingerprint."""
    other = make_dataset(tmp_path / "other", [61])
    with pytest.raises(ResumeMismatchError, match=r"fingerprint .*/other is another"):
        loader(other).load_state_dict(loader(dataset).state_dict())
    with pytest.raises(ResumeMismatchError, match=r"version 0.*version 1"):
        loader(dataset).load_state_dict({**loader(dataset).state_dict(), "version": 0})
    with pytest.raises(ResumeMismatchError, match=r"not from Loader\.state_dict"):
        loader(dataset).load_state_dict({"epoch": 1})
    with pytest.raises(ResumeMismatchError, match=r"Loader\.state_dict\(\).*entry 'data'"):
        loader(dataset).load_state_dict({"model": {}, "data": loader(dataset).state_dict()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": -5}, "position must be 0 or more"),
        ({"position": 61}, "position 61 in an epoch of 60 samples"),
        ({"epoch": "x"}, "epoch must be a whole number"),
        ({"epoch": True}, "epoch must be a whole number"),
        ({"epoch": 2**63}, "epoch must be 2,147,483,647 or less"),
        ({"streams": None}, "streams must be a whole number"),
        ({"streams": 0}, "streams must be 1 or more"),
        ({"streams": 10**11}, "streams must be 1,048,576 or less"),
    ],
)
def test_damaged_state_is_refused(dataset: Path, change: dict[str, Any], message: str) -> None:
    """Numbers that no loader has saved are refused, and the loader stays where it was."""
    some = loader(dataset)
    before = some.state_dict()
    with pytest.raises(ResumeMismatchError, match=f"the state is damaged: .*{message}"):
        some.load_state_dict({**before, **change})
    with pytest.raises(ResumeMismatchError, match=r"dict from Loader\.state_dict"):
        some.load_state_dict(None)
    assert some.state_dict() == before


def test_streams_travel_with_the_state(dataset: Path) -> None:
    """A run that chose no streams takes those of the state, so that the order stays the one that was begun."""
    begun = loader(dataset, group=(0, 4))
    next(iter(begun))
    resumed = loader(dataset, group=(0, 1))
    resumed.load_state_dict(begun.state_dict())
    assert resumed.state_dict()["streams"] == 32


def test_a_state_is_plain_values(dataset: Path) -> None:
    """The entries of a state, which a saved run depends on; without shuffling, the streams may differ."""
    assert loader(dataset).state_dict() == {
        "version": 1,
        "fingerprint": shardflow.open(dataset).fingerprint,
        "split": "train",
        "limit": None,
        "samples_per_epoch": None,
        "seed": 0,
        "source": 0,
        "shuffle": True,
        "streams": 8,
        "shuffle_buffer": 16,
        "shard_affinity": False,
        "sampler": None,
        "epoch": 0,
        "position": 0,
    }
    in_order = loader(dataset, shuffle=False)
    in_order.load_state_dict({**in_order.state_dict(), "streams": 2, "position": 14})
    assert in_order.state_dict()["streams"] == 2
    assert labels(in_order) == [number // 2 + 30 * (number % 2) for number in range(14, TOTAL)]
