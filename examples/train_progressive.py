"""Train with crops that grow, and compare the time with that of crops of the last size.

    python examples/train_progressive.py photos256 --size 192 --epochs 18

The cost of decoding and training grows with the pixels of a crop, and the first epochs learn as much from small ones
(Tan and Le, "EfficientNetV2", 2021; Touvron et al., "Fixing the train-test resolution discrepancy", 2019).

- The decoder has the sizes of the epochs. There is one loader, whose workers stay.
- A run that is resumed in any epoch has the right size, and the pixels of an uninterrupted run.
- The net must accept any size, for example by global pooling. Compiling and CUDA graphs happen once per size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow
from net import Net


def main() -> None:
    """Parse the command line, train twice, and print how long both took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset with the splits train and val")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--size", type=int, default=192, help="height and width of the last crops in pixels")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    growing = {0: given.size * 2 // 3, given.epochs // 3: given.size * 5 // 6, given.epochs * 2 // 3: given.size}
    took = [train(given, sizes) for sizes in (growing, {0: given.size})]
    print(f"crops that grow took {took[0] / took[1]:.0%} of the time: {took[0]:.1f} s, not {took[1]:.1f} s")


def train(given: argparse.Namespace, sizes: Mapping[int, int]) -> float:
    """Train with crops of these sizes by epoch, print the accuracy, and return the seconds it took."""
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(sizes),
        num_workers=given.workers,
    )
    torch.manual_seed(0)
    net = Net(len(shardflow.open(given.dataset).classes or ()))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    begun = time.perf_counter()
    for epoch in range(given.epochs):
        for images, labels in loader:
            loss = F.cross_entropy(net(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch}: crops of {images.shape[-1]}, loss {float(loss.detach()):.3f}")
    took = time.perf_counter() - begun
    print(f"sizes {dict(sizes)}: top-1 {evaluate(net, given):.1%} in {took:.1f} s")
    return took


@torch.inference_mode()
def evaluate(net: torch.nn.Module, given: argparse.Namespace) -> float:
    """Return the share of the split `val` that the net gets right, at the last size."""
    loader = shardflow.Loader(
        given.dataset,
        split="val",
        batch_size=given.batch_size,
        decoder=shardflow.decoders.CenterCrop(given.size),
        shuffle=False,
        num_workers=given.workers,
    )
    net.eval()
    right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)


if __name__ == "__main__":
    main()
