from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import kornia.augmentation as K  # noqa: N812 - everybody's name for it
import torch
from torchvision.transforms import v2

import shardflow
from tests.helpers.device_batches import FIELDS


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader that hands keys out."""
    options = {"batch_size": 8, "num_workers": 0, "fields": FIELDS, **options}
    return shardflow.Loader(url, decoder=shardflow.CenterCropDecoder(16), **options)


def stages() -> list[Any]:
    """Kornia's augmentations on floats."""
    augmented = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0), data_keys=["input"]
    )
    return [v2.ToDtype(torch.float32, scale=True), augmented]


def test_as_a_stage_it_draws_per_image_and_the_same_in_a_resumed_run(dataset: Path) -> None:
    """Images of a batch are augmented differently; a resumed run repeats them, whatever the process drew before."""
    whole = [*shardflow.DevicePrefetcher(loader(dataset), "cpu", stages())]
    plain = [*shardflow.DevicePrefetcher(loader(dataset), "cpu")]
    factors = {round(float(a.mean() / (p / 255).mean()), 4) for a, p in zip(whole[0][0], plain[0][0], strict=True)}
    assert len(factors) == 8
    stopped = shardflow.DevicePrefetcher(loader(dataset), "cpu", stages())
    for _ in itertools.islice(stopped, 2):
        state = stopped.state_dict()
    torch.manual_seed(99)
    resumed = shardflow.DevicePrefetcher(loader(dataset, num_workers=1), "cpu", stages())
    resumed.load_state_dict(state)
    torch.testing.assert_close([*resumed], whole[2:], rtol=0, atol=0)


def test_as_a_transform_it_depends_on_the_sample_alone(dataset: Path) -> None:
    """In the workers, an image's augmentation is the same whatever the batch size and the number of workers."""

    def transform(image: torch.Tensor) -> torch.Tensor:
        augmented: torch.Tensor = jiggle(image / 255)[0]
        return augmented

    jiggle = K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0)
    expected, found = (
        {
            label: image
            for images, labels, _ in loader(dataset, transform=transform, tail="short", **options)
            for label, image in zip(labels.tolist(), images.clone(), strict=True)
        }
        for options in ({}, {"batch_size": 11, "num_workers": 2})
    )
    assert len(expected) == 40
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
