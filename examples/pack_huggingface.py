"""Pack a Hugging Face dataset with its class names and splits.

    python examples/pack_huggingface.py out/

- The columns with images and classes are found by their types; `shardflow.sources.Collection` names others.
- The packer gets the image files undecoded, so files that need no change can be kept byte for byte
  (`preset="original"`).
- The files are first copied to the directory for temporary files, where the workers read them.
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
