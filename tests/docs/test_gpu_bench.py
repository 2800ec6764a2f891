"""`tools/bench gpu`, which docs/performance.md describes: that it is complete, and that it ends."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.pages import PROJECT

REASONS = (" is not installed", "all tests were skipped")  # why a line may have no figures on this machine


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, as a module; its processes import nothing in advance."""
    monkeypatch.syspath_prepend(PROJECT / "tools")
    import bench.gpu
    import bench.gpu.phase

    monkeypatch.setattr(bench.gpu.phase, "_PRELOADED", [])
    return bench.gpu  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
def test_every_phase_runs_on_any_machine(tmp_path: Path) -> None:
    """With tiny models on the CPU each phase has a result, and the tables are printed."""
    command = [sys.executable, "tools/bench", "gpu", "--tiny", "--device", "cpu", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = json.loads((tmp_path / "gpu.json").read_bytes())["lines"]
    wrong = [line for line in lines if not line.get("failed", REASONS[0]).endswith(REASONS)]
    assert not wrong, (tmp_path / "gpu.log").read_text()
    measured = {(line["phase"], line.get("trained")) for line in lines if "images_per_s" in line}
    assert measured == {("synthetic", None), ("fed", True), ("fed", False), ("taken", None)}
    assert all(line["images_per_s"] > 0 for line in lines if "images_per_s" in line)
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    tables = (tmp_path / "gpu.md").read_text()
    assert tables in done.stdout


def test_shares_are_of_the_synthetic_rate(bench: ModuleType) -> None:
    """A share is what a model trains on, of the median of its rates without a loader; what failed is named once."""
    fed = {"phase": "fed", "function": "fed", "model": "ResNet-50", "way": "DecodeJpeg"}
    lines = [
        *({"phase": "synthetic", "model": "ResNet-50", "images_per_s": rate} for rate in (1900, 2100)),
        {"phase": "synthetic", "model": "ViT-B/16", "images_per_s": 10},
        {**fed, "trained": True, "images_per_s": 1500, "host_peak_bytes": 3.1e9},
        {**fed, "trained": False, "images_per_s": 12345},
        *({"phase": "taken", "function": "taken", "peer": "ffcv", "workers": n, "failed": "absent"} for n in (1, 2)),
    ]
    tables = bench.report(lines)
    assert "| DecodeJpeg | 12,345 | 1,500 | 75% | 3.1 | not measured | not measured |" in tables
    assert "- absent: taken, ffcv, 1; taken, ffcv, 2" in tables


PHASES = """
import os, subprocess, time

def sleeper(pids):
    with open(pids, "a") as file:
        print(subprocess.Popen(["sleep", "100"]).pid, file=file)

def hangs(pids):
    sleeper(pids)
    time.sleep(100)

def dies(pids):
    os.abort()

def raises(pids):
    raise ValueError("a | b")

def leaves(pids):
    subprocess.run(["sh", "-c", f"sleep 100 & echo $! >> {pids}"])
    yield {"number": 1}
    yield {"number": 2}
"""


def runs(pid: str) -> bool:
    """Return whether a process is there, and not dead and waited for."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_phases_end(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase that hangs, dies or raises is a line with the reason, nothing outlives it, and the next one runs."""
    (tmp_path / "phases_of_a_test.py").write_text(PHASES)
    monkeypatch.syspath_prepend(tmp_path)
    pids, record = tmp_path / "pids", bench.Record(tmp_path)
    for name, timeout_s, limit_s in (
        ("dies", 60, 100),
        ("hangs", 2, 100),
        ("raises", 60, 100),
        ("leaves", 60, 100),
        ("leaves", 60, 1),
    ):
        phase = bench.Phase("test", f"phases_of_a_test.{name}", timeout_s, {"pids": str(pids)})
        bench.run(phase, record, record.seconds() + limit_s)
    assert [line.get("failed", line.get("number")) for line in record.lines] == [
        "the process ended with code -6",
        "not done after 2 s",
        "ValueError: a / b",
        1,
        2,
        "skipped: no time left",
    ]
    assert json.loads((tmp_path / "gpu.json").read_bytes())["lines"] == record.lines
    deadline = time.monotonic() + 10
    for pid in pids.read_text().split():
        while runs(pid):
            assert time.monotonic() < deadline, "a process outlives its phase"
            time.sleep(0.02)
