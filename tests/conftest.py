"""What every test relies on."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from shardflow.storage.cache_eviction import spare_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what tests start as scripts

pytest_plugins = ["tests.helpers.run_guard", "tests.helpers.s3_fixtures", "tests.helpers.store_fixtures"]

settings.register_profile("tests", deadline=None)  # no test asserts a time
settings.load_profile("tests")

# Ranks, and workers where Python does not fork them (3.14), come from a server that has imported all this once.
multiprocessing.set_forkserver_preload(["torch.distributed", "torchvision", "webdataset", "shardflow.loading.loader"])

_LONG = ("docs/", "examples/", "trainers/", "native/test_sanitizers.py", "packing/test_crashes.py", "s3/test_soak.py")
_LONG += ("order/test_shuffle_plan_processes.py", "packing/executors/test_ray.py", "packing/test_interleavings.py")
_LONG += ("distributed/", "demo/", "test_limits.py", "test_run_guard.py", "s3/test_packing.py")
"""Files of few and long tests. They come first, or one process would end with them while the others are idle."""

_NEEDED_BYTES = 3 * 10**9  # what the tests of a whole run may have on the disk at once


def pytest_configure() -> None:
    """Refuse a disk on which the tests of the cache would fail: near its end, a cache leaves it alone."""
    there = tempfile.gettempdir()
    missing = _NEEDED_BYTES - spare_bytes(Path(there))
    if missing > 0:
        raise pytest.UsageError(f"{there} needs {missing / 1e9:.1f} GB more of free space for the tests; or set TMPDIR")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files of long tests first, then those of many tests, for `--no-loadscope-reorder`."""
    root = Path(__file__).parent
    many = Counter(item.path for item in items)

    def rank(item: pytest.Item) -> tuple[bool, int]:
        return not item.path.relative_to(root).as_posix().startswith(_LONG), -many[item.path]

    items.sort(key=rank)
