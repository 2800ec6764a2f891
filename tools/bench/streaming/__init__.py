"""Streaming from S3: training epochs, and with `store` the clients of S3 alone.

    python3 tools/bench streaming [--images DIR]
    python3 tools/bench streaming store

Makes the environments, the images and every loader's own format of them, runs an S3 server on loopback, uploads
everything to it, and measures each row twice: on the bare loopback, and through a proxy that delays every answer and
caps every connection. Takes 25 and 10 minutes, and the first time 13 GB of disk and some downloads. What does not
install or run is reported in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import harness, report
from bench.harness import Row, made
from bench.loaders import pictures
from bench.processes import Child, child
from bench.report import Run
from bench.usage import Stopwatch, cpu_s, tree

HERE = Path(__file__).parent
TIMEOUT_S = 90
WARM = 3
"""Epochs that are measured as one after the cold one: at the speed of memory one is over too soon."""
BLOBS = 16
STREAMS = (1, 4, 8)
FORMATS = {"shardflow": ("packed", 250), "mosaicml": ("mds", 7_700_000), "litdata": ("chunks", "7.7MB")}
"""Folder that each peer writes, and the size with which its shards hold about 250 images."""
SERVER = Row(name="server", peer="", package="", environment="streaming")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What lies between client and server."""

    title: str
    latency_s: float = 0.0
    bytes_per_s: float = 0.0  # of each connection; 0 for no limit
    proxied: bool = True


CONDITIONS = {
    "direct": Condition(title="bare loopback", proxied=False),
    "far": Condition(title="50 ms, 90 MB/s per connection", latency_s=0.05, bytes_per_s=90e6),
}
UNCAPPED = Condition(title="the proxy alone")

EPOCHS = (
    Row(
        name="shardflow, local directory",
        peer="shardflow",
        variant="local",
        package="shardflow",
        environment="streaming",
    ),
    Row(name="shardflow", peer="shardflow", variant="s3", package="shardflow", environment="streaming"),
    Row(
        name="webdataset, pipe:curl",
        peer="tars",
        variant="curl",
        package="webdataset",
        environment="streaming",
        reads="shardflow",
    ),
    Row(
        name="webdataset, s3fs",
        peer="tars",
        variant="s3fs",
        package="webdataset",
        environment="streaming",
        reads="shardflow",
    ),
    Row(
        name="s3torchconnector, webdataset",
        peer="tars",
        variant="s3torchconnector",
        package="s3torchconnector",
        environment="streaming",
        reads="shardflow",
    ),
    Row(
        name="MosaicML Streaming",
        peer="mosaicml",
        package="mosaicml-streaming",
        environment="mosaicml-litdata",
    ),
    Row(name="LitData", peer="litdata", package="litdata", environment="mosaicml-litdata"),
)

CLIENTS = (
    Row(name="shardflow", peer="shardflow", variant="1", package="shardflow", environment="streaming"),
    Row(
        name="shardflow, 4 shards at once", peer="shardflow", variant="4", package="shardflow", environment="streaming"
    ),
    Row(name="s3fs get_file", peer="s3fs", package="s3fs", environment="streaming"),
    Row(name="boto3 download_file", peer="boto3", package="boto3", environment="streaming"),
    Row(name="obstore, shardflow's window", peer="obstore", package="obstore", environment="streaming"),
    Row(name="s3torchconnector", peer="s3torchconnector", package="s3torchconnector", environment="streaming"),
)


class Far:
    """A proxy before the server, in a process of its own.

    Attributes:
        endpoint: Its URL.
        pid: The process.
    """

    def __init__(self, process: Child) -> None:
        self._process, self.pid = process, process.pid
        self.endpoint: str = process.receive()

    def count(self) -> dict[str, float]:
        """Return the requests, and the bytes of the answers' bodies, since the last call."""
        self._process.resume()
        counted: dict[str, float] = self._process.receive()
        return counted


class Streaming(harness.Workload):
    """What both workloads share: a server, proxies before it, and the tables."""

    page = "streaming.md"
    rounds = 2
    first_columns: tuple[str, str]

    def facts(self) -> dict[str, Any]:
        """Run the server until the workload ends."""
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir=self.data))
        process = self.stack.enter_context(self._child(SERVER, "server.serve", folder=folder, timeout_s=None))
        self.server: dict[str, Any] = process.receive()
        self.servers = [process.pid]  # their children are found when they are needed
        return {"what": self.name}

    def proxy(self, stack: contextlib.ExitStack, condition: Condition) -> Far:
        """Run a proxy until the stack is closed."""
        arguments = {"latency_s": condition.latency_s, "bytes_per_s": condition.bytes_per_s, "timeout_s": None}
        endpoint = self.server["endpoint"]
        return Far(stack.enter_context(self._child(SERVER, "server.far", endpoint=endpoint, **arguments)))

    def served_by(self) -> list[int]:
        """Return the processes of the server and of the proxies."""
        return [pid for server in self.servers for pid in tree(server)]

    def client(self, row: Row, function: str, far: Far | None, **arguments: Any) -> Any:
        """Run a function of a client of the server, or of a proxy."""
        endpoint = far.endpoint if far else self.server["endpoint"]
        variables = {
            **self.server["variables"],
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,  # MosaicML Streaming's name for it
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        return self._child(row, function, variables=variables, timeout_s=TIMEOUT_S, **arguments)

    def marks(self, results: dict[str, Any]) -> dict[str, str]:
        """Return tables and caption by their marks in the page, which begin with the workload's name."""
        return {f"{self.name} {mark}": content for mark, content in super().marks(results).items()}

    def where(self, results: dict[str, Any]) -> str:
        """Return the part of the caption that both have."""
        measured = [run for row in results["rows"] for run in row["rounds"]]
        return (
            f"server and proxy on the same {results['hardware']}; {results['date']}; medians of "
            f"{max((run['round'] for run in measured), default=0)} interleaved rounds, in which others used at most "
            f"{max(map(self.others, measured), default=0.0):.0%} of the machine."
        )

    def _child(self, row: Row, function: str, *, variables: dict[str, str] | None = None, **arguments: Any) -> Any:
        whole = dict((*self.environments.variables(row.environment), *row.variables)) | (variables or {})
        python = self.environments.python(row.environment)
        return child(python, f"streaming.{function}", variables=whole.items(), **arguments)


class Epochs(Streaming):
    """Training epochs: a cold one, whose process and cache are new, and warm ones."""

    name, chart, rows = "epochs", "streaming.png", EPOCHS
    published = HERE / "epochs.json"

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
            self.call(SERVER, "streaming.server.upload", endpoint=self.server["endpoint"], folder=folder)
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


class Store(Streaming):
    """Clients of S3 alone: shards one after another into memory-backed files."""

    name, rows = "store", CLIENTS
    published = HERE / "store.json"

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        parser.add_argument("--shard-bytes", type=int, default=64 << 20, help=f"size of each of the {BLOBS} shards")

    def facts(self) -> dict[str, Any]:
        """Run server and proxies, upload the shards, and measure what curl gets."""
        found = super().facts()
        endpoint, size = self.server["endpoint"], self.options.shard_bytes
        self.blobs = self.call(SERVER, "streaming.server.upload_blobs", endpoint=endpoint, count=BLOBS, size=size)
        passing = {}
        for name, condition in {**CONDITIONS, "uncapped": UNCAPPED}.items():
            with contextlib.ExitStack() as stack:
                far = self.proxy(stack, condition) if condition.proxied else None
                with self.client(SERVER, "server.passing", far, blobs=self.blobs[1:], streams=STREAMS) as process:
                    passing[name] = process.receive()
            print(f"{condition.title}: to {STREAMS} curls at once {passing[name]} MB/s", flush=True)
        self.fars = [self.proxy(self.stack, CONDITIONS["far"]) for _ in range(2)]
        self.servers += [far.pid for far in self.fars]
        return {**found, "blobs": BLOBS, "blob_bytes": size, "passing": passing}

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions and the numbers of processes."""
        return [{"condition": name, "processes": count} for name in CONDITIONS for count in (1, 2)]

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Fetch the shards with so many processes, each its share and by its own proxy."""
        proxied, count = CONDITIONS[case["condition"]].proxied, case["processes"]
        with contextlib.ExitStack() as stack:
            processes = []
            for number in range(count):
                arguments = {
                    "peer": row.peer,
                    "variant": row.variant,
                    "bucket": self.server["bucket"],
                    "blobs": [self.blobs[0], *self.blobs[1 + number :: count]],
                    "folder": stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-")),
                }
                far = self.fars[number] if proxied else None
                processes.append(stack.enter_context(self.client(row, "measure.fetch", far, **arguments)))
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

    def others(self, run: Run) -> float:
        """Return the share of the machine that others used."""
        return float(run["others"])

    def tables(self, results: dict[str, Any]) -> dict[str, str]:
        """Return a table for each condition, the slowest client first."""

        def cells(row: dict[str, Any], runs: list[Run]) -> tuple[str, ...]:
            del row
            by_count = [[run for run in runs if run["processes"] == count] for count in (1, 2)]
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
        direct, far, alone = (
            ", ".join(f"{rate:,.0f}" for rate in results["passing"][name]) for name in ("direct", "far", "uncapped")
        )
        return (
            f"{results['blobs']} shards of {results['blob_bytes'] >> 20} MiB; {self.where(results)} To 1, 4 and 8 "
            f"curls at once come {direct} MB/s on the bare loopback, {far} MB/s through one proxy, and {alone} MB/s "
            "through one proxy that does not hold them up."
        )


def _median(runs: list[Run], part: str, quantity: str) -> float:
    return median(run[part][quantity] for run in runs)


def _cold_rate(runs: list[Run]) -> float:
    return _median(runs, "cold", "images_per_s")


def _mb_per_s(runs: list[Run]) -> float:
    return median(run["mb_per_s"] for run in runs)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run one of the workloads."""
    store = arguments[:1] == ["store"]
    harness.run(Store if store else Epochs, parser, arguments[store:])
