"""The mixing of a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardflow
from shardflow.preview.mixing import class_noise, measure_mixing
from tests.helpers.making import jpeg, make_dataset, write_dataset


def labelled(root: Path, labels: list[int], shard_samples: int) -> Path:
    """A dataset of samples with these labels, in this order."""
    samples = [(f"{number:09}", {"jpg": jpeg(0), "cls": b"%d" % label}) for number, label in enumerate(labels)]
    shards = [samples[first : first + shard_samples] for first in range(0, len(labels), shard_samples)]
    classes = tuple(f"class{number}" for number in range(max(labels) + 1))
    return write_dataset(root, {"train": shards}, classes=classes)


def test_noise_of_a_full_shuffle_is_one() -> None:
    """Classes drawn at random, of whatever shares, have noise 1; batches of one class have far more."""
    rng = np.random.default_rng(0)
    shares = np.array([0.5, 0.3, 0.1, 0.1])
    drawn = rng.choice(4, size=(2000, 64), p=shares)
    assert class_noise(drawn, shares).mean() == pytest.approx(1, abs=0.06)
    assert class_noise(np.zeros((1, 64), dtype=np.int64), shares)[0] == pytest.approx(64 / 3)


def test_shuffled_shards_mix_as_a_full_shuffle_and_ordered_ones_do_not(tmp_path: Path) -> None:
    """Noise is about 1 for samples shuffled at packing, and several times that in class order with few streams."""
    labels = [number // 24 for number in range(40 * 24)]
    shuffled = np.random.default_rng(1).permutation(labels).tolist()
    few = {"streams": 2, "buffer": 24}
    mixed = measure_mixing(shardflow.open(labelled(tmp_path / "shuffled", shuffled, 24))["train"], 40, **few)
    ordered = measure_mixing(shardflow.open(labelled(tmp_path / "ordered", labels, 24))["train"], 40, **few)
    assert mixed
    assert ordered
    assert mixed.noise == pytest.approx(1, abs=0.25)
    assert (ordered.noise or 0) > 2
    assert ordered.shards == mixed.shards <= mixed.shuffled_shards
    assert mixed.strip().size == mixed.places.shape[::-1]
    assert (np.diff(mixed.places, axis=1) >= 0).all()


def test_too_few_samples_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few samples are not measured; without labels, or with shards that are not local, there is no noise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert measure_mixing(shardflow.open(make_dataset(tmp_path / "few", [3]))["train"], 0) is None
    bare = measure_mixing(shardflow.open(make_dataset(tmp_path / "bare", [30], labelled=False))["train"], 0)
    far = measure_mixing(shardflow.open(f"local://{make_dataset(tmp_path / 'far', [30])}")["train"], 30)
    assert bare
    assert far
    assert bare.noise is far.noise is None
    assert far.shards == 1
