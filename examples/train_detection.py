"""Train a detector of torchvision on images and boxes.

    shardflow pack coco/annotations/instances_train2017.json coco512 --preset fine
    python examples/train_detection.py coco512

- The script needs no collate function and crops nothing: a batch has one tensor of images, and lists with the boxes
  [N, 4] and the labels [N] of each image, which followed its crop and flip.
- `CroppedBoxes(min_visibility=0.25)` drops boxes of which less than a quarter is in the crop, and their labels. An
  image without boxes is an example of background.
- The flip runs on the device, and moves the boxes too. Add colour transforms next to it.
- torchvision's detectors count the background as class 0, so labels are one higher than the dataset's.
"""

from __future__ import annotations

import argparse
import functools

import torch
from torchvision.models import detection

import shardflow

MODELS = ("fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn_v2", "ssdlite320_mobilenet_v3_large")


def main() -> None:
    """Parse the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a dataset that declares boxes with labels")
    parser.add_argument("--classes", type=int, help="how many classes the boxes have (default: those of the dataset)")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per step")
    parser.add_argument("--size", type=int, default=320, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(given.size, scale=(0.3, 1), hflip=0),
        fields=("image", shardflow.annotations.CroppedBoxes(min_visibility=0.25), "box_labels", "random_key"),
        num_workers=given.workers,
    )
    batches = shardflow.device.Prefetcher(loader, device, [shardflow.device.RandomHorizontalFlip()])
    torch.manual_seed(0)
    make = getattr(detection, given.model)
    if given.model.startswith("fasterrcnn"):  # these resize their images, by default to other sizes
        make = functools.partial(make, min_size=given.size, max_size=given.size)
    classes = given.classes or len(shardflow.open(given.dataset).classes or ())
    model = make(weights=None, weights_backbone=None, num_classes=classes + 1).to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for epoch in range(given.epochs):
        seen = 0
        for images, boxes, labels in batches:
            targets = [{"boxes": own, "labels": numbers + 1} for own, numbers in zip(boxes, labels, strict=True)]
            losses = model(list(images / 255), targets)
            loss = sum(losses.values())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
            optimiser.step()
            seen += sum(map(len, boxes))
        parts = ", ".join(f"{name} {float(value.detach()):.3f}" for name, value in losses.items())
        print(f"epoch {epoch}: {len(batches)} steps, {seen} boxes; {parts}")
    print(batches.stats())


if __name__ == "__main__":
    main()
