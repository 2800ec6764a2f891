"""Everything that a GPU can show, in ten minutes on a machine of 16 cores, without a package registry.

    python tools/bench gpu --output FOLDER
    python tools/bench gpu --output FOLDER --device cpu --tiny      that every phase runs, on any machine

Each phase is a process of its own with a time limit, and each result is appended to FOLDER/gpu.jsonl at once, so what
was measured is kept however the run ends. A phase that fails is a line with its reason; phases for which no time is
left are skipped.

    facts         versions, the machine, whether nvJPEG starts
    data          pictures, drawn or cut from --images, and the formats of the loaders
    tests         pytest -m cuda
    synthetic     ResNet-50 and ViT-B/16 on a batch that stays on the device, before and after the others
    fed           the same on what arrives: decoded in the workers, by DecodeJpeg, by DALI; then without training
    taken         batches of shardflow, webdataset, LitData, FFCV and DALI, with 1 to 16 workers
    trace         FOLDER/trace.json.gz, three steps of ResNet-50

Training is bfloat16 and channels_last, in batches of 256. Batches that were ready before a measurement are not in it.
The ends of epochs are in "taken", and in what DALI feeds; elsewhere epochs do not end. Prints tables at the end.

It runs in this interpreter with what is installed. shardflow needs webdataset and braceexpand beside PyTorch, and its
kernel, which is built if it is missing. To bring them to a machine without a registry: `pip download --no-deps`, then
there `pip install --no-index --no-deps --target SITE *.whl` and PYTHONPATH=SITE. LitData, FFCV and DALI have rows where
they are installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.environments import PROJECT
from bench.processes import FailedError, child
from bench.report import markdown

WAYS = (
    "kernel in the workers",
    "kernel in the workers, not pinned by the loader",
    "torchvision in the workers",
    "DecodeJpeg",
    "DALI",
)
WORKERS = (16, 8, 4, 2, 1, 12)  # in the order of their interest, if the time does not suffice for all
PEERS = {"shardflow": "kernel", "webdataset": "tensors", "litdata": "tensors", "ffcv": "uint8", "dali": "crop"}
"""Loaders of `bench.loaders`, with the variants that hand over the least: uint8, and DALI's normalised floats."""
READS = {"webdataset": "shardflow", "dali": "shardflow"}
"""Whose format a loader reads, if not its own."""
NEEDS = {"dali": "nvidia.dali", "DALI": "nvidia.dali"}
"""What has to be installed for a loader or a way, if not a package of its name."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A function of `bench.gpu.measure`, how long it may take, and a package that it needs."""

    name: str
    function: str
    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: str = ""


def phases(given: argparse.Namespace, data: Path) -> list[Phase]:
    """Return what is to be done, in order."""
    cores = os.cpu_count() or 1
    workers = 2 if given.tiny else min(16, cores)
    setting = {"data": str(data), "device": given.device, "tiny": given.tiny, "workers": workers}
    on = {"setting": setting}
    count, copies = (40, 2) if given.tiny else (4096, 8)
    drawn = {"folder": data / "pictures", "count": count, "copies": copies, "images": given.images}
    with_workers = (1, 2) if given.tiny else [number for number in WORKERS if number <= cores]
    seconds = 0.4 if given.tiny else 6.0

    def synthetic() -> list[Phase]:
        return [Phase("synthetic", "synthetic", 40, {**on, "model": model}) for model in ("ResNet-50", "ViT-B/16")]

    def fed(model: str, *ways: str) -> list[Phase]:
        arguments = [{**on, "model": model, "way": way} for way in ways]
        return [Phase("fed", "fed", 60, each, NEEDS.get(each["way"], "")) for each in arguments]

    def taken(peer: str) -> list[Phase]:
        loader = {"peer": peer, "variant": PEERS[peer], "reads": READS.get(peer, peer), "seconds": seconds}
        arguments = [{**on, **loader, "workers": number} for number in with_workers]
        return [Phase("taken", "taken", 30, each, NEEDS.get(peer, peer)) for each in arguments]

    def prepared(peer: str) -> Phase:
        return Phase("data", "prepare", 60, {**on, "peer": peer}, NEEDS.get(peer, peer))

    return [
        Phase("kernel", "kernel", 90),
        Phase("facts", "facts", 40, on),
        Phase("data", "pictures", 90, {**drawn, "processes": cores}),
        prepared("shardflow"),
        Phase("tests", "cuda_tests", 150, {"processes": min(4, cores)}),
        *synthetic(),
        *fed("ResNet-50", *WAYS),
        *fed("ViT-B/16", "kernel in the workers", "DecodeJpeg"),
        Phase(
            "trace", "trace", 60, {**on, "model": "ResNet-50", "way": WAYS[0], "path": given.output / "trace.json.gz"}
        ),
        *taken("shardflow"),
        *taken("webdataset"),
        *synthetic(),
        prepared("litdata"),
        *taken("litdata"),
        prepared("ffcv"),
        *taken("ffcv"),
        *taken("dali"),
    ]


class Record:
    """The lines of the results, each in the file as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun, self.lines = path, time.monotonic(), list[dict[str, Any]]()
        path.unlink(missing_ok=True)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._begun

    def add(self, phase: Phase, **values: Any) -> None:
        """Add a line, and print it."""
        values = {"phase": phase.name, "function": phase.function, "at_s": round(self.seconds(), 1), **values}
        self.lines.append(values)
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(json.dumps({name: value for name, value in values.items() if name != "output"}), flush=True)


def run(phase: Phase, record: Record, limit_s: float) -> None:
    """Run a phase, and record its results or why there are none."""
    about = {name: value for name, value in phase.arguments.items() if name in ("model", "way", "peer", "workers")}
    paths = os.pathsep.join(path for path in (str(PROJECT), os.environ.get("PYTHONPATH")) if path)
    left = limit_s - record.seconds()
    if left < 5:
        record.add(phase, **about, failed="skipped: no time left")
        return
    if phase.needs and not installed(phase.needs):
        record.add(phase, **about, failed=f"{phase.needs} is not installed")
        return
    begun = time.monotonic()
    options: dict[str, Any] = {"variables": [("PYTHONPATH", paths)], "timeout_s": min(phase.timeout_s, left)}
    try:
        with child(sys.executable, f"gpu.measure.{phase.function}", **options, **phase.arguments) as process:
            while True:
                try:
                    result = process.receive()
                except EOFError:
                    break
                record.add(phase, **{**about, **result, "seconds": round(time.monotonic() - begun, 1)})
                process.resume()
    except FailedError as error:
        record.add(phase, **about, failed=str(error), seconds=round(time.monotonic() - begun, 1))


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def report(lines: list[dict[str, Any]]) -> str:
    """Return the tables."""

    def median(quantity: str, **wanted: Any) -> float | None:
        found = [line[quantity] for line in lines if wanted.items() <= line.items() and quantity in line]
        return statistics.median(found) if found else None

    def text(value: float | None, form: str = "{:,.0f}") -> str:
        return "not measured" if value is None else form.format(value)

    whole = []
    for model, ways in {"ResNet-50": WAYS, "ViT-B/16": (WAYS[0], "DecodeJpeg")}.items():
        alone = median("images_per_s", phase="synthetic", model=model)
        whole.append(f"{model}: {text(alone)} images/s on a batch that stays on the device\n")
        rows = []
        for way in ways:
            fed = median("images_per_s", model=model, way=way, trained=True)
            delivered = median("images_per_s", model=model, way=way, trained=False)
            share = fed / alone if fed and alone else None
            memory = (median(name, model=model, way=way) for name in ("host_peak_bytes", "device_peak_bytes"))
            gigabytes = [text(value and value / 1e9, "{:.1f}") for value in memory]
            rows.append((way, text(delivered), text(fed), text(share, "{:.0%}"), *gigabytes))
        columns = ("decoding", "images/s to the device", "trained on", "of synthetic", "host GB", "device GB")
        whole.append(markdown(columns, rows))
    counts = sorted({line["workers"] for line in lines if line["phase"] == "taken"})
    rows = [(peer, *(text(median("images_per_s", peer=peer, workers=n)) for n in counts)) for peer in PEERS]
    whole.append("images/s taken from the loader, by workers or threads\n")
    whole.append(markdown(("loader", *map(str, counts)), rows))
    for line in lines:
        if "failed" in line:
            case = [str(line[name]) for name in ("phase", "model", "way", "peer", "workers") if name in line]
            whole.append(f"- {', '.join(case)}: {line['failed']}")
    return "\n".join(whole)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run all phases, and print the tables."""
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-gpu", help="folder of the results")
    parser.add_argument("--images", type=Path, help="folder of photographs to make the images from (default: drawn)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, images and counts")
    parser.add_argument("--only", metavar="PHASE", help="leave out other phases, but for facts and data")
    parser.add_argument("--minutes", type=float, default=9.5, help="after which the rest is skipped")
    given = parser.parse_args(arguments)
    given.output, given.images = given.output.resolve(), given.images and given.images.resolve()
    given.output.mkdir(parents=True, exist_ok=True)
    record = Record(given.output / "gpu.jsonl")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # with the tables
    data = Path(tempfile.mkdtemp(prefix="bench-gpu-"))
    try:
        for phase in phases(given, data):
            if given.only not in (None, phase.name) and phase.name not in ("kernel", "facts", "data"):
                continue
            slack = 4 if given.tiny else 1  # the limits are those of a large machine
            run(dataclasses.replace(phase, timeout_s=slack * phase.timeout_s), record, 60 * given.minutes)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        tables = report(record.lines)
        (given.output / "gpu.md").write_text(tables)
        print("\n" + tables)
