"""What every test relies on."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from shardflow.storage.cache_eviction import spare_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what tests start as scripts

settings.register_profile("tests", deadline=None)  # no test asserts a time
settings.load_profile("tests")

# Ranks, and workers where Python does not fork them (3.14), come from a server that has imported all this once.
multiprocessing.set_forkserver_preload(["torch.distributed", "torchvision", "webdataset", "shardflow.loading.loader"])

_NEEDED_BYTES = 3 * 10**9  # what the tests of a whole run may have on the disk at once


def pytest_configure() -> None:
    """Refuse a disk on which the tests of the cache would fail: near its end, a cache leaves it alone."""
    there = tempfile.gettempdir()
    missing = _NEEDED_BYTES - spare_bytes(Path(there))
    if missing > 0:
        raise pytest.UsageError(f"{there} needs {missing / 1e9:.1f} GB more of free space for the tests; or set TMPDIR")
