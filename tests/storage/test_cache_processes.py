from __future__ import annotations

import subprocess
import sys

from tests.helpers.examples import some_of


def test_processes_share_a_cache_whatever_happens_to_them() -> None:
    """While processes that share a cache are killed and stopped, and its files are damaged, deleted and made unusable,
    all others read the right bytes without an error and get on; nothing is left behind."""
    command = [sys.executable, "-m", "tests.helpers.cache_processes", "--seconds", str(some_of(36)), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "the longest operation took" in done.stdout
