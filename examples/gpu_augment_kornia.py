"""Train with augmentation by Kornia on the device, unchanged, as one of the prefetcher's transforms.

    python examples/gpu_augment_kornia.py photos256

Transforms run one after the other on batches that are on the device already: Kornia's take float images and draw
parameters per image, so `ToDtype` comes first, and Normalize, here shardflow's, last. What to look at:

- Kornia draws from torch's global generator. Because the loader hands out "random_key", the generator is set from the
  batch's key before each batch, and given back after it: a resumed run draws the same, and nothing else in the process
  is disturbed. But a batch's draws belong to that batch: another batch size or number of ranks gives other ones.
  shardflow's own transforms draw from each sample's key, and do not have this limit.
"""

from __future__ import annotations

import argparse

import kornia.augmentation as K  # noqa: N812 - everybody's name for it
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torchvision.transforms import v2

import shardflow
from net import Net


def main() -> None:
    """Parse the command line, and train for an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(given.size),
        fields=("image", "label", "random_key"),
        num_workers=given.workers,
    )
    augmented = K.AugmentationSequential(
        K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((5, 5), (0.1, 2.0), p=0.5),
        data_keys=["input"],
    )
    transforms = [v2.ToDtype(torch.float32, scale=True), augmented, shardflow.device.Normalize()]
    batches = shardflow.device.Prefetcher(loader, device, transforms)
    torch.manual_seed(0)
    net = Net(len(shardflow.open(given.dataset).classes or ())).to(device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    total = torch.zeros((), device=device)
    for images, labels in batches:
        loss = F.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.detach()
    print(f"{len(batches)} steps, loss {float(total) / len(batches):.6f}; {batches.stats()}")


if __name__ == "__main__":
    main()
