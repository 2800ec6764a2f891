"""The work of the phases, each in its own process: functions that return or yield results for JSON."""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
import torchvision
from torchvision.io import decode_jpeg
from torchvision.transforms import v2

import shardflow
from bench import pictures as drawing
from bench.environments import PROJECT
from bench.gpu import TEST_COUNTS
from bench.loaders import measure as loaders
from bench.loaders.peers import recipe
from bench.usage import PeakMemory, Stopwatch, hardware
from shardflow import decoders, native
from shardflow.interop.dali import write_dali_indexes

FIELDS = ("image", "label", "random_key")
CLASSES = 1000
ENDLESS = 10**8  # samples of an epoch that does not end within a measurement


@dataclass(frozen=True, slots=True)
class Setting:
    """What the measurements of a run have in common. Tiny ones show on any machine that everything runs."""

    data: str
    device: str
    tiny: bool
    workers: int

    @property
    def dataset(self) -> Path:
        """The packed dataset: a class per picture."""
        return Path(self.data, "shardflow", "packed")

    @property
    def size(self) -> int:
        """Height and width of the crops."""
        return 32 if self.tiny else 224

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return 8 if self.tiny else 256

    @property
    def steps(self) -> tuple[int, int]:
        """Steps that warm up, and steps that count."""
        return (1, 3) if self.tiny else (10, 80)

    @property
    def ready(self) -> int:
        """Batches that wait at most between the workers and the device, which a measurement must not begin with."""
        return 4 * self.workers + 4


def kernel() -> dict[str, Any]:
    """Build the native kernel in this checkout unless it is there."""
    if native.available():
        return {}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    subprocess.run(command, cwd=PROJECT, check=True)
    code = "from shardflow import native; assert native.available(), 'the kernel is not available'"
    subprocess.run([sys.executable, "-c", code], check=True)
    return {"built": True}


def facts(setting: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return versions and the machine, and then whether nvJPEG decodes here."""
    device = torch.device(setting["device"])
    found: dict[str, Any] = {
        "hardware": hardware(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "kernel": native.version(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").free,
    }
    if device.type == "cuda" and torch.cuda.is_available():
        of = torch.cuda.get_device_properties(device)
        found |= {"gpu": of.name, "gpu_bytes": of.total_memory, "cuda": torch.version.cuda}
        found["capability"] = f"{of.major}.{of.minor}"
    yield found
    if "gpu" in found:
        from tests.helpers.making import jpeg

        file = torch.frombuffer(bytearray(jpeg(1)), dtype=torch.uint8)
        begun = time.perf_counter()
        decode_jpeg([file] * 8, device=device)
        torch.cuda.synchronize()
        yield {"nvjpeg_starts_s": time.perf_counter() - begun}


def pictures(folder: str, count: int, copies: int, images: str | None, processes: int) -> dict[str, Any]:
    """Make pictures, each under several numbers: longer epochs without more drawing."""
    with ProcessPoolExecutor(processes) as pool:
        for future in [pool.submit(drawing.pictures, folder, count, images, n, processes) for n in range(processes)]:
            future.result()
    for path in sorted(Path(folder).rglob("*.jpg")):
        for copy in range(1, copies):
            os.link(path, path.with_name(f"{int(path.stem) + copy * count:06}.jpg"))
    return {"pictures": count, "samples": count * copies}


def prepare(setting: dict[str, Any], peer: str) -> dict[str, Any]:
    """Write the pictures in the format of a loader."""
    given = Setting(**setting)
    recipe.WORKERS = given.workers
    folder = Path(given.data, peer)
    folder.mkdir()
    # Every worker of webdataset needs its own shard.
    size = 20 if given.tiny and peer == "shardflow" else None
    loaders.prepare(peer, f"{given.data}/pictures", str(folder), size)
    return {}


class _Outcomes:
    """A plugin of pytest that counts outcomes."""

    def __init__(self) -> None:
        self.counts, self.failed = dict.fromkeys(TEST_COUNTS, 0), list[str]()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Count the tests, and name those that failed."""
        reports = {name: terminalreporter.stats.get(name, []) for name in TEST_COUNTS}
        self.counts = {name: len(of_it) for name, of_it in reports.items()}
        self.failed = [report.nodeid for report in reports["failed"] + reports["error"]]


def cuda_tests(processes: int) -> dict[str, Any]:
    """Run the tests that need a GPU; count them, and say what is wrong. Tracebacks are in the log."""
    import pytest

    os.chdir(PROJECT)
    command = ["-m", "cuda", "-q", "--tb=short", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    command += ["-n", str(processes), "--timeout=90", "tests/device/test_cuda.py"]
    outcomes = _Outcomes()
    code = pytest.main(command, plugins=[outcomes])
    found: dict[str, Any] = {"counts": outcomes.counts, "failed_tests": outcomes.failed}
    if code:
        found["failed"] = f"pytest ended with code {int(code)}; failed: {', '.join(outcomes.failed) or 'none'}"
    elif not outcomes.counts["passed"]:
        found["failed"] = "all tests were skipped"
    return found


def synthetic(setting: dict[str, Any], model: str) -> dict[str, Any]:
    """Train a model on one batch that stays on the device."""
    given = Setting(**setting)
    train = Training(model, given)
    images = torch.randn(given.batch_size, 3, given.size, given.size, device=given.device, dtype=torch.bfloat16)
    batch = images.to(memory_format=torch.channels_last), torch.arange(given.batch_size, device=given.device) % CLASSES
    seconds = timed(itertools.repeat(batch), train, given)
    return {"model": model, "images_per_s": given.batch_size / seconds}


def fed(setting: dict[str, Any], model: str, way: str) -> Iterator[dict[str, Any]]:
    """Train a model on what a way delivers, then take its batches only."""
    given = Setting(**setting)
    source = open_way(way, given)
    batches = itertools.chain.from_iterable(itertools.repeat(source))
    train = Training(model, given)
    with PeakMemory() as peak:  # it needs CPU time itself, so it does not run during what is measured
        for images, labels in itertools.islice(batches, given.steps[0]):
            train(images, labels)
        synchronize(given)
    found = {"trained": True, **rate(batches, train, given), "host_peak_bytes": peak.bytes}
    if given.device == "cuda":
        found["device_peak_bytes"] = torch.cuda.max_memory_reserved()
        # Page-locked memory is the driver's, and not among the pages of the processes.
        statistics = getattr(torch.cuda, "host_memory_stats", dict)()  # older versions of PyTorch have none
        if "allocated_bytes.peak" in statistics:
            found["pinned_peak_bytes"] = statistics["allocated_bytes.peak"]
    if isinstance(source, shardflow.device.Prefetcher):
        found["stats"] = str(source.stats())
    yield found
    yield {"trained": False, **rate(batches, lambda *_: None, given)}


def rate(batches: Iterator[Any], use: Callable[..., None], given: Setting) -> dict[str, float]:
    """Return images/s after the batches that were ready, and how many cores that took."""
    for _ in itertools.islice(batches, given.ready):
        pass
    stopwatch = Stopwatch()
    seconds = timed(batches, use, given)
    used = stopwatch.read()
    return {"images_per_s": given.batch_size / seconds, "cores": used.cpu_s / used.wall_s, "others": used.others}


def taken(setting: dict[str, Any], peer: str, variant: str, reads: str, workers: int, seconds: float) -> dict[str, Any]:
    """Take the batches of a loader as it hands them over, epoch after epoch, from the second half of the time on."""
    given = Setting(**setting)
    torch.set_num_threads(1)
    recipe.WORKERS, recipe.BATCH = workers, given.batch_size  # before the peer's module imports them
    begun = time.perf_counter()
    start = importlib.import_module(f"bench.loaders.peers.{peer}").open_loader(Path(given.data, reads), variant)
    batches = itertools.chain.from_iterable(start() for _ in itertools.count())
    first, _ = next(batches)
    loaders.check(first, keep_uint8=True)
    found = {"variant": variant, "first_batch_s": time.perf_counter() - begun}
    warm = Stopwatch()
    while warm.wall_s() < seconds / 2:
        next(batches)
    stopwatch, images = Stopwatch(), 0
    while stopwatch.wall_s() < seconds / 2:
        images += len(next(batches)[1])
    used = stopwatch.read()
    found |= {"images_per_s": images / used.wall_s, "cpu_ms_per_image": 1000 * used.cpu_s / images}
    return found | {"others": used.others}


def trace(setting: dict[str, Any], model: str, way: str, path: str) -> dict[str, Any]:
    """Write a trace of three steps, for chrome://tracing, and return the operations that took longest."""
    given = Setting(**setting)
    batches, train = iter(open_way(way, given)), Training(model, given)
    for images, labels in itertools.islice(batches, given.steps[0]):
        train(images, labels)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if given.device == "cuda":
        torch.cuda.synchronize()
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for images, labels in itertools.islice(batches, 3):
            train(images, labels)
        synchronize(given)
    profile.export_chrome_trace(path)
    sort = "self_cuda_time_total" if given.device == "cuda" else "self_cpu_time_total"
    return {"operations": profile.key_averages().table(sort_by=sort, row_limit=12, max_name_column_width=50)}


class Training:
    """Trains a model in bfloat16 and channels_last, as examples/train_imagenet.py does."""

    def __init__(self, model: str, given: Setting) -> None:
        torch.backends.cudnn.benchmark = True
        self._device = given.device
        if given.device == "cpu":
            torch.set_num_threads(1)  # the cores are the workers'
        made = MODELS[model](given).to(given.device, memory_format=torch.channels_last)
        self._model, self._optimiser = made, torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take a step."""
        with torch.autocast(self._device, torch.bfloat16):
            loss = F.cross_entropy(self._model(images), labels % CLASSES)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()


def _resnet(given: Setting) -> torch.nn.Module:
    if given.tiny:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 16, 16), torch.nn.Flatten(), torch.nn.Linear(8 * (given.size // 16) ** 2, CLASSES)
        )
    model: torch.nn.Module = torchvision.models.resnet50(num_classes=CLASSES)
    return model


def _vit(given: Setting) -> torch.nn.Module:
    layers, heads, width = (1, 2, 32) if given.tiny else (12, 12, 768)
    return torchvision.models.VisionTransformer(given.size, 16, layers, heads, width, 4 * width, num_classes=CLASSES)


MODELS: dict[str, Callable[[Setting], torch.nn.Module]] = {"ResNet-50": _resnet, "ViT-B/16": _vit}


def timed(batches: Iterator[Any], use: Callable[..., None], given: Setting) -> float:
    """Return the seconds of a step with the wait for its batch, after the steps that warm up."""
    for count in given.steps:
        begun = time.perf_counter()
        for _ in range(count):
            use(*next(batches))
        synchronize(given)
    return (time.perf_counter() - begun) / count


def synchronize(given: Setting) -> None:
    """Wait for a GPU."""
    if given.device == "cuda":
        torch.cuda.synchronize()


def open_way(name: str, given: Setting) -> Iterable[Any]:
    """Return an iterable of (images, labels): images are on the device, normalised, bfloat16 and channels_last."""
    crop = shardflow.decoders.RandomResizedCrop(given.size)
    if name == "DALI":
        return _Dali(given)
    unpinned = shardflow.Workers(given.workers, pin_memory=False)
    decoder, transforms, options = {
        "kernel in the workers": (crop, [], {}),
        "kernel in the workers, not pinned by the loader": (
            crop,
            [],
            {"num_workers": unpinned},
        ),
        "torchvision in the workers": (_torchvision_decoder(given.size), [], {}),
        "DecodeJpeg": (shardflow.decoders.Raw(), [_Strict(crop)], {}),
    }[name]
    if not native.available():
        raise RuntimeError("the native kernel is not available")
    options = {"num_workers": given.workers, "samples_per_epoch": ENDLESS, **options}
    loader = shardflow.Loader(given.dataset, batch_size=given.batch_size, decoder=decoder, fields=FIELDS, **options)
    transforms = [*transforms, shardflow.device.Normalize()]
    return shardflow.device.Prefetcher(loader, given.device, transforms, dtype=torch.bfloat16, channels_last=True)


class _Strict(shardflow.device.DecodeJpeg):
    """Refuses to be measured where nvJPEG does not decode."""

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        images = super().__call__(rows, device)
        if self.refused:
            raise RuntimeError("nvJPEG refused images: this would measure one CPU thread")
        return images


def _torchvision_decoder(size: int) -> Callable[..., Any]:
    """Return a decoder of torchvision's functions alone, one image after the other."""
    crop = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])

    class Decoder(decoders.Decoder):
        def decode(self, payloads: Any, crops: Any, out: Any) -> Any:  # noqa: ARG002
            out[:] = [
                crop(decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8))) for file in payloads.files
            ]
            return {}

    return Decoder()


class _Dali:
    """The pipeline of examples/train_dali.py; its epochs are those of the dataset."""

    def __init__(self, given: Setting) -> None:
        sys.path.insert(0, str(PROJECT / "examples"))
        from train_dali import batches_of

        indexes = Path(given.data, "dali-indexes")
        list(write_dali_indexes(shardflow.open(given.dataset), indexes))
        self._device, sizes = given.device, (given.size, given.batch_size, given.workers)
        self._batches = batches_of(given.dataset, indexes, *sizes, given.device == "cuda", auto_reset=True)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._batches:
            digits = batch["labels"].to(self._device, torch.int64) - ord("0")
            powers = 10 ** (digits >= 0).flip(1).cumsum(1).flip(1).sub(1).clamp(min=0)
            labels = torch.where(digits >= 0, digits * powers, 0).sum(1)
            yield batch["images"].to(self._device, torch.bfloat16, memory_format=torch.channels_last), labels
