from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.making import make_dataset


def test_a_script_that_ends_in_an_epoch_says_nothing(tmp_path: Path) -> None:
    """An iteration whose thread is still at work when the interpreter exits, kept in a global, ends silently."""
    make_dataset(tmp_path / "set", [20, 20])
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import shardflow
from tests.helpers.delayed import DelayedSide
from shardflow.device import prefetcher
prefetcher.side_of = lambda device: DelayedSide()
loader = shardflow.Loader({str(tmp_path / "set")!r}, batch_size=4, num_workers=1)
batches = iter(shardflow.DevicePrefetcher(loader, "cpu"))
next(batches)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
