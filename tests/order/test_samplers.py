from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shardflow.errors import ConfigError
from shardflow.order.epochs import Epochs
from shardflow.order.sampler import EpochSampler, Facts, ListPlan
from shardflow.order.shuffle_settings import Shuffle
from shardflow.samplers import AspectBuckets, ClassBatches, Sampler, Subset, TokenBudget, Weighted

SIZES = np.array([7, 12, 0, 21])
SAMPLERS = {
    "weights": Weighted(np.linspace(0, 2, 40)),
    "balanced": Weighted("balanced"),
    "subset": Subset(index=[3, 3, 39, 8]),
    "list": Subset(index=[30, 3, 39, 8]),
    "classes": ClassBatches(2),
    "buckets": AspectBuckets([(8, 8), (6, 10)]),
    "buckets of weights": AspectBuckets([(8, 8), (6, 10)], Weighted(2)),
    "tokens": TokenBudget(50, text=np.arange(40)),
}


def facts(**changes: Any) -> Facts:
    """A split of 40 samples of four classes, in shards of which one is empty."""
    known: dict[str, Any] = {
        "split": "train",
        "split_samples": 40,
        "shard_samples": SIZES,
        "shuffle": Shuffle(buffer=8),
        "batch_size": 4,
        "world_size": 2,
        "classes": "abcd",
        "labels": lambda: np.arange(40, dtype=np.int32) % 4,
        "image_sizes": lambda: np.array([[64, 64], [80, 48]])[np.arange(40) // 9 % 2],
        "load": np.load,
    }
    return Facts(**{**known, **changes})


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_keeps_the_contract(name: str) -> None:
    """A pass is a pure function of seed and epoch; every visit is of a record; needs cover what each rank reads."""
    sampler: Sampler = SAMPLERS[name]
    shuffle = None if name == "list" else Shuffle(buffer=8)
    bound, again = (sampler.bind(facts(shuffle=shuffle)) for _ in range(2))
    assert json.loads(json.dumps(bound.identity)) == again.identity
    assert pickle.loads(pickle.dumps(bound)).identity == bound.identity
    assert bound.together in ("sample", "batch", "step")
    for epoch in (0, 5):
        plan, other = (each.plan(seed=3, epoch=epoch, streams=4) for each in (bound, again))
        positions = np.arange(bound.length)
        shards, records, repeats = plan.visits(positions)
        assert plan.length == bound.length > 0
        assert np.array_equal(np.stack(plan.visits(positions)), np.stack(other.visits(positions)))
        assert ((records >= 0) & (records < SIZES[shards]) & (repeats >= 0)).all()
        places = list(zip(shards.tolist(), records.tolist(), repeats.tolist(), strict=True))
        counts = plan.counts(positions)
        assert len(set(places)) == len(places) == counts.sum()
        some = slice(counts[:3].sum(), counts[:5].sum())
        assert np.array_equal(np.stack(plan.visits(positions[3:5])), np.stack([shards, records, repeats])[:, some])
        assert {plan.shape(position) for position in positions.tolist()} <= {*(bound.shapes or (None,))}
        at = np.repeat(positions, counts).tolist()
        for rank, world_size in ((0, 1), (1, 2)):
            needs = list(zip(*(column.tolist() for column in plan.needs(rank, world_size)), strict=True))
            for position, needed in zip(at, shards.tolist(), strict=True):
                is_there = any(shard == needed and begin <= position < end for shard, begin, end in needs)
                assert is_there or position % world_size != rank


def test_identities_differ_where_orders_do() -> None:
    """Samplers that make other epochs have other identities, which checkpoints and ranks are compared by."""
    given = [*SAMPLERS.values(), Weighted(1.5), Subset(index=[3, 3, 39]), ClassBatches(4), AspectBuckets([(8, 8)])]
    found = [json.dumps(sampler.bind(facts()).identity) for sampler in given if sampler is not SAMPLERS["list"]]
    assert len(set(found)) == len(found)


def test_a_message_names_weights_on_one_line() -> None:
    """A Series prints itself over several lines."""
    assert repr(Weighted(pd.Series([1.5, 2.0]))) == "Weighted(0 1.5 1 2.0 dtype: float64)"


def bind_to(epochs: Any) -> Any:
    """Return a sampler that binds to these epochs, whatever the facts."""
    return type("Own", (), {"bind": lambda *_: epochs, "__repr__": lambda _: "Own()"})()


def epochs_with(**members: Any) -> Any:
    """Return the epochs of a user's sampler, with other members."""
    return type("OwnEpochs", (EpochSampler,), {"length": 4, "identity": {"own": 1}, "plan": None, **members})()


@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        ("balanced", r"samplers.Weighted\('balanced'\)"),
        ([1, 2], "sampler must be one of"),
        (Weighted, "sampler must be one of"),
        (bind_to(object()), r"Own\(\): bind\(\) returned an object without length, identity"),
        (bind_to(epochs_with(identity=None)), "identity must be plain JSON"),
        (bind_to(epochs_with(identity=(1, 2))), "identity must be plain JSON"),
        (bind_to(epochs_with(identity={1})), "identity must be plain JSON"),
        (bind_to(epochs_with(together="x")), "together must be one of sample, batch, step"),
    ],
)
def test_what_is_not_a_sampler_is_refused(sampler: Any, problem: str) -> None:
    """A sampler that checkpoints or ranks could not compare, and anything else, is refused before an epoch begins."""
    for given in (sampler, AspectBuckets([(8, 8)], sampler)):
        with pytest.raises(ConfigError, match=problem):
            Epochs(facts(), given, seed=0)


def test_a_mask_is_not_a_list_of_numbers() -> None:
    """A mask is refused with the call that makes numbers of it."""
    with pytest.raises(
        ConfigError, match=r"list of sample numbers, found dtype bool .*; write np\.flatnonzero\(mask\)"
    ):
        Subset(index=np.array([True, False]))


@pytest.mark.parametrize("values", [[[1], [2, 3]], [1, [2]]])
def test_ragged_lists_are_refused(values: Any) -> None:
    """Lists that make no array of numbers are a ConfigError that names the sampler, also within another one."""
    with pytest.raises(ConfigError, match=r"Subset .*sample numbers"):
        Subset(index=values)
    for given in (Weighted(values), AspectBuckets([(8, 8)], Weighted(values))):
        with pytest.raises(ConfigError, match=r"Weighted .*number per sample"):
            Epochs(facts(), given, seed=0)


def test_a_list_names_samples_that_take_part() -> None:
    """A number beyond the samples, or below 0, is refused where the list is made."""
    for wrong in ([0, 90], [-1, 0]):
        with pytest.raises(ConfigError, match=f"names sample {wrong[0] if wrong[0] < 0 else wrong[1]}"):
            ListPlan.of_samples(np.array(wrong), [50, 40])


@pytest.mark.parametrize("sampler", [Subset("c"), Weighted("balanced", where="c"), Weighted(2, where="c")])
def test_a_condition_that_none_fulfils_is_refused(sampler: Sampler) -> None:
    """Where no sample that takes part fulfils the condition of a sampler, the error names the condition."""
    last = np.arange(40) == 39
    with pytest.raises(ConfigError, match="condition 'c'"):
        sampler.bind(facts(where=lambda _: last, shard_samples=SIZES[:2]))
