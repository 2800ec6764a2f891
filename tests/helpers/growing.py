"""A run in two halves, between which its dataset is extended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import shardflow
from tests.helpers.making import jpeg
from tests.helpers.scripts import run

CLASSES = "cat", "dog"


def run_in_halves(name: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run an example that logs, stop it, extend the dataset, and go on; return its loader's description of its data.

    The lines that it prints, and its checkpoint, which is replaced and never overwritten, are looked at here.
    """
    photos, url, checkpoint = folder / "photos", folder / "photos256", folder / "run.pt"
    _draw(photos, range(24))
    shardflow.pack(photos, url, shard_samples=8, executor="serial")
    options = [*arguments, "--checkpoint", checkpoint, "--size", 16, "--workers", 1, "--batch-size", 4]
    first = run(name, url, *options, "--stop-after", 2)
    decoder = shardflow.decoders.RandomResizedCrop(16)
    began_with = shardflow.Loader(url, batch_size=4, decoder=decoder, num_workers=1).describe()
    _draw(photos, range(24, 40))
    shardflow.extend(photos, url, executor="serial")
    began_at = checkpoint.read_bytes()
    (folder / "held.pt").hardlink_to(checkpoint)
    second = run(name, url, *options)
    assert (folder / "held.pt").read_bytes() == began_at
    lines = [line.partition(";")[0] for line in (first + second).splitlines()]
    assert lines == ["epoch 0: 8 samples", "epoch 0: 16 samples", "epoch 1: 24 samples"]
    assert began_with["fingerprint"] != shardflow.open(url).fingerprint
    again = shardflow.Loader(url, batch_size=4, decoder=decoder, num_workers=1, version=began_with["fingerprint"])
    assert again.describe() == began_with
    return began_with


def _draw(folder: Path, numbers: range) -> None:
    for number in numbers:
        path = folder / CLASSES[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
