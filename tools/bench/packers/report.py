"""What was measured, as Markdown tables and as a bar chart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from page import fill, markdown

KINDS = {"small": "0.19-megapixel originals", "large": "12-megapixel originals"}
COLUMNS = ("packer", "version", "CPU-ms/image", "to shardflow", "images/s", "start, CPU-s", "kB/image", "PSNR dB")
OWN = "shardflow"
CALM = 0.1
"""Share of the machine's CPU time that others may have used in a round whose wall time counts."""


def marginal(kind: dict[str, Any], quantity: str) -> float:
    """Return what one more image costs: the median over rounds of the difference between many images and few."""
    counts = kind["few"], kind["many"]
    return median((run["many"][quantity] - run["few"][quantity]) / (counts[1] - counts[0]) for run in kind["rounds"])


def images_per_s(kind: dict[str, Any]) -> str:
    """Return the rate over the rounds in which hardly anybody else used the machine, "-" where there are none."""
    calm = [run for run in kind["rounds"] if max(run["few"]["others"], run["many"]["others"]) <= CALM]
    return f"{1 / marginal({**kind, 'rounds': calm}, 'wall_s'):,.0f}" if calm else "-"


def start_s(kind: dict[str, Any]) -> float:
    """Return the CPU time that does not depend on the number of images."""
    return max(0.0, median(run["few"]["cpu_s"] for run in kind["rounds"]) - kind["few"] * marginal(kind, "cpu_s"))


def table(results: dict[str, Any], kind: str) -> str:
    """Return one table, the most expensive packer first, and what failed last."""
    own = next((row[kind] for row in results["rows"] if row["name"] == OWN and row[kind]["rounds"]), None)
    lines = []
    for row in sorted(results["rows"], key=lambda row: -_cpu_ms(row[kind])):
        measured = row[kind]
        if not measured["rounds"]:
            lines.append((row["name"], row["version"], f"failed: {measured['failure']}", "", "", "", "", ""))
            continue
        cpu_ms = _cpu_ms(measured)
        lines.append(
            (
                row["name"],
                row["version"],
                f"{cpu_ms:.2f}",
                f"{cpu_ms / _cpu_ms(own):.2f}" if own else "",
                images_per_s(measured),
                f"{start_s(measured):.1f}",
                f"{measured['quality']['bytes'] / 1000:.1f}",
                f"{measured['quality']['psnr_db']:.2f}",
            )
        )
    return markdown(COLUMNS, lines)


def chart(results: dict[str, Any], path: Path) -> None:
    """Draw the CPU time per image as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in results["rows"] if all(row[kind]["rounds"] for kind in KINDS)]
    rows.sort(key=lambda row: -_cpu_ms(row["small"]))
    colours = ["#d1495b" if row["package"] == "shardflow" else "#8d99ae" for row in rows]
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 0.4 * len(rows) + 1.6), sharey=True)
    for axes, (kind, title) in zip(panels, KINDS.items(), strict=True):
        values = [_cpu_ms(row[kind]) for row in rows]
        bars = axes.barh([row["name"] for row in rows], values, color=colours)
        labels = [f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in values]
        axes.bar_label(bars, labels, padding=3, fontsize=9)
        axes.set_title(f"{title}\nCPU-ms per image (less is better)", fontsize=11)
        axes.margins(x=0.14)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.xaxis.set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.text(0.01, 0.01, results["caption"], fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=130)


def publish(results: dict[str, Any], page: Path) -> None:
    """Put the tables and the caption into a page, between the lines that mark their places."""
    fill(page, {**{kind: table(results, kind) for kind in KINDS}, "caption": results["caption"] + "\n"})


def _cpu_ms(kind: dict[str, Any]) -> float:
    return 1000 * marginal(kind, "cpu_s") if kind["rounds"] else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="Markdown page to put the tables into")
    given = parser.parse_args()
    loaded = json.loads(given.results.read_text())
    for each, title in KINDS.items():
        print(f"{title}\n\n{table(loaded, each)}")
    if given.chart:
        chart(loaded, given.chart)
    if given.publish:
        publish(loaded, given.publish)
