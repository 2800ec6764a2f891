"""The dataset that the examples run on."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow
from tests.helpers.making import make_dataset
from tests.helpers.scenes import write_scenes

TRAIN, VAL = [20, 9, 31, 7], [11, 6, 20]
"""67 and 37 samples: primes, so that no number of ranks and no batch size divides them."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 training and 37 validation samples, sample n of a split labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": TRAIN, "val": VAL})


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with masks and boxes, and `packed`, the dataset of it."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_scenes(folder, train=33, val=9)
    boxes = shardflow.annotations.Boxes("json", "boxes", "xyxy", fields={"labels": "labels"})
    annotations = shardflow.annotations.Annotations(masks=("mask.png",), boxes=boxes)
    shardflow.pack(folder, folder.parent / "packed", annotations=annotations, short_side=80, workers=1)
    return folder
