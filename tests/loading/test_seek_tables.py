"""Which seek tables the loader uses: those that were made when their dataset was packed, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow import native
from tests.helpers import jpegs
from tests.helpers.making import write_dataset
from tests.helpers.seek_tables import deceiving

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

PLAIN = jpegs.make(3, 300, 200, quality=95)
DECEIVING = deceiving(PLAIN)
COUNT = 12


def write(root: Path, image: bytes, **recipe: str) -> Path:
    """Write a dataset of copies of an image."""
    samples = [(f"{number:09}", {"cls": b"0", "jpg": image}) for number in range(COUNT)]
    return write_dataset(root, {"train": [samples]}, classes=("one",), recipe=recipe)


def images(root: Path, decoder: Any = None) -> torch.Tensor:
    """Return the crops of the first epoch, each drawn by the key of its sample, in the order of the split."""
    decoder = decoder or shardflow.decoders.RandomResizedCrop(24, scale=(0.05, 0.3))
    loader = shardflow.Loader(root, batch_size=5, shuffle=False, decoder=decoder, fields=("image",), num_workers=0)
    batches = list(loader)
    first = batches[0][0]
    return torch.cat([batch[0][0] if isinstance(first, tuple) else batch[0] for batch in batches])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose recipe makes tables: under its seal they are used, even those that deceive."""
    return write(tmp_path_factory.mktemp("packed") / "set", DECEIVING, seek_tables="encoded")


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The crops without any table."""
    return images(write(tmp_path_factory.mktemp("plain") / "set", PLAIN))


def are_used(found: torch.Tensor, wanted: torch.Tensor) -> list[bool]:
    """Return, for each COUNT of crops, whether tables that deceive have changed some."""
    assert len(found) % COUNT == 0
    return [not torch.equal(part, wanted) for part in found.split(COUNT)]


def test_of_packed_datasets(packed: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    """The tables of a pack are used by every decoder that crops, and those of a recipe without tables by none."""
    assert are_used(images(packed), wanted) == [True]
    crop = shardflow.decoders.RandomResizedCrop(24, scale=(0.05, 0.3))
    assert are_used(images(packed, shardflow.decoders.MultiView([crop, crop])), wanted) == [True]
    for recipe in ({}, {"seek_tables": "none"}):
        root = write(tmp_path / f"{len(recipe)}", DECEIVING, **recipe)
        assert are_used(images(root), wanted) == [False]


def test_of_indexed_tars(packed: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    """Nothing says who made the tables of indexed tars, so none is used, and `verify` has nothing to check."""
    shardflow.index(shutil.copytree(packed / "train", tmp_path / "tars"), tmp_path / "index")
    assert are_used(images(tmp_path / "index"), wanted) == [False]
    assert shardflow.verify(tmp_path / "index") == []
    assert [finding.key is not None for finding in shardflow.verify(packed)] == [True] * COUNT


def test_of_virtual_datasets(packed: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    """Subsets, splits and merges use the tables of the tars that were packed with them, shard by shard."""
    foreign = tmp_path / "foreign"
    (write(tmp_path / "other", DECEIVING + b"\0") / "shardflow.json").unlink()
    shardflow.index(str(tmp_path / "other" / "train" / "*.tar"), foreign, classes=("one",))
    shardflow.subset(packed, tmp_path / "subset", limit=COUNT)
    shardflow.subset(foreign, tmp_path / "subset of foreign", limit=COUNT)
    shardflow.subset(tmp_path / "subset", tmp_path / "twice", limit=COUNT)
    for name, used in (("subset", True), ("twice", True), ("subset of foreign", False)):
        assert are_used(images(tmp_path / name), wanted) == [used]
        assert bool(shardflow.verify(tmp_path / name)) == used
    shardflow.merge([tmp_path / "twice", foreign], tmp_path / "merged")
    found = images(tmp_path / "merged")
    reference = images(write_twice(tmp_path / "reference"))
    assert [not torch.equal(*pair) for pair in zip(found.split(COUNT), reference.split(COUNT), strict=True)] == [
        True,
        False,
    ]
    assert len(shardflow.verify(tmp_path / "merged")) == COUNT


def write_twice(root: Path) -> Path:
    """Write a dataset of two shards without tables."""
    shards = [
        [(f"{number:09}", {"cls": b"0", "jpg": PLAIN}) for number in range(first, first + COUNT)]
        for first in (0, COUNT)
    ]
    return write_dataset(root, {"train": shards}, classes=("one",))
