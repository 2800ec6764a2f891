from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import shardflow
from tests.helpers.making import flip, make_dataset
from tests.helpers.training import SIZES, TOTAL
from tests.helpers.warm_python import python

PROJECT = Path(__file__).parents[2]


def torchrun(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the trainee on that many ranks."""
    command = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--monitor-interval", "0.1", "-m", "tests.helpers.trainee", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python()}  # torchrun's
    return subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=80)


def test_a_killed_rank_costs_no_sample(tmp_path: Path) -> None:
    """A rank of three is killed with SIGKILL mid-epoch and the run restarted on the two that are left: up to the last
    checkpoint and from it on, every epoch has each sample exactly once."""
    dataset = make_dataset(tmp_path / "set", SIZES)
    killed = torchrun(3, dataset, tmp_path, 0)
    assert killed.returncode
    assert "Signal 9 (SIGKILL)" in killed.stderr
    restarted = torchrun(2, dataset, tmp_path, 1)
    assert restarted.returncode == 0, restarted.stderr
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    first, second = ([line for line in log if line["attempt"] == attempt] for attempt in (0, 1))
    # Three ranks with batches of 2 stand at 6, 12, ... after their steps; saved was 18, killed at 30, and two go on.
    assert max((line["epoch"], line["position"]) for line in first) == (1, 30)
    assert min((line["epoch"], line["position"]) for line in second) == (1, 22)
    kept = [line for line in first if (line["epoch"], line["position"]) <= (1, 18)]
    for epoch in range(2):
        labels = [label for line in kept + second if line["epoch"] == epoch for label in line["labels"]]
        assert sorted(labels) == list(range(TOTAL))


CAUSES = {
    "sample": r"shardflow\.errors\.\w+: .*000002\.tar.*sample 000000030",
    "shard": r"shardflow\.errors\.\w+: .*000002\.tar",
    "worker": r"shardflow\.errors\.WorkerError: .*pid.* \d+",
}
"""What the error names when a sample is damaged, a shard gone, or a worker killed."""


@pytest.mark.parametrize("cause", CAUSES)
def test_a_failed_rank_ends_the_others_with_its_error(tmp_path: Path, cause: str) -> None:
    """One of four ranks that fails ends the run at once, not at the time-out of a collective half an hour later; its
    error names the rank, and is the root cause in torchrun's summary."""
    dataset = make_dataset(tmp_path / "set", SIZES)
    shard, payload = dataset / "train/000002.tar", shardflow.open(dataset)["train"][30]["jpg"]
    if cause == "sample":
        flip(shard, shard.read_bytes().index(payload) + len(payload) // 2)
    elif cause == "shard":
        shard.unlink()
    failed = torchrun(4, dataset, tmp_path, 2 if cause == "worker" else 1)
    assert failed.returncode == 1
    assert re.search(rf"\[rank\d\]: {CAUSES[cause]}", failed.stderr), failed.stderr
    _, _, root = failed.stderr.partition("Root Cause")
    assert re.search(CAUSES[cause], root), root
