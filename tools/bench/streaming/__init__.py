"""Streaming from S3: training epochs, a cold one, whose process and cache are new, and warm ones.

Makes the environments, the images and every loader's own format of them, runs an S3 server on loopback, uploads
everything to it, and measures each row twice: on the bare loopback, and through a proxy that delays every answer and
caps every connection. Takes 25 minutes, and the first time 13 GB of disk and some downloads. What does not install or
run is reported in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from functools import partial
from statistics import median
from typing import Any

from bench import harness, report
from bench.harness import Row, made
from bench.loaders import make_pictures
from bench.processes import Child
from bench.report import Run
from bench.usage import tree

TIMEOUT_S = 90
CONDITIONS = {"direct": "loopback", "far": "50 ms"}
"""Networks between client and server, and their titles."""
FAR = {"latency_s": 0.05, "bytes_per_s": 90e6}
"""The proxy of the condition "far"."""
PARTS = ("cold", "warm")
RATES = (("cold", "images_per_s", 0), ("warm", "images_per_s", 0), ("cold", "first_batch_s", 2))
"""Columns for each condition: part, quantity and digits."""
WARM = 3
"""Epochs that are measured as one after the cold one: at the speed of memory one is over too soon."""
FORMATS = {"shardflow": ("packed", 250), "mosaicml": ("mds", 7_700_000), "litdata": ("chunks", "7.7MB")}
"""Folder that each peer writes, and the size with which its shards hold about 250 images."""
ROWS = (
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


class Proxy:
    """A proxy before the server, in another process."""

    def __init__(self, process: Child) -> None:
        self._process, self.pid = process, process.pid
        self.endpoint: str = process.receive()

    def count(self) -> dict[str, float]:
        """Return the requests, and the bytes of the answers' bodies, since the last call."""
        self._process.resume()
        return self._process.receive()


class Streaming(harness.Workload):
    """The workload: a server, a proxy before it, and loaders of its objects."""

    name, rows, rounds = "streaming", ROWS, 2

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        parser.add_argument("--samples", type=int, default=16000)

    def facts(self) -> dict[str, Any]:
        """Run server and proxy until the workload ends, and make the images."""
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir=self.data))
        serving = self.child("streaming", "streaming.server.serve", folder=folder, timeout_s=None)
        process = self.stack.enter_context(serving)
        self._server: dict[str, Any] = process.receive()
        limits = {"timeout_s": None, "endpoint": self._server["endpoint"], **FAR}
        self._proxy = Proxy(self.stack.enter_context(self.child("streaming", "streaming.server.proxy", **limits)))
        self._servers = [process.pid, self._proxy.pid]  # their children are found when they are needed
        self._uploaded: set[str] = set()
        return make_pictures(self)

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions."""
        return [{"condition": name} for name in CONDITIONS]

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the format that a row reads, and upload it."""
        del case, result
        name, size = FORMATS[row.format]
        data, writer = self.data / row.format, next(each for each in ROWS if each.peer == row.format)
        arguments = {"peer": row.format, "pictures": self.data / "pictures", "data": data, "size": size}
        made(data, lambda: self.call(writer, "loaders.measure.prepare", **arguments))
        if name not in self._uploaded:
            self.call("streaming", "streaming.server.upload", endpoint=self._server["endpoint"], folder=data / name)
            self._uploaded.add(name)

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Run a cold epoch and warm ones in a fresh process."""
        proxy, (name, _) = self._proxy if case["condition"] == "far" else None, FORMATS[row.format]
        measured: Run = {}
        with tempfile.TemporaryDirectory(dir=self.data, prefix="cache-") as cache:
            place = {"url": f"s3://{self._server['bucket']}/{name}", "local": self.data / row.format / name}
            arguments = {"variant": row.variant, "samples": self.options.samples, "warm": WARM}
            arguments |= {
                "peer": row.peer,
                "place": {**place, "cache": cache},
                "servers": [pid for server in self._servers for pid in tree(server)],
            }
            with self._client(row, proxy, **arguments) as process:
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

    def table(self, results: dict[str, Any]) -> str:
        """Return the table, the loader that is slowest in a cold epoch far from the server first."""

        def cells(row: dict[str, Any], runs: list[Run]) -> list[str]:
            found = []
            for name in CONDITIONS:
                there = [run for run in runs if run["condition"] == name]
                for part, quantity, digits in RATES:
                    found.append(f"{_median(there, part, quantity):,.{digits}f}" if there else "-")
            failed = [failure["reason"] for failure in row["failures"]]
            note = f"; {len(failed)} of {len(failed) + len(runs)} runs failed: {failed[-1]}" if failed else ""
            far = _far(runs)
            return [
                *found,
                f"{_median(far, 'warm', 'cpu_ms_per_image'):.2f}" if far else "-",
                f"{_median(far, 'warm', 'bytes') / 1e6:,.0f}" if far else "-",  # counted by the proxy
                report.exactness([run[part] for run in runs for part in PARTS], results["samples"]) + note,
            ]

        columns = ["loader", "version"]
        for title in CONDITIONS.values():
            columns += [f"{title}: cold images/s", "warm images/s", "first batch s"]
        columns += ["warm CPU-ms", "MB warm", "epochs"]
        return report.table(results, columns, _cold_rate, cells)

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        where, others = self.where(results)
        return (
            f"{results['samples']:,} JPEG files of {results['picture_bytes'] / 1000:.0f} kB in shards of 250, batch "
            f"64, two workers; server and proxy on the same {where}, in which others used at most {others:.0%} of the "
            "machine."
        )

    def _client(self, row: Row, proxy: Proxy | None, **arguments: Any) -> contextlib.AbstractContextManager[Child]:
        """Run the epochs of a row on the server, or through a proxy."""
        endpoint = proxy.endpoint if proxy else self._server["endpoint"]
        variables = {
            **self._server["variables"],
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,  # MosaicML Streaming's name for it
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        function = "streaming.measure.epochs"
        return self.child(row, function, variables=variables.items(), timeout_s=TIMEOUT_S, **arguments)


def _median(runs: list[Run], part: str, quantity: str) -> float:
    return median(run[part][quantity] for run in runs)


def _far(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run["condition"] == "far"]


def _cold_rate(runs: list[Run]) -> float:
    return _median(_far(runs) or runs, "cold", "images_per_s")


main = partial(harness.run, Streaming)
