from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_an_interrupted_run_goes_on_with_other_ranks(dataset: Path, tmp_path: Path) -> None:
    """Stopped after 24 of 67 samples on 3 ranks and gone on with on 2, the rest of the epoch comes, less its tail."""
    options = ["--checkpoint", tmp_path / "run.pt", "--size", 16]
    first = run("train_ddp.py", dataset, *options, "--batch-size", 2, "--workers", 1, "--stop-after", 4, ranks=3)
    assert first.startswith("epoch 0: 24 samples, loss ")
    second = run("train_ddp.py", dataset, *options, "--batch-size", 3, "--workers", 2, ranks=2)
    assert [line.split(",")[0] for line in second.splitlines()] == ["epoch 0: 42 samples", "epoch 1: 66 samples"]
