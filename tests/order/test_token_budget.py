from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.order.rank_partition import RankPartition
from shardflow.order.sampler import EpochPlan, Facts
from shardflow.order.shuffle_settings import Shuffle
from shardflow.order.token_budget import TokenEpochs, patch_grids, shrunk_grids
from shardflow.samplers import TokenBudget
from tests.helpers.examples import examples

ORDER_SHA256 = "271a263913c986973675d7b421eebd32b2eff290600f6af611542a2c0d353cd1"
SHUFFLE = Shuffle(buffer=16)
LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=120).filter(lambda lengths: min(lengths) <= 60)


def facts(samples: int, *, shuffle: Shuffle | None = SHUFFLE, shard: int = 7, sizes: Any = None) -> Facts:
    """A split without labels in shards of one size but for the last."""
    shards = np.diff(np.append(np.arange(0, samples, shard), samples))
    return Facts(
        split="train",
        split_samples=samples,
        shard_samples=shards,
        shuffle=shuffle,
        batch_size=1,
        world_size=1,
        classes=None,
        labels=lambda: np.zeros(0, dtype=np.int32),
        image_sizes=lambda: sizes,
        load=np.load,
    )


def bind(sampler: TokenBudget, known: Facts) -> TokenEpochs:
    """A sampler, bound."""
    epochs = sampler.bind(known)
    assert isinstance(epochs, TokenEpochs)
    return epochs


def bins_of(plan: EpochPlan, known: Facts) -> list[list[int]]:
    """The numbers of the samples of each bin."""
    firsts = np.cumsum(known.shard_samples) - known.shard_samples
    shards, records, repeats = plan.visits(np.arange(plan.length))
    assert not repeats.any()
    counts = plan.counts(np.arange(plan.length))
    return [part.tolist() for part in np.split(firsts[shards] + records, np.cumsum(counts)[:-1])]


@given(
    lengths=LENGTHS,
    streams=st.integers(1, 9),
    window=st.integers(1, 50),
    epoch=st.integers(0, 5),
    shuffles=st.booleans(),
)
@examples(200)
def test_every_sample_comes_once_or_is_left_out(
    lengths: list[int], streams: int, window: int, epoch: int, shuffles: bool
) -> None:
    """Each sample that fits comes in one bin, the others are counted; no bin is empty or over the budget.

    Every epoch has the same number of bins, whatever the streams are.
    """
    known = facts(len(lengths), shuffle=SHUFFLE if shuffles else None)
    epochs = bind(TokenBudget(60, patch=None, text=lengths, window=window), known)
    bins = bins_of(epochs.plan(seed=1, epoch=epoch, streams=streams), known)
    assert len(bins) == epochs.length
    assert sorted(chain(*bins)) == [number for number, length in enumerate(lengths) if length <= 60]
    assert epochs.left_out == sum(length > 60 for length in lengths)
    assert bool(epochs.warnings) == bool(epochs.left_out)
    assert all(0 < sum(max(1, lengths[number]) for number in each) <= 60 for each in bins)


@given(
    lengths=LENGTHS,
    world_size=st.integers(1, 4),
    later_size=st.integers(1, 4),
    batch_size=st.integers(1, 3),
    tail=st.sampled_from(["drop", "short", "pad"]),
    stop=st.integers(0, 6),
)
@examples(150)
def test_ranks_have_equal_steps_and_resume_on_any_number_of_them(
    lengths: list[int], world_size: int, later_size: int, batch_size: int, tail: str, stop: int
) -> None:
    """All ranks have as many steps, and a run that goes on with other ranks has the bins that are left, each once."""
    known = facts(len(lengths))
    epochs = bind(TokenBudget(60, patch=None, text=lengths), known)
    bins = bins_of(epochs.plan(seed=1, epoch=0, streams=8 * world_size), known)
    seen: list[int] = []
    first = 0
    for size, most in ((world_size, stop), (later_size, 10**6)):
        parts = [RankPartition(length=epochs.length, batch_size=batch_size, rank=rank, world_size=size, tail=tail)
                 for rank in range(size)]  # fmt: skip
        steps = {min(most, part.steps(first)) for part in parts}
        assert len(steps) == 1
        for step in range(*steps):
            for part in parts:
                positions, valid = part.positions(first, step)
                seen += [number for position in positions[valid].tolist() for number in bins[position]]
        first = parts[0].after(first, *steps)
    left = [] if tail != "drop" else [*chain(*bins[first:])]
    assert sorted(seen + left) == sorted(chain(*bins))


@pytest.mark.parametrize("window", [1024, 4096])
def test_windows_stay_with_their_streams(window: int) -> None:
    """A rank reads the shards that it reads without bins, and few others; the bins are 95 % full and more.

    So do ranks whose streams are shorter than a window, and are packed several together.
    """
    rng = np.random.default_rng(0)
    sizes = rng.choice([256, 341, 384, 455], (30_000, 2))
    known = facts(30_000, shard=300, sizes=sizes, shuffle=Shuffle(buffer=512))
    epochs = bind(TokenBudget(4096, text=rng.integers(8, 120, 30_000), window=window), known)
    plan = epochs.plan(seed=1, epoch=0, streams=16)
    assert epochs.fill > 0.95
    for rank in range(4):
        shards, begins, ends = plan.needs(rank, 4)
        own = np.bincount(plan.visits(np.arange(rank, plan.length, 4))[0], minlength=100)
        assert (np.sort(own)[-30:]).sum() > 0.97 * own.sum()
        assert set(shards.tolist()) == set(np.flatnonzero(own).tolist())
        assert (ends > begins).all()


def test_fill_against_first_fit_in_a_buffer() -> None:
    """Bins are as full as those of first fit in a buffer of as many samples, and shuffled: no size comes first."""
    rng = np.random.default_rng(1)
    sizes = rng.choice([224, 256, 341, 384, 455, 512], (8_000, 2))
    known = facts(8_000, shard=500, sizes=sizes)
    epochs = bind(TokenBudget(2048, text=rng.integers(8, 200, 8_000), window=1000), known)
    tokens = patch_grids(sizes, 16).prod(axis=1)
    bins = bins_of(epochs.plan(seed=0, epoch=0, streams=1), known)
    assert epochs.fill > 0.95
    means = [np.mean([tokens[number] for number in each]) for each in bins]
    halves = np.mean(means[: len(means) // 2]), np.mean(means[len(means) // 2 :])
    assert abs(halves[0] - halves[1]) < 0.05 * np.mean(means)


def test_the_order_is_that_of_the_seed() -> None:
    """The bins of a seed and an epoch never change."""
    sizes = np.array([[64, 64], [80, 48], [16, 200]])[np.arange(300) % 3]
    known = facts(300, sizes=sizes, shuffle=Shuffle(buffer=32))
    epochs = bind(TokenBudget(64, text=np.arange(300) % 23, window=20), known)
    digest = hashlib.sha256()
    for epoch, streams in ((0, 1), (3, 4)):
        plan = epochs.plan(seed=7, epoch=epoch, streams=streams)
        for column in (*plan.visits(np.arange(plan.length)), plan.counts(np.arange(plan.length))):
            digest.update(column.astype("<i8").tobytes())
    assert digest.hexdigest() == ORDER_SHA256


def test_without_shuffling_bins_follow_the_split() -> None:
    """An evaluation has the bins of the first window first, each epoch the same."""
    known = facts(100, shuffle=None)
    epochs = bind(TokenBudget(10, patch=None, text=np.arange(100) % 7 + 1, window=10), known)
    bins = bins_of(epochs.plan(seed=0, epoch=0, streams=1), known)
    assert [each[0] // 10 for each in bins] == sorted(each[0] // 10 for each in bins)
    assert bins == bins_of(epochs.plan(seed=0, epoch=9, streams=1), known)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=20),
    patch=st.integers(1, 40),
    most=st.integers(1, 3000),
    long_side=st.none() | st.integers(40, 2000),
)
def test_images_keep_their_ratios_and_fit(
    sizes: list[tuple[int, int]], patch: int, most: int, long_side: int | None
) -> None:
    """A side is the nearest multiple of the patch, at least one; a shrunk image has its share of patches, not more."""
    known = np.array(sizes)
    grids = patch_grids(known, patch, long_side)
    for (width, height), grid in zip(sizes, grids.tolist(), strict=True):
        scale = min(1, (long_side or 10**9) / max(width, height))
        for side, patches in ((height, grid[0]), (width, grid[1])):
            assert patches == 1 or abs(patches * patch - side * scale) <= max(patch / 2, patch - 1) + 1e-6
            assert long_side is None or patches * patch <= long_side
    fitting = shrunk_grids(grids, known, np.full(len(known), most))
    assert (fitting >= 1).all()
    assert (fitting.prod(axis=1) <= most).all()
    kept = grids.prod(axis=1) <= most
    assert np.array_equal(fitting[kept], grids[kept])


def test_oversize_shrinks_or_drops() -> None:
    """An image that does not fit with its text is made smaller, or left out; a text that does not fit is left out."""
    sizes = np.array([[160, 160], [320, 160], [64, 64]])
    known = facts(3, sizes=sizes)
    shrinking = bind(TokenBudget(110, text=[10, 60, 120]), known)
    assert shrinking.left_out == 1
    assert shrinking.image_shapes(np.array([0, 1])).tolist() == [[160, 160], [80, 160]]  # type: ignore[union-attr]
    assert [warning.split(": ")[1] for warning in shrinking.warnings] == [
        "1 sample of 3 do not fit and are left out; raise tokens",
        "1 sample of 3 fit only with smaller images; raise tokens",
    ]
    dropping = bind(TokenBudget(110, text=[10, 60, 120], oversize="drop"), known)
    assert dropping.left_out == 2
    assert dropping.identity != shrinking.identity


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_text_lengths_have_any_integer_type(dtype: Any) -> None:
    """Lengths in a type that cannot hold the budget, or is larger than the sampler's own, mean the same numbers."""
    largest = np.iinfo(dtype).max
    epochs = bind(TokenBudget(100_000, patch=None, text=np.array([5, largest, 7], dtype=dtype)), facts(3))
    assert epochs.left_out == (largest > 100_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0},
        {"tokens": 8, "patch": 0},
        {"tokens": 8, "patch": None},
        {"tokens": 8, "oversize": "truncate"},
        {"tokens": 8, "long_side": 8},
        {"tokens": 8, "text": [1.5] * 3},
        {"tokens": 8, "text": [-1] * 3},
        {"tokens": 8, "text": [1] * 4},
        {"tokens": 8, "patch": None, "text": [9] * 3},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    """Settings that mean nothing, tokens that are not numbers, and budgets that no sample fits are ConfigErrors."""
    with pytest.raises(ConfigError):
        TokenBudget(**wrong).bind(facts(3, sizes=np.full((3, 2), 160)))
