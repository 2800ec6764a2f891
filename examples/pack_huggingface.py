"""Pack a Hugging Face dataset: class names and splits come with it, and image files are taken as they are.

    python examples/pack_huggingface.py out/

What to look at:

- The columns with images and classes are found by their types; `shardflow.sources.Collection` names others.
- Images are not decoded on the way: their files go to the packer, and those that need no change could be kept
  byte for byte (`preset="original"`).
- The files are copied to the directory for temporary files first, where the workers read them.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import datasets

import shardflow
from pictures import COLOURS, picture


def make(numbers: range) -> datasets.Dataset:
    """Return a dataset such as `datasets.load_dataset` gives."""
    features = datasets.Features({"image": datasets.Image(), "colour": datasets.ClassLabel(names=list(COLOURS))})
    columns: dict[str, list[object]] = {"image": [], "colour": []}
    for number in numbers:
        file = io.BytesIO()
        picture(number).save(file, "PNG")
        columns["image"].append({"bytes": file.getvalue(), "path": None})
        columns["colour"].append(number % 3)
    return datasets.Dataset.from_dict(columns, features=features)


def main() -> None:
    """Make a dataset of two splits and pack it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path, help="new directory for the dataset")
    packed = parser.parse_args().packed

    source = datasets.DatasetDict({"train": make(range(24)), "test": make(range(24, 30))})
    shardflow.pack(source, packed, short_side=64, workers=1)

    dataset = shardflow.open(packed)
    print(f"{', '.join(f'{len(dataset[split])} {split}' for split in dataset)}; classes {', '.join(dataset.classes)}")


if __name__ == "__main__":
    main()
