"""Everything that a GPU can show, in ten minutes on a machine of 16 cores, without a package registry.

    python3 tools/bench gpu --output FOLDER
    python3 tools/bench gpu --output FOLDER --device cpu --tiny     that every phase runs, on any machine

Each phase is a process with a time limit. FOLDER/gpu.json and FOLDER/gpu.md, its tables,
are written after each of them, so that what was measured is kept however the run ends. A phase that fails is a line
with its reason, and FOLDER/gpu.log has what it printed; phases for which no time is left are skipped.

    facts         versions, the machine, whether nvJPEG starts
    data          pictures, drawn or cut from --images, and the formats of the loaders
    tests         pytest -m cuda
    synthetic     ResNet-50 and ViT-B/16 on a batch that stays on the device, before and after the others
    fed           the same on what arrives: decoded in the workers, by DecodeJpeg, by DALI; then without training
    trace         FOLDER/trace.json.gz, three steps of ResNet-50
    taken         batches of shardflow, webdataset, LitData, FFCV and DALI, with 1 to 16 workers

Training is bfloat16 and channels_last, in batches of 256. Batches that were ready before a measurement are not in it.
The ends of epochs are in "taken", and in what DALI feeds; elsewhere epochs do not end.

It runs in this interpreter: CUDA builds of PyTorch and torchvision, numpy, pillow, click, fsspec, tqdm, and pytest with
xdist and timeout. It needs 10 GB in /tmp and 8 GB in /dev/shm. Bring this checkout, and _kernel.so or a C compiler. Two
wheels come from a registry, on any machine, and go to a folder of PYTHONPATH:

    pip download --no-deps --dest wheels webdataset braceexpand
    pip install --no-index --no-deps --target site wheels/*.whl

LitData, FFCV and DALI have rows where they are installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.environments import PROJECT
from bench.processes import FailedError
from bench.report import markdown

from .phase import Phase

WAYS = (
    "kernel in the workers",
    "kernel in the workers, not pinned by the loader",
    "torchvision in the workers",
    "DecodeJpeg",
    "DALI",
)
MODEL_WAYS = {"ResNet-50": WAYS, "ViT-B/16": (WAYS[0], "DecodeJpeg")}
WORKERS = (16, 8, 4, 2, 1, 12)  # in the order of their interest, if the time does not suffice for all
PEERS = {"shardflow": "kernel", "webdataset": "tensors", "litdata": "tensors", "ffcv": "uint8", "dali": "crop"}
"""Loaders of `bench.loaders`, with the variants that hand over the least: uint8, and DALI's normalised floats."""
READS = {"webdataset": "shardflow", "dali": "shardflow"}
"""Whose format a loader reads, if not its own."""
NEEDS = {"dali": "nvidia.dali", "DALI": "nvidia.dali"}
"""What has to be installed for a loader or a way, if not a package of its name."""
TEST_COUNTS = ("passed", "failed", "error", "skipped")
"""What pytest may say of a test."""
LEAST_S = 5.0
"""No phase is begun with less time left."""


def phases(given: argparse.Namespace, data: Path) -> list[Phase]:
    """Return what is to be done, in order."""
    cores = os.cpu_count() or 1
    workers = 2 if given.tiny else min(16, cores)
    setting = {"data": str(data), "device": given.device, "tiny": given.tiny, "workers": workers}
    on = {"setting": setting}
    count, copies = (8, 5) if given.tiny else (4096, 8)
    drawn = {"folder": str(data / "pictures"), "count": count, "copies": copies, "images": given.images}
    to = {"path": str(given.output / "trace.json.gz")}
    with_workers = (1, 2) if given.tiny else [number for number in WORKERS if number <= cores]
    seconds = 0.4 if given.tiny else 6.0

    def synthetic() -> list[Phase]:
        return [Phase("synthetic", "bench.gpu.measure.synthetic", 40, {**on, "model": model}) for model in MODEL_WAYS]

    def fed(model: str, *ways: str) -> list[Phase]:
        arguments = [{**on, "model": model, "way": way} for way in ways]
        return [Phase("fed", "bench.gpu.measure.fed", 60, each, NEEDS.get(each["way"], "")) for each in arguments]

    def taken(peer: str) -> list[Phase]:
        loader = {"peer": peer, "variant": PEERS[peer], "reads": READS.get(peer, peer), "seconds": seconds}
        arguments = [{**on, **loader, "workers": number} for number in with_workers]
        return [Phase("taken", "bench.gpu.measure.taken", 30, each, NEEDS.get(peer, peer)) for each in arguments]

    def prepared(peer: str) -> Phase:
        return Phase("data", "bench.gpu.measure.prepare", 60, {**on, "peer": peer}, NEEDS.get(peer, peer))

    return [
        Phase("kernel", "bench.gpu.measure.kernel", 90),
        Phase("facts", "bench.gpu.measure.facts", 40, on),
        Phase("data", "bench.gpu.measure.pictures", 90, {**drawn, "processes": cores}),
        prepared("shardflow"),
        Phase("tests", "bench.gpu.measure.cuda_tests", 150, {"processes": 0 if given.tiny else min(4, cores)}),
        *synthetic(),
        *(phase for model, ways in MODEL_WAYS.items() for phase in fed(model, *ways)),
        Phase("trace", "bench.gpu.measure.trace", 60, {**on, "model": "ResNet-50", "way": WAYS[0], **to}),
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
    """The lines of the results, which are in the output folder as soon as they are known."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._begun, self.lines = folder, time.monotonic(), list[dict[str, Any]]()
        self.log = folder / "gpu.log"
        self.log.unlink(missing_ok=True)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._begun

    def add(self, phase: Phase, **values: Any) -> None:
        """Add a line, and print it."""
        line = {"phase": phase.name, "function": phase.function.rpartition(".")[2], "at_s": round(self.seconds(), 1)}
        self.lines.append(line | values)
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self._replace("gpu.json", json.dumps({"date": today, "lines": self.lines}, indent=1) + "\n")
        self._replace("gpu.md", report(self.lines))
        print(json.dumps(self.lines[-1]), flush=True)

    def _replace(self, name: str, text: str) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(text)
        new.replace(self.folder / name)  # a run that is killed leaves the last whole one


def run(phase: Phase, record: Record, limit_s: float, slack: float = 1) -> None:
    """Run a phase, and record its results or why there are none."""
    about = {name: value for name, value in phase.arguments.items() if name in ("model", "way", "peer", "workers")}
    left = limit_s - record.seconds()
    if left < LEAST_S:
        record.add(phase, **about, failed="skipped: no time left")
        return
    if phase.needs and not installed(phase.needs):
        record.add(phase, **about, failed=f"{phase.needs} is not installed")
        return
    begun = time.monotonic()
    try:
        for result in phase.results(min(slack * phase.timeout_s, left), record.log):
            record.add(phase, **{**about, **result, "seconds": round(time.monotonic() - begun, 1)})
    except FailedError as error:
        record.add(phase, **about, failed=str(error), seconds=round(time.monotonic() - begun, 1))


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def report(lines: list[dict[str, Any]]) -> str:
    """Return the tables of gpu.md."""

    def found(quantity: str, **wanted: Any) -> float | None:
        values = [line[quantity] for line in lines if wanted.items() <= line.items() and quantity in line]
        return statistics.median(values) if values else None

    def text(quantity: float | None, form: str = "{:,.0f}") -> str:
        return "not measured" if quantity is None else form.format(quantity)

    def gigabytes(quantity: str, **wanted: Any) -> str:
        size = found(quantity, **wanted)
        return text(size and size / 1e9, "{:.1f}")

    facts = {name: value for line in lines if line["phase"] == "facts" for name, value in line.items()}
    about = [str(facts[name]) for name in ("gpu", "hardware") if name in facts]
    about += [f"{name} {facts[name]}" for name in ("python", "torch", "torchvision", "cuda") if name in facts]
    if "nvjpeg_starts_s" in facts:
        about.append(f"nvJPEG starts in {facts['nvjpeg_starts_s']:.2f} s")
    tests = next((line["counts"] for line in lines if "counts" in line), None)
    counts = "not run" if tests is None else ", ".join(f"{tests[name]} {name}" for name in TEST_COUNTS)
    whole = [f"{', '.join(about) or 'No machine yet'}; tests that need a GPU: {counts}.\n"]
    for model, ways in MODEL_WAYS.items():
        alone, rows = found("images_per_s", phase="synthetic", model=model), []
        for way in ways:
            case = {"phase": "fed", "model": model, "way": way}
            fed, delivered = (found("images_per_s", trained=trained, **case) for trained in (True, False))
            share = fed / alone if fed and alone else None
            sizes = (gigabytes(f"{kind}_peak_bytes", **case) for kind in ("host", "pinned", "device"))
            rows.append((way, text(delivered), text(fed), text(share, "{:.0%}"), *sizes))
        whole.append(f"{model} in bfloat16, {text(alone)} images/s on a batch that stays on the device:\n")
        columns = ("decoding", "images/s to the device", "trained on", "of synthetic")
        whole.append(markdown((*columns, "host GB", "pinned GB", "device GB"), rows))
    workers = sorted({line["workers"] for line in lines if line["phase"] == "taken"} or WORKERS)
    whole.append("images/s taken from the loader, by workers or threads:\n")
    rows = [(peer, *(text(found("images_per_s", peer=peer, workers=n)) for n in workers)) for peer in PEERS]
    whole.append(markdown(("loader", *map(str, workers)), rows))
    whole += [f"- {reason}: {'; '.join(cases)}" for reason, cases in failures(lines).items()]
    return "\n".join(whole)


def failures(lines: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return what failed, by the reason."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if "failed" in line:
            case = ", ".join(
                str(line[name]) for name in ("function", "model", "way", "peer", "workers") if name in line
            )
            reasons.setdefault(line["failed"], []).append(case)
    return reasons


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run all phases, and print the tables."""
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-gpu", help="folder of the results")
    parser.add_argument("--images", type=Path, help="folder of photographs to make the images from (default: drawn)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, images and counts")
    parser.add_argument("--only", metavar="PHASE", help="leave out other phases, but for facts and data")
    parser.add_argument("--minutes", type=float, default=9.5, help="after which the rest is skipped")
    given = parser.parse_args(arguments)
    given.output, given.images = given.output.resolve(), given.images and str(given.images.resolve())
    given.output.mkdir(parents=True, exist_ok=True)
    # For the processes of the phases, and for those that they start; some take the path, some the variable.
    sys.path.insert(1, str(PROJECT))
    paths = (str(PROJECT / "tools"), str(PROJECT), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    record = Record(given.output)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # with the tables
    data = Path(tempfile.mkdtemp(prefix="bench-gpu-"))
    try:
        for phase in phases(given, data):
            if given.only not in (None, phase.name) and phase.name not in ("kernel", "facts", "data"):
                continue
            # The limits are those of a large machine.
            run(phase, record, 60 * given.minutes, slack=4 if given.tiny else 1)
            if phase.name == "facts" and given.device == "cuda" and not any("gpu" in line for line in record.lines):
                raise FailedError("torch finds no CUDA device; --device cpu --tiny shows on any machine that all runs")
    finally:
        shutil.rmtree(data, ignore_errors=True)
        print("\n" + report(record.lines), flush=True)
    if multiprocessing.active_children():
        os._exit(1)  # what a broken GPU holds cannot be waited for
