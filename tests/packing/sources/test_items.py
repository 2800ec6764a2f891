from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shardflow.formats.labels import Label
from shardflow.formats.shard_layout import Sharding
from shardflow.packing.pack_plan import plan_jobs
from shardflow.packing.recipe import Recipe
from shardflow.packing.sample_recipe import SampleRecipe
from shardflow.packing.sources.items import Item, Items
from shardflow.packing.sources.resolve import list_source

ROWS = (
    Item("a/1.jpg", 3, 17, 1_700_000_000_000_000_000),
    Item("b/\udcff ü\n.jpg", (1, 2), -1, 0, b'{"tag":"\x00"}'),
    Item("s3://bucket/c.png", None, 1 << 40, 5, b"{}"),
    Item("a/1.jpg", 3, 17, 1),
)


def test_rows_come_back() -> None:
    """What is taken in is handed out again, by number, by slice, in a choice, and in another process."""
    items = Items.of(iter(ROWS))
    assert len(items) == 4
    assert items == ROWS
    assert list(items) == list(ROWS)
    assert (items[1], items[-1]) == (ROWS[1], ROWS[3])
    assert items[1:3] == ROWS[1:3]
    assert items[1:][::2] == ROWS[1:][::2]
    assert items.take(np.array([3, 0])) == (ROWS[3], ROWS[0])
    assert items.take(np.array([False, True, False, True])) == (ROWS[1], ROWS[3])
    assert pickle.loads(pickle.dumps(items[2:])) == ROWS[2:]
    assert items != ROWS[:3]
    assert items[1:3] != ROWS[:2]
    assert not Items.of(())
    with pytest.raises(IndexError):
        items[4]


def test_slices_are_small_on_their_way() -> None:
    """A few of many rows that go to another process take nothing of the others along."""
    items = Items.of(Item(f"{n}.jpg", n % 7, n, n) for n in range(10_000))
    assert len(pickle.dumps(items[5000:5003])) < 1000


def test_labels_are_changed() -> None:
    """New labels follow from the old labels, each of which is asked for once."""
    asked = []

    def relabel(label: Label) -> Label:
        asked.append(label)
        return 4 if label == 3 else None

    assert [item.label for item in Items.of(ROWS).relabelled(relabel)] == [4, None, None, 4]
    assert asked == [3, (1, 2), None]


def test_items_are_divided() -> None:
    """Items become those of each split, in their order, by a function that is called once for each different label."""
    unlabelled = Items.of(row._replace(label=str(row.label)) for row in ROWS)
    assert [each.label for each in unlabelled] == ["3", "(1, 2)", "None", "3"]
    asked = []

    def place(length: int) -> tuple[str, Label]:
        asked.append(length)
        return ("val" if length == 1 else "train"), length

    splits = unlabelled.relabelled(len).divided(place)
    assert asked == [1, 6, 4]
    assert list(splits) == ["train", "val"]
    assert splits["train"] == (ROWS[1]._replace(label=6), ROWS[2]._replace(label=4))
    assert splits["val"] == (ROWS[0]._replace(label=1), ROWS[3]._replace(label=1))
    assert unlabelled[1:].relabelled(len).divided(place)["val"] == (ROWS[3]._replace(label=1),)


def test_memory_of_many_inputs(tmp_path: Path) -> None:
    """Listing and planning hold less than a hundred bytes per input, and at their peak half as much again."""
    inputs = 20_000
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(b"")
    for number in range(1, inputs):
        os.link(folder / "0.jpg", folder / f"{number}.jpg")
    tracemalloc.start()
    try:
        source = list_source(tmp_path)
        sharding = Sharding(shard_samples=2048, seed=0, shuffle=True, jobs={}, inputs={})
        jobs = plan_jobs(source, SampleRecipe(image=Recipe()), sharding, "dst")
        assert len({job.items_sha256 for job in jobs}) == 10
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / inputs < 100
    assert peak / inputs < 150
