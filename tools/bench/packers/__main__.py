"""Measures packers side by side on the same JPEG files.

    python3 tools/bench/packers [--images DIR]

makes the environments and the originals, runs all packers in turn with two workers each, and writes results.json,
tables.md and packers.png to --output, after every round anew. Every packer packs few images and many, each time in
fresh processes: the difference is what an image costs, whatever it costs to start. Takes 15 minutes, and the first time
15 GB of disk and some downloads. vipsthumbnail comes from the system (on Debian: libvips-tools). What does not install
or run is reported in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from environments import PROJECT, Environments, FailedError
from machine import hardware
from process import measure, run
from rows import ROWS, Row

HERE = Path(__file__).resolve().parent
COUNTS = {"small": (600, 2400), "large": (60, 180)}
"""Few and many; of the many, several are links to the same original."""
COMPARED = {"small": 100, "large": 12}


class Bench:
    """The environments, the originals, and the place that packers write to."""

    def __init__(self, environments_folder: Path, data: Path) -> None:
        self.environments, self._data = Environments(environments_folder), data

    def version(self, row: Row) -> str:
        """Return the version of the packer; "" when there is none."""
        origin, _, package = row.package.rpartition(":")
        if origin != "apt":
            return self.environments.version(row.environment, package)
        try:
            return run(["dpkg-query", "-f", "${Version}", "-W", package])
        except (FailedError, OSError):
            return ""

    def originals(self, kind: str, images: Path | None) -> tuple[Path, Path]:
        """Return the folders of the few and of the many originals, made if need be."""
        few, many = (self._data / f"{kind}-{count}" for count in COUNTS[kind])
        stamp = self._data / f"{kind}.complete"
        if not stamp.exists():
            print(f"making {kind} originals", flush=True)
            for folder in (few, many):
                shutil.rmtree(folder, ignore_errors=True)
            command = [str(self.environments.python("common")), str(HERE / "originals.py"), str(few), kind]
            run([*command, "--count", str(COUNTS[kind][0]), *(("--images", str(images)) if images else ())])
            for number in range(COUNTS[kind][1] // COUNTS[kind][0]):
                for path in few.rglob("*.jpg"):
                    link = many / path.parent.name / f"{number}{path.name}"
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.link(path, link)
            stamp.touch()
        return few, many

    def measured(self, row: Row, source: Path) -> dict[str, float]:
        """Pack into a fresh place."""
        self._clear()
        return measure(self._command(row, source))

    def quality(self, row: Row, source: Path, kind: str) -> dict[str, float]:
        """Pack once more, and judge what was packed."""
        self._clear()
        run(self._command(row, source))
        extracted = self._data / "extracted"
        shutil.rmtree(extracted, ignore_errors=True)
        run([*self._command(row, source), "--extract", str(extracted)])
        judge = [str(self.environments.python("common")), str(HERE / "quality.py"), str(source), str(extracted)]
        found: dict[str, float] = json.loads(run([*judge, "--compared", str(COMPARED[kind])]))
        return found

    def _command(self, row: Row, source: Path) -> list[str]:
        command = [str(self.environments.python(row.environment)), str(HERE / "pack.py"), row.peer, row.variant]
        return [*command, str(source), str(self._data / "packed")]

    def _clear(self) -> None:
        for path in (self._data / "packed", self._data / "without-kernel"):
            shutil.rmtree(path, ignore_errors=True)


def write(results: dict[str, Any], output: Path, python: str) -> str:
    """Write what has been measured so far, and return the tables."""
    runs = [run for row in results["rows"] for kind in COUNTS for run in row[kind]["rounds"]]
    rounds = max(len(row[kind]["rounds"]) for row in results["rows"] for kind in COUNTS)
    others = max((size["others"] for run in runs for size in (run["few"], run["many"])), default=0.0)
    results["caption"] = (
        f"Short side 256, quality 90, two workers; {results['hardware']}; {results['date']}; medians of {rounds} "
        f"interleaved rounds; others used up to {others:.0%} of the machine."
    )
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    report = [python, str(HERE / "report.py"), str(output / "results.json")]
    tables = run([*report, "--chart", str(output / "packers.png")])
    (output / "tables.md").write_text(tables)
    return tables


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="photographs to make the originals from; by default they are drawn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", help="only packers with this in their name")
    parser.add_argument("--publish", action="store_true", help="put the results into docs/packers.md")
    parser.add_argument("--environments", type=Path, default=PROJECT / ".venv-bench")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-packers")
    given = parser.parse_args()

    data = (given.output / f"data-{given.images.name if given.images else 'drawn'}").resolve()
    data.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.environments, data)
    folders = {kind: bench.originals(kind, given.images) for kind in COUNTS}
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "hardware": hardware(),
        "originals": "made from photographs" if given.images else "drawn",
        "rows": [],
    }
    rows = [row for row in ROWS if given.only is None or given.only in row.name]
    for row in rows:
        result: dict[str, Any] = {"name": row.name, "package": row.package, "version": bench.version(row)}
        for kind, (few, many) in COUNTS.items():
            result[kind] = {"few": few, "many": many, "rounds": [], "failure": ""}
            try:
                result[kind]["quality"] = bench.quality(row, folders[kind][0], kind)
                print(f"{row.name}, {kind}: {result[kind]['quality']}", flush=True)
            except FailedError as error:
                result[kind]["failure"] = str(error)
                print(f"{row.name}, {kind}: failed: {error}", flush=True)
        results["rows"].append(result)
    tables = ""
    for number in range(given.rounds):
        for kind, (few, many) in folders.items():
            for row, result in zip(rows, results["rows"], strict=True):
                if result[kind]["failure"]:
                    continue
                try:
                    measured = {"few": bench.measured(row, few), "many": bench.measured(row, many)}
                except FailedError as error:
                    result[kind]["failure"] = str(error)
                    print(f"round {number + 1}: {row.name}, {kind}: failed: {error}", flush=True)
                    continue
                result[kind]["rounds"].append(measured)
                print(f"round {number + 1}: {row.name}, {kind}: {measured}", flush=True)
        tables = write(results, given.output, str(bench.environments.python("common")))
    print(tables)
    if given.publish:
        docs = PROJECT / "docs"
        shutil.copy(given.output / "results.json", HERE / "results.json")
        shutil.copy(given.output / "packers.png", docs / "packers.png")
        report = [str(bench.environments.python("common")), str(HERE / "report.py"), str(HERE / "results.json")]
        run([*report, "--publish", str(docs / "packers.md")])


if __name__ == "__main__":
    sys.exit(main())
