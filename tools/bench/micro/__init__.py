"""Single questions about shardflow itself; prints Markdown tables, and writes them to the output folder.

    recipe      bytes, decoding and fidelity of every quality                          docs/performance.md
    mixing      how well streams and window mix, against a full shuffle and webdataset   docs/performance.md
    sampling    class counts of weighted epochs; bytes fetched with shard affinity      docs/performance.md
    start       a new process, until its first batch: local, and from S3               docs/performance.md
    resume      the first batch of a resumed epoch                                     docs/performance.md
    budget      where the loader's CPU time goes, by stage                             docs/performance.md
    memory      where the loader's memory goes, beside an ImageFolder's                docs/performance.md
    scaling     CPU time as batches, workers, shards and datasets grow                 docs/performance.md
    handover    what the training process itself costs                                 docs/performance.md
    ranks       the start of 1,024 ranks over 10^9 samples, and what the bucket sees   docs/performance.md
    pixels      what a cache of decoded images saves                                   docs/performance.md
    views       several crops of each image, beside torchvision                        docs/performance.md
    annotations images with their boxes or masks, beside torchvision                   docs/performance.md
    detection   the mAP of a small detector, compared with torchvision's recipe
    conditions  selecting among a million samples                                      docs/columns.md
    columns     samples with an embedding from a column                                docs/performance.md
    tokens      planning bins of tokens, and loading them, beside padding and buckets    docs/performance.md
    encoded     handing over encoded files instead of crops                            docs/performance.md
    packing     time and memory of packing 10,000 to 1,000,000 tiny images             docs/performance.md

Runs in the interpreter that it is called with, on shardflow of this checkout: `.venv/bin/python tools/bench micro`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bench.environments import PROJECT
from bench.harness import made
from bench.processes import call

ROUNDS = {"recipe": 15, "mixing": 1, "sampling": 1, "start": 9, "resume": 15, "budget": 5, "scaling": 3, "memory": 3}
ROUNDS |= {
    "pixels": 5,
    "views": 3,
    "annotations": 5,
    "detection": 3,
    "encoded": 5,
    "packing": 1,
    "handover": 5,
    "ranks": 1,
    "columns": 3,
    "conditions": 3,
    "tokens": 3,
}
"""What can be measured, and how often each by default; mixing, sampling and packing are measured once."""
TIMEOUT_S = 3600


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure what is asked for."""
    parser.add_argument("what", choices=ROUNDS, nargs="+")
    parser.add_argument("--images", type=Path, help="folder of photographs (default: drawn images; recipe needs it)")
    parser.add_argument("--samples", type=int, default=4000, help="size of the dataset")
    parser.add_argument("--inputs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="of packing")
    parser.add_argument("--rounds", type=int, help=f"how often each case is measured (default: {ROUNDS})")
    parser.add_argument("--publish", action="store_true", help="put the chart of sampling into docs/")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-micro")
    options = parser.parse_args(arguments)
    if "recipe" in options.what and not options.images:
        parser.error("recipe measures photographs: give their folder with --images")
    options.output.mkdir(parents=True, exist_ok=True)
    for what in options.what:
        rounds = options.rounds or ROUNDS[what]
        if what == "recipe":
            tables = _call("recipe.measure", images=options.images.resolve(), rounds=rounds)
        elif what == "mixing":
            tables = _call("mixing.measure")
        elif what == "sampling":
            folder = PROJECT / "docs" if options.publish else options.output
            tables = _call("sampling.measure", picture=folder / "sampling.svg")
        elif what == "detection":
            tables = _call("detection.measure", folder=options.output, rounds=rounds)
        elif what == "packing":
            tables = _call("packing.measure", inputs=options.inputs, folder=options.output)
        else:
            data = {} if what in ("resume", "ranks", "conditions") else {"url": _dataset(options)}
            tables = _call(f"{what}.measure", rounds=rounds, **data)
        (options.output / f"{what}.md").write_text(tables)
        print(f"{what}\n\n{tables}", flush=True)


def _dataset(options: argparse.Namespace) -> Path:
    """Pack the images, unless that is done, and return the dataset."""
    source = options.images.name if options.images else "drawn"
    data = (options.output / f"data-{source}-{options.samples}").resolve()
    images, folder, dataset = options.images and options.images.resolve(), data / "pictures", data / "shardflow"
    arguments = {"peer": "shardflow", "pictures": folder, "data": dataset}
    made(folder, lambda: _call("pictures.pictures", folder=folder, count=options.samples, images=images))
    made(dataset, lambda: _call("loaders.measure.prepare", **arguments))
    return dataset / "packed"


def _call(function: str, **arguments: Any) -> Any:
    """Call a function in this interpreter, with shardflow of this checkout."""
    name = function if function.split(".")[0] in ("pictures", "loaders") else f"micro.{function}"
    return call(sys.executable, name, variables=(("PYTHONPATH", str(PROJECT)),), timeout_s=TIMEOUT_S, **arguments)
