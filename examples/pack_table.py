"""Pack the images of a CSV: labels, splits and captions from its columns, everything else into `.json`.

    python examples/pack_table.py out/

The same on the command line:

    shardflow pack out/photos.csv out/packed --label-column colour --caption-column text

- Paths are relative to the table; URLs of any scheme that fsspec serves work too.
- The column "split" is found by its name, as "label" would be.
- A row whose image is missing is quarantined, and counts against `max_errors`.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import shardflow
from pictures import COLOURS, picture


def main() -> None:
    """Write a table with its images, pack it, and show a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new directory for the images, the table and the dataset")
    folder = parser.parse_args().folder
    (folder / "photos").mkdir(parents=True)
    with open(folder / "photos.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "colour", "split", "text", "camera"])
        for number in range(30):
            picture(number).save(folder / "photos" / f"{number}.jpg")
            colour, split = COLOURS[number % 3], "val" if number % 5 == 0 else "train"
            table.writerow([f"photos/{number}.jpg", colour, split, f"a disc in {colour}", f"no {number % 2}"])

    source = shardflow.sources.Table(folder / "photos.csv", label="colour", caption="text")
    report = shardflow.pack(source, folder / "packed", short_side=64, workers=1)

    dataset = shardflow.open(folder / "packed")
    sample = dataset["val"][0]
    print(f"packed {report.packed} images: {', '.join(f'{len(dataset[split])} {split}' for split in dataset)}")
    print(f"{dataset.classes[int(sample['cls'])]}: {sample['txt'].decode()}, {json.loads(sample['json'])}")


if __name__ == "__main__":
    main()
