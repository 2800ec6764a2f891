from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardflow
from tests.helpers.examples import LONG, some_of
from tests.helpers.scripts import run

MODELS = ("fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large")[: 2 if some_of(LONG) == LONG else 1]
"""Detectors of torchvision; the second one in the long run alone."""


@pytest.fixture(scope="module")
def coco(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of a COCO set."""
    packed = tmp_path_factory.mktemp("coco") / "packed"
    shardflow.pack(scenes / "annotations" / "instances_train.json", packed, short_side=80, workers=1)
    return packed


@pytest.mark.parametrize("model", MODELS)
def test_it_trains_from_coco(coco: Path, model: str) -> None:
    """torchvision's detectors train on a packed COCO set, with the boxes that lie in the crops; losses are finite."""
    printed = run("train_detection.py", coco, "--model", model, "--batch-size", 8, "--size", 64, "--workers", 1)
    match = re.match(r"epoch 0: 4 steps, (\d+) boxes; ((\w+ [\d.]+(, )?)+)\n[a-z ]+-bound: ", printed)
    assert match, printed
    assert 15 < int(match[1]) < 50
    assert "nan" not in match[2]
