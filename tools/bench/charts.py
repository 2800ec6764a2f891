"""Charts, drawn by matplotlib in the environment "charts"."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

OWN, OTHER = ("#d1495b", "#e8a5ad"), ("#8d99ae", "#cdd3dd")
"""Colours of shardflow's bars and of the others', by series."""


def bars(path: str, names: list[str], own: list[bool], panels: list[dict[str, Any]], caption: str) -> None:
    """Draw panels side by side, with a bar per name and series.

    Args:
        path: The picture.
        names: What the bars belong to, from the bottom up.
        own: Which of them are shardflow's.
        panels: For each its "title" and its "series", a list of {"values": numbers, "labels": texts}.
        caption: What is written below.
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
        axis.margins(x=0.12 if count == 1 else 0.2)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.xaxis.set_visible(False)
        axis.tick_params(axis="y", length=0)
    figure.text(0.01, 0.01, textwrap.fill(caption, 170), fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=130)
