"""Tuning."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow.diagnostics.loader_probe import LoaderProbe, Measurement
from shardflow.diagnostics.tuning import PREFETCH_FACTORS, Trial, _best, _bottleneck, tune
from shardflow.errors import ConfigError
from tests.diagnostics.test_bench import rest
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes loaders whose workers wait for most of the time, so that more of them are faster on any machine."""
    url = make_dataset(tmp_path_factory.mktemp("data") / "set", [30, 30])
    decoder = shardflow.decoders.RandomResizedCrop(32)
    return functools.partial(shardflow.Loader, url, batch_size=4, decoder=decoder, transform=rest)


def test_finds_what_is_faster_in_bounded_time(make_loader: Any) -> None:
    """Three waiting workers are faster than one; every setting was tried; the result fits a loader, and JSON."""
    begin = time.monotonic()
    tries: list[int] = []
    found = tune(make_loader, seconds=2.0, workers=(1, 3), progress=lambda: tries.append(1))
    assert time.monotonic() - begin < 60
    assert found.settings["num_workers"] == 3
    tried = {(trial.workers.count, trial.workers.prefetch_factor) for trial in found.trials}
    assert tried == {(1, 2), *((3, depth) for depth in PREFETCH_FACTORS)}
    assert found.best in found.trials
    assert len(tries) >= 5
    assert all(trial.shared_bytes > 0 and trial.first_batch_s > 0 for trial in found.trials)
    assert json.loads(json.dumps(found.to_json()))["settings"] == found.settings
    assert next(iter(make_loader(num_workers=shardflow.Workers(**found.settings))))


def test_no_measured_setting_is_faster(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine slows down between the two phases, the recommended setting is still a fast one."""
    measured = []

    def measure(probe: LoaderProbe, _seconds: float) -> Measurement:
        measured.append(probe.loader.num_workers)
        return Measurement(images=(80 if len(measured) <= 2 else 10) * measured[-1], wall_s=1.0)

    monkeypatch.setattr(LoaderProbe, "measure", measure)
    found = tune(make_loader, seconds=0.01, workers=(1, 3))  # each setting once, and the best of the first phase again
    assert measured == [1, 3, 3, *[3] * (len(PREFETCH_FACTORS) - 1)]
    assert found.best.images_per_s == max(trial.images_per_s for trial in found.trials) == 240
    assert found.settings == {"num_workers": 3, "prefetch_factor": 2}


def test_refuses_what_cannot_be_tried(make_loader: Any) -> None:
    """No time, and no or negative numbers of workers."""
    for arguments in ({"seconds": 0}, {"workers": ()}, {"workers": (0, 1)}):
        with pytest.raises(ConfigError):
            tune(make_loader, **arguments)


def trial(workers: int, depth: int, **counted: Any) -> Trial:
    """A trial of one second with these counts."""
    return Trial(shardflow.Workers(workers, prefetch_factor=depth), [Measurement(wall_s=1.0, **counted)], [0.1], 1)


def test_the_fewest_workers_of_the_fastest_win() -> None:
    """Within 3 % of the fastest, the fewest workers win, and then the least prefetching."""
    fastest, second = trial(4, 4, images=1000), trial(4, 2, images=971)
    assert _best([trial(2, 4, images=980), fastest, trial(8, 2, images=990)]).workers.count == 2
    assert _best([trial(2, 4, images=960), fastest, second]) == second


def test_bottlenecks_are_distinguished(make_loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy cores, a busy training process, other load, a network and a disk are distinguished by the counters."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    local = make_loader(num_workers=0)
    far = shardflow.Loader(f"local://{make_dataset(tmp_path / 'far', [8])}", batch_size=4, num_workers=0)
    shardflow.subset(tmp_path / "far", tmp_path / "some", limit=1)
    some = shardflow.Loader(tmp_path / "some", batch_size=1, num_workers=0)

    def bottleneck_of(loader: shardflow.Loader, **counted: float) -> str:
        return _bottleneck(trial(2, 2, images=100, **counted), loader, 4)[0]

    assert bottleneck_of(local, workers_cpu_s=3.9, machine_cpu_s=4.0) == "cores"
    assert bottleneck_of(local, own_cpu_s=0.95, workers_cpu_s=1.0, machine_cpu_s=2.0) == "training process"
    assert bottleneck_of(local, workers_cpu_s=1.0, machine_cpu_s=3.0) == "other processes"
    assert bottleneck_of(far, workers_cpu_s=1.0, machine_cpu_s=1.1) == "network"
    assert bottleneck_of(local, workers_cpu_s=1.0, machine_cpu_s=1.1, disk_bytes=10**6) == "disk"
    size = 100 * (tmp_path / "far/train/000000.tar").stat().st_size / 8
    assert bottleneck_of(some, workers_cpu_s=1.0, machine_cpu_s=1.1, disk_bytes=size) == "disk"
    assert bottleneck_of(local, workers_cpu_s=1.0, machine_cpu_s=1.1) == "not known"
