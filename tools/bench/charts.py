"""Charts, drawn by matplotlib in the environment "charts"."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

OWN, OTHER = ("#d1495b", "#e8a5ad"), ("#8d99ae", "#cdd3dd")
"""Colours of shardflow's bars and of the others', by series."""


def bars(path: str, names: list[str], own: list[bool], panels: list[dict[str, Any]], caption: str) -> None:
    """Draw panels side by side, with a bar per name, from the bottom up, and series; `own` marks shardflow's bars.

    Each panel has a "title" and a list of "series", each with "values" and "labels".
    """
    count = len(panels[0]["series"])
    figure, axes = pyplot.subplots(1, len(panels), figsize=(11, (0.16 + 0.22 * count) * len(names) + 1.5), sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        for number, series in enumerate(panel["series"]):
            at = [place + 0.4 * ((count - 1) / 2 - number) for place in range(len(names))]
            colours = [(OWN if mine else OTHER)[number] for mine in own]
            drawn = axis.barh(at, series["values"], height=0.8 / count - 0.02, color=colours)
            axis.bar_label(drawn, series["labels"], padding=3, fontsize=9 if count == 1 else 8)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(panel["title"], fontsize=11)
        axis.margins(x=0.12 if count == 1 else 0.2, y=0.02)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.xaxis.set_visible(False)
        axis.tick_params(axis="y", length=0)
    _save(figure, path, textwrap.fill(caption, 170), 0.05)


def _save(figure: Any, path: str, caption: str, bottom: float) -> None:
    figure.text(0.01, 0.01, caption, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, dpi=130)


BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#555555"  # Okabe and Ito's palette


def sampling(path: str, results: str) -> None:
    """Draw the class counts that `micro.sampling.measure` wrote: the picture of docs/loading.md."""
    found = json.loads(Path(results).read_text())
    figure, axis = pyplot.subplots(figsize=(9, 4))
    for (name, counts), colour in zip(found["counts"].items(), (GREY, BLUE, VERMILION), strict=True):
        axis.plot(counts, ".", color=colour, markersize=3, label={"plain": "no weights"}.get(name, f'weights="{name}"'))
    axis.set_yscale("log")
    axis.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    axis.set_xlabel("class, the largest first", fontsize=9)
    axis.set_title("images of each class in one epoch", fontsize=11, loc="left")
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, markerscale=3)
    _save(figure, path, found["title"], 0.04)
