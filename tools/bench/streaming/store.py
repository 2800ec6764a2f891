"""Clients of S3 alone: shards one after another into memory-backed files."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.harness import Row
from bench.report import Run
from bench.usage import Stopwatch, cpu_s

from . import CONDITIONS, FAR, Streaming

BLOBS = 16
STREAMS = (1, 4, 8)
COUNTS = (1, 2)
"""Numbers of processes."""
CLIENTS = (
    Row("shardflow", "shardflow", "streaming", "shardflow", "1"),
    Row("shardflow, 4 shards at once", "shardflow", "streaming", "shardflow", "4"),
    Row("s3fs get_file", "s3fs", "streaming", "s3fs"),
    Row("boto3 download_file", "boto3", "streaming", "boto3"),
    Row("obstore, shardflow's window", "obstore", "streaming", "obstore"),
    Row("s3torchconnector", "s3torchconnector", "streaming", "s3torchconnector"),
)


class Store(Streaming):
    """Clients of S3 alone: shards one after another into memory-backed files."""

    name, rows = "store", CLIENTS
    published = Path(__file__).with_name("store.json")

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        parser.add_argument("--shard-bytes", type=int, default=64 << 20, help=f"size of each of the {BLOBS} shards")

    def facts(self) -> dict[str, Any]:
        """Run server and proxies, upload the shards, and measure how fast curl fetches them."""
        found = super().facts()
        endpoint, size = self.server["endpoint"], self.options.shard_bytes
        self.blobs = self.call("streaming", "streaming.server.upload_blobs", endpoint=endpoint, count=BLOBS, size=size)
        self.proxies = [self.proxy(**FAR) for _ in range(max(COUNTS))]
        self.servers += [proxy.pid for proxy in self.proxies]
        passing = {}
        for name, proxy in {"direct": None, "far": self.proxies[0], "uncapped": self.proxy()}.items():
            with self.client("streaming", "server.passing", proxy, blobs=self.blobs[1:], streams=STREAMS) as process:
                passing[name] = process.receive()
            print(f"{name}: to {STREAMS} curls at once {passing[name]} MB/s", flush=True)
        return {**found, "blobs": BLOBS, "blob_bytes": size, "passing": passing}

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions and the numbers of processes."""
        return [{"condition": name, "processes": count} for name in CONDITIONS for count in COUNTS]

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Fetch the shards with so many processes, each its share and by its own proxy."""
        count = case["processes"]
        with contextlib.ExitStack() as stack:
            processes = []
            for number in range(count):
                arguments = {"peer": row.peer, "variant": row.variant, "bucket": self.server["bucket"]}
                arguments["blobs"] = [self.blobs[0], *self.blobs[1 + number :: count]]
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-"))
                proxy = self.proxies[number] if case["condition"] == "far" else None
                client = self.client(row, "measure.fetch", proxy, folder=folder, **arguments)
                processes.append(stack.enter_context(client))
            for process in processes:
                process.receive()  # it is connected
            stopwatch, served = Stopwatch(), cpu_s(self.served_by())
            for process in processes:
                process.resume()
            found = [process.receive() for process in processes]
            served, used = cpu_s(self.served_by()) - served, stopwatch.read()
            for process in processes:
                process.resume()
        gigabytes = sum(blob["size"] for blob in self.blobs[1:]) / 1e9
        return {
            "mb_per_s": 1000 * gigabytes / max(one["wall_s"] for one in found),
            "cpu_s_per_gb": sum(one["cpu_s"] for one in found) / gigabytes,
            "server_cpu_s_per_gb": served / gigabytes,
            "peak_bytes": max(one["peak_bytes"] for one in found),
            "others": used.others,
        }

    def costs(self, run: Run) -> dict[str, float]:
        """Return CPU-s per GB."""
        return {"CPU-s/GB": run["cpu_s_per_gb"]}

    def tables(self, results: dict[str, Any]) -> dict[str, str]:
        """Return a table for each condition, the slowest client first."""

        def cells(row: dict[str, Any], runs: list[Run]) -> tuple[str, ...]:
            del row
            by_count = [[run for run in runs if run["processes"] == count] for count in COUNTS]
            return (
                *(f"{median(run['mb_per_s'] for run in each):,.0f}" if each else "-" for each in by_count),
                *(f"{median(run['cpu_s_per_gb'] for run in each):.2f}" if each else "-" for each in by_count),
                f"{max(run['peak_bytes'] for run in runs) / 1e6:,.0f}",
            )

        columns = ("client", "version", "MB/s, 1 process", "2 processes", "CPU-s/GB, 1 process", "2 processes")
        columns = (*columns, "memory MB")
        return {name: report.table(results, columns, _mb_per_s, cells, {"condition": name}) for name in CONDITIONS}

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        rates = {name: ", ".join(map("{:,.0f}".format, found)) for name, found in results["passing"].items()}
        return (
            f"{results['blobs']} shards of {results['blob_bytes'] >> 20} MiB; {self.setting(results)} To 1, 4 and 8 "
            f"curls at once come {rates['direct']} MB/s on the bare loopback, {rates['far']} MB/s through one proxy, "
            f"and {rates['uncapped']} MB/s through one proxy that does not hold them up."
        )


def _mb_per_s(runs: list[Run]) -> float:
    return median(run["mb_per_s"] for run in runs)
