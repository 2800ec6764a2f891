"""The benchmark of a loader: its figures must match a loader whose cost is known."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import shardflow
from shardflow.diagnostics.bench import STEPS, BenchReport, bench
from shardflow.diagnostics.chart import COLOURS
from shardflow.diagnostics.decode_baseline import DecodeBaseline, payloads
from shardflow.diagnostics.loader_probe import LoaderProbe, Measurement
from shardflow.errors import ConfigError, DeadlineError
from shardflow.geometry.crops import Crops
from shardflow.loading.source import EpochStart
from shardflow.loading.stage_times import STAGES, stage_cpu_ms
from tests.helpers.folders import encoded
from tests.helpers.making import jpeg, make_dataset, write_dataset

BURNT_S = 0.004


def burn(image: torch.Tensor) -> torch.Tensor:
    """A transform that takes a known CPU time."""
    begin = time.thread_time()
    while time.thread_time() - begin < BURNT_S:
        pass
    return image


def rest(image: torch.Tensor) -> torch.Tensor:
    """A transform that waits as long without CPU time."""
    time.sleep(BURNT_S)
    return image


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [30, 30])


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of small crops."""
    decoder = shardflow.decoders.RandomResizedCrop(32)
    return shardflow.Loader(url, **{"batch_size": 4, "num_workers": 1, "decoder": decoder, **options})


def test_stages_cost_what_they_compute(url: Path) -> None:
    """A transform that computes for 4 ms counts as "augment", and one that waits does not."""

    def measured(**options: Any) -> dict[str, float]:
        begun = loader(url, num_workers=0, **options)
        next(iter(begun))
        return begun.profile(0.3)

    burning = measured(transform=burn)
    assert tuple(burning) == STAGES
    assert burning["augment"] == pytest.approx(1000 * BURNT_S, rel=0.2)
    assert max(burning["decode"], burning["collate"]) < burning["augment"] / 4
    assert measured(transform=rest)["augment"] < 1000 * BURNT_S / 4
    assert measured()["augment"] == 0


class CountingCrops(Crops):
    """A crop whose clock ticks with each mask that follows it."""

    ticks = 0

    def crop_mask(self, index: int, mask: Any) -> Any:
        """Return the crop of a mask."""
        CountingCrops.ticks += 1
        return super().crop_mask(index, mask)


class CountMasks(shardflow.decoders.RandomResizedCrop):
    """Crops that count the masks that follow them."""

    def plan(self, *arguments: Any) -> CountingCrops:
        """Return such crops."""
        crops = super().plan(*arguments)
        return CountingCrops(**{field.name: getattr(crops, field.name) for field in dataclasses.fields(Crops)})


def test_every_stage_is_timed(tmp_path: Path) -> None:
    """A loader with every option has no stage but those that are timed, and each is charged with its own work alone."""
    mask = encoded(Image.new("L", (40, 30)), "PNG")
    samples = [(f"{number}", {"jpg": jpeg(number, 40, 30), "mask.png": mask}) for number in range(12)]
    url = write_dataset(
        tmp_path / "set", {"train": [samples]}, annotations=shardflow.annotations.Annotations(masks=("mask.png",))
    )
    fullest = loader(
        url, num_workers=0, transform=lambda sample: sample, decoder=CountMasks(16), fields=("image", "mask")
    )
    _, *rest_of, _, _ = fullest._pipeline.pipeline
    assert ("plan", *(type(stage).__name__.lower() for stage in rest_of)) == STAGES
    assert {*STAGES} <= {*COLOURS}
    assert set(fullest.profile(0.1)) == set(STAGES)
    fullest._control.begin(0, len(fullest), [EpochStart(0, 0, 1)])
    ticks = stage_cpu_ms(fullest._pipeline, 0.1, clock=lambda: float(CountingCrops.ticks))
    assert ticks == dict.fromkeys(STAGES, 0.0) | {"annotate": 1000.0}  # a mask per image


def test_workers_are_counted_and_ended(url: Path) -> None:
    """The CPU time of workers is measured, their waiting is not, and no worker is left."""
    before = {*multiprocessing.active_children()}
    for transform, least, most in ((burn, 0.9 * BURNT_S, 3 * BURNT_S), (rest, 0, BURNT_S / 2)):
        with LoaderProbe(loader(url, transform=transform)) as probe:
            measured = probe.measure(0.5)
        assert probe.batch_bytes == 4 * (3 * 32 * 32 + 8)
        assert probe.first_batch_s > 0
        assert measured.wall_s >= 0.5
        assert least <= measured.workers_cpu_s / measured.images <= most
        assert measured.images_per_s <= 1.5 / BURNT_S
    assert {*multiprocessing.active_children()} <= before


def test_baseline_is_what_processes_decode(url: Path) -> None:
    """Two processes decode the split's images for the time asked for; a dead one is an error, not a hang."""
    encoded = payloads(shardflow.open(url)["train"])
    assert len(encoded) == len(set(encoded)) == 60
    with DecodeBaseline(encoded, shardflow.decoders.RandomResizedCrop(32), 2) as baseline:
        measured = baseline.measure(0.3)
        assert 0.3 <= measured.wall_s < 5
        assert 0 < measured.cpu_s <= 2.2 * measured.wall_s
        assert measured.images > 100
        baseline._processes[0].kill()
        with pytest.raises(DeadlineError, match="memory"):
            baseline.measure(0.1)


def test_baseline_ends_with_the_process_that_measures(url: Path) -> None:
    """When the process that measures is killed, the decoding processes end with it."""
    encoded, (ours, theirs) = payloads(shardflow.open(url)["train"]), multiprocessing.Pipe()

    def measuring() -> None:
        with DecodeBaseline(encoded, shardflow.decoders.RandomResizedCrop(32), 2) as baseline:
            theirs.send([process.pid for process in baseline._processes])
            time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=measuring)
    process.start()
    assert ours.poll(30)
    decoding = ours.recv()
    process.kill()
    process.join()
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in decoding if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)  # or a failure would leave them
    assert len(decoding) == 2
    assert not alive


def test_bench_adds_up(url: Path) -> None:
    """Shares add up to 1, the transform has the largest, and the verdict follows from the step."""
    progress: list[int] = []
    report = bench(loader(url, transform=burn), seconds=1.5, step_ms=1, progress=lambda: progress.append(1))
    shares = report.shares()
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert max((name for name in shares if name != "wait"), key=lambda name: shares[name]) == "augment"
    assert report.share_of_baseline < 0.5
    assert report.fed is False
    assert (report.wait_share or 0) > 0.5
    assert report.image_bytes > 1000
    assert len(progress) == STEPS


def test_bench_refuses_what_it_cannot_measure(url: Path, tmp_path: Path) -> None:
    """A duration of 0, a loader without images, and one that caches decoded images are refused."""
    with pytest.raises(ConfigError, match="seconds"):
        bench(loader(url), seconds=0)
    with pytest.raises(ConfigError, match="step_ms"):
        bench(loader(url), step_ms=-1)
    with pytest.raises(ConfigError, match="no images"):
        bench(loader(url, fields=("label",)))
    with pytest.raises(ConfigError, match=r"without Cache\(pixels"):
        bench(loader(url, cache=shardflow.Cache(tmp_path, pixels="1GB")))


def report_of(**changes: Any) -> BenchReport:
    """A report of round figures: 1,000 images/s by two workers on two cores that compute half of the time."""
    loader = Measurement(images=1000, wall_s=1.0, own_cpu_s=0.1, workers_cpu_s=1.0)
    known = {"batch_size": 50, "workers": 2, "cores": 2, "loader": loader, "first_batch_s": 0.5, "image_bytes": 3e4}
    baseline = Measurement(images=2000, wall_s=1.0, workers_cpu_s=2.0)
    stages = {"plan": 0.0, "read": 0.1, "decode": 0.7, "augment": 0.0, "collate": 0.0}
    return BenchReport(**{**known, "baseline": baseline, "stage_cpu_ms": stages, **changes})


def test_arithmetic() -> None:
    """Shares, verdict and disturbance of known figures."""
    report = report_of(step_ms=40.0)
    assert (report.batch_ms, report.share_of_baseline) == (pytest.approx(50), pytest.approx(0.5))
    assert (report.fed, report.wait_share) == (False, pytest.approx(0.2))
    expected = {"wait": 0.5, "plan": 0, "read": 0.05, "decode": 0.35, "augment": 0, "collate": 0, "transfer": 0.1}
    assert report.shares() == pytest.approx(expected)
    assert (report_of().fed, report_of().wait_share) == (None, None)
    assert report_of(step_ms=60.0).fed is True
    assert not report.disturbed
    assert report_of(baseline=Measurement(images=2000, wall_s=1.0, workers_cpu_s=1.5)).disturbed
    busy = Measurement(images=1000, wall_s=1.0, own_cpu_s=0.9)
    alone = report_of(workers=0, loader=busy, stage_cpu_ms={"decode": 2.0})
    assert alone.shares() == pytest.approx({"wait": 0.1, "decode": 0.9, "transfer": 0})
