from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import shardflow
from tests.helpers.scripts import FOLDER, run


@pytest.mark.parametrize("name", ["albumentations_transform.py", "gpu_augment_kornia.py", "gpu_decode.py"])
def test_it_runs(name: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example trains for an epoch, and says where the time went."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    printed = run(name, dataset, "--batch-size", 16, "--size", 16, "--workers", 2)
    assert re.match(r"4 steps, loss \d+\.\d+; [a-z]+-bound: ", printed)


def test_albumentations_pixels_depend_on_the_sample_alone(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is augmented the same with any batch size and number of workers, by any kind of transform."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    monkeypatch.syspath_prepend(FOLDER)
    import albumentations as A  # noqa: N812 - everybody's name for it

    from albumentations_transform import Keyed

    pipeline = A.Compose(
        [A.HorizontalFlip(), A.OneOf([A.GaussianBlur(), A.GaussNoise()], p=0.8), A.RandomBrightnessContrast(p=0.8)]
    )
    expected, found = (
        {
            label: image
            for images, labels in shardflow.Loader(
                dataset, decoder=shardflow.CenterCropDecoder(16), transform=Keyed(pipeline), tail="short", **options
            )
            for label, image in zip(labels.tolist(), images.clone(), strict=True)
        }
        for options in ({"batch_size": 16, "num_workers": 0}, {"batch_size": 9, "num_workers": 2})
    )
    assert len(expected) == 67
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_albumentations_transforms_draw_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keyed from numpy's generator, two flips of a pipeline are made independently, and the same for a seed."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    monkeypatch.syspath_prepend(FOLDER)
    import albumentations as A  # noqa: N812 - everybody's name for it

    from albumentations_transform import Keyed

    image = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8).expand(3, 2, 2)
    keyed = Keyed(A.Compose([A.HorizontalFlip(p=0.5), A.Sequential([A.VerticalFlip(p=0.5)])]))
    outcomes = []
    for seed in range(60):
        np.random.seed(seed)
        outcomes.append(int(keyed(image)[0, 0, 0]))
        np.random.seed(seed)
        assert int(keyed(image)[0, 0, 0]) == outcomes[-1]
    assert set(outcomes) == {0, 1, 2, 3}
    assert all(5 < outcomes.count(corner) < 28 for corner in range(4))
