"""Training epochs from S3: a cold one, whose process and cache are new, and warm ones."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.harness import Row, made
from bench.loaders import pictures
from bench.report import Run

from . import CONDITIONS, Streaming

WARM = 3
"""Epochs that are measured as one after the cold one: at the speed of memory one is over too soon."""
FORMATS = {"shardflow": ("packed", 250), "mosaicml": ("mds", 7_700_000), "litdata": ("chunks", "7.7MB")}
"""Folder that each peer writes, and the size with which its shards hold about 250 images."""
EPOCHS = (
    Row("shardflow, local directory", "shardflow", "streaming", "shardflow", "local"),
    Row("shardflow", "shardflow", "streaming", "shardflow", "s3"),
    Row("webdataset, pipe:curl", "webdataset", "streaming", "webdataset_s3", "curl", "shardflow"),
    Row("webdataset, s3fs", "webdataset", "streaming", "webdataset_s3", "s3fs", "shardflow"),
    Row(
        "s3torchconnector, webdataset",
        "s3torchconnector",
        "streaming",
        "webdataset_s3",
        "s3torchconnector",
        "shardflow",
    ),
    Row("MosaicML Streaming", "mosaicml-streaming", "mosaicml-litdata", "mosaicml", "tensors"),
    Row("LitData", "litdata", "mosaicml-litdata", "litdata", "tensors"),
)


class Epochs(Streaming):
    """Training epochs: a cold one, whose process and cache are new, and warm ones."""

    name, chart, rows = "epochs", "streaming.png", EPOCHS
    published = Path(__file__).with_name("epochs.json")

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        parser.add_argument("--samples", type=int, default=16000)

    def facts(self) -> dict[str, Any]:
        """Run server and proxy, and make the images."""
        found = super().facts()
        folder, samples = pictures(self, self.options.samples), self.options.samples
        self.far = self.proxy(self.stack, CONDITIONS["far"])
        self.servers.append(self.far.pid)
        self._uploaded: set[str] = set()
        picture_bytes = sum(path.stat().st_size for path in folder.rglob("*.jpg")) // samples
        return {**found, "samples": samples, "picture_bytes": picture_bytes}

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions."""
        return [{"condition": name} for name in CONDITIONS]

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the format that a row reads, and upload it."""
        del case, result
        reads = row.reads or row.peer
        name, size = FORMATS[reads]
        arguments = {"peer": reads, "pictures": self.data / "pictures", "data": self.data / reads, "size": size}
        writer = next(each for each in EPOCHS if each.peer == reads)
        made(self.data / reads, lambda: self.call(writer, "loaders.measure.prepare", **arguments))
        if reads not in self._uploaded:
            folder = self.data / reads / name
            self.call("streaming", "streaming.server.upload", endpoint=self.server["endpoint"], folder=folder)
            self._uploaded.add(reads)

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Run a cold epoch and warm ones in a fresh process."""
        far = self.far if CONDITIONS[case["condition"]].proxied else None
        name, _ = FORMATS[row.reads or row.peer]
        measured: Run = {}
        with tempfile.TemporaryDirectory(dir=self.data, prefix="cache-") as cache:
            place = {
                "url": f"s3://{self.server['bucket']}/{name}",
                "local": self.data / (row.reads or row.peer) / name,
                "cache": cache,
            }
            arguments = {"peer": row.peer, "variant": row.variant, "samples": self.options.samples, "warm": WARM}
            with self.client(row, "measure.epochs", far, place=place, servers=self.served_by(), **arguments) as process:
                if far:
                    far.count()
                for name, repeats in (("cold", 1), ("warm", WARM)):
                    measured[name] = process.receive()
                    if far:
                        measured[name] |= {what: count / repeats for what, count in far.count().items()}
                    process.resume()
        return measured

    def costs(self, run: Run) -> dict[str, float]:
        """Return CPU-ms per image."""
        return {f"{name} CPU-ms/image": run[name]["cpu_ms_per_image"] for name in ("cold", "warm")}

    def others(self, run: Run) -> float:
        """Return the share of the machine that others used in the worse part."""
        return float(max(run[name]["others"] for name in ("cold", "warm")))

    def tables(self, results: dict[str, Any]) -> dict[str, str]:
        """Return a table for each condition, the slowest first in the cold epoch."""

        def cells(row: dict[str, Any], runs: list[Run]) -> tuple[str, ...]:
            failed = report.failures(row, {"condition": runs[0]["condition"]})
            note = f"; {len(failed)} of {len(failed) + len(runs)} runs failed: {failed[-1]}" if failed else ""
            fetched = [
                f"{_median(runs, name, 'bytes') / 1e6:,.0f}"
                if "bytes" in runs[0][name]
                else ""  # the proxy counts them
                for name in ("cold", "warm")
            ]
            return (
                *(f"{_median(runs, name, 'images_per_s'):,.0f}" for name in ("cold", "warm")),
                *(f"{_median(runs, name, 'cpu_ms_per_image'):.2f}" for name in ("cold", "warm")),
                f"{_median(runs, 'cold', 'first_batch_s'):.2f}",
                *fetched,
                report.exactness([run[name] for run in runs for name in ("cold", "warm")], results["samples"]) + note,
            )

        columns = ("loader", "version", "cold images/s", "warm images/s", "cold CPU-ms", "warm CPU-ms", "first batch s")
        columns = (*columns, "MB cold", "MB warm", "epochs")
        return {name: report.table(results, columns, _cold_rate, cells, {"condition": name}) for name in CONDITIONS}

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        return (
            f"{results['samples']:,} JPEG files of {results['picture_bytes'] / 1000:.0f} kB in shards of 250, batch "
            f"64, two workers; {self.where(results)}"
        )

    def bars(self, results: dict[str, Any]) -> dict[str, Any]:
        """Draw the images per second of cold and warm epochs."""
        rows = [row for row in results["rows"] if all(report.runs(row, {"condition": name}) for name in CONDITIONS)]
        rows.sort(key=lambda row: _cold_rate(report.runs(row, {"condition": "far"})))
        return {
            "names": [row["name"] for row in rows],
            "own": [row["package"] == "shardflow" for row in rows],
            "panels": [
                report.panel(
                    f"images/s, {condition.title}",
                    *(
                        (
                            [_median(report.runs(row, {"condition": name}), part, "images_per_s") for row in rows],
                            f"{{:,.0f}} {part}".format,
                        )
                        for part in ("cold", "warm")
                    ),
                )
                for name, condition in CONDITIONS.items()
            ],
        }


def _median(runs: list[Run], part: str, quantity: str) -> float:
    return median(run[part][quantity] for run in runs)


def _cold_rate(runs: list[Run]) -> float:
    return _median(runs, "cold", "images_per_s")
