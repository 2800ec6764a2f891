from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.scripts import run


@pytest.mark.parametrize("model", ["lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"])
def test_it_trains_and_evaluates(scenes: Path, model: str) -> None:
    """torchvision's segmenters train on images with masks, and are evaluated on whole ones."""
    options = ["--classes", 4, "--model", model, "--batch-size", 8, "--size", 64, "--workers", 1]
    printed = run("train_segmentation.py", scenes.parent / "packed", *options)
    assert re.match(r"epoch 0: 4 steps, loss [\d.]+, mean IoU [\d.]+%\n[a-z ]+-bound: ", printed), printed
