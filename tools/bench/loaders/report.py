"""What was measured, as a Markdown table and as a bar chart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from page import fill, markdown

CALM = 0.05
"""Share of the machine's CPU time that others may have used in an epoch that counts."""
COLUMNS = ("loader", "version", "images/s", "CPU-ms/image", "memory MB", "first batch s", "epoch", "calm epochs")


def table(results: dict[str, Any]) -> str:
    """Return the table: medians over rounds, the slowest first, and what failed last."""
    rows = []
    for row in sorted(results["rows"], key=_rate):
        name, version = row["name"], row["version"]
        if not row["rounds"]:
            rows.append(
                (name, version, "failed: " + row["failures"][-1] if row["failures"] else "not run", "", "", "", "", "")
            )
            continue
        rows.append(
            (
                name,
                version,
                f"{_rate(row):,.0f}",
                f"{_cpu(row):.2f}",
                f"{median(run['peak_bytes'] for run in row['rounds']) / 1e6:,.0f}",
                f"{median(run['first_batch_s'] for run in row['rounds']):.2f}",
                _exactness(row, results["samples"]),
                str(sum(share <= CALM for run in row["rounds"] for share in run["others"])),
            )
        )
    return markdown(COLUMNS, rows)


def chart(results: dict[str, Any], path: Path) -> None:
    """Draw images/s and CPU time per image as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted((row for row in results["rows"] if row["rounds"]), key=_rate)
    colours = ["#d1495b" if row["package"] == "shardflow" else "#8d99ae" for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 0.36 * len(rows) + 1.2), sharey=True)
    for axes, title, values, shown in (
        (left, "images/s (more is better)", [_rate(row) for row in rows], "{:,.0f}"),
        (right, "CPU-ms per image (less is better)", [_cpu(row) for row in rows], "{:.2f}"),
    ):
        bars = axes.barh([row["name"] for row in rows], values, color=colours)
        axes.bar_label(bars, [shown.format(value) for value in values], padding=3, fontsize=9)
        axes.set_title(title, fontsize=11)
        axes.margins(x=0.12)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.xaxis.set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.text(0.01, 0.01, results["caption"], fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=130)


def _rate(row: dict[str, Any]) -> float:
    return median(_calm(row, "images_per_s")) if row["rounds"] else float("inf")


def _cpu(row: dict[str, Any]) -> float:
    return median(_calm(row, "cpu_ms_per_image"))


def _calm(row: dict[str, Any], quantity: str) -> list[float]:
    """Return the values from epochs in which nobody else used the machine, or all where there are none."""
    measured = [
        (share, value) for run in row["rounds"] for share, value in zip(run["others"], run[quantity], strict=True)
    ]
    return [value for share, value in measured if share <= CALM] or [value for _, value in measured]


def _exactness(row: dict[str, Any], samples: int) -> str:
    if all(exact for run in row["rounds"] for exact in run["exact"]):
        return "exact"
    worst = min(row["rounds"], key=lambda run: run["distinct"])
    return f"{worst['samples']:,} samples, {worst['distinct']:,} different, of {samples:,}"


def publish(results: dict[str, Any], page: Path) -> None:
    """Put the table and the caption into a page, between the lines that mark their place."""
    fill(page, {"table": table(results), "caption": results["caption"] + ".\n"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="Markdown page to put the table into")
    given = parser.parse_args()
    loaded = json.loads(given.results.read_text())
    print(table(loaded), end="")
    if given.chart:
        chart(loaded, given.chart)
    if given.publish:
        publish(loaded, given.publish)
