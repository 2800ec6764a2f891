"""How well lanes and window mix, against a full shuffle and webdataset's shuffle buffer: a table and a picture.

    python tools/bench/mixing.py --out docs/mixing.png

Index arithmetic alone: 1,281,167 samples of 1,000 equal classes in shards of 2,048, as ImageNet would be packed, and no
image is read. The orders compared are real: shardflow's plan, and the stages of the webdataset library itself.

Class noise is the measure that training feels. It is the variance of a batch's class counts as a multiple of what it is
under a full shuffle (chi-square over its degrees of freedom). A batch of 256 with noise 4 tells as much about the mean
over the classes as 64 samples that were drawn at random.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import webdataset as wds

from shardflow.order import keyed_rng
from shardflow.order.plan import LANES_PER_RANK, WINDOW, Plan
from shardflow.order.schedule import Schedule
from shardflow.preview import mixing

I64 = npt.NDArray[np.int64]

SAMPLES = 1_281_167
SHARD_SAMPLES = 2048
CLASSES = 1000
BATCH = 256
WORLDS = (1, 8)
LANES = (1, 8, 64)
WINDOWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
CHOSEN = (LANES_PER_RANK, WINDOW)
"""The defaults, which docs/mixing.md argues for."""
WORKERS = 8
"""Worker processes per rank for webdataset, whose order depends on them; shardflow's does not."""
HORIZONS = (1, 2, 4, 8, 10, 16, 32, 64, 100, 128, 256)
"""Over how many successive steps classes are counted: momentum averages about 10, Adam's second moment 100 and more."""

SIZES = np.minimum(SHARD_SAMPLES, SAMPLES - np.arange(0, SAMPLES, SHARD_SAMPLES))
FIRST = np.cumsum(SIZES) - SIZES
CLASS_ORDERED = np.arange(SAMPLES) * CLASSES // SAMPLES
SHUFFLED = CLASS_ORDERED[keyed_rng.permutation(keyed_rng.key(0, "packing"), SAMPLES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What was measured of one order.

    Attributes:
        name: Of the order.
        world: Number of ranks.
        lanes: Of the plan, over all ranks; 0 for the orders it is compared with.
        window: Of the plan.
        open_mean, open_most: Shards a rank has begun and not ended, over the steps of the epoch.
        first_shards: Shards that a rank needs for its first batch.
        shards, classes: Distinct ones in a rank's batch, on average, in class order.
        noise: Horizon in steps → class noise of the global batches of that many steps, in class order.
        rank_noise: Class noise of single batches of a rank, in class order.
        early_noise: The same over the first 64 steps.
        packed_noise: The same over the epoch, had the samples been shuffled at packing.
        by_step: Class noise of a rank's batches by step.
        displacement: |position in the epoch - position in storage| / N of each sample.
    """

    name: str
    world: int
    lanes: int = 0
    window: int = 0
    open_mean: float
    open_most: float
    first_shards: float
    shards: float
    classes: float
    noise: dict[int, float]
    rank_noise: float
    early_noise: float
    packed_noise: float
    by_step: npt.NDArray[np.float64]
    displacement: npt.NDArray[np.float64]


def full_shuffle(world: int) -> I64:
    """Return the batches of a full shuffle: the sample numbers, shape [steps, world, BATCH]."""
    steps = SAMPLES // (world * BATCH)
    return keyed_rng.permutation(keyed_rng.key(0, "full"), SAMPLES)[: steps * world * BATCH].reshape(
        steps, world, BATCH
    )


def planned(world: int, lanes: int, window: int) -> I64:
    """Return the batches of shardflow's plan: shape [steps, world, BATCH]."""
    plan = Plan(SIZES, seed=0, epoch=0, lanes=lanes, window=window)
    chunks = np.array_split(np.arange(SAMPLES), SAMPLES // 32768)
    order = np.concatenate([FIRST[shards] + records for shards, records in map(plan.locate, chunks)])
    schedules = [Schedule(length=SAMPLES, batch_size=BATCH, rank=rank, world_size=world) for rank in range(world)]
    steps = range(schedules[0].steps())
    return np.stack([np.stack([order[rank.positions(0, step)[0]] for rank in schedules]) for step in steps])


def webdataset_stream(shards: list[int], seed: int) -> I64:
    """Return the sample numbers that one worker's webdataset pipeline yields: shardshuffle=100, shuffle(1000)."""

    def read(sources: Iterator[dict[str, Any]]) -> Iterator[int]:
        for source in sources:
            shard = int(source["url"])
            yield from range(FIRST[shard], FIRST[shard] + SIZES[shard])

    pipeline = wds.DataPipeline(
        wds.SimpleShardList([str(shard) for shard in shards]),
        wds.shuffle(100, rng=random.Random(seed)),
        read,
        wds.shuffle(1000, rng=random.Random(seed + 1)),
    )
    return np.fromiter(pipeline, dtype=np.int64)


def webdataset_batches(world: int) -> I64:
    """Return the batches of webdataset, its shards split by rank and by worker: shape [steps, world, BATCH]."""
    ranks = []
    for rank in range(world):
        workers = []
        for worker in range(WORKERS):
            stream = webdataset_stream(list(range(len(SIZES)))[rank::world][worker::WORKERS], 1000 * rank + 2 * worker)
            workers.append(stream[: len(stream) // BATCH * BATCH].reshape(-1, BATCH))
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*workers))
        ranks.append(np.stack([batch for batch in in_turn if batch is not None]))
    steps = min(map(len, ranks))
    return np.stack([batches[:steps] for batches in ranks], axis=1)


def class_noise(classes: I64) -> npt.NDArray[np.float64]:
    """Return the class noise of each row of an array of class numbers, shape [rows, samples]."""
    shares = np.full(CLASSES, 1 / CLASSES)
    return np.concatenate(
        [mixing.class_noise(rows, shares) for rows in np.array_split(classes, len(classes) // 500 + 1)]
    )


def distinct(values: I64) -> float:
    """Return how many distinct values a row has, on average over the rows."""
    return 1 + float((np.diff(np.sort(values, axis=1), axis=1) > 0).sum(1).mean())


def open_shards(shards: I64) -> npt.NDArray[np.int64]:
    """Return, per step, how many shards a rank has begun and not ended; `shards` has the shape [steps, BATCH]."""
    steps = np.repeat(np.arange(len(shards)), shards.shape[1])
    begun, ended = np.full(len(SIZES), len(shards)), np.full(len(SIZES), -1)
    np.minimum.at(begun, shards.ravel(), steps)
    np.maximum.at(ended, shards.ravel(), steps)
    read = ended >= 0
    change = np.bincount(begun[read], minlength=len(shards) + 1) - np.bincount(
        ended[read] + 1, minlength=len(shards) + 1
    )
    return np.cumsum(change)[:-1]


def measure(name: str, batches: I64, *, lanes: int = 0, window: int = 0, streams: int | None = None) -> Mixing:
    """Measure an order, given as its batches of shape [steps, world, BATCH]; `streams` shards are open, if known."""
    steps, world, _ = batches.shape
    shards, classes = batches // SHARD_SAMPLES, CLASS_ORDERED[batches]
    live = [open_shards(shards[:, rank]) if streams is None else np.array([streams]) for rank in range(world)]
    noise = {}
    for horizon in HORIZONS:
        whole = steps // horizon
        if whole > 1:
            noise[horizon] = float(class_noise(classes[: whole * horizon].reshape(whole, -1)).mean())
    by_step = class_noise(classes.reshape(-1, BATCH)).reshape(steps, world).mean(1)
    epoch = batches.ravel()
    return Mixing(
        name=name,
        world=world,
        lanes=lanes,
        window=window,
        open_mean=float(np.mean([rank.mean() for rank in live])),
        open_most=float(np.max([rank.max() for rank in live])),
        first_shards=distinct(shards[0]),
        shards=distinct(shards.reshape(-1, BATCH)),
        classes=distinct(classes.reshape(-1, BATCH)),
        noise=noise,
        rank_noise=float(by_step.mean()),
        early_noise=float(by_step[:64].mean()),
        packed_noise=float(class_noise(SHUFFLED[batches].reshape(-1, BATCH)).mean()),
        by_step=by_step,
        displacement=np.abs(np.arange(len(epoch)) - epoch) / SAMPLES,
    )


def measure_all() -> list[Mixing]:
    """Measure every order for every world size."""
    found = []
    for world in WORLDS:
        found.append(measure("full shuffle", full_shuffle(world)))
        found.append(measure("webdataset shuffle(1000)", webdataset_batches(world), streams=WORKERS))
        lanes_of = sorted({*LANES, CHOSEN[0] * world})
        for lanes, window in itertools.product(lanes_of, WINDOWS):
            name = f"{lanes} lane{'s' * (lanes > 1)}, window {window}"
            found.append(measure(name, planned(world, lanes, window), lanes=lanes, window=window))
    return found


def table(found: list[Mixing]) -> str:
    """Return what was measured as a Markdown table."""
    head = (
        "| ranks | order | open shards (most) | first batch | shards / batch | classes / batch | noise, 1 step "
        "| 10 steps | 100 steps | first 64 steps | shuffled at packing | displacement |"
    )
    lines = [head, "|" + " ---: |" + " --- |" + " ---: |" * 10]
    for one in found:
        cells = [
            str(one.world),
            one.name,
            f"{one.open_mean:.0f} ({one.open_most:.0f})",
            f"{one.first_shards:.0f}",
            f"{one.shards:.1f}",
            f"{one.classes:.1f}",
            *(f"{value:.1f}" for value in (one.rank_noise, one.noise[10], one.noise[100], one.early_noise)),
            f"{one.packed_noise:.2f}",
            f"{3 * one.displacement.mean():.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"  # Okabe and Ito's palette
NOISE = "class noise of a batch (full shuffle = 1)"
SERIES = {1: (BLUE, "o"), 8: (GREEN, "s"), 64: (ORANGE, "^")}


def draw(found: list[Mixing], path: Path) -> None:
    """Draw the picture of docs/mixing.md."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "lines.linewidth": 1.8,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 3, figsize=(15, 9), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.15)
        one_rank = [one for one in found if one.world == 1]
        _draw_shards(axes[0, 0], one_rank)
        _draw_cost(axes[0, 1], one_rank)
        _draw_start(axes[0, 2], one_rank)
        _draw_horizon(axes[1, 0], one_rank)
        _draw_packing(axes[1, 1], one_rank)
        _draw_displacement(axes[1, 2], one_rank)
        figure.suptitle(
            f"One epoch of {SAMPLES:,} samples of {CLASSES:,} classes in shards of {SHARD_SAMPLES:,}, packed in class "
            f"order unless said otherwise; one rank, batches of {BATCH}",
            fontsize=10.5,
            color=GREY,
            x=0.01,
            ha="left",
        )
        figure.savefig(path, dpi=110, facecolor="white")


def _get(found: list[Mixing], lanes: int, window: int) -> Mixing:
    return next(one for one in found if (one.lanes, one.window) == (lanes, window))


def _compared(found: list[Mixing]) -> list[tuple[Mixing, str, str, str]]:
    """Return the four orders that the panels follow, each with label, colour and line style."""
    return [
        (found[1], "webdataset shuffle(1000), 8 workers", VERMILION, ":"),
        (_get(found, 1, 16384), "1 lane, window 16384", BLUE, "-"),
        (_get(found, *CHOSEN), f"default: {CHOSEN[0]} lanes, window {CHOSEN[1]}", GREEN, "-"),
        (found[0], "full shuffle", GREY, "--"),
    ]


def _references(axis: Any, found: list[Mixing], attribute: str) -> None:
    """Draw what a full shuffle and webdataset reach as lines across the panel."""
    for one, color, style, x, align in (
        (found[0], GREY, "--", 0.02, "left"),
        (found[1], VERMILION, ":", 0.99, "right"),
    ):
        axis.axhline(getattr(one, attribute), color=color, linestyle=style)
        _label(axis, one.name, (x, getattr(one, attribute)), color, 4, ha=align, xycoords=("axes fraction", "data"))


def _label(axis: Any, text: str, at: tuple[float, float], color: str, points_up: int, **options: Any) -> None:
    """Write beside a line what it is."""
    options = {"fontsize": 9.5, "textcoords": "offset points", **options}
    axis.annotate(text, at, (0, points_up), color=color, **options)


def _plain(axis: Any, x: list[int] | None = None, y: list[int] | None = None) -> None:
    """Label a logarithmic axis with whole numbers."""
    for side, ticks in ((axis.xaxis, x), (axis.yaxis, y)):
        if ticks is not None:
            side.set_ticks(ticks, labels=[f"{tick // 1024}k" if tick >= 1024 else f"{tick:,}" for tick in ticks])
            side.set_minor_locator(_no_ticks())


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _draw_shards(axis: Any, found: list[Mixing]) -> None:
    for lanes in LANES:
        color, marker = SERIES[lanes]
        own = [one for one in found if one.lanes == lanes]
        label = f"{lanes} lane{'s' * (lanes > 1)}"
        axis.plot(
            [lanes * one.window for one in own], [one.shards for one in own], color=color, marker=marker, label=label
        )
    chosen = _get(found, *CHOSEN)
    axis.plot(
        chosen.lanes * chosen.window, chosen.shards, "o", ms=15, mfc="none", mec="black", mew=1.5, label="default"
    )
    _references(axis, found, "shards")
    axis.set(xscale="log", yscale="log", ylim=(1, 320), xlabel="lanes · window: samples shuffled among each other")
    axis.set(
        ylabel="distinct shards in a batch of 256", title="Lanes · window decides how many\nshards meet in a batch"
    )
    _plain(axis, x=[1024 * 8**power for power in range(5)], y=[1, 3, 10, 30, 100, 300])
    axis.legend(loc="center right", bbox_to_anchor=(1, 0.46))


def _draw_cost(axis: Any, found: list[Mixing]) -> None:
    for lanes in LANES:
        color, marker = SERIES[lanes]
        own = [one for one in found if one.lanes == lanes]
        label = f"{lanes} lane{'s' * (lanes > 1)}"
        axis.plot(
            [one.open_mean for one in own], [one.rank_noise for one in own], color=color, marker=marker, label=label
        )
    chosen = _get(found, *CHOSEN)
    axis.plot(chosen.open_mean, chosen.rank_noise, "o", ms=15, mfc="none", mec="black", mew=1.5, label="default")
    _references(axis, found, "rank_noise")
    axis.set(xscale="log", yscale="log", ylim=(0.8, 300), xlabel="shards open at a time, per rank")
    axis.set(
        ylabel=NOISE,
        title="Less noise costs open shards,\nwith few lanes or many",
    )
    _plain(axis, x=[1, 3, 10, 30, 100, 300], y=[1, 3, 10, 30, 100, 300])
    axis.legend(loc="upper right", bbox_to_anchor=(1, 0.78))


def _draw_start(axis: Any, found: list[Mixing]) -> None:
    for (one, label, color, style), points_up in zip(_compared(found), (14, 6, -16, 6), strict=True):
        averaged = one.by_step[: len(one.by_step) // 8 * 8].reshape(-1, 8).mean(1)
        axis.plot(8 * np.arange(len(averaged)) + 4, averaged, color=color, linestyle=style)
        _label(axis, label, (318, averaged[39]), color, points_up, ha="right")
    axis.set(yscale="log", xlim=(0, 320), ylim=(0.8, 300), xlabel="step of the epoch")
    axis.set(ylabel=NOISE, title="Several lanes mix from the first step on,\none needs a while")
    _plain(axis, y=[1, 3, 10, 30, 100, 300])


def _draw_horizon(axis: Any, found: list[Mixing]) -> None:
    for one, label, color, style in _compared(found):
        # The powers of two alone: what is no divisor of a window's steps beats with the windows.
        noise = {horizon: value for horizon, value in one.noise.items() if horizon & (horizon - 1) == 0}
        axis.plot(list(noise), list(noise.values()), color=color, linestyle=style, label=label)
    axis.set(xscale="log", yscale="log", ylim=(0.5, 1200), xlabel="successive steps taken together")
    axis.set(ylabel="class noise of all their samples", title="The same few classes stay\nfor many steps")
    _plain(axis, x=[1, 4, 16, 64, 256], y=[1, 10, 100, 1000])
    axis.legend(loc="lower left", bbox_to_anchor=(0.2, 0.08))


def _draw_packing(axis: Any, found: list[Mixing]) -> None:
    for row, (one, label, color, _) in enumerate(reversed(_compared(found))):
        axis.plot([one.packed_noise, one.rank_noise], [row, row], color="#c8c8c8", linewidth=4, zorder=1)
        axis.plot(one.rank_noise, row, "o", ms=10, color=color)
        axis.plot(one.packed_noise, row, "o", ms=10, mfc="white", mec=color, mew=2)
        _label(axis, label, (0.93, row), color, 11)
        if one.rank_noise > 1.5:
            _label(axis, f"{one.rank_noise:.0f}", (one.rank_noise * 1.2, row), "black", -4)
    axis.plot([], [], "o", color=GREY, label="packed in class order")
    axis.plot([], [], "o", mfc="white", mec=GREY, mew=2, label="shuffled at packing")
    axis.set(xscale="log", xlim=(0.7, 300), ylim=(-0.5, 3.6), xlabel=NOISE, yticks=[])
    axis.set_title("Shuffled once at packing, every order\nis as good as a full shuffle")
    _plain(axis, x=[1, 3, 10, 30, 100, 300])
    axis.legend(loc="lower right")


def _draw_displacement(axis: Any, found: list[Mixing]) -> None:
    edges = np.linspace(0, 1, 101)
    for one, label, color, style in _compared(found):
        shares = np.searchsorted(np.sort(one.displacement), edges) / len(one.displacement)
        axis.plot(edges, shares, color=color, linestyle=style, label=label)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="|position in the epoch - position in storage| / N")
    axis.set(
        ylabel="share of samples that moved less",
        title="Shuffled shards carry every sample\nas far as a full shuffle does",
    )
    axis.legend(loc="lower right")


def main() -> None:
    """Measure, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/mixing.png"), help="where the picture goes")
    arguments = parser.parse_args()
    found = measure_all()
    print(table(found))
    draw(found, arguments.out)


if __name__ == "__main__":
    main()
