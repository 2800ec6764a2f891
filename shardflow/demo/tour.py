"""The tour: the demo's steps in order. Each tells what it does, does it, and tells what came of it."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shardflow
from shardflow._cores import allowed_cores
from shardflow.errors import ConfigError
from shardflow.packing.packing import PackReport
from shardflow.storage.local_files import map_os_errors

from .pictures import make_pictures
from .scenes import SCENES
from .sheet import draw_sheet
from .training import BATCH, SIZE, Epoch, train

LIMIT = 4096
"""Samples of a split that are streamed and learned from at most: the demo stays short with any folder."""

WORKERS = 8
"""Processes at most, unless asked otherwise; more would have nothing to do."""

_CROP = 224
_RESUMED_BATCH = 24
_PICTURE = "demo.png"

Say = Callable[[str, str], None]
"""Told the name of a step and one line about it."""


@dataclass(slots=True)
class Outcome:
    """How the tour ended.

    Attributes:
        picture: The contact sheet.
        complaints: What did not come out as it should; empty when all is well.
    """

    picture: Path
    complaints: list[str] = field(default_factory=list)


def take_tour(
    output: str | os.PathLike[str],
    *,
    say: Say,
    images: str | os.PathLike[str] | None = None,
    epochs: int = 12,
    workers: int | None = None,
    pictures: tuple[int, int] = (60, 16),
) -> Outcome:
    """Make pictures or take the user's, pack, verify, stream, resume, train, and draw a contact sheet.

    Args:
        output: A folder; it may exist. Nothing in it is overwritten: unless it is new or empty, a fresh folder in it is
            used.
        say: Told what happens.
        images: A folder of images to use in place of pictures of our own.
        epochs: Of the training; 0 leaves it out.
        workers: Processes and threads; by default one per core, up to a few.
        pictures: How many to make per class for "train" and for "val".

    Raises:
        ConfigError: An argument is wrong.
        ShardflowError: A step failed.
    """
    for name, value in (("epochs", epochs), ("workers", workers)):
        if value is not None and value < 0:
            raise ConfigError(f"{name} must be 0 or more, found {value}")
    processes = workers if workers is not None else min(allowed_cores(), WORKERS)
    folder = _fresh_folder(Path(output))
    if folder != Path(output):
        say("output", f"{output} is in use; this run writes to {folder}")
    outcome = Outcome(folder / _PICTURE)
    if images is None:
        images = folder / "pictures"
        _draw(images, pictures, processes, say)
    url = folder / "dataset"
    _pack(Path(images), url, processes, say, own=images == folder / "pictures")
    _verify(url, say, outcome)
    dataset = shardflow.open(url)
    filled = [name for name in dataset if len(dataset[name])]
    split = "train" if "train" in filled else filled[0]
    val_split = next((name for name in filled if name.startswith("val") and name != split), None)
    _stream(url, split, processes, say, outcome)
    if dataset.classes is None:
        say("train", "left out: the pictures have no labels (DIR/CLASS/x.jpg would give them some)")
    elif len(dataset.classes) < 2:
        say("train", "left out: there is only one class")
    elif epochs:
        last = _train(url, split, val_split, epochs, processes, say)
        _judge(last, len(dataset.classes), say, outcome if folder in Path(images).parents else None)
    say("picture", "drawing samples as packed, and what five epochs make of them")
    with map_os_errors(outcome.picture):
        draw_sheet(url, outcome.picture, split=split, workers=processes)
    say("", f"{outcome.picture}")
    return outcome


def _fresh_folder(output: Path) -> Path:
    with map_os_errors(output):
        try:
            output.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{output} is a file; name a folder with --output") from None
        number, folder = 1, output
        while any(folder.iterdir()):
            number += 1
            folder = output / f"run{number}"
            folder.mkdir(exist_ok=True)
        return folder


def _draw(folder: Path, pictures: tuple[int, int], workers: int, say: Say) -> None:
    train_pictures, val_pictures = pictures
    total = len(SCENES) * (train_pictures + val_pictures)
    say("pictures", f"drawing {total} of {len(SCENES)} classes: {', '.join(SCENES)}")
    started = time.perf_counter()
    with map_os_errors(folder):
        make_pictures(folder, train=train_pictures, val=val_pictures, workers=max(1, workers))
        size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    seconds = time.perf_counter() - started
    say("", f"{size / 1e6:.1f} MB of JPEG files in {seconds:.1f} s: {total / seconds:.0f} images/s")


def _pack(images: Path, url: Path, workers: int, say: Say, *, own: bool) -> None:
    say("pack", f"resizing {images} to a short side of 256 pixels, as shards in {url}")
    report: PackReport = shardflow.pack(
        images,
        url,
        workers=max(1, workers),
        # Small shards, so that even a few hundred pictures come as several of them.
        shard_samples=128 if own else 2048,
        max_bad=1 << 62,  # a bad file should not end the tour; it is named instead
    )
    say(
        "",
        f"{report.packed} of {report.inputs} images in {report.shards} shards, {report.bytes_in / 1e6:.1f} -> "
        f"{report.bytes_out / 1e6:.1f} MB in {report.seconds:.1f} s: {report.inputs / report.seconds:.0f} images/s",
    )
    if report.quarantined:
        say("", f"{report.quarantined} could not be read and were left out, see {url / 'quarantine.jsonl'}")


def _verify(url: Path, say: Say, outcome: Outcome) -> None:
    say("verify", "reading everything back: sizes, SHA-256, tar structure, index, every member's CRC-32")
    started = time.perf_counter()
    findings = shardflow.verify(url)
    for finding in findings:
        say("", str(finding))
    if findings:
        outcome.complaints.append(f"verify found {len(findings)} things wrong with what was just packed")
    else:
        seconds = time.perf_counter() - started
        size = sum(shard.bytes for shard in shardflow.open(url).shards)
        say("", f"sound: {size / 1e6:.1f} MB in {seconds:.2f} s, {size / 1e6 / seconds:.0f} MB/s")


def _stream(url: Path, split: str, workers: int, say: Say, outcome: Outcome) -> None:
    """Stream one epoch while saving a state half-way, one more for the clock, and the rest of the first from there."""

    def loader(batch_size: int, num_workers: int) -> shardflow.Loader:
        return shardflow.Loader(
            url,
            split=split,
            batch_size=batch_size,
            decoder=shardflow.RandomResizedCropDecoder(_CROP),
            fields=("image", "key"),
            tail="short",
            limit=LIMIT,
            num_workers=num_workers,
        )

    def content(stream: shardflow.Loader) -> list[tuple[str, int]]:
        return [entry for batch in stream for entry in _content(*batch)]

    say("stream", f"{split}: random {_CROP}-pixel crops, batches of {BATCH}, {workers} workers")
    stream = loader(BATCH, workers)
    whole: list[tuple[str, int]] = []
    stop = (len(stream) + 1) // 2
    saved = ""
    for number, batch in enumerate(stream, 1):
        whole += _content(*batch)
        if number == stop:
            saved = json.dumps(stream.state_dict())
    distinct = len({key for key, _ in whole})
    started = time.perf_counter()
    seen = sum(len(keys) for _, keys in stream)
    rate = seen / (time.perf_counter() - started)
    once = "each exactly once" if distinct == len(whole) == seen else f"but {distinct} different ones"
    say("", f"an epoch is {len(whole)} images, {once}: {rate:.0f} images/s")
    if distinct != len(whole) or seen != len(whole):
        outcome.complaints.append("an epoch did not visit each sample exactly once")

    say(
        "resume",
        f"a new loader takes up a state that was saved after batch {stop} of {len(stream)}, {len(saved)} bytes",
    )
    resumed = loader(_RESUMED_BATCH, min(1, workers))
    resumed.load_state_dict(json.loads(saved))
    rest, expected = content(resumed), whole[stop * BATCH :]
    if rest == expected:
        say("", f"exact: the other {len(rest)} images, same order, same pixels, though in batches of {_RESUMED_BATCH}")
    else:
        outcome.complaints.append(
            f"the resumed loader gave {len(rest)} images that differ from the {len(expected)} due"
        )


def _content(images: Any, keys: list[str]) -> list[tuple[str, int]]:
    """Return the key and a checksum of the pixels of each image of a batch."""
    return [(key, zlib.crc32(image.numpy())) for image, key in zip(images, keys, strict=True)]


def _train(url: Path, split: str, val_split: str | None, epochs: int, workers: int, say: Say) -> Epoch:
    examined = f"examined on {val_split}" if val_split else f"no val split: accuracy is that on {split}"
    say("train", f"a small convolutional net on the CPU, {SIZE}-pixel crops of {split}, {examined}")
    last = None
    for last in train(url, split=split, val_split=val_split, epochs=epochs, workers=workers, limit=LIMIT):
        val = "" if last.val_accuracy is None else f"   {val_split} {last.val_accuracy:6.1%}"
        say(
            "",
            f"epoch {last.number:2}   loss {last.loss:.3f}   {split} {last.train_accuracy:6.1%}{val}   "
            f"{last.images_per_s:4.0f} images/s",
        )
    assert last is not None
    return last


def _judge(last: Epoch, classes: int, say: Say, outcome: Outcome | None) -> None:
    """Say whether the net learned; complain only where it must, which is on pictures of our own."""
    accuracy = last.train_accuracy if last.val_accuracy is None else last.val_accuracy
    chance = 1 / classes
    learned = accuracy > (1 + chance) / 2
    say("", f"{'learned' if learned else 'not learned'}: {accuracy:.1%} right, guessing gives {chance:.1%}")
    if not learned and outcome is not None:
        outcome.complaints.append(f"the net did not learn in {last.number} epochs: {accuracy:.1%} right")
