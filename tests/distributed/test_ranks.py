from __future__ import annotations

import itertools
import os
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shardflow
from tests.helpers.loading import labels
from tests.helpers.making import make_dataset
from tests.helpers.ranks import launch
from tests.helpers.training import SIZES, TOTAL, Step, make_loader, make_net, seen, train

WORLD_SIZES = (4, 3, 2)
BATCH = {4: 4, 3: 2, 2: 3}
"""Per world size a batch size with which fewer samples than ranks are left at the end."""

TAILS = ("drop", "pad", "short")

SHUFFLE = shardflow.Shuffle(buffer=16, streams=3)

GLOBAL_BATCH = 12
"""A multiple of all world sizes, for comparing their global batches."""

ELASTIC: dict[str, Any] = {"tail": "short", "shuffle": shardflow.Shuffle(buffer=16, streams=4), "seed": 7}

AFTER = {3: {"batch_size": 5, "num_workers": 0}, 2: {"batch_size": 3, "num_workers": 2}}
"""How the runs on fewer ranks differ from the run whose checkpoint they load."""


def left(world_size: int) -> int:
    """How many samples are left at the end of an epoch: 1 or more, and less than there are ranks."""
    return TOTAL % (BATCH[world_size] * world_size)


def work(url: Path, checkpoint: Path) -> dict[str, Any]:
    """What one rank does and found: all the checks of a world size in one launch."""
    world_size = dist.get_world_size()
    found: dict[str, Any] = {"net": {}, "steps": {}, "elastic": {}}
    for tail in TAILS:
        net = make_net()
        workers = 2 if tail == "pad" else 0
        loader = make_loader(url, batch_size=BATCH[world_size], tail=tail, shuffle=SHUFFLE, num_workers=workers)
        found["steps"][tail] = list(train(loader, net))
        found["net"][tail] = net.weight.detach()
    for workers in (0, 2):
        loader = make_loader(url, batch_size=GLOBAL_BATCH // world_size, num_workers=workers, **ELASTIC)
        found["elastic"][workers] = [numbers.tolist() for _, numbers, _ in loader]
    if world_size == max(WORLD_SIZES):
        found["before"] = save_after_three_steps(url, checkpoint)
    else:
        found["after"] = go_on(url, checkpoint, AFTER[world_size])
    found.update(chosen_groups(url))
    return found


def save_after_three_steps(url: Path, checkpoint: Path) -> list[Step]:
    """Train for three steps with batches in flight and save net and loader."""
    net = make_net()
    loader = make_loader(url, batch_size=2, tail="short", num_workers=2)
    steps = list(itertools.islice(train(loader, net), 3))
    if dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "loader": loader.state_dict()}, checkpoint)
    return steps


def go_on(url: Path, checkpoint: Path, options: dict[str, Any]) -> list[list[Step]]:
    """Load the checkpoint, train through the rest of its epoch, and through the next one."""
    state = torch.load(checkpoint)
    net, loader = make_net(), make_loader(url, tail="short", **options)
    net.load_state_dict(state["net"])
    loader.load_state_dict(state["loader"])
    return [list(train(loader, net)), list(train(loader, net))]


def chosen_groups(url: Path) -> dict[str, Any]:
    """What comes of saying something else about rank and world size than torch.distributed does."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    given = make_loader(url, batch_size=50, tail="short", group=(rank, world_size + 1))
    everything = make_loader(url, batch_size=50, tail="short", group=(0, 1))
    os.environ.update(RANK="7", WORLD_SIZE="9")
    despite = make_loader(url, batch_size=50, tail="short")
    return {"given": labels(given), "everything": labels(everything), "despite": labels(despite)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 samples in four uneven shards, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


@pytest.fixture(scope="module")
def found(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank of each world size found; the run on 4 ranks saves what those on 3 and 2 go on from."""
    checkpoint = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    return {world_size: launch(work, world_size, dataset, checkpoint) for world_size in WORLD_SIZES}


@pytest.fixture(params=WORLD_SIZES)
def world_size(request: pytest.FixtureRequest) -> int:
    """One of the world sizes."""
    return int(request.param)


@pytest.mark.parametrize("tail", TAILS)
def test_ranks_make_equally_many_steps(found: dict[int, Any], world_size: int, tail: str) -> None:
    """A DDP epoch comes to its end with equally many steps on every rank, whatever the tail."""
    full = TOTAL // (BATCH[world_size] * world_size)
    assert {len(rank["steps"][tail]) for rank in found[world_size]} == {full + (tail != "drop")}


@pytest.mark.parametrize("tail", TAILS)
def test_ranks_share_an_epoch_exactly(found: dict[int, Any], world_size: int, tail: str) -> None:
    """The ranks together train on each sample once; "drop" leaves out less than a global batch, and nothing else."""
    all_ranks = [label for rank in found[world_size] for label in seen(rank["steps"][tail])]
    assert len(set(all_ranks)) == len(all_ranks) == TOTAL - (left(world_size) if tail == "drop" else 0)


def test_a_rank_without_a_last_sample_takes_part(found: dict[int, Any], world_size: int) -> None:
    """With fewer samples left than ranks, some ranks train on an empty last batch, and none waits for another."""
    last = [rank["steps"]["short"][-1] for rank in found[world_size]]
    assert sorted(len(step.labels) for step in last) == [0] * (world_size - left(world_size)) + [1] * left(world_size)
    assert not any(rank["steps"]["pad"][-1].labels == [] for rank in found[world_size])


@pytest.mark.parametrize("tail", TAILS)
def test_training_does_not_depend_on_the_ranks(
    found: dict[int, Any], dataset: Path, world_size: int, tail: str
) -> None:
    """An epoch of DDP ends in the weights that one process reaches with the same samples and pixels in a step."""
    alone = make_net()
    loader = make_loader(dataset, batch_size=BATCH[world_size] * world_size, tail=tail, shuffle=SHUFFLE)
    assert list(train(loader, alone))
    for rank in found[world_size]:
        torch.testing.assert_close(rank["net"][tail], alone.weight.detach(), rtol=0, atol=1e-10)
    assert not torch.allclose(alone.weight, make_net().weight, rtol=0, atol=1e-3)


@pytest.mark.parametrize("workers", [0, 2])
def test_global_batches_do_not_depend_on_the_ranks(
    found: dict[int, Any], dataset: Path, world_size: int, workers: int
) -> None:
    """With the same seed, global batch and streams, each step's global batch is the same set on any number of ranks."""
    alone = make_loader(dataset, batch_size=GLOBAL_BATCH, **ELASTIC)
    expected = [sorted(numbers.tolist()) for _, numbers, _ in alone]
    together = zip(*(rank["elastic"][workers] for rank in found[world_size]), strict=True)
    assert [sorted(chain(*batches)) for batches in together] == expected


@pytest.mark.parametrize("world_size", AFTER)
def test_a_checkpoint_goes_on_with_other_ranks(found: dict[int, Any], world_size: int) -> None:
    """Saved mid-epoch on 4 ranks and loaded on 3 or 2 with another batch size: what was seen stays seen, the rest comes
    once, and the epoch after it is whole."""
    before = [label for rank in found[4] for label in seen(rank["before"])]
    rest = [label for rank in found[world_size] for label in seen(rank["after"][0])]
    assert len(before) == 4 * 2 * 3
    assert sorted(before + rest) == list(range(TOTAL))
    assert sorted(label for rank in found[world_size] for label in seen(rank["after"][1])) == list(range(TOTAL))


def test_rank_is_that_of_torch_distributed(found: dict[int, Any], world_size: int) -> None:
    """Rank and world size come from the group, even where the environment says something else."""
    assert sorted(chain(*(rank["despite"] for rank in found[world_size]))) == list(range(TOTAL))


def test_explicit_ranks_come_first(found: dict[int, Any], dataset: Path, world_size: int) -> None:
    """`group=(rank, size)` counts where torch.distributed says something else: so much of an epoch is read."""
    last = make_loader(dataset, batch_size=50, tail="short", group=(world_size, world_size + 1))
    given = [labels(last), *(rank["given"] for rank in found[world_size])]
    assert sorted(chain(*given)) == list(range(TOTAL))


def test_a_rank_may_read_everything(found: dict[int, Any], world_size: int) -> None:
    """`group=(0, 1)` gives the whole split to whichever rank asks for it."""
    for rank in found[world_size]:
        assert sorted(rank["everything"]) == list(range(TOTAL))
