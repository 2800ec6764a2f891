"""What was measured, as Markdown tables and as a bar chart.

python report.py RESULTS [--chart PNG] [--publish PAGE]
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

from conditions import CONDITIONS
from page import fill, markdown

EPOCHS = ("loader", "version", "cold images/s", "warm images/s", "cold CPU-ms", "warm CPU-ms", "first batch s")
FETCHED = ("MB cold", "MB warm")
STORE = ("client", "version", "MB/s, 1 process", "2 processes", "CPU-s/GB, 1 process", "2 processes", "memory MB")
MINE = "shardflow"


def tables(results: dict[str, Any]) -> str:
    """Return all tables, each under the title of its condition."""
    return (
        "\n".join(f"{condition.title}\n\n{table(results, condition.name)}" for condition in CONDITIONS)
        + f"\n{caption(results)}\n"
    )


def table(results: dict[str, Any], condition: str) -> str:
    """Return one table: medians over rounds, the slowest first, what failed every time last."""
    epochs = results["what"] == "epochs"
    columns = (*EPOCHS, *FETCHED, "epochs") if epochs else STORE
    cells = []
    for row in sorted(results["rows"], key=lambda row: _rate(results, row, condition)):
        if runs := _runs(row, condition):
            values = _epoch_cells(results, runs, _failures(row, condition)) if epochs else _store_cells(runs)
        else:
            failed = _failures(row, condition)
            values = (f"failed: {failed[-1]}" if failed else "not run", *("" for _ in columns[3:]))
        cells.append((row["name"], row["version"], *values))
    return markdown(columns, cells)


def caption(results: dict[str, Any]) -> str:
    """Say what was measured, where and when."""
    rounds = [run for row in results["rows"] for run in row["rounds"]]
    epochs = results["what"] == "epochs"
    others = max(one["others"] for run in rounds for one in ((run["cold"], run["warm"]) if epochs else (run,)))
    where = (
        f"server and proxy on the same {results['hardware']}; {results['date']}; medians of "
        f"{max(run['round'] for run in rounds)} interleaved rounds, in which others used at most {others:.0%} of the "
        "machine."
    )
    if epochs:
        return (
            f"{results['samples']:,} JPEG files of {results['picture_bytes'] / 1000:.0f} kB in shards of 250, batch "
            f"64, two workers; {where}"
        )
    direct, far, alone = (
        ", ".join(f"{rate:,.0f}" for rate in results["passing"][name]) for name in ("direct", "far", "uncapped")
    )
    return (
        f"{results['blobs']} shards of {results['blob_bytes'] >> 20} MiB; {where} To 1, 4 and 8 curls at once come "
        f"{direct} MB/s on the bare loopback, {far} MB/s through one proxy, and {alone} MB/s through one proxy that "
        "does not hold them up."
    )


def chart(results: dict[str, Any], path: Path) -> None:
    """Draw the images per second of cold and warm epochs as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in results["rows"] if all(_runs(row, condition.name) for condition in CONDITIONS)]
    rows.sort(key=lambda row: _rate(results, row, CONDITIONS[-1].name))
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 0.62 * len(rows) + 1.4), sharey=True, sharex=True)
    for axes, condition in zip(panels, CONDITIONS, strict=True):
        for name, offset, colours in (("cold", 0.2, ("#d1495b", "#8d99ae")), ("warm", -0.2, ("#e8a5ad", "#cdd3dd"))):
            values = [_median(_runs(row, condition.name), name, "images_per_s") for row in rows]
            places = [number + offset for number in range(len(rows))]
            chosen = [colours[row["package"] != MINE] for row in rows]
            bars = axes.barh(places, values, height=0.38, color=chosen)
            axes.bar_label(bars, [f"{value:,.0f} {name}" for value in values], padding=3, fontsize=8)
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axes.set_title(f"images/s, {condition.title}", fontsize=11)
        axes.margins(x=0.2)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.xaxis.set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.text(0.01, 0.01, textwrap.fill(caption(results), 170), fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=130)


def publish(results: dict[str, Any], docs: Path) -> None:
    """Put the tables and the caption into the page, between the lines that mark their places, and renew the chart."""
    contents = {f"{results['what']} {each.name}": table(results, each.name) for each in CONDITIONS}
    fill(docs / "streaming.md", {**contents, f"{results['what']} caption": caption(results) + "\n"})
    if results["what"] == "epochs":
        chart(results, docs / "streaming.png")


def _fetched(runs: list[dict[str, Any]], name: str) -> str:
    """Return the MB that came over the network, which only the proxy counts."""
    return f"{_median(runs, name, 'bytes') / 1e6:,.0f}" if "bytes" in runs[0][name] else ""


def _epoch_cells(results: dict[str, Any], runs: list[dict[str, Any]], failed: list[str]) -> tuple[str, ...]:
    failures = f"; {len(failed)} of {len(failed) + len(runs)} runs failed: {failed[-1]}" if failed else ""
    return (
        f"{_median(runs, 'cold', 'images_per_s'):,.0f}",
        f"{_median(runs, 'warm', 'images_per_s'):,.0f}",
        f"{_median(runs, 'cold', 'cpu_ms_per_image'):.2f}",
        f"{_median(runs, 'warm', 'cpu_ms_per_image'):.2f}",
        f"{_median(runs, 'cold', 'first_batch_s'):.2f}",
        _fetched(runs, "cold"),
        _fetched(runs, "warm"),
        _exactness([run[name] for run in runs for name in ("cold", "warm")], results["samples"]) + failures,
    )


def _store_cells(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    by = [[run for run in runs if run["processes"] == count] for count in (1, 2)]
    return (
        *(f"{median(run['mb_per_s'] for run in each):,.0f}" if each else "-" for each in by),
        *(f"{median(run['cpu_s_per_gb'] for run in each):.2f}" if each else "-" for each in by),
        f"{max(run['peak_bytes'] for run in runs) / 1e6:,.0f}",
    )


def _exactness(epochs: list[dict[str, Any]], samples: int) -> str:
    if all(epoch["exact"] for epoch in epochs):
        return "exact"
    worst = min(epochs, key=lambda epoch: int(epoch["distinct"]))
    return f"{worst['samples']:,} samples, {worst['distinct']:,} different, of {samples:,}"


def _runs(row: dict[str, Any], condition: str) -> list[dict[str, Any]]:
    return [run for run in row["rounds"] if run["condition"] == condition]


def _median(runs: list[dict[str, Any]], name: str, quantity: str) -> float:
    return median(run[name][quantity] for run in runs)


def _rate(results: dict[str, Any], row: dict[str, Any], condition: str) -> float:
    runs = _runs(row, condition)
    if not runs:
        return float("inf")
    return median(run["cold"]["images_per_s"] if results["what"] == "epochs" else run["mb_per_s"] for run in runs)


def _failures(row: dict[str, Any], condition: str) -> list[str]:
    return [failure["reason"] for failure in row["failures"] if failure["condition"] == condition]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--publish", type=Path, metavar="DOCS", help="put them into streaming.md there")
    given = parser.parse_args()
    loaded = json.loads(given.results.read_text())
    print(tables(loaded), end="")
    if given.publish:
        publish(loaded, given.publish)
