from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardflow
from tests.helpers.scripts import FOLDER, run


@pytest.mark.parametrize("command", ["albumentations_transform.py", "gpu_augment.py --kornia", "gpu_augment.py"])
def test_it_runs(command: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example trains for an epoch, and says where the time went."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    name, *options = command.split()
    printed = run(name, dataset, *options, "--batch-size", 16, "--size", 16, "--workers", 2)
    assert re.match(r"4 steps, loss \d+\.\d+; [a-z ]+-bound: ", printed)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example with Albumentations, as a module."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("albumentations_transform")


def test_albumentations_pixels_depend_on_the_sample_alone(dataset: Path, example: Any) -> None:
    """A sample is augmented the same with any batch size and number of workers, by any kind of transform."""
    A = example.A  # noqa: N806 - its usual name
    pipeline = A.Compose(
        [A.HorizontalFlip(), A.OneOf([A.GaussianBlur(), A.GaussNoise()], p=0.8), A.RandomBrightnessContrast(p=0.8)]
    )
    keyed = example.Keyed(pipeline)
    expected, found = (
        {
            label: image
            for images, labels in shardflow.Loader(
                dataset, decoder=shardflow.decoders.CenterCrop(16), transform=keyed, tail="short", **options
            )
            for label, image in zip(labels.tolist(), images.clone(), strict=True)
        }
        for options in ({"batch_size": 16, "num_workers": 0}, {"batch_size": 9, "num_workers": 2})
    )
    assert len(expected) == 67
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_albumentations_transforms_draw_independently(example: Any) -> None:
    """Keyed from numpy's generator, two flips of a pipeline are made independently, and the same for a seed."""
    A = example.A  # noqa: N806 - its usual name
    image = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8).expand(3, 2, 2)
    keyed = example.Keyed(A.Compose([A.HorizontalFlip(p=0.5), A.Sequential([A.VerticalFlip(p=0.5)])]))
    outcomes = []
    for seed in range(60):
        np.random.seed(seed)
        outcomes.append(int(keyed(image)[0, 0, 0]))
        np.random.seed(seed)
        assert int(keyed(image)[0, 0, 0]) == outcomes[-1]
    assert set(outcomes) == {0, 1, 2, 3}
    assert all(5 < outcomes.count(corner) < 28 for corner in range(4))


def test_albumentations_moves_masks_and_boxes(scenes: Path, example: Any) -> None:
    """Image, mask and boxes of a sample take the same affine transform, and dropped boxes take their labels along."""
    A = example.A  # noqa: N806 - its usual name
    boxes = A.BboxParams("pascal_voc", label_fields=["box_labels"], min_visibility=0.1)
    pipeline = A.Compose([A.HorizontalFlip(), A.Affine(translate_percent=0.2, p=1)], bbox_params=boxes)
    loader = shardflow.Loader(
        scenes.parent / "packed",
        batch_size=33,
        decoder=shardflow.decoders.CenterCrop(64),
        fields=("image", "mask", "boxes", "box_labels"),
        transform=example.Keyed(pipeline),
        num_workers=1,
    )
    ((images, masks, boxes, labels),) = loader
    shapes = 0
    for image, mask, own, numbers in zip(images, masks[:, 0], boxes, labels, strict=True):
        coloured = (image.int() - torch.tensor([255, 255, 240])[:, None, None]).abs().amax(0) > 60
        shown = coloured & (image.amax(0) > 60)  # what moved in from beyond the picture is black
        assert float((shown != (mask > 0)).float().mean()) < 0.06
        assert len(own) == len(numbers)
        for (left, top, right, bottom), number in zip(own.round().int().tolist(), numbers.tolist(), strict=True):
            inside = mask[top:bottom, left:right]
            shapes += bool((inside == number + 1).any())
    assert shapes > 0.9 * sum(map(len, boxes)) > 20
