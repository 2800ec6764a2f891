from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.scripts import run


def test_it_trains_on_views(dataset: Path) -> None:
    """The example trains for an epoch on two large and three small views of each image, without a label."""
    options = ["--batch-size", 16, "--size", 32, "--local-views", 3, "--outputs", 16, "--workers", 1]
    printed = run("train_dino.py", dataset, *options)
    assert re.match(r"epoch 0: 4 steps, 5 views, loss [\d.]+\n[a-z ]+-bound: ", printed)
