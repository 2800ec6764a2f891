from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2

import shardflow
from tests.helpers.device import keyed_loader, state_after


def transforms() -> list[Any]:
    """Return augmentations of Kornia, for floating-point images."""
    import kornia.augmentation as K  # noqa: N812 - the usual name

    augmented = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0), data_keys=["input"]
    )
    return [v2.ToDtype(torch.float32, scale=True), augmented]


def test_on_the_device_it_draws_per_image_and_the_same_in_a_resumed_run(dataset: Path) -> None:
    """Images of a batch are augmented differently; a resumed run repeats them, whatever the process drew before."""
    whole = [*shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", transforms())]
    plain = [*shardflow.device.Prefetcher(keyed_loader(dataset), "cpu")]
    factors = {round(float(a.mean() / (p / 255).mean()), 4) for a, p in zip(whole[0][0], plain[0][0], strict=True)}
    assert len(factors) == 7
    state = state_after(shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", transforms()), 2)
    torch.manual_seed(99)
    resumed = shardflow.device.Prefetcher(keyed_loader(dataset, num_workers=1), "cpu", transforms())
    resumed.load_state_dict(state)
    torch.testing.assert_close([*resumed], whole[2:], rtol=0, atol=0)


def test_in_the_workers_it_depends_on_the_sample_alone(dataset: Path) -> None:
    """In the workers, an image's augmentation is the same whatever the batch size and the number of workers."""

    def transform(image: torch.Tensor) -> torch.Tensor:
        augmented: torch.Tensor = jiggle(image / 255)[0]
        return augmented

    import kornia.augmentation as K  # noqa: N812 - the usual name

    jiggle = K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0)
    expected, found = (
        {
            label: image
            for images, labels, _ in keyed_loader(dataset, transform=transform, **options)
            for label, image in zip(labels.tolist(), images.clone(), strict=True)
        }
        for options in ({}, {"batch_size": 11, "num_workers": 2})
    )
    assert len(expected) == 60
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
