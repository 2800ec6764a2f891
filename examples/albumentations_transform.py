"""Train with augmentation by Albumentations in the workers, with the same pixels in every run.

    python examples/albumentations_transform.py photos256

Albumentations draws from its own generators, so every run would differ. `Keyed` seeds them from numpy's global
generator, which the loader seeds with the sample's key.

- Each transform of a pipeline gets its own seed. `Compose(seed=…)` and `set_random_seed` give all of them the same one,
  so their first draws are equal: one flip happens exactly when the other does.
- Albumentations works on numpy arrays [H, W, 3], the loader on tensors [3, H, W]; both are views of the same bytes.
- With masks or boxes among the loader's fields, `Keyed` gets a dict, and the pipeline transforms all of them.
- On import Albumentations asks a server for its newest version, unless NO_ALBUMENTATIONS_UPDATE=1 is set.
"""

from __future__ import annotations

import argparse
from typing import Any

import albumentations as A  # noqa: N812 - everybody's name for it
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow

NAMES = {"boxes": "bboxes"}
"""What Albumentations calls the loader's fields, where the names differ."""


class Keyed:
    """An Albumentations pipeline as a transform of the loader, seeded from numpy's global generator."""

    def __init__(self, pipeline: A.Compose) -> None:
        self._pipeline = pipeline

    def __call__(self, sample: Any) -> Any:
        """Return the image, uint8 [3, H, W], augmented; or a dict of the image, its mask, boxes and their fields.

        Boxes need `A.Compose(..., bbox_params=A.BboxParams("pascal_voc", label_fields=["box_labels"]))`.
        """
        seed_all(self._pipeline)
        fields = sample if isinstance(sample, dict) else {"image": sample}
        arrays = {NAMES.get(field, field): value.contiguous().numpy() for field, value in fields.items()}
        arrays["image"] = np.ascontiguousarray(arrays["image"].transpose(1, 2, 0))
        augmented = self._pipeline(**arrays)
        if isinstance(augmented["image"], np.ndarray):  # not if the pipeline ends in `ToTensorV2`
            augmented["image"] = augmented["image"].transpose(2, 0, 1)
        result = {field: torch.as_tensor(np.array(augmented[NAMES.get(field, field)])) for field in fields}
        return result if isinstance(sample, dict) else result["image"]


def seed_all(transform: A.BasicTransform | A.BaseCompose) -> None:
    """Seed a transform, and each of its parts separately, from numpy's global generator."""
    transform.set_random_seed(int(np.random.randint(2**32, dtype=np.uint64)))
    for part in getattr(transform, "transforms", ()):
        seed_all(part)


def main() -> None:
    """Parse the command line, and train for an epoch."""
    from net import Net  # here, as `Keyed` is of use without it

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    pipeline = A.Compose(
        [
            A.HorizontalFlip(p=0.5),
            A.OneOf([A.GaussianBlur(p=1), A.MedianBlur(blur_limit=3, p=1)], p=0.3),
            A.RandomBrightnessContrast(p=0.5),
            A.CoarseDropout(p=0.3),
        ]
    )
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(given.size, hflip=0),
        transform=Keyed(pipeline),
        num_workers=given.workers,
    )
    torch.manual_seed(0)
    net = Net(len(shardflow.open(given.dataset).classes or ()))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    total = torch.zeros(())
    for images, labels in shardflow.device.Prefetcher(loader, "cpu"):
        loss = F.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.detach()
    print(f"{len(loader)} steps, loss {float(total) / len(loader):.6f}; {loader.stats()}")


if __name__ == "__main__":
    main()
