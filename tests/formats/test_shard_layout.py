from __future__ import annotations

from typing import Any

import pytest

from shardflow.errors import ManifestError
from shardflow.formats.manifest import Manifest, from_bytes
from shardflow.formats.shard import Shard
from shardflow.formats.shard_layout import MOST_JOBS, Sharding

SHARDING = Sharding(
    shard_samples=20, shuffle=True, seed=-3, jobs={"train": 2, "val": 1}, inputs={"train": 25, "val": 3}
)
SHARD = Shard(name="train/000000.tar", samples=1, bytes=1024, sha256="0" * 64, index_sha256="1" * 64)


def test_names_of_all_jobs() -> None:
    """The jobs of each split are counted from zero."""
    assert list(SHARDING.names()) == ["train/000000", "train/000001", "val/000000"]


def test_extended() -> None:
    """Jobs and inputs are added split by split, also to a new split; how they are cut stays."""
    more = SHARDING.extended({"test": 1, "train": 3}, {"test": 5, "train": 50})
    assert more.jobs == {"test": 1, "train": 5, "val": 1}
    assert more.inputs == {"test": 5, "train": 75, "val": 3}
    assert (more.shard_samples, more.shuffle, more.seed) == (20, True, -3)


def test_manifest_carries_it() -> None:
    """The sharding comes back from a manifest, counts for its fingerprint, and is absent from one without."""
    splits = {"train": (SHARD,), "val": ()}
    bare = Manifest(splits=splits)
    full = Manifest(splits=splits, sharding=SHARDING)
    assert from_bytes(full.to_bytes()).sharding == SHARDING
    assert from_bytes(bare.to_bytes()).sharding is None
    assert full.fingerprint != bare.fingerprint
    assert b"layout" not in bare.to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"shard_samples": 0},
        {"shuffle": 1},
        {"seed": "0"},
        {"jobs": {"train": 2}},
        {"jobs": {"train": 2, "val": True}},
        {"jobs": None},
        {"jobs": {"train": MOST_JOBS + 1, "val": 1}},
        {"inputs": {"train": 25, "val": -1}},
        {"more": 1},
    ],
)
def test_wrong_values_are_refused(change: dict[str, Any]) -> None:
    """A value of another type or out of its range is an error of the manifest."""
    with pytest.raises(ManifestError, match="sharding"):
        Sharding.from_json({**SHARDING.to_json(), **change})
