"""What every test relies on."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from shardflow.storage.cache_eviction import spare_bytes
from tests.helpers.examples import LONG
from tests.helpers.huge_pages import collapse
from tests.helpers.warm_python import warm_fork_server

# Before torch is imported, here and in what tests start: threads that wait for each other take the cores of the other
# processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until the tests are collected: what they import stays
sys.path.insert(0, str(Path(__file__).parents[1]))  # for what tests start as scripts

pytest_plugins = ["tests.helpers.run_guard", "tests.helpers.s3_fixtures", "tests.helpers.store_fixtures"]

settings.register_profile("long", deadline=None, max_examples=LONG)  # no test asserts a time
settings.register_profile("tests", deadline=None, max_examples=LONG // 10)
settings.register_profile("short", deadline=None, max_examples=LONG // 20)
settings.load_profile("tests")

# Ranks, and workers where Python does not fork them (3.14), come from a server that has imported all this once.
warm_fork_server()
multiprocessing.set_forkserver_preload(["torch.distributed", "torchvision", "webdataset", "shardflow.loading.loader"])

_LONG = ("docs/", "examples/", "trainers/", "native/test_sanitizers.py", "packing/test_crashes.py", "s3/test_soak.py")
_LONG += ("order/test_shuffle_plan_processes.py", "packing/executors/test_ray.py", "packing/test_interleavings.py")
_LONG += ("distributed/", "demo/", "test_limits.py", "test_run_guard.py", "s3/test_packing.py", "s3/test_training.py")
_LONG += ("native/test_fuzzing.py", "loading/test_captions.py", "loading/test_signals.py", "packing/test_kills.py")
_LONG += ("storage/test_cache_processes.py", "storage/test_cache_schedules.py", "dataset/test_intake_limits.py")
_LONG += ("packing/test_hostile.py", "packing/executors/test_executors.py", "loading/test_worker_pool.py")
_LONG += ("stores/test_datasets.py", "device/test_rng.py", "cli/test_demo.py", "cli/test_bench.py", "diagnostics/")
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


_MANY_MODULES = 200
_frozen_modules = 0


def pytest_collection_finish() -> None:
    """Take what the tests imported out of the collector's sight, and its loggers out of pytest's."""
    _freeze()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True  # or pytest would attach itself to each of torch's 58, three times a test
    gc.enable()
    atexit.register(gc.unfreeze)  # the interpreter ends as usual, after pytest's own collections


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do so again after a file that imported much more."""
    if nextitem is not None and nextitem.path != item.path and len(sys.modules) > _frozen_modules + _MANY_MODULES:
        gc.collect()
        _freeze()


def _freeze() -> None:
    # With the libraries of all examples and trainers in memory, each of the hundreds of collections that tests ask for,
    # and each that Python makes by itself, would take a second, and in workers that are forked copy their memory.
    global _frozen_modules
    gc.freeze()
    collapse()
    _frozen_modules = len(sys.modules)
