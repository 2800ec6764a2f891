from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.interop.wids import write_wids
from tests.helpers.making import make_dataset


@pytest.mark.parametrize("beside", [True, False])
def test_wids_reads_what_was_written(tmp_path: Path, beside: bool) -> None:
    """The real wids finds every sample by number, from files beside the shards and elsewhere."""
    dataset = sf.open(make_dataset(tmp_path / "set", {"train": [6, 5], "val": [3]}))
    paths = list(write_wids(dataset, None if beside else tmp_path / "lists"))
    assert [path.name for path in paths] == ["train.wids.json", "val.wids.json"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wids' own
        from wids import ShardListDataset

        read = ShardListDataset(str(paths[0]), cache_dir=str(tmp_path / "cache"), keep=True, transformations=[])
        assert len(read) == 11
        for number in (0, 5, 6, 10):
            expected = dataset["train"][number]
            assert read[number]["__key__"] == expected["__key__"]
            assert read[number][".jpg"].read() == expected["jpg"]


def test_shards_in_a_bucket_are_named_by_their_urls(tmp_path: Path) -> None:
    """Of a dataset behind a URL, the lists name URLs; there is nothing relative to them."""
    sf.sync(make_dataset(tmp_path / "set", [3]), "memory://wids-lists")
    (path,) = write_wids(sf.open("memory://wids-lists", cache_dir=tmp_path / "cache"), tmp_path)
    (shard,) = json.loads(path.read_text())["shardlist"]
    assert shard["url"] == "memory://wids-lists/train/000000.tar"
    assert shard["nsamples"] == 3
