from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow.errors import ConfigError
from shardflow.loading.worker_settings import Workers
from tests.helpers.loading import run_script, until
from tests.helpers.making import make_dataset

OPTIONS = "batch_size=4, decoder=shardflow.decoders.CenterCrop(8)"


@pytest.mark.parametrize(
    "sources",
    [
        [
            f"shardflow.Loader(url, num_workers=0, {OPTIONS})",
            f"shardflow.Mix([(url, 1), (url, 2)], num_workers=0, {OPTIONS})",
        ],
        [
            f"shardflow.Loader(url, num_workers=1, {OPTIONS})",  # of more, torch warns where there is one core
            f"shardflow.Loader(f'local://{{url}}', num_workers=0, cache=cache, {OPTIONS})",
        ],
    ],
    ids=["alone and mix", "workers and cached"],
)
def test_a_script_that_ends_in_an_epoch_says_nothing(tmp_path: Path, sources: list[str]) -> None:
    """Iterations that are still under way when the interpreter exits, kept in a global, end silently."""
    make_dataset(tmp_path / "set", [20, 20])
    script = f"""
import shardflow
url, cache = {str(tmp_path / "set")!r}, {str(tmp_path / "cache")!r}
sources = [{", ".join(sources)}]
iterations = [iter(source) for source in sources]
print(len([next(batches) for batches in iterations]))
"""
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_an_iteration_without_batches_starts_no_worker(tmp_path: Path) -> None:
    """The state of an epoch's end makes an empty iteration, which starts nothing that has to be ended."""
    url = make_dataset(tmp_path / "set", [4])
    loader = shardflow.Loader(url, batch_size=4, num_workers=0)
    assert len([loader.state_dict() for _ in loader]) == 1
    states = [loader.state_dict() for _ in loader]
    resumed = shardflow.Loader(url, batch_size=4, num_workers=2)
    resumed.load_state_dict(states[0])
    assert (list(resumed), resumed._pool.pids(), resumed.epoch) == ([], [], 2)


def _interrupt_training(image: torch.Tensor) -> torch.Tensor:
    os.kill(os.getppid(), signal.SIGUSR1)
    time.sleep(60)  # until the worker is killed
    return image


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_wait_for_a_batch_ends_the_workers(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C or sys.exit in a signal handler the workers are gone, and their end raises nothing."""

    def interrupt(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # the wait for a worker's own end
    url, others = make_dataset(tmp_path / "set", [4]), {*multiprocessing.active_children()}
    workers = Workers(1, multiprocessing_context="fork")
    loader = shardflow.Loader(url, batch_size=4, num_workers=workers, transform=_interrupt_training)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(error):
            next(iter(loader))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert loader._pool.pids() == []
    assert until(lambda: {*multiprocessing.active_children()} <= others)  # SIGCHLD has arrived
    loader.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_factor": 0}, "prefetch_factor must be 1 or more"),
        ({"multiprocessing_context": "foo"}, "must be one of .*forkserver.*'foo'"),
        ({"num_workers": -1}, "num_workers must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_named(options: dict[str, Any], message: str) -> None:
    """A setting of the workers that is out of its range is an error that says what is allowed."""
    with pytest.raises(ConfigError, match=message):
        Workers(**{"num_workers": 1, **options})


@pytest.mark.parametrize("option", [{"persistent_workers": "yes"}, {"pin_memory": 1}, {"multiprocessing_context": 5}])
def test_odd_options_of_workers_are_named(option: dict[str, Any]) -> None:
    """An option that is neither a switch nor a way to start processes is a ConfigError, before workers start."""
    with pytest.raises(ConfigError, match=next(iter(option))):
        Workers(1, **option)
    assert Workers(1, multiprocessing_context=multiprocessing.get_context("spawn")).start_method == "spawn"
