"""Packers on the same JPEG files: short side 256, quality 90, 4:2:0, two worker processes.

Makes the environments and the originals. Every packer packs few images and many, each time in fresh processes: the
difference is what an image costs, and the rest is the start. Takes 20 minutes, and the first time 15 GB of disk and
some downloads. vipsthumbnail comes from the system (on Debian: libvips-tools). What does not install or run is reported
in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import harness, report
from bench.harness import Row, made
from bench.report import Run
from bench.usage import Stopwatch

KINDS = {"small": 100, "medium": 40, "large": 12}
"""Originals of 0.19, 2 and 12 megapixels, and how many images of each kind are compared with their originals."""
TIMEOUT_S = 900
_PR_SET_CHILD_SUBREAPER = 36

ROWS = (
    Row("img2dataset", "img2dataset", "img2dataset", "img2dataset", "area"),
    Row("LitData optimize, Pillow", "litdata", "mosaicml-litdata", "litdata", "pillow"),
    Row("MosaicML MDSWriter, Pillow", "mosaicml-streaming", "mosaicml-litdata", "mosaicml", "pillow"),
    Row("webdataset writer, Pillow", "webdataset", "common", "webdataset", "pillow"),
    Row("webdataset writer, Pillow with draft", "webdataset", "common", "webdataset", "pillow-draft"),
    Row("webdataset writer, torchvision", "webdataset", "common", "webdataset", "torchvision"),
    Row("webdataset writer, torchvision bilinear", "webdataset", "common", "webdataset", "torchvision-bilinear"),
    Row("vipsthumbnail, files", "apt:libvips-tools", "common", "vips", "lanczos"),
    Row("shardflow, no kernel", "shardflow", "common", "shardflow", "no-kernel"),
    Row("shardflow", "shardflow", "common", "shardflow", "kernel"),
)


class Packers(harness.Workload):
    """The workload."""

    name, rows = "packers", ROWS

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""
        numbers = {"type": int, "nargs": 2, "metavar": ("FEW", "MANY")}
        parser.add_argument("--small", default=[600, 2400], help="numbers of small originals", **numbers)
        parser.add_argument("--medium", default=[150, 600], help="numbers of medium originals", **numbers)
        parser.add_argument("--large", default=[60, 180], help="numbers of large originals", **numbers)

    def facts(self) -> dict[str, Any]:
        """Make the originals; of the many, several are links to the same file."""
        counts = {kind: getattr(self.options, kind) for kind in KINDS}
        images = self.options.images and self.options.images.resolve()
        for kind, (few, many) in counts.items():
            arguments = {"folder": self._originals(kind, few), "kind": kind, "count": few, "images": images}
            made(arguments["folder"], partial(self.call, "common", "pictures.originals", **arguments))
            made(self._originals(kind, many), partial(self._link, kind, few, many))
        return {"originals": "made from photographs" if images else "drawn", "counts": counts}

    def cases(self) -> list[dict[str, Any]]:
        """Return the kinds of originals."""
        return [{"originals": kind} for kind in KINDS]

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Pack once, and compare what was packed with the originals."""
        kind, extracted = case["originals"], self.data / "extracted"
        source, packed = self._originals(kind, getattr(self.options, kind)[0]), self._clear()
        self._pack(row, source, packed)
        shutil.rmtree(extracted, ignore_errors=True)
        self.call(row, "packers.peers.extract", peer=row.peer, packed=packed, folder=extracted)
        compared = {"originals": source, "packed": extracted, "compared": KINDS[kind]}
        result.setdefault("quality", {})[kind] = self.call("common", "packers.quality.judge", **compared)

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Pack few and many images."""
        kind = case["originals"]
        few, many = (self._originals(kind, count) for count in getattr(self.options, kind))
        return {"few": self._measured(row, few), "many": self._measured(row, many)}

    def costs(self, run: Run) -> dict[str, float]:
        """Return CPU-ms per image."""
        return {"CPU-ms/image": _cpu_ms([run], getattr(self.options, run["originals"]))}

    def table(self, results: dict[str, Any]) -> str:
        """Return the table, the packer that is slowest with large originals first."""

        def cells(row: dict[str, Any], runs: list[Run]) -> list[str]:
            found = []
            for kind, counts in results["counts"].items():
                costs = [run for run in runs if run["originals"] == kind]
                cost = f"{_cpu_ms(costs, counts):.2f}" if costs else "-"
                found += [cost, f"{row['quality'][kind]['psnr_db']:.2f}" if costs else "-"]
            return found

        def cost(runs: list[Run]) -> float:
            kind = list(KINDS)[-1]
            large = [run for run in runs if run["originals"] == kind]
            return -_cpu_ms(large, results["counts"][kind]) if large else 0.0

        columns = [column for kind in KINDS for column in (f"{kind}: CPU-ms/image", "PSNR dB")]
        return report.table(results, ("packer", "version", *columns), cost, cells)

    def caption(self, results: dict[str, Any]) -> str:
        """Say what was measured, where and when."""
        where, others = self.where(results)
        return f"Short side 256, quality 90, two workers; {where}; others used up to {others:.0%} of the machine."

    def _originals(self, kind: str, count: int) -> Path:
        return self.data / f"{kind}-{count}"

    def _link(self, kind: str, few: int, many: int) -> None:
        paths = sorted(self._originals(kind, few).rglob("*.jpg"), key=lambda path: path.name)
        for number in range(many):
            path = paths[number % few]
            link = self._originals(kind, many) / path.parent.name / f"{number // few}{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)

    def _clear(self) -> Path:
        for name in ("packed", "without-kernel"):
            shutil.rmtree(self.data / name, ignore_errors=True)
        return self.data / "packed"

    def _pack(self, row: Row, source: Path, packed: Path) -> None:
        arguments = {"peer": row.peer, "source": source, "packed": packed, "variant": row.variant}
        self.call(row, "packers.peers.pack", timeout_s=TIMEOUT_S, **arguments)

    def _measured(self, row: Row, source: Path) -> dict[str, float]:
        """Pack into an empty folder, and return the costs with those of all processes started.

        Processes that outlive their parent become children of this one, so that none escapes the account.
        """
        packed = self._clear()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        stopwatch = Stopwatch()
        self._pack(row, source, packed)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        used = stopwatch.read()
        return {"cpu_s": used.cpu_s, "others": used.others}


def _cpu_ms(runs: list[Run], counts: list[int]) -> float:
    """Return the cost of one more image: the median over rounds of the difference between many images and few."""
    return 1000 * median(run["many"]["cpu_s"] - run["few"]["cpu_s"] for run in runs) / (counts[1] - counts[0])


main = partial(harness.run, Packers)
