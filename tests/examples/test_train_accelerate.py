from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from tests.helpers.loading import labels
from tests.helpers.scripts import run

pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's own


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """An accelerator of one process on the CPU; its state is global and is put back."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def make_loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of small crops."""
    return shardflow.Loader(url, decoder=shardflow.decoders.RandomResizedCrop(8), tail="short", **options)


def test_prepare_leaves_a_loader_alone(accelerator: Any, dataset: Path) -> None:
    """`accelerator.prepare` returns the loader and a mix as they are, whether or not they are given to it."""
    loader = make_loader(dataset, batch_size=8, num_workers=0)
    mix = shardflow.Mix([(loader, 1)])
    net = torch.nn.Linear(1, 1)
    _, prepared, prepared_mix = accelerator.prepare(net, loader, mix)
    assert prepared is loader
    assert prepared_mix is mix


def test_saved_state_goes_on_exactly(accelerator: Any, dataset: Path, tmp_path: Path) -> None:
    """A loader registered for checkpointing is saved mid-epoch by `save_state`, and `load_state` goes on from there."""
    loader = make_loader(dataset, batch_size=8, num_workers=2)
    accelerator.register_for_checkpointing(loader)
    expected = labels(make_loader(dataset, batch_size=8, num_workers=0))
    seen = labels(itertools.islice(loader, 3))
    accelerator.save_state(tmp_path / "state")
    labels(itertools.islice(loader, 2))
    accelerator.load_state(tmp_path / "state")
    assert seen + labels(loader) == expected


def test_an_interrupted_run_goes_on_with_other_ranks(dataset: Path, tmp_path: Path) -> None:
    """Stopped after 16 of 67 samples on 2 ranks and gone on with on 1, the rest of the epoch comes, less its tail, and
    every validation has its 37 samples on any number of ranks."""
    options = ["--folder", tmp_path / "run", "--size", 16, "--workers", 1]
    first = run("train_accelerate.py", dataset, *options, "--batch-size", 2, "--stop-after", 4, ranks=2)
    assert first == "epoch 0: 16 samples\n"
    second = run("train_accelerate.py", dataset, *options, "--batch-size", 4).splitlines()
    assert second[0::2] == ["epoch 0: 48 samples", "epoch 1: 64 samples"]
    assert [line.endswith(" of 37 samples") for line in second[1::2]] == [True, True]
