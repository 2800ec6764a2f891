"""Measures data loaders side by side on the same JPEG files.

    python3 tools/bench/loaders [--images DIR]

makes the environments, the pictures and every loader's own format of them, runs all loaders in turn, each time in a
fresh process, and writes results.json, table.md and loaders.png to --output, after every run anew. Takes 15 minutes
on a calm machine, and the first time 25 GB of disk and some downloads for the environments. FFCV is built from
source and wants a C++ compiler, pkg-config, OpenCV and TurboJPEG (on Debian: g++ pkg-config libopencv-dev
libturbojpeg0-dev). What does not install or run is reported in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from environments import PROJECT, Environments, FailedError
from machine import hardware
from rows import ROWS, Row

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600
QUIET = 0.05
"""Share of the machine's CPU time that others may use while a loader is measured before it is measured again."""


class Bench:
    """The benchmark's files: environments, and data below one folder that belongs to these pictures alone."""

    def __init__(self, environments_folder: Path, data: Path) -> None:
        self.environments, self._data = Environments(environments_folder), data
        self._broken: dict[str, str] = {}  # formats that could not be made

    def pictures(self, samples: int, images: Path | None) -> Path:
        """Return the folder of the pictures, made if need be."""
        folder = self._data / "pictures"

        def make() -> None:
            command = [
                str(self.environments.python("common")),
                str(HERE / "pictures.py"),
                str(folder),
                "--samples",
                str(samples),
            ]
            _run([*command, *(("--images", str(images)) if images else ())])

        self._made(folder, make)
        return folder

    def prepared(self, row: Row, pictures: Path) -> Path:
        """Return the folder with the format that a loader reads, made if need be."""
        folder = self._data / row.reads

        def make() -> None:
            folder.mkdir()
            if row.reads == "energon":  # indexes shards that are there
                shards = self.prepared(next(row for row in ROWS if row.peer == "shardflow"), pictures)
                shutil.copytree(shards / "packed", folder / "packed", copy_function=os.link)
            command = [
                self.environments.python(row.environment),
                HERE / "measure.py",
                row.reads,
                "-",
                folder,
                "--prepare",
                pictures,
            ]
            _run(list(map(str, command)))

        if row.reads in self._broken:
            raise FailedError(self._broken[row.reads])
        try:
            self._made(folder, make)
        except FailedError as error:
            self._broken[row.reads] = str(error)
            raise
        return folder

    def measure(self, row: Row, pictures: Path, samples: int, epochs: int) -> dict[str, Any]:
        """Run a loader in a fresh process, and return what it measured."""
        command = [self.environments.python(row.environment), HERE / "measure.py", row.peer, row.variant]
        command += [self.prepared(row, pictures), "--samples", samples, "--epochs", epochs]
        command += ["--keep-uint8"] if row.keep_uint8 else []
        measured: dict[str, Any] = json.loads(_run(list(map(str, command)), row.variables).splitlines()[-1])
        return measured

    def _made(self, folder: Path, make: Callable[[], None]) -> None:
        """Make a folder that is there only when it is complete."""
        stamp = folder.with_suffix(".complete")
        if not stamp.exists():
            shutil.rmtree(folder, ignore_errors=True)
            print(f"preparing {folder.name}", flush=True)
            make()
            stamp.touch()


def _run(command: list[str], variables: Iterable[tuple[str, str]] = ()) -> str:
    """Run a command to its end and return what it printed; raises `FailedError` with the last line of its errors."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **dict(variables)}
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"did not end within {TIMEOUT_S} s") from None
    if done.returncode or (command[-2] != "--prepare" and not done.stdout.strip() and "measure.py" in command[1]):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FailedError(lines[-1].strip()[:200].replace("|", "/"))
    return done.stdout


def busy_share(seconds: float) -> float:
    """Return which share of the machine's CPU time is used in the next seconds."""

    def idle_s() -> float:
        fields = Path("/proc/stat").read_text().split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")

    before, begun = idle_s(), time.monotonic()
    time.sleep(seconds)
    return 1 - (idle_s() - before) / (time.monotonic() - begun) / (os.cpu_count() or 1)


def calmest(attempts: int, patience_s: float, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure until nobody else was using the machine, and return the attempt that was disturbed least."""
    made: list[dict[str, Any]] = []
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and busy_share(2) > QUIET:
        pass
    while len(made) < attempts and not any(max(measured["others"]) <= QUIET for measured in made):
        made.append(measure())
    return min(made, key=lambda measured: max(measured["others"]))


def write(results: dict[str, Any], output: Path, python: Path) -> str:
    """Write what has been measured so far, and return the table."""
    rounds = max(len(row["rounds"]) for row in results["rows"])
    results["caption"] = (
        f"{results['samples']:,} JPEG files of {results['picture_bytes'] / 1000:.0f} kB, batch 64, two workers or "
        f"threads; {results['hardware']}; {results['date']}; medians of {rounds} interleaved rounds"
    )
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    report = [str(python), str(HERE / "report.py"), str(output / "results.json")]
    table = _run([*report, "--chart", str(output / "loaders.png")])
    (output / "table.md").write_text(table)
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="photographs to cut the pictures from; by default they are drawn")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="measured epochs of each process, after a first one")
    parser.add_argument(
        "--attempts", type=int, default=3, help="of a run, when others use the machine; the least disturbed one counts"
    )
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a calm machine before a run")
    parser.add_argument("--only", metavar="TEXT", help="only loaders with this in their name")
    parser.add_argument("--publish", action="store_true", help="put the results into docs/benchmark.md")
    parser.add_argument("--environments", type=Path, default=PROJECT / ".venv-bench")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-loaders")
    given = parser.parse_args()

    source = given.images.name if given.images else "drawn"
    data = given.output / f"data-{source}-{given.samples}"
    data.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.environments, data)
    pictures = bench.pictures(given.samples, given.images)
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "hardware": hardware(),
        "python": platform.python_version(),
        "pictures": "cut from photographs" if given.images else "drawn",
        "picture_bytes": sum(path.stat().st_size for path in pictures.rglob("*.jpg")) // given.samples,
        "samples": given.samples,
        "epochs": given.epochs,
        "rows": [],
    }
    rows = [row for row in ROWS if given.only is None or given.only in row.name]
    for row in rows:
        results["rows"].append(
            {
                "name": row.name,
                "package": row.package,
                "version": bench.environments.version(row.environment, row.package),
                "rounds": [],
                "failures": [],
            }
        )
        try:
            bench.prepared(row, pictures)
        except FailedError as error:
            print(f"{row.name}: {error}", flush=True)
    table = ""
    for number in range(given.rounds):
        for row, result in zip(rows, results["rows"], strict=True):
            try:
                measured = calmest(
                    given.attempts,
                    given.patience,
                    lambda row=row: bench.measure(row, pictures, given.samples, given.epochs),
                )
            except FailedError as error:
                result["failures"].append(str(error))
                print(f"round {number + 1}: {row.name}: failed: {error}", flush=True)
                continue
            result["rounds"].append(measured)
            rates = ", ".join(f"{rate:,.0f}" for rate in measured["images_per_s"])
            cpu = ", ".join(f"{value:.2f}" for value in measured["cpu_ms_per_image"])
            others = f"others used {max(measured['others']):.0%} of the machine"
            print(f"round {number + 1}: {row.name}: {rates} images/s, {cpu} CPU-ms per image; {others}", flush=True)
            table = write(results, given.output, bench.environments.python("common"))
    print(table)
    if given.publish:
        docs = PROJECT / "docs"
        shutil.copy(given.output / "results.json", HERE / "results.json")
        shutil.copy(given.output / "loaders.png", docs / "loaders.png")
        results_json = str(HERE / "results.json")
        _run(
            [
                str(bench.environments.python("common")),
                str(HERE / "report.py"),
                results_json,
                "--publish",
                str(docs / "benchmark.md"),
            ]
        )


if __name__ == "__main__":
    sys.exit(main())
