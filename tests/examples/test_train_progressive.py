from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.scripts import run


def test_crops_grow_and_the_time_is_shown(dataset: Path) -> None:
    """The example trains with crops that grow, then with crops of one size, and prints the time of both."""
    options = ["--epochs", 3, "--size", 48, "--batch-size", 16, "--workers", 1]
    printed = run("train_progressive.py", dataset, *options)
    sizes = [int(size) for size in re.findall(r"epoch \d: crops of (\d+), loss [\d.]+", printed)]
    assert sizes == [32, 40, 48, 48, 48, 48]
    assert re.search(r"sizes \{0: 32, 1: 40, 2: 48\}: top-1 [\d.]+% in [\d.]+ s", printed)
    assert re.search(r"crops that grow took \d+% of the time: [\d.]+ s, not [\d.]+ s", printed)
