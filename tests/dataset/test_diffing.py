from __future__ import annotations

import shutil
from pathlib import Path

import shardflow as sf
from tests.helpers.folders import image_folder, photo, write_tree
from tests.helpers.making import make_dataset, write_dataset


def test_packs_of_one_source(tmp_path: Path) -> None:
    """Two packed datasets with receipts are compared by inputs: new, removed and changed inputs, recipe, classes."""
    src = image_folder(tmp_path / "src", 30)
    settings = {"short_side": 32, "shard_samples": 12, "executor": "serial", "shuffle": False}
    sf.pack(src, tmp_path / "a", **settings)
    gone = sorted(src.rglob("*.jpg"))[0]
    gone.unlink()
    changed = sorted(src.rglob("*.jpg"))[-1]
    changed.write_bytes(photo(99))
    write_tree(src, {"new/x.jpg": photo(1)})
    sf.pack(src, tmp_path / "b", **settings)
    found = sf.diff(tmp_path / "a", tmp_path / "b")
    assert not found.same
    assert found.recipe == {}
    assert found.classes_only == ((), ("new",))
    split = found.splits["train"]
    assert (split.by, split.samples, split.both, split.only) == ("source", (30, 30), 29, (1, 1))
    assert (split.changed_images, split.changed_parts) == (1, 0)
    assert split.examples == ((gone.relative_to(src).as_posix(),), ("new/x.jpg",))
    sf.pack(src, tmp_path / "c", **settings, quality=70)
    assert sf.diff(tmp_path / "b", tmp_path / "c").recipe == {"quality": (90, 70)}


def test_a_path_that_was_packed_twice(tmp_path: Path) -> None:
    """Two samples of one path are compared in their order: copies of a dataset have no changed image."""
    src = image_folder(tmp_path / "src", 6)
    sf.pack(src, tmp_path / "a", short_side=32, executor="serial")
    sorted(src.rglob("*.jpg"))[0].write_bytes(photo(99))
    sf.extend(src, tmp_path / "a", on_conflict="add")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    split = sf.diff(tmp_path / "a", tmp_path / "b").splits["train"]
    assert (split.by, split.both, split.changed_images, split.changed_parts) == ("source", 7, 0, 0)


def test_the_same_and_a_part(tmp_path: Path) -> None:
    """A copy is the same; a subset shares the tars and has no other samples; splits may be missing."""
    dataset = make_dataset(tmp_path / "a", {"train": [10, 10], "val": [4]})
    shutil.copytree(dataset, tmp_path / "copy")
    assert sf.diff(dataset, tmp_path / "copy").same
    sf.subset(dataset, tmp_path / "part", keys=["000000015"])
    found = sf.diff(dataset, tmp_path / "part")
    train, val = found.splits["train"], found.splits["val"]
    assert (train.by, train.samples, train.same_shards, train.both, train.only) == ("content", (20, 1), 1, 1, (19, 0))
    assert (val.samples, val.shards, val.only) == ((4, 0), (1, 0), (4, 0))


def test_labels_without_receipts(tmp_path: Path) -> None:
    """Without receipts, samples with equal images are compared by their other parts, also of an image that is twice."""
    for name, labels in (("a", b"0011"), ("b", b"0111"), ("c", b"1100")):
        samples = [(f"{n}", {"jpg": photo(n % 3), "cls": labels[n : n + 1]}) for n in range(4)]
        write_dataset(tmp_path / name, {"train": [samples]})
    found = [sf.diff(tmp_path / "a", tmp_path / other).splits["train"] for other in "abc"]
    assert [(each.by, each.both, each.changed_parts, each.only) for each in found] == [
        ("content", 4, changed, (0, 0)) for changed in (0, 1, 2)
    ]


def test_renumbered_classes(tmp_path: Path) -> None:
    """A class with another number is reported: a model trained on one dataset is wrong on the other."""
    src = image_folder(tmp_path / "src", 12)
    settings = {"short_side": 32, "executor": "serial"}
    sf.pack(src, tmp_path / "a", **settings)
    names = sf.open(tmp_path / "a").classes
    assert names is not None
    sf.pack(sf.sources.Folder(src, classes=(names[1], names[0], *names[2:])), tmp_path / "b", **settings)
    found = sf.diff(tmp_path / "a", tmp_path / "b")
    assert found.renumbered == tuple(names[:2])
    moved = sum(len(list((src / name).iterdir())) for name in names[:2])
    assert (found.splits["train"].changed_images, found.splits["train"].changed_parts) == (0, moved)


def test_a_receipt_that_is_another_shards_is_none(tmp_path: Path) -> None:
    """If a receipt has another number of inputs than the shard has samples, samples are compared by content."""
    settings = {"short_side": 32, "executor": "serial", "shard_samples": 8}
    sf.pack(image_folder(tmp_path / "src", 20), tmp_path / "a", **settings)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copy(tmp_path / "a/train/000002.json", tmp_path / "b/train/000001.json")
    assert sf.diff(tmp_path / "a", tmp_path / "a").splits["train"].by == "source"
    split = sf.diff(tmp_path / "a", tmp_path / "b").splits["train"]
    assert (split.by, split.both, split.only) == ("content", 20, (0, 0))
