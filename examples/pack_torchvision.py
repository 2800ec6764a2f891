"""Pack a torchvision dataset, or any other object with a length and an index that returns images and targets.

    python examples/pack_torchvision.py out/

- A target that is an integer or a name is the class; an image is a mask; dictionaries are annotations.
- Class names come from its `classes`, or from `shardflow.sources.Collection(..., classes=...)`.
- Pass the dataset without random transforms: training crops and augments in every epoch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torchvision

import shardflow


def main() -> None:
    """Pack a dataset of random images, and load a batch of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path, help="new directory for the dataset")
    packed = parser.parse_args().packed

    images = torchvision.datasets.FakeData(size=40, image_size=(3, 80, 120), num_classes=4)
    source = shardflow.sources.Collection(images, classes=["ant", "bee", "cat", "dog"])
    shardflow.pack(source, packed, short_side=64, workers=1)

    decoder = shardflow.decoders.RandomResizedCrop(48)
    for batch, labels in shardflow.Loader(packed, batch_size=16, decoder=decoder, num_workers=0):
        print(f"images {tuple(batch.shape)}, labels {tuple(labels.shape)}")


if __name__ == "__main__":
    main()
