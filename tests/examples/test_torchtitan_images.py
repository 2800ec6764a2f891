from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.helpers.ranks import launch
from tests.helpers.scripts import FOLDER

TITAN = Path(sys.prefix) / "torchtitan"
"""Where `tools/environment test` installs TorchTitan: apart, because of what it pins."""

DATA = 2
STEPS = 3
BATCH = 4
"""The samples of a rank: 2 data-parallel ranks take 8 of 67 samples in a step, and drop 3 at the end of an epoch."""


def make(url: Path, folder: Path, async_mode: str) -> tuple[Any, Any]:
    """The example's loader, and a checkpoint manager of TorchTitan with it, a model of FSDP2 and its optimisers."""
    sys.path[:0] = [str(FOLDER), str(TITAN)]  # of the process of a rank
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer

    example = importlib.import_module("torchtitan_images")
    mesh = init_device_mesh("cpu", (DATA, dist.get_world_size() // DATA), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(3 * 8 * 8, 16)
    fully_shard(model, mesh=mesh["dp"])
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
    optimisers = OptimizersContainer.Config(param_groups=[group], implementation="for-loop").build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=1).build(optimizers=optimisers, training_steps=10)
    config = example.ImageLoader.Config(dataset_path=str(url), size=8, num_workers=0)
    place = {"dp_rank": mesh.get_local_rank("dp"), "dp_world_size": DATA}
    loader = config.build(**place, local_batch_size=BATCH, seq_len=1, tokenizer=None, snapshot_every_n_steps=1)
    manager = CheckpointManager.Config(enable=True, interval=1, async_mode=async_mode, folder=async_mode).build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimisers,
        lr_schedulers=schedulers,
        states={},
        sd_adapter=None,
        base_folder=str(folder),
    )
    return loader, manager


def some(loader: Any, steps: int) -> list[list[int]]:
    """The labels of the next steps."""
    return [labels.tolist() for _, labels in itertools.islice(loader, steps)]


def save(url: Path, folder: Path, async_mode: str) -> tuple[list[list[int]], list[list[int]]]:
    """Save after some steps, and return the labels before and after that."""
    loader, manager = make(url, folder, async_mode)
    batches = iter(loader)
    before = some(batches, STEPS)
    assert manager.save(STEPS)
    manager.maybe_wait_for_staging()
    after = some(batches, 67 // (BATCH * DATA))
    manager.maybe_wait_for_saving()
    manager.close()
    return before, after


def load(url: Path, folder: Path, async_mode: str) -> list[list[int]]:
    """Load what was saved, and return the labels of as many steps as were made after that."""
    loader, manager = make(url, folder, async_mode)
    assert manager.load()
    manager.close()
    return some(iter(loader), 67 // (BATCH * DATA))


@pytest.mark.parametrize("async_mode", ["disabled", "async"])
def test_a_checkpoint_of_torchtitan_goes_on(dataset: Path, tmp_path: Path, async_mode: str) -> None:
    """Saved on 2 data-parallel ranks with 2 tensor-parallel ones each, and loaded without these: into the next epoch,
    each rank gets the batches that it would have got."""
    saved = launch(save, 2 * DATA, dataset, tmp_path, async_mode)
    assert saved[::2] == saved[1::2]
    before, after = zip(*saved[::2], strict=True)
    assert launch(load, DATA, dataset, tmp_path, async_mode) == list(after)
    seen = [*itertools.chain(*itertools.chain(*before))]
    assert len(set(seen)) == len(seen) == STEPS * BATCH * DATA
    assert torch.tensor(after).shape == (DATA, 67 // (BATCH * DATA), BATCH)
