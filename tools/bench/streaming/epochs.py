"""Training epochs from S3: a cold one, whose process and cache are new, and warm ones."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.harness import Row, made
from bench.loaders import make_pictures
from bench.report import Run

from . import CONDITIONS, FAR, Streaming

PARTS = ("cold", "warm")
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
        found = {**super().facts(), **make_pictures(self)}
        self._proxy = self.proxy(**FAR)
        self.servers.append(self._proxy.pid)
        self._uploaded: set[str] = set()
        return found

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions."""
        return [{"condition": name} for name in CONDITIONS]

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the format that a row reads, and upload it."""
        del case, result
        name, size = FORMATS[row.format]
        data, writer = self.data / row.format, next(each for each in EPOCHS if each.peer == row.format)
        arguments = {"peer": row.format, "pictures": self.data / "pictures", "data": data, "size": size}
        made(data, lambda: self.call(writer, "loaders.measure.prepare", **arguments))
        if name not in self._uploaded:
            self.call("streaming", "streaming.server.upload", endpoint=self.server["endpoint"], folder=data / name)
            self._uploaded.add(name)

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Run a cold epoch and warm ones in a fresh process."""
        proxy, (name, _) = self._proxy if case["condition"] == "far" else None, FORMATS[row.format]
        measured: Run = {}
        with tempfile.TemporaryDirectory(dir=self.data, prefix="cache-") as cache:
            place = {"url": f"s3://{self.server['bucket']}/{name}", "local": self.data / row.format / name}
            arguments = {"variant": row.variant, "samples": self.options.samples, "warm": WARM}
            arguments |= {"peer": row.peer, "place": {**place, "cache": cache}, "servers": self.served_by()}
            with self.client(row, "measure.epochs", proxy, **arguments) as process:
                if proxy:
                    proxy.count()
                for part, repeats in (("cold", 1), ("warm", WARM)):
                    measured[part] = process.receive()
                    if proxy:
                        measured[part] |= {name: count / repeats for name, count in proxy.count().items()}
                    process.resume()
        return measured

    def costs(self, run: Run) -> dict[str, float]:
        """Return CPU-ms per image."""
        return {f"{part} CPU-ms/image": run[part]["cpu_ms_per_image"] for part in PARTS}

    def tables(self, results: dict[str, Any]) -> dict[str, str]:
        """Return a table for each condition, the slowest first in the cold epoch."""

        def cells(row: dict[str, Any], runs: list[Run]) -> tuple[str, ...]:
            failed = report.failures(row, {"condition": runs[0]["condition"]})
            note = f"; {len(failed)} of {len(failed) + len(runs)} runs failed: {failed[-1]}" if failed else ""
            counted = "bytes" in runs[0]["cold"]  # by the proxy
            return (
                *(f"{_median(runs, part, 'images_per_s'):,.0f}" for part in PARTS),
                *(f"{_median(runs, part, 'cpu_ms_per_image'):.2f}" for part in PARTS),
                f"{_median(runs, 'cold', 'first_batch_s'):.2f}",
                *(f"{_median(runs, part, 'bytes') / 1e6:,.0f}" if counted else "" for part in PARTS),
                report.exactness([run[part] for run in runs for part in PARTS], results["samples"]) + note,
            )

        columns = ("loader", "version", "cold images/s", "warm images/s", "cold CPU-ms", "warm CPU-ms", "first batch s")
        columns = (*columns, "MB cold", "MB warm", "epochs")
        return {name: report.table(results, columns, _cold_rate, cells, {"condition": name}) for name in CONDITIONS}

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        return (
            f"{results['samples']:,} JPEG files of {results['picture_bytes'] / 1000:.0f} kB in shards of 250, batch "
            f"64, two workers; {self.setting(results)}"
        )

    def bars(self, results: dict[str, Any]) -> dict[str, Any]:
        """Draw the images per second of cold and warm epochs."""
        rows = [row for row in results["rows"] if all(report.runs(row, {"condition": name}) for name in CONDITIONS)]
        rows.sort(key=lambda row: _cold_rate(report.runs(row, {"condition": "far"})))
        panels = []
        for name, title in CONDITIONS.items():
            series = []
            for part in PARTS:
                rates = [_median(report.runs(row, {"condition": name}), part, "images_per_s") for row in rows]
                series.append((rates, f"{{:,.0f}} {part}".format))
            panels.append(report.panel(f"images/s, {title}", *series))
        own = [row["package"] == "shardflow" for row in rows]
        return {"names": [row["name"] for row in rows], "own": own, "panels": panels}


def _median(runs: list[Run], part: str, quantity: str) -> float:
    return median(run[part][quantity] for run in runs)


def _cold_rate(runs: list[Run]) -> float:
    return _median(runs, "cold", "images_per_s")
