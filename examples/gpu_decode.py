"""Train with images that are decoded, cropped and augmented on the GPU; the workers only read.

    python examples/gpu_decode.py photos256

Without a GPU the same code decodes on the CPU, with the same pixels bit for bit. What to look at:

- `EncodedDecoder` hands the files on as they are, and `DecodeJpeg`, the first of the prefetcher's transforms, decodes
  them with nvJPEG and crops there.
- The transforms after it draw from each sample's key, so a sample is augmented alike with every decoder and in every
  batch. MixUp and CutMix make soft targets of the labels, which cross_entropy takes as they are.
- `stats()` tells where training waits: time for the copy is the GPU's decoding, time for data the workers'.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

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
        decoder=shardflow.decoders.Raw(),
        fields=("image", "label", "random_key"),
        num_workers=given.workers,
    )
    classes = len(loader.dataset.classes or ())
    transforms = [
        shardflow.device.DecodeJpeg(shardflow.decoders.RandomResizedCrop(given.size)),
        shardflow.device.ColorJitter(0.4, 0.4, 0.4),
        shardflow.device.Normalize(),
        shardflow.device.OneOf(
            [shardflow.device.MixUp(num_classes=classes), shardflow.device.CutMix(num_classes=classes)]
        ),
    ]
    batches = shardflow.device.Prefetcher(loader, device, transforms)
    torch.manual_seed(0)
    net = Net(classes).to(device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    total = torch.zeros((), device=device)
    for images, targets in batches:
        loss = F.cross_entropy(net(images), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.detach()
    print(f"{len(batches)} steps, loss {float(total) / len(batches):.6f}; {batches.stats()}")


if __name__ == "__main__":
    main()
