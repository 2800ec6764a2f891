"""The soak test: a dataset is streamed for many epochs through faults, and the resources of the processes are measured.

The training runs in its own process, so that server and proxy are not counted. A leak raises the floor: the minimum of
the last third of the samples is compared with the minimum of the first third.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import shardflow
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Fault, proxying
from tests.helpers.s3_server import Server
from tests.helpers.weather import Weather

SHARDS, SHARD_SAMPLES, CACHED_SHARDS = 24, 8, 8
TOLERANCES = {
    "descriptors": 3,
    "threads": 3,
    "main_bytes": 8 << 20,
    "workers_bytes": 8 << 20,
    "shm_bytes": 0,
    "cache_bytes": 64 << 10,
}
"""By how much each floor may rise over a soak of any length: allocators settle, and transfers overlap."""
_WIDTH = 11


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The resources of the training process and its workers after an epoch."""

    epoch: int
    seconds: float  # since the first
    descriptors: int
    threads: int
    main_bytes: int  # resident
    workers_bytes: int
    shm_bytes: int
    cache_bytes: int  # on the disk, also of files that have been deleted and are still open or mapped
    requests: int = 0
    faults: int = 0


def soak(
    server: Server, folder: Path, *, epochs: int, every: int, faults: Sequence[Fault], share: float, seed: int = 0
) -> Iterator[Sample]:
    """Run the training, and yield a sample every so many epochs.

    Raises:
        AssertionError: An epoch was not exact, or the cache exceeded its limit.
    """
    local = make_dataset(folder / "set", [SHARD_SAMPLES] * SHARDS)
    url = server.put(f"soak-{os.getpid()}-{time.time_ns()}", local)
    context = multiprocessing.get_context("spawn")
    with proxying(server.endpoint) as proxy:
        weather = Weather(faults, share, seed)
        proxy.rules.append(weather)
        far, said = context.Pipe(duplex=False)
        arguments = (local, url, server.options(proxy.endpoint), folder / "cache", epochs, every, said)
        child = context.Process(target=_train, args=arguments)
        child.start()
        said.close()
        try:
            with contextlib.suppress(EOFError):
                while True:
                    sample = far.recv()
                    proxy.log.clear()
                    yield Sample(**sample, requests=weather.seen, faults=weather.struck)
            child.join(30)
            assert child.exitcode == 0, "the training failed"
        finally:
            child.kill()
            child.join()
            far.close()


def growth(samples: Sequence[Sample]) -> dict[str, int]:
    """Return by how much the floor of each figure has risen."""
    third = max(1, len(samples) // 3)
    return {
        name: min(getattr(sample, name) for sample in samples[-third:])
        - min(getattr(sample, name) for sample in samples[:third])
        for name in TOLERANCES
    }


def leaks(samples: Sequence[Sample]) -> dict[str, int]:
    """Return the figures that have risen by more than is tolerated."""
    return {name: rise for name, rise in growth(samples).items() if rise > TOLERANCES[name]}


def _train(local: Path, url: str, options: dict[str, Any], cache_dir: Path, epochs: int, every: int, said: Any) -> None:
    limit = CACHED_SHARDS * max(path.stat().st_size for path in local.glob("train/*.tar"))
    shuffle = shardflow.Shuffle(window=8, lanes=2)
    common: dict[str, Any] = {"batch_size": 8, "shuffle": shuffle, "decoder": shardflow.CenterCropDecoder(64)}
    far = shardflow.Loader(
        url, storage_options=options, cache=shardflow.Cache(cache_dir, limit), num_workers=2, **common
    )
    near = shardflow.Loader(local, num_workers=0, **common)
    began = time.monotonic()
    for epoch in range(1, epochs + 1):
        labels: list[int] = []
        for (images, numbers), (expected, _) in zip(far, near, strict=True):
            assert torch.equal(images, expected), f"epoch {epoch}: other pixels"
            labels += numbers.tolist()
        del images
        assert sorted(labels) == list(range(SHARDS * SHARD_SAMPLES)), f"epoch {epoch}: not each sample once"
        on_disk = sum(path.stat().st_size for path in cache_dir.glob("blobs/*"))
        assert on_disk <= limit, f"epoch {epoch}: {on_disk} bytes in a cache of {limit}"
        if epoch % every == 0:
            said.send({"epoch": epoch, "seconds": time.monotonic() - began, **_measured(cache_dir)})


def _measured(cache_dir: Path) -> dict[str, int]:
    """Return the resources of this process and its children."""
    workers = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    everybody = [str(os.getpid()), *workers]
    return {
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in everybody),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in everybody),
        "main_bytes": _resident_bytes(everybody[0]),
        "workers_bytes": sum(map(_resident_bytes, workers)),
        "shm_bytes": sum(_held(everybody, "/dev/shm/").values()),
        "cache_bytes": sum({**_held(everybody, f"{cache_dir}/"), **_listed(cache_dir)}.values()),
    }


def _resident_bytes(pid: str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held(pids: Sequence[str], folder: str) -> dict[int, int]:
    """Return the sizes of all files of a folder, deleted ones too, that processes have open or mapped, by inode."""
    held: dict[int, int] = {}
    for pid in pids:
        for entry in [*Path(f"/proc/{pid}/fd").iterdir(), *Path(f"/proc/{pid}/map_files").iterdir()]:
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(entry).startswith(folder):
                    status = entry.stat()
                    held[status.st_ino] = status.st_size
    return held


def _listed(folder: Path) -> dict[int, int]:
    listed: dict[int, int] = {}
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            listed[status.st_ino] = status.st_size
    return listed


def row(sample: Sample) -> str:
    """Return a sample as a line of a table."""
    return " | ".join(f"{_shown(name, value):>{_WIDTH}}" for name, value in asdict(sample).items())


def header() -> str:
    """Return the heading of the table."""
    return " | ".join(f"{name.replace('_bytes', ' kB'):>{_WIDTH}}" for name in Sample.__dataclass_fields__)


def _shown(name: str, value: float) -> str:
    return f"{value / 1000:,.0f}" if name.endswith("_bytes") else f"{value:,.0f}"
