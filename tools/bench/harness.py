"""The harness: rows that are measured in interleaved rounds, their results, tables and charts.

Rows take turns, so that other work of the machine falls on all of them alike, and each run is a fresh process.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import charts
from bench.environments import PROJECT, Environments
from bench.processes import Child, FailedError, Variables, call, child
from bench.report import Run, fill, markdown, runs
from bench.usage import busy_share, hardware

PAGE = "docs/performance.md"
"""Where the tables are."""
QUIET = 0.05
"""Share of the machine's CPU time that others may use during a run before it is repeated, where it may be."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tool used in one way: a line of a table."""

    name: str  # unique
    package: str  # whose version is shown: Debian's where the name begins with "apt:"
    environment: str  # that the package is installed in
    peer: str  # adapter of the workload
    variant: str = ""  # argument of the adapter
    reads: str = ""  # peer whose format it reads; by default its own
    variables: tuple[tuple[str, str], ...] = ()  # of its process
    keep_uint8: bool = False  # do not normalise: the images stay uint8 until they are on a GPU

    @property
    def format(self) -> str:
        """Return the peer that writes what this row reads."""
        return self.reads or self.peer


class Workload:
    """A table of rows. Subclasses measure a run of a row, and make tables of the results."""

    name: str  # of its results, and of its folder in build/
    rows: tuple[Row, ...]
    chart = ""  # picture in docs/, where it has one
    rounds, attempts, patience_s = 3, 1, 0.0  # defaults of the options

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.options, self.stack = options, stack
        self.environments = Environments(options.environments, here=options.here)
        parts = ["data", options.images.name if options.images else "drawn", getattr(options, "samples", None)]
        self.results: Path = options.output / f"{self.name}.json"
        self.data = (options.output / "-".join(str(part) for part in parts if part)).resolve()

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the size of the work."""

    def facts(self) -> dict[str, Any]:
        """Make what all rows need, and return what the results say of it."""
        return {}

    def cases(self) -> list[dict[str, Any]]:
        """Return the conditions under which every row is measured in each round."""
        return [{}]

    def prepare(self, row: Row, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Make what a row needs; raises `FailedError`."""

    def measure(self, row: Row, case: dict[str, Any]) -> Run:
        """Measure a row in fresh processes; raises `FailedError`."""
        raise NotImplementedError

    def costs(self, run: Run) -> dict[str, float]:
        """Return the CPU time per image (or byte) of a run, by name: what `--against` compares."""
        raise NotImplementedError

    def others(self, run: Run) -> float:
        """Return the share of the machine that others used during a run, in the worst of its parts."""
        parts = (part for part in (run, *run.values()) if isinstance(part, dict))
        return float(max(part["others"] for part in parts if "others" in part))

    def table(self, results: dict[str, Any]) -> str:
        """Return the table, the slowest row first."""
        raise NotImplementedError

    def caption(self, results: dict[str, Any]) -> str:
        """Return a sentence on what was measured, when and where."""
        raise NotImplementedError

    def bars(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return what `charts.bars` draws."""
        raise NotImplementedError

    def marks(self, results: dict[str, Any]) -> dict[str, str]:
        """Return table and caption by their marks in the page."""
        return {self.name: self.table(results), f"{self.name} caption": self.caption(results) + "\n"}

    def where(self, results: dict[str, Any]) -> tuple[str, float]:
        """Return machine, date and rounds for the caption, and the largest share of the machine that others used."""
        measured = [run for row in results["rows"] for run in row["rounds"]]
        rounds = max((run["round"] for run in measured), default=0)
        text = f"{results['hardware']}; {results['date']}; medians of {rounds} interleaved rounds"
        return text, max(map(self.others, measured), default=0.0)

    def call(self, where: Row | str, function: str, **options: Any) -> Any:
        """Call a function in an environment, or with a row's interpreter and variables; see `processes.child`."""
        with self.child(where, function, **options) as process:
            return process.receive()

    def child(
        self, where: Row | str, function: str, *, variables: Variables = (), **options: Any
    ) -> contextlib.AbstractContextManager[Child]:
        """Run a function in an environment, or with a row's interpreter and variables; see `processes.child`."""
        environment, own = (where, ()) if isinstance(where, str) else (where.environment, where.variables)
        whole = (*self.environments.variables(), *own, *variables)
        return child(self.environments.python(environment), function, variables=whole, **options)


def made(folder: Path, make: Callable[[], Any]) -> Path:
    """Make a folder unless it is complete, and return it."""
    stamp = folder.with_name(f"{folder.name}.complete")
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"preparing {folder.name}", flush=True)
        make()
        stamp.touch()
    return folder


def run(workload_type: type[Workload], parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure a workload, print its tables, and publish them if asked."""
    parser.add_argument("--images", type=Path, help="folder of photographs to make the images from (default: drawn)")
    attempts, patience_s = workload_type.attempts, workload_type.patience_s
    parser.add_argument("--rounds", type=int, default=workload_type.rounds)
    parser.add_argument("--attempts", type=int, default=attempts, help="repeat a run while others use the machine")
    parser.add_argument("--patience", type=float, default=patience_s, help="seconds to wait for a calm machine")
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows with this in their name")
    parser.add_argument("--against", metavar="PATH", type=Path, help="compare with shardflow of another checkout")
    parser.add_argument("--here", action="store_true", help="use this interpreter, and shardflow of this checkout")
    parser.add_argument("--publish", action="store_true", help=f"put the results into {PAGE}")
    parser.add_argument("--publish-only", action="store_true", help="the same with the results in --output, unmeasured")
    parser.add_argument("--environments", type=Path, default=PROJECT / ".venv-bench")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / f"bench-{workload_type.name}")
    workload_type.add_options(parser)
    options = parser.parse_args(arguments)
    options.here |= options.against is not None
    if options.publish and options.against:
        parser.error("--against measures shardflow alone: leave --publish out")
    with contextlib.ExitStack() as stack:
        workload = workload_type(options, stack)
        if options.publish_only:
            publish(workload, json.loads(workload.results.read_text()))
            return
        rows = tuple(row for row in workload.rows if options.only in row.name)
        results = measure(workload, compared(rows, options.against.resolve()) if options.against else rows)
        print(comparison(workload, results) if options.against else report(workload, results))
        if options.publish:
            publish(workload, results)


def measure(workload: Workload, rows: tuple[Row, ...]) -> dict[str, Any]:
    """Run all rounds, and write the results after every run."""
    options = workload.options
    workload.data.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "hardware": hardware(),
        "python": platform.python_version(),
        **workload.facts(),
        "rows": [],
    }
    for row in rows:
        version = workload.environments.version(row.environment, row.package)
        about = {"name": row.name, "package": row.package, "version": version}
        results["rows"].append({**about, "rounds": [], "failures": []})
    turns = []
    for case in workload.cases():
        for row, result in zip(rows, results["rows"], strict=True):
            with _failures_noted(result, 0, case):
                workload.prepare(row, case, result)
                turns.append((case, row, result))
    for number in range(1, options.rounds + 1):
        for case, row, result in turns if number % 2 else turns[::-1]:
            with _failures_noted(result, number, case):
                measured = {"round": number, **case, **_calmest(workload, row, case)}
                result["rounds"].append(measured)
                costs = ", ".join(f"{name} {cost:.3f}" for name, cost in workload.costs(measured).items())
                used = f"others used {workload.others(measured):.0%} of the machine"
                print(f"{_turn(number, row.name, case)}: {costs}; {used}", flush=True)
                workload.results.write_text(json.dumps(results, indent=1) + "\n")
    return results


def report(workload: Workload, results: dict[str, Any]) -> str:
    """Write table, caption and chart to the output folder, and return table and caption."""
    text = "\n".join(f"{mark}\n\n{content}" for mark, content in workload.marks(results).items())
    workload.results.with_suffix(".md").write_text(text)
    if workload.chart and any(row["rounds"] for row in results["rows"]):
        draw(workload, results, workload.options.output / workload.chart)
    return text


def publish(workload: Workload, results: dict[str, Any]) -> None:
    """Put table, caption and chart into docs/."""
    fill(PROJECT / PAGE, workload.marks(results))
    if workload.chart:
        draw(workload, results, PROJECT / "docs" / workload.chart)


def draw(workload: Workload, results: dict[str, Any], path: Path) -> None:
    """Draw the chart of a workload."""
    charts.bars(path, **workload.bars(results))


def compared(rows: tuple[Row, ...], other: Path) -> tuple[Row, ...]:
    """Return shardflow's rows, each followed by the same with the other checkout's package."""
    variables = (("PYTHONPATH", str(other)),)
    found = call(sys.executable, "environments.shardflow_file", variables=variables)
    if not Path(found).is_relative_to(other):
        sys.exit(f"--against: expected a checkout of shardflow in {other}, but {found} is imported")
    pairs = ((row, dataclasses.replace(row, name=f"{row.name}, {other}", variables=variables)) for row in rows)
    return tuple(row for pair in pairs for row in pair if row.package == "shardflow")


def comparison(workload: Workload, results: dict[str, Any]) -> str:
    """Return a table of the CPU times of shardflow's rows and their ratios to those of the other checkout."""
    lines = []
    for this, other in zip(results["rows"][::2], results["rows"][1::2], strict=True):
        for failure in (*this["failures"], *other["failures"]):
            lines.append((this["name"], "failed: " + failure["reason"], "", "", ""))
        for case in workload.cases():
            costs = [{run["round"]: workload.costs(run) for run in runs(row, case)} for row in (this, other)]
            both = sorted(costs[0].keys() & costs[1].keys())
            for cost in costs[0][both[0]] if both else ():
                mine, theirs = ([found[number][cost] for number in both] for found in costs)
                ratios = [one / another for one, another in zip(mine, theirs, strict=True)]
                name = ", ".join((this["name"], *map(str, case.values()), cost))
                spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
                numbers = (f"{median(theirs):.4f}", f"{median(mine):.4f}", f"{median(ratios):.3f}", spread)
                lines.append((name, *numbers))
    return markdown(("row", "other checkout", "this one", "this / other, median", "over rounds"), lines)


def _calmest(workload: Workload, row: Row, case: dict[str, Any]) -> Run:
    """Measure until other processes leave the machine alone, and return the attempt that they disturbed least."""
    deadline = time.monotonic() + workload.options.patience
    while time.monotonic() < deadline and busy_share(2) > QUIET:
        pass
    attempts = []
    while len(attempts) < workload.options.attempts and not any(workload.others(run) <= QUIET for run in attempts):
        attempts.append(workload.measure(row, case))
    return min(attempts, key=workload.others)


@contextlib.contextmanager
def _failures_noted(result: dict[str, Any], number: int, case: dict[str, Any]) -> Any:
    try:
        yield
    except FailedError as error:
        result["failures"].append({"round": number, **case, "reason": str(error)})
        print(f"{_turn(number, result['name'], case)}: failed: {error}", flush=True)


def _turn(number: int, name: str, case: dict[str, Any]) -> str:
    return ", ".join((f"round {number}", name, *map(str, case.values())))
