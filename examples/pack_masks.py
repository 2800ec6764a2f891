r"""Pack images with masks, boxes in pixels, and captions; masks and boxes are resized with the images.

    python examples/pack_masks.py out/

The same on the command line:

    shardflow pack out/photos out/packed --square --parts txt \
        --mask mask.png --boxes json:boxes:xyxy --box-field labels=labels

- `7.mask.png`, `7.json` and `7.txt` are next to `7.jpg`. Their meaning is declared, not guessed.
- A mask is cropped and resized with its image, to the nearest pixel: labels are never mixed.
- Boxes are in pixels of the upright image, at the path "boxes" of the JSON, and move with the image; other entries
  stay. A box outside the crop becomes zeros, so that it keeps its label.
- The manifest has the declaration, so the loader crops mask and boxes with the image.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

import shardflow
from pictures import COLOURS, disc, mask, picture


def main() -> None:
    """Write images with masks, boxes and captions, pack their middle squares, and compare mask and box of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new directory for the images and the dataset")
    folder = parser.parse_args().folder
    photos = folder / "photos"
    photos.mkdir(parents=True)
    for number in range(20):
        picture(number).save(photos / f"{number}.jpg")
        mask(number).save(photos / f"{number}.mask.png")
        (photos / f"{number}.json").write_text(json.dumps({"boxes": [disc(number)], "labels": [number % 3]}))
        (photos / f"{number}.txt").write_text(f"a disc in {COLOURS[number % 3]}")

    boxes = shardflow.annotations.Boxes("json", "boxes", "xyxy", fields={"labels": "labels"})
    report = shardflow.pack(
        shardflow.sources.Folder(photos, parts=("txt",)),
        folder / "packed",
        annotations=shardflow.annotations.Annotations(masks=("mask.png",), boxes=boxes),
        short_side=64,
        square=True,
        workers=1,
    )

    sample = shardflow.open(folder / "packed")["train"][0]
    rows, columns = np.nonzero(np.asarray(Image.open(io.BytesIO(sample["mask.png"]))))
    around = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    (box,) = json.loads(sample["json"])["boxes"]
    apart = max(abs(a - b) for a, b in zip(around, box, strict=True))
    print(
        f"packed {report.packed} images; mask and box of {sample['txt'].decode()!r} agree to {np.ceil(apart):.0f} pixel"
    )


if __name__ == "__main__":
    main()
