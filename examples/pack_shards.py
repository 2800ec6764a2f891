"""Pack existing WebDataset shards again, with another size, quality, order and number of samples per shard.

    python examples/pack_shards.py out/

The same on the command line, which also takes a bucket:

    shardflow pack "out/shards/{00000..00002}.tar" out/packed --short-side 64 --shard-samples 25

- `.txt` and `.json`, as from img2dataset, stay with their images.
- A damaged or incomplete sample is quarantined, by shard and key.
- A dataset that shardflow packed is given by its directory, and keeps its splits and classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import webdataset as wds

import shardflow
from pictures import COLOURS, picture


def main() -> None:
    """Write three shards, and pack them into two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new directory for the shards and the dataset")
    folder = parser.parse_args().folder
    (folder / "shards").mkdir(parents=True)
    for shard in range(3):
        with wds.TarWriter(str(folder / "shards" / f"{shard:05}.tar")) as writer:
            for number in range(10 * shard, 10 * shard + 10):
                about = {"url": f"https://example.org/{number}.jpg", "width": 240}
                text = f"a disc in {COLOURS[number % 3]}"
                writer.write({"__key__": f"{number:09}", "jpg": picture(number), "txt": text, "json": about})

    pattern = str(folder / "shards" / "{00000..00002}.tar")
    report = shardflow.pack(pattern, folder / "packed", short_side=64, shard_samples=25, workers=1)

    sample = shardflow.open(folder / "packed")["train"][0]
    print(f"packed {report.packed} samples into {report.shards} shards; the first is {sample['txt'].decode()!r}")


if __name__ == "__main__":
    main()
