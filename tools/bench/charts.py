"""Charts, drawn by matplotlib in the environment "charts"."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker

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


def recipe(path: str, rows: list[dict[str, Any]], default: list[Any], caption: str) -> None:
    """Draw the costs and the fidelity of each quality; a circle marks the default."""
    panels = (
        ("bytes", 1e-3, "kB per image"),
        ("decode_us", 1.0, "decoding, CPU-µs per image"),
        ("psnr_db", 1.0, "PSNR, dB"),
        ("ssim", 1.0, "SSIM of luma (one line for all of JPEG's subsamplings)"),
    )
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7.5))
    for axis, (column, unit, title) in zip(grid.flat, panels, strict=True):
        for name, colour in {"4:2:0": "#d1495b", "4:2:2": "#edae49", "4:4:4": "#00798c", "webp": "#8d99ae"}.items():
            series = {row["quality"]: row[column] * unit for row in rows if row["name"] == name}
            if (name, column) == ("webp", "decode_us"):  # several times higher than the others
                title += f" (WebP: {min(series.values()):,.0f} to {max(series.values()):,.0f})"
                continue
            label = "WebP" if name == "webp" else f"JPEG {name}"
            axis.plot(series.keys(), series.values(), color=colour, marker="o", markersize=3, label=label)
            if name == default[0]:
                axis.plot(default[1], series[default[1]], color=colour, marker="o", markersize=10, fillstyle="none")
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_xlabel("quality", fontsize=9)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in grid[0]:
        axis.set_ylim(bottom=0)
    grid[0][0].legend(frameon=False, fontsize=9)
    _save(figure, path, caption, 0.03)


def _save(figure: Any, path: str, caption: str, bottom: float) -> None:
    figure.text(0.01, 0.01, caption, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, dpi=130)


BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"  # Okabe and Ito's palette
NOISE = "class noise of a batch (full shuffle = 1)"
TENS = [1, 3, 10, 30, 100, 300]


class Mixing:
    """The six panels of docs/mixing.md, from the results that `micro.mixing.measure` wrote."""

    def __init__(self, results: dict[str, Any]) -> None:
        self._orders, self._lanes = results["orders"], results["lanes"]
        self._full, self._buffer = self._orders[:2]
        self._default = self._order(*results["default"])
        lanes, window = results["default"]
        self._compared = (
            (self._buffer, "webdataset shuffle(1000), 8 workers", VERMILION, ":"),
            (self._order(1, 16384), "1 lane, window 16384", BLUE, "-"),
            (self._default, f"default: {lanes} lanes, window {window}", GREEN, "-"),
            (self._full, "full shuffle", GREY, "--"),
        )

    def shards(self, axis: Any) -> None:
        """Draw the shards of a batch against lanes · window."""
        self._by_lanes(axis, lambda one: one["lanes"] * one["window"], "shards", 0.46, "center right")
        axis.set(ylim=(1, 320), xlabel="lanes · window: samples shuffled among each other")
        axis.set_ylabel("distinct shards in a batch of 256")
        axis.set_title("Lanes · window decides how many\nshards meet in a batch")
        _plain(axis, x=[1024 * 8**power for power in range(5)], y=TENS)

    def cost(self, axis: Any) -> None:
        """Draw class noise against open shards."""
        self._by_lanes(axis, lambda one: one["open_mean"], "rank_noise", 0.78, "upper right")
        axis.set(ylim=(0.8, 300), xlabel="shards open at a time, per rank", ylabel=NOISE)
        axis.set_title("Less noise costs open shards,\nwith few lanes or many")
        _plain(axis, x=TENS, y=TENS)

    def start(self, axis: Any) -> None:
        """Draw class noise over the first steps."""
        for (one, label, colour, style), points_up in zip(self._compared, (14, 6, -16, 6), strict=True):
            axis.plot([8 * number + 4 for number in range(40)], one["start"], color=colour, linestyle=style)
            _label(axis, label, (318, one["start"][39]), colour, points_up, ha="right")
        axis.set(yscale="log", xlim=(0, 320), ylim=(0.8, 300), xlabel="step of the epoch", ylabel=NOISE)
        axis.set_title("Several lanes mix from the first step on,\none needs a while")
        _plain(axis, y=TENS)

    def horizon(self, axis: Any) -> None:
        """Draw class noise of several steps; powers of two alone, because others beat with the windows."""
        for one, label, colour, style in self._compared:
            noise = {int(steps): value for steps, value in one["noise"].items() if int(steps).bit_count() == 1}
            axis.plot(noise.keys(), noise.values(), color=colour, linestyle=style, label=label)
        axis.set(xscale="log", yscale="log", ylim=(0.5, 1200), xlabel="successive steps taken together")
        axis.set(ylabel="class noise of all their samples", title="The same few classes stay\nfor many steps")
        _plain(axis, x=[1, 4, 16, 64, 256], y=[1, 10, 100, 1000])
        axis.legend(loc="lower left", bbox_to_anchor=(0.2, 0.08))

    def packing(self, axis: Any) -> None:
        """Draw class noise of samples in class order, and of samples shuffled at packing."""
        for line, (one, label, colour, _) in enumerate(reversed(self._compared)):
            axis.plot([one["packed_noise"], one["rank_noise"]], [line, line], color="#c8c8c8", linewidth=4, zorder=1)
            axis.plot(one["rank_noise"], line, "o", ms=10, color=colour)
            axis.plot(one["packed_noise"], line, "o", ms=10, mfc="white", mec=colour, mew=2)
            _label(axis, label, (0.93, line), colour, 11)
            if one["rank_noise"] > 1.5:
                _label(axis, f"{one['rank_noise']:.0f}", (one["rank_noise"] * 1.2, line), "black", -4)
        axis.plot([], [], "o", color=GREY, label="packed in class order")
        axis.plot([], [], "o", mfc="white", mec=GREY, mew=2, label="shuffled at packing")
        axis.set(xscale="log", xlim=(0.7, 300), ylim=(-0.5, 3.6), xlabel=NOISE, yticks=[])
        axis.set_title("Shuffled once at packing, every order\nis as good as a full shuffle")
        _plain(axis, x=TENS)
        axis.legend(loc="lower right")

    def displacement(self, axis: Any) -> None:
        """Draw how far samples move."""
        for one, label, colour, style in self._compared:
            shares = [number / 100 for number in range(101)]
            axis.plot(shares, one["moved_less"], color=colour, linestyle=style, label=label)
        axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="|position in the epoch - position in storage| / N")
        axis.set_ylabel("share of samples that moved less")
        axis.set_title("Shuffled shards carry every sample\nas far as a full shuffle does")
        axis.legend(loc="lower right")

    def _order(self, lanes: int, window: int) -> Any:
        return next(one for one in self._orders if (one["lanes"], one["window"]) == (lanes, window))

    def _by_lanes(self, axis: Any, x: Any, y: str, legend: float, corner: str) -> None:
        """Draw a line per number of lanes, the default, and the two orders it is compared with."""
        for lanes, colour, marker in zip(self._lanes, (BLUE, GREEN, ORANGE), "os^", strict=True):
            own = [one for one in self._orders if one["lanes"] == lanes]
            label = f"{lanes} lane{'s' * (lanes > 1)}"
            axis.plot(list(map(x, own)), [one[y] for one in own], color=colour, marker=marker, label=label)
        ring = {"ms": 15, "mfc": "none", "mec": "black", "mew": 1.5}
        axis.plot(x(self._default), self._default[y], "o", label="default", **ring)
        compared = (self._full, GREY, "--", 0.02, "left"), (self._buffer, VERMILION, ":", 0.99, "right")
        for one, colour, style, at, align in compared:
            axis.axhline(one[y], color=colour, linestyle=style)
            _label(axis, one["name"], (at, one[y]), colour, 4, ha=align, xycoords=("axes fraction", "data"))
        axis.set(xscale="log", yscale="log")
        axis.legend(loc=corner, bbox_to_anchor=(1, legend))


def mixing(path: str, results: str) -> None:
    """Draw the picture of docs/mixing.md."""
    style = {
        "font.size": 10.5,
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.7,
    }
    loaded = json.loads(Path(results).read_text())
    panels = Mixing(loaded)
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(2, 3, figsize=(15, 9), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.15)
        drawn = (panels.shards, panels.cost, panels.start, panels.horizon, panels.packing, panels.displacement)
        for draw, axis in zip(drawn, axes.flat, strict=True):
            draw(axis)
        figure.suptitle(loaded["title"], fontsize=10.5, color=GREY, x=0.01, ha="left")
        figure.savefig(path, dpi=110, facecolor="white")


def _label(axis: Any, text: str, at: tuple[float, float], colour: str, points_up: int, **options: Any) -> None:
    """Write the name of a line beside it."""
    options = {"fontsize": 9.5, "textcoords": "offset points", **options}
    axis.annotate(text, at, (0, points_up), color=colour, **options)


def _plain(axis: Any, x: list[int] | None = None, y: list[int] | None = None) -> None:
    """Label a logarithmic axis with whole numbers."""
    for side, ticks in ((axis.xaxis, x), (axis.yaxis, y)):
        if ticks is not None:
            side.set_ticks(ticks, labels=[f"{tick // 1024}k" if tick >= 1024 else f"{tick:,}" for tick in ticks])
            side.set_minor_locator(mpl.ticker.NullLocator())


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
