"""Results as Markdown tables, and as the contents of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]
Cells = Callable[[dict[str, Any], list[Run]], Sequence[str]]


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    whole = (columns, ["---"] * len(columns), *lines)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in whole) + "\n"


def fill(page: Path, contents: Mapping[str, str]) -> None:
    """Put contents into a Markdown page, each between the two comments that mark its place by name."""
    text = page.read_text()
    for mark, content in contents.items():
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + content + end + rest.partition(end)[2]
    page.write_text(text)


def runs(row: Mapping[str, Any], case: Mapping[str, Any]) -> list[Run]:
    """Return a row's runs of a case."""
    return [run for run in row["rounds"] if case.items() <= run.items()]


def table(
    results: Mapping[str, Any],
    columns: Sequence[str],
    rank: Callable[[list[Run]], float],
    cells: Cells,
) -> str:
    """Return a table with a line per row of the results.

    Columns begin with name and version; `cells` makes the others from a row and its runs. Lines ascend by `rank` of the
    runs; rows without a run come last.
    """
    ranked = []
    for row in results["rows"]:
        if measured := row["rounds"]:
            ranked.append((rank(measured), (row["name"], row["version"], *cells(row, measured))))
        else:
            failed = row["failures"]
            reason = f"failed: {failed[-1]['reason']}" if failed else "not run"
            ranked.append((float("inf"), (row["name"], row["version"], reason, *[""] * (len(columns) - 3))))
    return markdown(columns, [line for _, line in sorted(ranked, key=lambda one: one[0])])


def exactness(epochs: Sequence[Mapping[str, Any]], samples: int) -> str:
    """Say whether each sample came exactly once in all epochs, and otherwise what came in the worst."""
    if all(epoch["exact"] for epoch in epochs):
        return "exact"
    worst = min(epochs, key=lambda epoch: int(epoch["distinct"]))
    return f"{worst['samples']:,} samples, {worst['distinct']:,} different, of {samples:,}"


def panel(title: str, values: Sequence[float], text: Callable[[float], str]) -> dict[str, Any]:
    """Return a panel of `charts.bars`; `text` writes a value."""
    return {"title": title, "values": values, "labels": list(map(text, values))}
