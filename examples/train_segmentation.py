"""Train a segmenter of torchvision on images and masks.

    shardflow pack photos/ photos256 --mask mask.png
    python examples/train_segmentation.py photos256 --classes 21

- The script needs no joint transform: the mask [B, 1, H, W] follows the crop, size and flip of its image, to the
  nearest pixel, so it has only values of the file.
- Erasing runs on the device, and erases the mask with the value that the loss ignores.
- In validation the mask is cropped like its image, from the centre.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torchvision.models import segmentation

import shardflow

MODELS = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")
IGNORED = 255


def main() -> None:
    """Parse the command line, train, and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a dataset with the mask mask.png and the splits train and val")
    parser.add_argument("--classes", type=int, default=21, help="values of the masks, with 0 for the background")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per step")
    parser.add_argument("--size", type=int, default=224, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(given.size, scale=(0.25, 1)),
        fields=("image", "mask", "random_key"),
        num_workers=given.workers,
    )
    val = shardflow.Loader(
        given.dataset,
        split="val",
        batch_size=given.batch_size,
        decoder=shardflow.decoders.CenterCrop(given.size),
        fields=("image", "mask"),
        shuffle=False,
        num_workers=given.workers,
    )
    augment = [
        shardflow.device.ColorJitter(0.3, 0.3, 0.3),
        shardflow.device.Normalize(),
        shardflow.device.RandomErasing(mask_value=IGNORED),
    ]
    torch.manual_seed(0)
    model = getattr(segmentation, given.model)(weights=None, weights_backbone=None, num_classes=given.classes)
    model.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(given.epochs):
        model.train()
        batches = shardflow.device.Prefetcher(train, device, augment)
        for images, masks in batches:
            loss = F.cross_entropy(model(images)["out"], masks[:, 0].long(), ignore_index=IGNORED)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        iou = evaluate(model, shardflow.device.Prefetcher(val, device, [shardflow.device.Normalize()]), given.classes)
        print(f"epoch {epoch}: {len(batches)} steps, loss {float(loss.detach()):.3f}, mean IoU {iou:.1%}")
    print(batches.stats())


@torch.inference_mode()
def evaluate(model: torch.nn.Module, batches: shardflow.device.Prefetcher, classes: int) -> float:
    """Return the mean over classes of intersection by union, from the counts of all pixels."""
    model.eval()
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for images, masks in batches:
        predicted, wanted = model(images)["out"].argmax(1), masks[:, 0].long()
        valid = wanted != IGNORED
        pairs = torch.bincount(wanted[valid] * classes + predicted[valid], minlength=classes**2)
        counts += pairs.view(classes, classes).cpu()
    intersection = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - intersection
    return float((intersection / union)[union > 0].mean())


if __name__ == "__main__":
    main()
