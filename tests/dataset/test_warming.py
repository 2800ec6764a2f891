from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardflow
from shardflow.dataset import warming as warm_module
from shardflow.dataset.warming import warm
from shardflow.errors import DeadlineError
from tests.helpers.making import make_dataset

STOPPED = """
import os, signal, sys
from shardflow.storage.cache import Cache

def fill(target):
    target.write_bytes(b"half")
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

Cache(sys.argv[1]).fetch(sys.argv[2], 1000, fill)
"""


def test_stalled_download_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a stopped process holds the lock of a shard, warming ends with an error that names the shard."""
    monkeypatch.setattr(warm_module, "STALL_TIMEOUT_S", 0.3)
    url = f"local://{make_dataset(tmp_path / 'set', [3, 2])}"
    dataset = shardflow.open(url, cache=tmp_path / "cache")
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "cache"), dataset.shards[1].sha256]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            with pytest.raises(DeadlineError, match=r"000001\.tar: another process downloads it, and its file has"):
                warm(dataset.values())
        finally:
            child.kill()
    warm(dataset.values())
