from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardflow.diagnostics.system_report import describe_system
from shardflow.loading.run_metadata import describe_versions
from tests.helpers.command import COMMAND


def test_report_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report describes machine, system, memory, GPU, cache and S3 client."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    described = describe_system()
    assert all(described.values())
    assert f"of {os.cpu_count()}" in described["cores"]
    assert float(described["memory"].split()[0]) > 0.5
    assert described["cache"].startswith(f"{tmp_path}/not/there/shardflow, ")
    assert described["GPU"].startswith("none" if not torch.cuda.is_available() else torch.cuda.get_device_name(0))
    assert "botocore " in described["S3 client"]
    assert described.items() >= describe_versions().items()


def test_versions_need_no_torch() -> None:
    """Versions are read without importing torch."""
    code = "import sys\nfrom shardflow.loading.run_metadata import describe_versions\n"
    code += "describe_versions(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_packages_that_cannot_be_imported(tmp_path: Path) -> None:
    """A torch or torchvision whose import fails, as after half of an update, is in the report, and ends nothing."""
    for package in ("torch", "torchvision"):
        broken = 'raise RuntimeError("operator torchvision::nms does not exist")'
        (tmp_path / f"{package}.py").write_text(broken)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}  # a warm Python has imported them
    done = subprocess.run([*COMMAND, "info", "--system"], env=environment, capture_output=True, text=True)
    assert re.search(r"\ntorchvision .*, cannot be imported: operator torchvision::nms", done.stdout), done.stderr
    assert "\nGPU           torch, cannot be imported: operator" in done.stdout
    assert done.returncode == 0
