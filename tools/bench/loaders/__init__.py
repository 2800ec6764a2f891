"""Training loaders on the same JPEG files: batches of 64, RandomResizedCrop(224), flip, normalised in the main process.

Makes an environment for each group of loaders, the images, and every loader's own format of them. Each run is a fresh
process: an epoch to get warm, then those that count. Takes 15 minutes on a calm machine, and the first time 25 GB of
disk and some downloads. FFCV is built from source and needs a C++ compiler, pkg-config, OpenCV and TurboJPEG (on
Debian: g++ pkg-config libopencv-dev libturbojpeg0-dev). What does not install or run is reported in the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
from functools import partial
from statistics import median
from typing import Any

from bench import harness, report
from bench.harness import Row, made
from bench.report import Run

CALM = 0.05
"""Share of the machine's CPU time that others may have used in an epoch that counts."""
PATIENT_THREADS = (("OMP_WAIT_POLICY", "passive"),)
"""By default FFCV's threads spin while they wait for each other, on cores that the main process could use."""

ROWS = (
    Row("ImageFolder, PIL", "torchvision", "common", "imagefolder", "pil"),
    Row("ImageFolder, tensors, floats handed over", "torchvision", "common", "imagefolder", "tensors-float"),
    Row("ImageFolder, tensors", "torchvision", "common", "imagefolder", "tensors"),
    Row("webdataset, PIL", "webdataset", "common", "webdataset", "pil", "shardflow"),
    Row("webdataset, tensors", "webdataset", "common", "webdataset", "tensors", "shardflow"),
    Row("webdataset, tensors, DataLoader's batches", "webdataset", "common", "webdataset", "collated", "shardflow"),
    Row("webdataset over shardflow.samples", "shardflow", "common", "webdataset", "samples", "shardflow"),
    Row("MosaicML Streaming, tensors", "mosaicml-streaming", "mosaicml-litdata", "mosaicml", "tensors"),
    Row("LitData, tensors", "litdata", "mosaicml-litdata", "litdata", "tensors"),
    Row("HF datasets, tensors", "datasets", "common", "huggingface", "tensors"),
    Row("Energon, tensors", "megatron-energon", "energon", "energon", "tensors"),
    Row("SPDL, tensors", "spdl", "common", "spdl", "tensors", "imagefolder"),
    Row("FFCV", "ffcv", "ffcv", "ffcv", "float", variables=PATIENT_THREADS),
    Row("FFCV, uint8", "ffcv", "ffcv", "ffcv", "uint8", variables=PATIENT_THREADS, keep_uint8=True),
    Row("DALI, full decode", "nvidia-dali-cuda130", "common", "dali", "full", "shardflow"),
    Row("DALI, crop decode", "nvidia-dali-cuda130", "common", "dali", "crop", "shardflow"),
    Row("shardflow, no kernel", "shardflow", "common", "shardflow", "fallback"),
    Row("shardflow", "shardflow", "common", "shardflow", "kernel"),
    Row("shardflow, uint8", "shardflow", "common", "shardflow", "kernel", keep_uint8=True),
)


class Loaders(harness.Workload):
    """The workload."""

    name, chart, rows = "loaders", "loaders.svg", ROWS
    attempts, patience_s = 3, 60.0

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        parser.add_argument("--samples", type=int, default=4000)
        parser.add_argument("--epochs", type=int, default=2, help="measured epochs of each process, after a first one")
        parser.add_argument("--workers", type=_numbers, default=[2], metavar="1,2,4", help="a line for each number")

    def cases(self) -> list[dict[str, Any]]:
        """Return the numbers of workers."""
        return [{"workers": number} for number in self.options.workers]

    def facts(self) -> dict[str, Any]:
        """Make the images."""
        origin = "cut from photographs" if self.options.images else "drawn"
        sizes = {"epochs": self.options.epochs, "workers": self.options.workers}
        return {"pictures": origin, **make_pictures(self), **sizes}

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the format that a loader reads."""
        del case, result
        peer, folder = row.format, self.data / row.format
        writer = next(each for each in ROWS if each.format == each.peer == peer)

        def make() -> None:
            if peer == "energon":  # writes an index beside shards
                self.prepare(next(each for each in ROWS if each.peer == "shardflow"), {}, {})
                shutil.copytree(self.data / "shardflow" / "packed", folder / "packed", copy_function=os.link)
            self.call(writer, "loaders.measure.prepare", peer=peer, pictures=self.data / "pictures", data=folder)

        made(folder, make)

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Run a loader in a fresh process."""
        sizes = {"samples": self.options.samples, "epochs": self.options.epochs, "keep_uint8": row.keep_uint8}
        arguments = {"peer": row.peer, "variant": row.variant, "data": self.data / row.format}
        return self.call(row, "loaders.measure.measure", **arguments, **sizes, **case)

    def costs(self, run: Run) -> dict[str, float]:
        """Return CPU-ms per image."""
        return {"CPU-ms/image": median(run["cpu_ms_per_image"])}

    def others(self, run: Run) -> float:
        """Return that of the worst epoch."""
        return float(max(run["others"]))

    def table(self, results: dict[str, Any]) -> str:
        """Return the table, the slowest loader first."""

        def cells(row: dict[str, Any], runs: list[Run]) -> tuple[str, ...]:
            del row
            return (
                f"{_rate(runs):,.0f}",
                f"{_cpu_ms(runs):.2f}",
                f"{median(run['peak_bytes'] for run in runs) / 1e6:,.0f}",
                f"{median(run['first_batch_s'] for run in runs):.2f}",
                report.exactness([{**run, "exact": all(run["exact"])} for run in runs], results["samples"]),
                str(sum(share <= CALM for run in runs for share in run["others"])),
            )

        columns = ("images/s", "CPU-ms/image", "memory MB", "first batch s", "epoch", "calm epochs")
        return report.table(_by_workers(results), ("loader", "version", *columns), _rate, cells)

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        kilobytes = results["picture_bytes"] / 1000
        return (
            f"{results['samples']:,} JPEG files of {kilobytes:.0f} kB, batch 64, {_workers(results)} workers or "
            f"threads; {self.where(results)[0]}."
        )

    def bars(self, results: dict[str, Any]) -> dict[str, Any]:
        """Draw images/s and CPU time per image."""
        rows = [row for row in _by_workers(results)["rows"] if row["rounds"]]
        rows.sort(key=lambda row: _rate(row["rounds"]), reverse=True)
        rates, cpu_ms = ([of(row["rounds"]) for row in rows] for of in (_rate, _cpu_ms))
        return {
            "title": "images per second and CPU time per image of each loader",
            "names": [row["name"] for row in rows],
            "own": [row["package"] == "shardflow" for row in rows],
            "panels": [
                report.panel("images/s: more is better", rates, "{:,.0f}".format),
                report.panel("CPU-ms/image: less is better", cpu_ms, "{:.2f}".format),
            ],
        }


def _numbers(text: str) -> list[int]:
    return [*map(int, text.split(","))]


def _workers(results: dict[str, Any]) -> str:
    return ", ".join(map(str, results.get("workers", [2])))


def _by_workers(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with a row for each number of workers."""
    if len(numbers := results.get("workers", [2])) == 1:
        return results
    rows = []
    for row in results["rows"]:
        for number in numbers:
            name = f"{row['name']}, {number} worker{'s' * (number > 1)}"
            failures = [each for each in row["failures"] if each.get("workers") == number]
            rows.append({**row, "name": name, "rounds": report.runs(row, {"workers": number}), "failures": failures})
    return {**results, "rows": rows}


def make_pictures(workload: harness.Workload) -> dict[str, int]:
    """Make the images, unless they are there, and return their number and mean size."""
    samples, images = workload.options.samples, workload.options.images and workload.options.images.resolve()
    folder = workload.data / "pictures"
    made(folder, lambda: workload.call("common", "pictures.pictures", folder=folder, count=samples, images=images))
    size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    return {"picture_bytes": size // samples, "samples": samples}


def _rate(runs: list[Run]) -> float:
    return median(_calm(runs, "images_per_s"))


def _cpu_ms(runs: list[Run]) -> float:
    return median(_calm(runs, "cpu_ms_per_image"))


def _calm(runs: list[Run], quantity: str) -> list[float]:
    """Return the values of the epochs in which others hardly used the machine, or all where there are none."""
    measured = [pair for run in runs for pair in zip(run["others"], run[quantity], strict=True)]
    return [value for share, value in measured if share <= CALM] or [value for _, value in measured]


main = partial(harness.run, Loaders)
