from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import shardflow
from tests.helpers.making import make_dataset
from tests.helpers.ranks import launch
from tests.helpers.training import SIZES, TOTAL, make_loader

SAVED_ON, STEPS = 4, 3
BATCH = {4: 4, 2: 5, 8: 3}
"""Per world size the samples of a rank's batch."""

SHARES, ROWS = (1, 2), 5
"""The weights of a mix, and the samples of its batches, on every rank."""

Labels = list[list[int]]


def make(url: Path, world_size: int) -> dict[str, Any]:
    """A loader whose sampler is in its state, and a mix, whose state has those of its loaders."""
    loader = make_loader(url, batch_size=BATCH[world_size], tail="short", sampler=shardflow.samplers.Weighted(1))
    mixed = [(make_loader(url, batch_size=ROWS, seed=seed), share) for seed, share in enumerate(SHARES)]
    return {"loader": loader, "mix": shardflow.Mix(mixed, steps_per_epoch=6)}


def some(batches: Any, steps: int | None = None) -> Labels:
    """The labels of the next steps of an epoch, or of all that are left."""
    return [labels.tolist() for _, labels, _ in itertools.islice(batches, steps)]


def save(url: Path, folder: Path) -> dict[str, Any]:
    """Save in the middle of an epoch, go on, save again without waiting, and go on while that is written."""
    parts = make(url, dist.get_world_size())
    batches = {name: iter(part) for name, part in parts.items()}
    before = {name: some(batches[name], STEPS) for name in parts}
    dcp.save(parts, checkpoint_id=str(folder / "sync"))
    more = {name: some(batches[name], 1) for name in parts}
    writing = dcp.async_save(parts, checkpoint_id=str(folder / "async"))
    after = {name: some(batches[name]) for name in parts}
    writing.result()
    return {
        "before": before,
        "more": more,
        "after": after,
        "stateful": [isinstance(each, Stateful) for each in parts.values()],
    }


def load(url: Path, folder: Path) -> dict[str, Any]:
    """Load both checkpoints, and return what is left of their epochs."""
    found = {}
    for kind in ("sync", "async"):
        parts = make(url, dist.get_world_size())
        dcp.load(parts, checkpoint_id=str(folder / kind))
        found[kind] = {name: some(part) for name, part in parts.items()}
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 samples in four uneven shards, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkpoints are."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(dataset: Path, folder: Path) -> list[dict[str, Any]]:
    """What each of the ranks that saved had."""
    return launch(save, SAVED_ON, dataset, folder)


def of_all(ranks: list[Labels]) -> list[int]:
    """The labels of all ranks, sorted."""
    return sorted(itertools.chain(*itertools.chain(*ranks)))


def test_loaders_are_stateful(saved: list[dict[str, Any]]) -> None:
    """torch.distributed.checkpoint sees a loader and a mix as it sees a model, and takes their states by itself."""
    assert all(rank["stateful"] == [True, True] for rank in saved)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_state_is_stored_once(folder: Path, kind: str) -> None:
    """However many ranks save, the checkpoint has each entry of the state once, and no byte more."""
    metadata = dcp.FileSystemReader(str(folder / kind)).read_metadata()
    stored = sum(entry.length for entry in metadata.storage_data.values())
    assert sum(path.stat().st_size for path in (folder / kind).glob("*.distcp")) == stored


@pytest.mark.parametrize("world_size", [4, 2, 8])
def test_a_distributed_checkpoint_goes_on_with_other_ranks(
    dataset: Path, folder: Path, saved: list[dict[str, Any]], world_size: int
) -> None:
    """Saved on 4 ranks, at once or in the background, and loaded on 4, 2 or 8: the rest of the epoch comes once."""
    loaded = launch(load, world_size, dataset, folder)
    for kind, parts in (("sync", ("before",)), ("async", ("before", "more"))):
        seen = [rank[part]["loader"] for rank in saved for part in parts]
        assert of_all([*seen, *(rank[kind]["loader"] for rank in loaded)]) == list(range(TOTAL))
        if world_size == SAVED_ON:
            later = ("after",) if kind == "async" else ("more", "after")
            for rank, before in zip(loaded, saved, strict=True):
                for name in ("loader", "mix"):
                    assert rank[kind][name] == list(itertools.chain(*(before[part][name] for part in later)))
