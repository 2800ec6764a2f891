from __future__ import annotations

import re
from pathlib import Path

import torch

from tests.helpers.scripts import run

TINY = ["--model", "shufflenet_v2_x0_5", "--size", 32, "--eval-size", 32, "--workers", 1, "--print-every", 2]


def test_an_interrupted_run_ends_as_one_that_was_not(dataset: Path, tmp_path: Path) -> None:
    """Stopped in mid-epoch and gone on with, weights, average and result are the same, wherever images are decoded."""
    options = [*TINY, "--batch-size", 16, "--epochs", 1, "--ema", 0.9]
    whole = run("train_imagenet.py", dataset, *options, "--checkpoint", tmp_path / "whole.pt")
    assert re.search(r"epoch 0 step 2: loss [\d.]+, \d+ images/s, [\d.]+% of the time waiting for data", whole)
    assert re.search(r"epoch 0: 64 images; [a-z ]+-bound: ", whole)
    assert re.search(r"epoch 0: top-1 [\d.]+% of 37 images", whole)
    halves = [*options, "--checkpoint", tmp_path / "halves.pt"]
    run("train_imagenet.py", dataset, *halves, "--stop-after", 2, "--decode", "device")
    second = run("train_imagenet.py", dataset, *halves)
    assert second.splitlines()[-1] == whole.splitlines()[-1]
    saved = [torch.load(tmp_path / name) for name in ("whole.pt", "halves.pt")]
    for part in ("model", "average", "optimiser"):
        torch.testing.assert_close(saved[0][part], saved[1][part], rtol=0, atol=0)
    assert saved[0]["loader"] == saved[1]["loader"]


def test_averaging_may_begin_later(dataset: Path, tmp_path: Path) -> None:
    """A checkpoint without an average is gone on with, and has one from then on."""
    options = [*TINY, "--batch-size", 16, "--epochs", 1, "--checkpoint", tmp_path / "run.pt"]
    run("train_imagenet.py", dataset, *options, "--stop-after", 2)
    assert "average" not in torch.load(tmp_path / "run.pt")
    run("train_imagenet.py", dataset, *options, "--ema", 0.9)
    assert "average" in torch.load(tmp_path / "run.pt")


def test_ranks_share_the_work(dataset: Path, tmp_path: Path) -> None:
    """Under torchrun, two ranks train on the epoch together and evaluate every sample once."""
    options = [*TINY, "--batch-size", 8, "--epochs", 1, "--checkpoint", tmp_path / "run.pt"]
    printed = run("train_imagenet.py", dataset, *options, ranks=2)
    assert "epoch 0: 64 images" in printed
    assert re.search(r"top-1 [\d.]+% of 37 images", printed)
