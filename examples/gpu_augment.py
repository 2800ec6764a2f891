"""Train with images that are decoded and augmented on the GPU, or augmented there by Kornia.

    python examples/gpu_augment.py photos256
    python examples/gpu_augment.py photos256 --kornia

Without a GPU the same code runs on the CPU, and decodes to the same pixels.

- `decoders.Raw` passes the files on undecoded. `DecodeJpeg`, the first of the prefetcher's transforms, decodes and
  crops them with nvJPEG. The workers only read.
- The transforms after it draw from each sample's key, so a sample's augmentation does not depend on its batch or its
  decoder. MixUp and CutMix make soft targets of the labels, which cross_entropy accepts.
- Kornia's augmentations take float images, so `ToDtype` comes first. They draw from torch's global generator, which is
  seeded from the batch's "random_key" and restored afterwards: a resumed run draws the same numbers, but another batch
  size or number of ranks draws others.
- `stats()` shows what training waits for: the copy, which includes decoding on the GPU, or the workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow
from net import Net
from shardflow import decoders, device


def own(size: int, classes: int) -> tuple[Any, list[Any]]:
    """Return a decoder, and transforms of shardflow that decode and augment."""
    mixing = device.OneOf([device.MixUp(num_classes=classes), device.CutMix(num_classes=classes)])
    decode = device.DecodeJpeg(decoders.RandomResizedCrop(size))
    return decoders.Raw(), [decode, device.ColorJitter(0.4, 0.4, 0.4), device.Normalize(), mixing]


def kornias(size: int) -> tuple[Any, list[Any]]:
    """Return a decoder, and transforms that augment with Kornia."""
    import kornia.augmentation as K  # noqa: N812 - everybody's name for it
    from torchvision.transforms import v2

    augmented = K.AugmentationSequential(
        K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((5, 5), (0.1, 2.0), p=0.5),
        data_keys=["input"],
    )
    return decoders.RandomResizedCrop(size), [v2.ToDtype(torch.float32, scale=True), augmented, device.Normalize()]


def main() -> None:
    """Parse the command line, and train for an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--kornia", action="store_true", help="augment with Kornia")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    where = "cuda" if torch.cuda.is_available() else "cpu"
    classes = len(shardflow.open(given.dataset).classes or ())
    decoder, transforms = kornias(given.size) if given.kornia else own(given.size, classes)
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=decoder,
        fields=("image", "label", "random_key"),
        num_workers=given.workers,
    )
    batches = device.Prefetcher(loader, where, transforms)
    torch.manual_seed(0)
    net = Net(classes).to(where)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    total = torch.zeros((), device=where)
    for images, targets in batches:
        loss = F.cross_entropy(net(images), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.detach()
    print(f"{len(batches)} steps, loss {float(total) / len(batches):.6f}; {batches.stats()}")


if __name__ == "__main__":
    main()
