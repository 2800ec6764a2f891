from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from itertools import chain
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardflow
from shardflow.errors import ConfigError
from shardflow.loading import distributed
from tests.helpers.making import make_dataset
from tests.helpers.ranks import launch
from tests.helpers.training import SIZES, TOTAL, make_loader

PIPELINE, DATA, TENSOR = 2, 2, 2
BATCH = 4
SHUFFLE = shardflow.Shuffle(buffer=16, streams=3)
"""With the same number of streams, global batches are the same on any number of ranks."""

Batches = list[tuple[list[int], str]]
"""The labels of each batch, and a digest of its pixels."""


def batches_of(loader: Any) -> Batches:
    """What a rank gets in an epoch."""
    return [(labels.tolist(), hashlib.sha256(images.numpy().tobytes()).hexdigest()) for images, labels, *_ in loader]


def refusal(function: Any, *arguments: Any, **options: Any) -> str:
    """The message of the ConfigError that a call ends with."""
    try:
        function(*arguments, **options)
    except ConfigError as error:
        return str(error)
    return "none"


def warnings_of(function: Callable[[], object]) -> list[str]:
    """The warnings that shardflow logs during a call."""
    logger, kept = logging.getLogger("shardflow"), BufferingHandler(100)
    logger.addHandler(kept)
    try:
        function()
    finally:
        logger.removeHandler(kept)
    return [record.getMessage() for record in kept.buffer if record.levelno == logging.WARNING]


def make_model() -> nn.Module:
    """Two layers in double precision, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, TOTAL + 1)).double()


def train(model: nn.Module, loader: shardflow.Loader) -> list[torch.Tensor]:
    """Train for an epoch of full batches, and return all weights, whole."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels, _ in loader:
        optimiser.zero_grad()
        F.cross_entropy(model(images.flatten(1).double() / 255), labels).backward()
        optimiser.step()
    weights = [weight.detach() for weight in model.parameters()]
    return [weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in weights]


def train_in_parallel(url: Path, mesh: DeviceMesh) -> list[torch.Tensor]:
    """Train with FSDP2 over the data-parallel dimension, and tensor parallelism within."""
    model = make_model()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return train(model, make_loader(url, batch_size=BATCH, shuffle=SHUFFLE, group=mesh["dp"]))


def mixed(url: Path, **options: Any) -> shardflow.Mix:
    """A mix of the dataset with itself, sampled by weight: its ranks compare their samplers."""
    loaders = [
        (make_loader(url, batch_size=BATCH, sampler=shardflow.samplers.Weighted(1), seed=seed, **options), seed)
        for seed in (1, 2)
    ]
    return shardflow.Mix(loaders, steps_per_epoch=6)


def work(url: Path) -> dict[str, Any]:
    """What one rank of eight gets from each way to say which group it reads for."""
    mesh = init_device_mesh("cpu", (PIPELINE, DATA, TENSOR), mesh_dim_names=("pp", "dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2, TENSOR), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    place = mesh.get_local_rank("dp"), DATA
    groups = {"ranks": place, "mesh": mesh["dp"], "process group": mesh.get_group("dp")}
    options: dict[str, Any] = {"batch_size": BATCH, "tail": "short"}
    found: dict[str, Any] = {
        "place": place,
        "batches": {name: batches_of(make_loader(url, group=group, **options)) for name, group in groups.items()},
        "mix": {name: batches_of(mixed(url, group=group)) for name, group in groups.items()},
        "hybrid": batches_of(make_loader(url, group=hybrid["dp_replicate", "dp_shard"]._flatten(), **options)),
        "samples": [sample["cls"] for sample in shardflow.samples(url, group=mesh["dp"], shuffle=False)],
        "two dimensions": refusal(make_loader, url, group=mesh["dp", "tp"], **options),
        "weights": train_in_parallel(url, mesh),
    }
    sampler = shardflow.samplers.Weighted(1.5 if mesh.get_local_rank("tp") else 1)
    other = make_loader(url, group=mesh["dp"], sampler=sampler, **options)
    found["another sampler"] = refusal(lambda: next(iter(other)))
    differing = {"seed": dist.get_rank() // 4, "group": mesh["dp"], "shuffle": SHUFFLE, **options}
    for name, changed in {
        "equal": {"seed": 0},
        "another seed": {},
        "another batch": {"seed": 0, "batch_size": dist.get_rank() + 1},
    }.items():
        found[name] = warnings_of(lambda changed=changed: next(iter(make_loader(url, **{**differing, **changed}))))
    moved = make_loader(url, **{**differing, "seed": 0})
    moved.set_epoch(mesh.get_local_rank("tp"))
    found["another epoch"] = warnings_of(lambda: next(iter(moved)))
    stale = Path(url).with_name("other") if dist.get_rank() >= 4 else url
    found["another dataset"] = warnings_of(lambda: next(iter(make_loader(stale, **{**differing, "seed": 0}))))
    found["a whole pass"] = warnings_of(lambda: batches_of(make_loader(url, group=mesh["dp"], **options)))
    if dist.get_rank() == 0:  # alone: no other rank takes part
        distributed._LATE_S = 0
        found["its part"] = warnings_of(lambda: batches_of(make_loader(url, group=mesh["dp"], **options)))
        alone = make_loader(url, group=(0, 1), sampler=shardflow.samplers.Weighted(1), **options)
        found["all of it"] = warnings_of(lambda: found.update(alone=batches_of(alone)))
    outside = dist.new_group([0])
    found["outside"] = dist.get_rank() and refusal(make_loader, url, group=outside, **options)
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 samples in four uneven shards, sample n labelled n."""
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder / "other", SIZES[:-1])
    return make_dataset(folder / "set", SIZES)


@pytest.fixture(scope="module")
def found(dataset: Path) -> list[dict[str, Any]]:
    """What each of 8 ranks found, which are 2 pipeline stages x 2 data-parallel x 2 tensor-parallel ranks."""
    return launch(work, PIPELINE * DATA * TENSOR, dataset)


def labels_of(batches: Batches) -> list[int]:
    """The labels of all batches."""
    return list(chain.from_iterable(labels for labels, _ in batches))


def test_ranks_of_one_data_parallel_place_get_the_same_batches(found: list[dict[str, Any]]) -> None:
    """Tensor and pipeline ranks repeat the batches of their data-parallel rank, pixel by pixel; others share none."""
    for name in ("ranks", "mesh", "process group"):
        shares = [[rank["batches"][name] for rank in found if rank["place"][0] == place] for place in range(DATA)]
        assert all(share.count(share[0]) == len(share) == PIPELINE * TENSOR for share in shares)
        assert sorted(chain(*(labels_of(share[0]) for share in shares))) == list(range(TOTAL))


def test_a_group_is_said_in_three_ways(found: list[dict[str, Any]], dataset: Path) -> None:
    """Explicit ranks, a process group and a dimension of a mesh mean the same, also before torch.distributed begins."""
    for rank in found:
        before = batches_of(make_loader(dataset, batch_size=BATCH, tail="short", group=rank["place"]))
        assert list(rank["batches"].values()) == [before] * 3


def test_a_mix_has_a_group(found: list[dict[str, Any]], dataset: Path) -> None:
    """A mix reads for the group of its loaders, as exactly as they do, and compares their samplers on all ranks."""
    for rank in found:
        assert list(rank["mix"].values()) == [batches_of(mixed(dataset, group=rank["place"]))] * 3


def test_samples_have_a_group(found: list[dict[str, Any]]) -> None:
    """`samples` takes the dimension of a mesh, too."""
    for rank in found:
        assert [int(label) for label in rank["samples"]] == list(range(rank["place"][0], TOTAL, DATA))


def test_two_data_parallel_dimensions_are_one_group(found: list[dict[str, Any]]) -> None:
    """Replicas of shards, flattened, are one group of 4, whose ranks together have an epoch."""
    assert all(found[rank]["hybrid"] == found[rank + 1]["hybrid"] for rank in range(0, 8, TENSOR))
    taken = chain(*(labels_of(rank["hybrid"]) for rank in found[::TENSOR]))
    assert sorted(taken) == list(range(TOTAL))


def test_training_in_parallel_is_training_alone(found: list[dict[str, Any]], dataset: Path) -> None:
    """FSDP2 and tensor parallelism on batches of a group train as one process does on the global batches."""
    loader = make_loader(dataset, batch_size=BATCH * DATA, shuffle=SHUFFLE, group=(0, 1))
    alone = train(make_model(), loader)
    for rank in found:
        for weight, expected in zip(rank["weights"], alone, strict=True):
            torch.testing.assert_close(weight, expected)


def test_samplers_are_compared_on_all_ranks(found: list[dict[str, Any]]) -> None:
    """A sampler that differs within a data-parallel place is an error on every rank; one that reads alone waits for
    none."""
    assert all("sampler must be equal on all ranks, but rank 1" in rank["another sampler"] for rank in found)
    assert sorted(labels_of(found[0]["alone"])) == list(range(TOTAL))


@pytest.mark.parametrize(("name", "setting"), [("seed", "seed"), ("batch", "batch_size"), ("epoch", "epoch")])
def test_other_settings_of_a_rank_are_said(name: str, setting: str, found: list[dict[str, Any]]) -> None:
    """A rank that differs from the one that began first warns; those with equal settings do not."""
    assert not any(rank["equal"] for rank in found)
    said = list(chain(*(rank[f"another {name}"] for rank in found)))
    assert 4 <= len(said) < 8
    assert all(re.match(rf"this rank begins with {setting} \d+, not \d+ as rank \d does: ", one) for one in said)


def test_a_rank_that_reads_its_part_alone_is_told(found: list[dict[str, Any]]) -> None:
    """A rank warns at the end of a pass that no other rank has begun; together, and with a group of one, none does."""
    assert not any(rank["a whole pass"] for rank in found)
    (said,) = found[0]["its part"]
    assert said.startswith(
        "this rank has read its part of split 'train', but 1 of 2 ranks have not begun to read theirs"
    )
    assert not found[0]["all of it"]


def test_another_dataset_of_a_rank_is_said(found: list[dict[str, Any]]) -> None:
    """A rank with another dataset, such as an older version, warns, as its samples and steps are others."""
    said = list(chain(*(rank["another dataset"] for rank in found)))
    assert 4 <= len(said) < 8
    message = (
        r"this rank begins with fingerprint 'sha256:\w+', not 'sha256:\w+' as rank \d does: .*; give all ranks one"
    )
    assert all(re.match(message, one) for one in said)


def test_what_is_not_a_group_is_refused(found: list[dict[str, Any]]) -> None:
    """A mesh of two dimensions and the group of other ranks are errors that say what to pass."""
    for rank in found:
        assert "2 dimensions, ('dp', 'tp')" in rank["two dimensions"]
        assert "mesh['dp']" in rank["two dimensions"]
    assert all("a process group that this rank is in" in rank["outside"] for rank in found[1:])
