from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.errors import ConfigError, IntegrityError, ResumeMismatchError
from tests.helpers.examples import examples
from tests.helpers.making import flip, make_dataset, write_dataset

SIZES = [7, 5, 8]
TOTAL = sum(SIZES)
KEYS = [f"{n:09}" for n in range(TOTAL)]
SCORES = {key: (n * 7 % 11) / 4 for n, key in enumerate(KEYS)}
WITHOUT = KEYS[3::6]  # samples that the table lacks
FIELDS = ("key", "score", "caption", "vector", "index")


def table(keys: list[str]) -> pa.Table:
    """Return a table with values for these keys."""
    vectors = pa.array([[int(key), SCORES[key]] for key in keys], pa.list_(pa.float32()))
    captions = [f"caption of {key}" for key in keys]
    return pa.table({"key": keys, "score": [SCORES[key] for key in keys], "caption": captions, "vector": vectors})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a value for each sample."""
    url = make_dataset(tmp_path_factory.mktemp("whole") / "set", SIZES)
    sf.columns.add(url, table(KEYS[::-1]), key="key")
    return url


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in which some samples have no value."""
    url = make_dataset(tmp_path_factory.mktemp("partial") / "set", SIZES)
    sf.columns.add(url, table([key for key in KEYS if key not in WITHOUT]), key="key")
    return url


def loader(url: Path, **options: Any) -> sf.Loader:
    """Return a loader without images."""
    return sf.Loader(url, **{"batch_size": 3, "num_workers": 0, "fields": FIELDS, "tail": "short", **options})


def check(batches: Any) -> list[str]:
    """Check that each sample of some batches has the values that the table has for its key; return the keys."""
    seen = []
    for keys, scores, captions, vectors, numbers in batches:
        assert scores.tolist() == [SCORES[key] for key in keys]
        assert (scores.dtype, vectors.dtype, tuple(vectors.shape)) == (torch.float64, torch.float32, (len(keys), 2))
        assert captions == [f"caption of {key}" for key in keys]
        assert torch.equal(vectors, torch.tensor([[int(key), SCORES[key]] for key in keys]).reshape(-1, 2))
        assert numbers.tolist() == [int(key) for key in keys]
        seen += keys
    return seen


@examples(25)
@given(
    buffer=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 99),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 6),
    stop=st.integers(0, 8),
)
def test_values_are_those_of_the_key(
    whole: Path, buffer: int | None, seed: int, world_size: int, batch_size: int, stop: int
) -> None:
    """In any order, on any rank and after any resume, each sample has the values that a lookup by its key gives."""
    shuffle = False if buffer is None else sf.Shuffle(buffer=buffer)
    seen = []
    for rank in range(world_size):
        options = {"batch_size": batch_size, "shuffle": shuffle, "seed": seed, "group": (rank, world_size)}
        first = loader(whole, **options)
        seen += check(itertools.islice(first, min(stop, len(first))))
        again = loader(whole, **options)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        seen += check(again)
    assert sorted(seen) == KEYS


def test_workers_and_transforms_get_them(whole: Path) -> None:
    """Worker processes return values beside images, and `batch_transform` gets them."""
    fields = ("image", *FIELDS)
    found = loader(whole, num_workers=2, fields=fields, batch_transform=lambda *columns: columns[1:])
    assert sorted(check(found)) == KEYS
    assert sorted(check(found)) == KEYS


def test_missing_values_need_a_word(partial: Path) -> None:
    """A loader refuses a column in which values are missing, unless a default or a mask is asked for."""
    for name in ("score", "caption", "vector"):
        with pytest.raises(
            ConfigError,
            match=rf"set, split 'train': column '{name}': {len(WITHOUT)} samples .*Filled.*has_{name}.*columns add",
        ):
            loader(partial, fields=("key", name))
    filled = (sf.columns.Filled("score", -1), sf.columns.Filled("caption", "?"), sf.columns.Filled("vector", [8, 9]))
    for keys, scores, captions, vectors, present, bare in loader(
        partial, fields=("key", *filled, "has_score", "has_caption")
    ):
        lacks = [key in WITHOUT for key in keys]
        assert scores.tolist() == [-1 if lack else SCORES[key] for key, lack in zip(keys, lacks, strict=True)]
        assert [caption == "?" for caption in captions] == lacks
        assert (vectors == torch.tensor([8.0, 9.0])).all(1).tolist() == lacks
        assert (~present).tolist() == (~bare).tolist() == lacks
        assert present.dtype == torch.bool
    for keys, scores, present in loader(partial, fields=("key", "score", "has_score")):
        assert scores.tolist() == [SCORES[key] * has for key, has in zip(keys, present.tolist(), strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": sf.samplers.Subset(index=[4, 2, 19])},
        {"sampler": sf.samplers.Subset(index=[4, 2, 19]), "shuffle": False},
        {"sampler": sf.samplers.Subset("score is not null")},
        {"sampler": sf.samplers.Weighted(1.0, where="score is not null")},
        {"limit": 3},
    ],
)
def test_only_samples_that_can_come_need_a_value(partial: Path, options: dict[str, Any]) -> None:
    """Samples that a sampler or a limit leaves out need no value in a column; one that can come is counted."""
    assert set(check(loader(partial, **options))).isdisjoint(WITHOUT)
    with pytest.raises(ConfigError, match=r"'score': a sample outside .* has no value.*Filled"):
        loader(partial, **options).source.columns.values("score", 0, np.array([int(WITHOUT[0])]))
    with pytest.raises(ConfigError, match="'score': 1 sample of"):
        loader(partial, sampler=sf.samplers.Subset(index=[4, 9, 9, 19]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (("scor",), "score"),
        (("has_other",), "has_other"),
        ((sf.columns.Filled("other", 0),), "other"),
        ((sf.columns.Filled("score", "x"),), "float64"),
        ((sf.columns.Filled("caption", 1),), "string"),
        ((sf.columns.Filled("vector", [1, 2, 3]),), "vector"),
        (("score", sf.columns.Filled("score", 0)), "different"),
    ],
)
def test_fields_that_do_not_fit(whole: Path, fields: tuple[Any, ...], named: str) -> None:
    """A field that there is not, and a default of another type, are refused when the loader is made."""
    with pytest.raises(ConfigError) as refused:
        loader(whole, fields=("key", *fields))
    assert named in str(refused.value)


def test_parts_are_filled_in_where_samples_lack_them(tmp_path: Path) -> None:
    """A sample without a caption stops the loader with the remedy, and `Filled` gives it one; a transform gets it."""
    samples = [(f"{n}", {"jpg": b"", "txt": b"one"} if n % 2 else {"jpg": b"", "json": b"{}"}) for n in range(4)]
    url = write_dataset(tmp_path / "set", {"train": [samples]})
    with pytest.raises(ConfigError, match=r"has no part 'txt'.*columns\.Filled\('txt', default\)"):
        list(loader(url, fields=("key", "txt")))
    filled = ("key", sf.columns.Filled("txt", ""), sf.columns.Filled("json", {"seen": []}))
    mend = sf.annotations.WholeSample(lambda sample: {**sample, "json": len(sample["json"].setdefault("seen", []))})
    for transform in (None, mend):
        found = [row for batch in loader(url, fields=filled, transform=transform) for row in zip(*batch, strict=True)]
        assert [text for _, text, _ in sorted(found, key=str)] == ["", "one"] * 2
    with pytest.raises(ConfigError, match=r"set, split 'train': Filled\('text', .*part \(jpg, json, txt\); in a mix"):
        loader(url, fields=(sf.columns.Filled("text", ""),))


def test_a_caption_is_named_by_its_part(tmp_path: Path) -> None:
    """The error for a field "caption" names the part `txt`, where packing puts captions."""
    url = write_dataset(tmp_path / "set", {"train": [[("0", {"jpg": b"", "txt": b"one", "json": b"{}"})]]})
    with pytest.raises(ConfigError, match="captions are the part 'txt'"):
        loader(url, fields=("caption",))


def test_weights_from_a_column(whole: Path, partial: Path) -> None:
    """`Weighted` and samplers of one's own take a column by name, in the split's order; texts and gaps are refused."""
    by_name = loader(whole, sampler=sf.samplers.Weighted("score"))
    by_value = loader(whole, sampler=sf.samplers.Weighted(np.array([*SCORES.values()])))
    assert check(by_name) == check(by_value)
    assert by_name.state_dict() == by_value.state_dict()
    counts = [key for _ in range(8) for key in check(by_name)]
    for key, score in SCORES.items():
        assert abs(counts.count(key) - 8 * score) < 8
    for url, name, named in (
        (whole, "caption", "string"),
        (whole, "vector", "float32"),
        (partial, "score", "no value"),
    ):
        with pytest.raises(ConfigError, match=named):
            loader(url, fields=("key",), sampler=sf.samplers.Weighted(name))
    with pytest.raises(ConfigError, match=r"where='score is not null'"):
        loader(partial, fields=("key",), sampler=sf.samplers.Weighted("score"))
    weighted = sf.samplers.Weighted("score", where="score is not null")
    assert {key for (keys,) in loader(partial, fields=("key",), sampler=weighted) for key in keys}.isdisjoint(WITHOUT)
    weighted = sf.samplers.Weighted("score", where=f"score is not null or key = '{WITHOUT[0]}'")
    with pytest.raises(ConfigError, match=r"1 sample .* no value"):
        loader(partial, fields=("key",), sampler=weighted)
    with pytest.raises(ConfigError, match="neither a column"):
        loader(whole, sampler=sf.samplers.Weighted("scores"))
    keys = KEYS[: sum(SIZES)]
    sf.columns.add(partial, pa.table({"key": keys, "sqrt": [1.0] * len(keys)}), key="key")
    with pytest.raises(ConfigError, match="rule"):
        loader(partial, fields=("key",), sampler=sf.samplers.Weighted("sqrt"))


def test_mixes_have_the_values_of_each_source(whole: Path, tmp_path: Path) -> None:
    """A mix returns the values of each sample's dataset; columns of different types do not mix."""
    other = make_dataset(tmp_path / "other", [6])
    keys = KEYS[:6]
    sf.columns.add(other, pa.table({"key": keys, "score": [100.0 + n for n in range(6)]}), key="key")
    fields = ("key", "score", "source")
    mix = sf.Mix([(loader(url, fields=fields, tail="drop"), 1) for url in (whole, other)])
    seen = set()
    for keys, scores, sources in mix:
        for key, score, source in zip(keys, scores.tolist(), sources.tolist(), strict=True):
            assert score == (100 + int(key) if source else SCORES[key])
            seen.add(source)
    assert seen == {0, 1}
    sf.columns.add(other, pa.table({"key": KEYS[:6], "score": [*range(6)]}), key="key", replace=True)
    with pytest.raises(ConfigError, match=r"columns differ.*float64.*int64"):
        sf.Mix([(loader(url, fields=fields, tail="drop"), 1) for url in (whole, other)])


def test_replaced_samples_bring_their_values(tmp_path: Path) -> None:
    """A sample that takes the place of a damaged one brings its own values."""
    url = make_dataset(tmp_path / "set", [6])
    sf.columns.add(url, table(KEYS[:6]), key="key")
    sample = sf.open(url)["train"].reader.members(0, 2)
    flip(url / "train/000000.tar", sample[0].offset)
    found = loader(url, max_errors=1, shuffle=False)
    seen = [key for keys, scores, *_ in found for key in keys if scores.tolist() == [SCORES[key] for key in keys]]
    assert len(seen) == 6
    assert KEYS[2] not in seen


def test_damage_is_an_error(tmp_path: Path) -> None:
    """A damaged file of a column ends the epoch with an error that names it, with and without workers."""
    url = make_dataset(tmp_path / "set", SIZES)
    sf.columns.add(url, table(KEYS), key="key")
    flip(url / "train/000001.caption.parquet", 40)
    for workers in (0, 1):
        with pytest.raises(IntegrityError, match=r"train/000001\.caption\.parquet"):
            list(loader(url, num_workers=workers))
    assert len(list(loader(url, fields=("key", "score")))) == 7


def test_a_state_belongs_to_its_version(tmp_path: Path) -> None:
    """A run that began before a column was added goes on with the version that it read."""
    url = make_dataset(tmp_path / "set", SIZES)
    began = loader(url, fields=("key",))
    next(iter(began))
    state = began.state_dict()
    sf.columns.add(url, table(KEYS), key="key")
    with pytest.raises(ResumeMismatchError, match="version="):
        loader(url, fields=("key",)).load_state_dict(state)
    loader(url, fields=("key",), version=state["fingerprint"]).load_state_dict(state)
