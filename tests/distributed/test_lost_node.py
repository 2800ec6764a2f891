from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.loading import PROJECT, until
from tests.helpers.making import make_dataset
from tests.helpers.processes import end
from tests.helpers.training import SIZES, TOTAL
from tests.helpers.warm_python import python

DEADLINE_S = 250  # torchrun needs a minute on a calm machine

SETTINGS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
"""Without the first, a node that comes later waits in vain for an address that torchrun says only once."""


@pytest.fixture
def port() -> int:
    """A port of this machine that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def node(name: str, port: int, dataset: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start torchrun as one node of one or two; the node "first" has the rendezvous."""
    command = [python(), "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    command += ["--max-restarts", "9", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "run"]
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf"]
    command += [f"is_host={int(name == 'first')},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"]
    command += ["-m", "tests.helpers.elastic_trainee", str(dataset), str(folder)]
    environment = {**os.environ, **SETTINGS, "NODE": name, "PYTHON_EXEC": python()}
    with (folder / name).open("wb") as said:
        process = subprocess.Popen(command, env=environment, cwd=PROJECT, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
def test_a_node_is_lost_and_comes_back(tmp_path: Path, port: int) -> None:
    """One of two nodes is killed mid-epoch, with all its processes: the other goes on alone, and with a third one when
    that joins, each time from the last checkpoint. Together the epoch has each sample exactly once."""
    dataset = make_dataset(tmp_path / "set", SIZES)
    with node("first", port, dataset, tmp_path) as first:
        with node("lost", port, dataset, tmp_path) as lost:
            assert until((tmp_path / "lost.pids").exists, DEADLINE_S), (tmp_path / "lost").read_text()
        (tmp_path / "alone.pids").unlink(missing_ok=True)  # the first one may have begun without the other
        end(map(int, (tmp_path / "lost.pids").read_text().split()))
        assert lost.returncode == -signal.SIGKILL
        assert until((tmp_path / "alone.pids").exists, DEADLINE_S), (tmp_path / "first").read_text()
        with node("back", port, dataset, tmp_path) as back:
            assert back.wait(DEADLINE_S) == 0, (tmp_path / "back").read_text()
        assert first.wait(DEADLINE_S) == 0, (tmp_path / "first").read_text()
    runs: list[dict[str, int]] = []
    kept: list[tuple[int, list[int]]] = []
    for line in map(json.loads, (tmp_path / "log").read_text().splitlines()):
        if "begins" in line:
            runs.append(line)
            kept = [step for step in kept if step[0] <= line["begins"]]
        else:
            kept.append((line["position"], line["labels"]))
    # On a busy machine, torchrun may start the same nodes twice.
    starts = [(world, next(same)["begins"]) for world, same in itertools.groupby(runs, key=lambda run: run["world"])]
    assert [world for world, _ in starts[-3:]] == [2, 1, 2]
    _, (_, alone), (_, together) = starts[-3:]
    assert 0 < alone < together < TOTAL
    assert sorted(label for _, labels in kept for label in labels) == list(range(TOTAL))
