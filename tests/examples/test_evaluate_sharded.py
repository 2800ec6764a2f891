from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import shardflow
from tests.helpers.making import jpeg, write_dataset
from tests.helpers.scripts import FOLDER, run

SAMPLES = [11, 6, 20]
CLASSES = ("zero", "one", "two")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A split of 37 samples of three classes, so that even a fresh net gets some of them right."""
    samples = ((f"{n:09}", {"jpg": jpeg(n), "cls": b"%d" % (n % 3)}) for n in range(sum(SAMPLES)))
    shards = [[*itertools.islice(samples, size)] for size in SAMPLES]
    return write_dataset(tmp_path / "set", {"val": shards}, classes=CLASSES)


def test_several_ranks_agree_with_one_process(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks report the number of right answers that one process counts, image by image and without the loader."""
    monkeypatch.syspath_prepend(FOLDER)
    from net import Net

    torch.manual_seed(0)
    net, decoder, right = Net(len(CLASSES)).eval(), shardflow.decoders.CenterCrop(16), 0
    for sample in shardflow.open(dataset)["val"]:
        images = decoder([memoryview(sample["jpg"])], np.zeros((1, 2), np.int64), np.zeros(1, np.uint64)).images
        right += int(net(images).argmax()) == int(sample["cls"])
    assert 0 < right < sum(SAMPLES)
    printed = run("evaluate_sharded.py", dataset, "--batch-size", 5, "--size", 16, ranks=3)
    assert printed == f"top-1: {right} of 37 samples, {right / 37:.2%}\n"
