"""Leftovers of killed commands: ours are removed, others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from shardflow.dataset.leftovers import remove_leftovers
from tests.helpers.folders import contents, write_tree
from tests.helpers.making import make_dataset

OURS = (
    ".tmp-shardflow.json.0123abcd",
    ".tmp-unfinished.json.0123abcd",
    ".tmp-quarantine-unfinished.jsonl.0123abcd",
    f".tmp-quarantine-{'a' * 64}.jsonl.0123abcd",
    ".tmp-train-0-x-y.tar.0123abcd",
    ".tmp-ray.0123abcd",
    "train/.tmp-000000.tar",
    "train/.tmp-000000.000000032",
    "train/.tmp-000000.json.0123abcd",
    "train/.tmp-000000.score-2.parquet.0123abcd",
    f"manifests/.tmp-{'a' * 64}.json.0123abcd",
    "val/0/some/where/.tmp-x.npy.0123abcd",
    "bases/0/train/.tmp-000000.tar.0123abcd",
)
OTHERS = (
    ".tmp-notes",
    ".tmp-notes.0123abcd",
    ".tmp-shardflow.json.0123abcdef",
    "x.tmp-shardflow.json.0123abcd",
    "train/.tmp-mine.json.0123abcd",
    "train/cats/.tmp-000000.tar.0123abcd",
    "set/.tmp-shardflow.json.0123abcd",
    "set/train/.tmp-000000.tar.0123abcd",
    "train/000000.tar",
)


def test_names(tmp_path: Path) -> None:
    """Only names that are ours, in the folders of a dataset, are removed: another dataset may be below it."""
    write_tree(tmp_path, dict.fromkeys((*OURS, *OTHERS), b"x"))
    remove_leftovers(tmp_path)
    assert set(contents(tmp_path)) == set(OTHERS)


@pytest.mark.parametrize("command", ["subset", "sync", "repair"])
def test_commands(tmp_path: Path, command: str) -> None:
    """The next command that writes to a place removes what a killed one has left there."""
    src, dst = make_dataset(tmp_path / "src", [6]), tmp_path / "dst"
    if command != "subset":
        sf.sync(src, dst)
    before = set(contents(dst)) if dst.exists() else set()
    write_tree(dst, {"train/.tmp-000000.npy.0123abcd": b"x", ".tmp-mine": b"mine"})
    if command == "subset":
        sf.subset(src, dst, limit=2)
    elif command == "sync":
        sf.sync(src, dst)
    else:
        sf.repair(dst)
    left = set(contents(dst))
    assert ".tmp-mine" in left
    assert left >= before
    assert "train/.tmp-000000.npy.0123abcd" not in left
