"""The demo: its steps in order. Each step reports what it does, does it, and reports the result."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shardflow
from shardflow._cores import allowed_cores
from shardflow._wording import plural
from shardflow.dataset.class_labels import single_classes
from shardflow.dataset.open_dataset import Split
from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from shardflow.formats import manifest
from shardflow.preview.augmentation import augment_sample
from shardflow.preview.contact_sheet import COLUMNS, SIDE, ContactSheet, draw_contact_sheet
from shardflow.storage.local_files import map_os_errors

from .pictures import make_pictures
from .scenes import SCENES
from .training import AUGMENTATION, BATCH, CROP, SIZE, train

_LIMIT = 4096  # the most samples of a split to stream and train on, for a short demo
_WORKERS = 8  # the default limit of processes: the demo has too little work for more
_CROP = 224
_RESUMED_BATCH = 24
_SHEET = "demo.png"
_SHEET_SAMPLES = 8

Report = Callable[[str, str], None]  # called with the name of a step and one line about it


class DemoResult(NamedTuple):
    """The path of the contact sheet, and a line for each result that was not as expected."""

    sheet: Path
    failures: list[str]


def run_demo(
    output: str | os.PathLike[str],
    *,
    report: Report,
    images: str | os.PathLike[str] | None = None,
    epochs: int = 12,
    workers: int | None = None,
    pictures: tuple[int, int] = (60, 16),
) -> DemoResult:
    """Run all steps on a folder of images or, without one, on new pictures: numbers per class for train and for val.

    If the output folder is not empty, the results are in a new folder in it.
    """
    for name, value in (("epochs", epochs), ("workers", workers)):
        if value is not None and value < 0:
            raise ConfigError(f"{name} must be 0 or more, found {value}")
    processes = workers if workers is not None else min(allowed_cores(), _WORKERS)
    if images is not None and not Path(images).is_dir():
        raise NotFoundError(f"{images} is not a folder; name the folder of your images with --images")
    folder = _new_folder(Path(output))
    if folder != Path(output):
        report("output", f"{output} is in use; this run writes to {folder}")
    failures: list[str] = []
    drawn = images is None
    if images is None:
        images = folder / "pictures"
        _draw_pictures(images, pictures, processes, report)
    url = folder / "dataset"
    _pack(Path(images), url, processes, report, shard_samples=128 if drawn else 2048)
    _verify(url, report, failures)
    dataset = shardflow.open(url)
    filled = [name for name in dataset if len(dataset[name])]
    split = "train" if "train" in filled else filled[0]
    val_split = next((name for name in filled if name.startswith("val") and name != split), None)
    _stream(url, split, processes, report, failures)
    if dataset.classes is None:
        report("train", "skipped: the images have no labels (a folder per class, DIR/CLASS/x.jpg, gives them labels)")
    elif len(dataset.classes) < 2:
        report("train", "skipped: there is only one class")
    elif epochs:
        not_learned = _train(url, split, val_split, epochs, processes, report, 1 / len(dataset.classes))
        failures += not_learned if drawn else []  # not a failure with the user's images
    report("sheet", f"drawing {_SHEET_SAMPLES} samples as packed, and as augmented in {COLUMNS - 1} epochs")
    draw_samples(url, folder / _SHEET, split=split)
    report("", f"{folder / _SHEET}")
    return DemoResult(folder / _SHEET, failures)


def _new_folder(output: Path) -> Path:
    with map_os_errors(output):
        try:
            output.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{output} is a file; name a folder with --output") from None
        if (output / manifest.FILE_NAME).exists():
            raise DatasetExistsError(f"{output} holds a dataset; name another folder with --output")
        number, folder = 1, output
        while any(folder.iterdir()):
            number += 1
            folder = output / f"run{number}"
            folder.mkdir(exist_ok=True)
        return folder


def _draw_pictures(folder: Path, pictures: tuple[int, int], workers: int, report: Report) -> None:
    total = len(SCENES) * sum(pictures)
    report("pictures", f"drawing {total} pictures of {len(SCENES)} classes: {', '.join(SCENES)}")
    started = time.perf_counter()
    with map_os_errors(folder):
        make_pictures(folder, train=pictures[0], val=pictures[1], workers=max(1, workers))
        size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    seconds = time.perf_counter() - started
    report("", f"{size / 1e6:.1f} MB of JPEG files in {seconds:.1f} s: {total / seconds:.0f} images/s")


def _pack(images: Path, url: Path, workers: int, report: Report, *, shard_samples: int) -> None:
    report("pack", f"resizing {images} to a short side of 256 pixels, as shards in {url}")
    # Bad files are reported, and do not end the demo.
    packed = shardflow.pack(images, url, workers=max(1, workers), shard_samples=shard_samples, max_errors=1 << 62)
    sizes = f"{packed.bytes_in / 1e6:.1f} -> {packed.bytes_out / 1e6:.1f} MB"
    speed = f"in {packed.seconds:.1f} s: {packed.inputs / packed.seconds:.0f} images/s"
    report("", f"{packed.packed} of {packed.inputs} images in {plural(packed.shards, 'shard')}, {sizes} {speed}")
    if packed.packed < packed.inputs:
        report("", f"{packed.inputs - packed.packed} could not be packed, see {url / 'quarantine.jsonl'}")


def _verify(url: Path, report: Report, failures: list[str]) -> None:
    report("verify", "reading everything back: sizes, SHA-256, tar structure, indexes, CRC-32 of every member")
    started = time.perf_counter()
    findings = shardflow.verify(url)
    for finding in findings:
        report("", str(finding))
    if findings:
        failures.append(f"the dataset that was just packed is damaged: {plural(len(findings), 'finding')}")
    else:
        seconds = time.perf_counter() - started
        size = sum(shard.bytes for shard in shardflow.open(url).shards)
        report("", f"no damage: {size / 1e6:.1f} MB in {seconds:.2f} s, {size / 1e6 / seconds:.0f} MB/s")


def _stream(url: Path, split: str, workers: int, report: Report, failures: list[str]) -> None:
    """Stream an epoch and save the state halfway, time another epoch, and resume the first epoch from the state."""
    decoder, fields = shardflow.decoders.RandomResizedCrop(_CROP), ("image", "key")
    loader = partial(shardflow.Loader, url, split=split, decoder=decoder, fields=fields, tail="short", limit=_LIMIT)
    report("stream", f"{split}: random {_CROP}-pixel crops, batches of {BATCH}, worker processes: {workers}")
    stream = loader(batch_size=BATCH, num_workers=workers)
    epoch: list[tuple[str, int]] = []
    stop = (len(stream) + 1) // 2
    saved = ""
    for number, batch in enumerate(stream, 1):
        epoch += _checksums(*batch)
        if number == stop:
            saved = json.dumps(stream.state_dict())
    distinct = len({key for key, _ in epoch})
    started = time.perf_counter()
    images = sum(len(keys) for _, keys in stream)
    rate = images / (time.perf_counter() - started)
    exact = distinct == len(epoch) == images
    once = "each exactly once" if exact else f"but {distinct} different ones"
    report("", f"an epoch is {len(epoch)} images, {once}: {rate:.0f} images/s")
    if not exact:
        failures.append("an epoch did not visit each sample exactly once")

    report("resume", f"loading a state that was saved after batch {stop} of {len(stream)}, {len(saved)} bytes")
    resumed = loader(batch_size=_RESUMED_BATCH, num_workers=min(1, workers))
    resumed.load_state_dict(json.loads(saved))
    rest, expected = [entry for batch in resumed for entry in _checksums(*batch)], epoch[stop * BATCH :]
    if rest == expected:
        report("", f"exact: the other {len(rest)} images, same order, same pixels, now in batches of {_RESUMED_BATCH}")
    else:
        failures.append(f"the resumed loader returned {len(rest)} images that differ from the {len(expected)} expected")


def _checksums(images: Any, keys: list[str]) -> list[tuple[str, int]]:
    return [(key, zlib.crc32(image.numpy())) for image, key in zip(images, keys, strict=True)]


def _train(
    url: Path, split: str, val_split: str | None, epochs: int, workers: int, report: Report, chance: float
) -> list[str]:
    """Train; return a failure if the net did not learn."""
    evaluated = f"evaluated on {val_split}" if val_split else f"evaluated on {split}, without a val split"
    report("train", f"a small convolutional net on the CPU, {SIZE}-pixel crops of {split}, {evaluated}")
    for last in train(url, split=split, val_split=val_split, epochs=epochs, workers=workers, limit=_LIMIT):
        val = "" if last.val_accuracy is None else f"   {val_split} {last.val_accuracy:6.1%}"
        accuracies = f"{split} {last.train_accuracy:6.1%}{val}"
        rate = f"{last.images_per_s:4.0f} images/s"
        report("", f"epoch {last.number:2}   loss {last.loss:.3f}   {accuracies}   {rate}")
    accuracy = last.train_accuracy if last.val_accuracy is None else last.val_accuracy
    learned = accuracy > (1 + chance) / 2
    report("", f"{'learned' if learned else 'not learned'}: accuracy {accuracy:.1%}, chance {chance:.1%}")
    return [] if learned else [f"the net did not learn in {plural(epochs, 'epoch')}: accuracy {accuracy:.1%}"]


def draw_samples(
    url: str | os.PathLike[str], path: str | os.PathLike[str], *, split: str = "train", seed: int = 0
) -> None:
    """Draw samples of a split as a PNG, one of each class as far as there is room.

    Each row is a sample: as packed, and as the training's loader augments it in the first epochs.
    """
    loader = shardflow.Loader(
        url,
        split=split,
        batch_size=1,
        decoder=shardflow.decoders.RandomResizedCrop(SIDE, scale=CROP),
        transform=AUGMENTATION,
        num_workers=0,
        seed=seed,
    )
    samples = loader.split
    numbers = _samples_to_show(samples, len(loader.classes))
    tiles = [tile for number in numbers for tile in augment_sample(loader, number, epochs=COLUMNS - 1).tiles]
    subtitle = f"{len(numbers)} of {len(samples):,} samples in {split!r}: as packed, and as augmented in each epoch"
    draw_contact_sheet(ContactSheet("From shards to batches", subtitle, tiles), path)


def _samples_to_show(split: Split, classes: int) -> list[int]:
    """Return the numbers of samples, sorted by label: the first of each class, then others from the beginning."""
    labels = single_classes(split, classes)
    first = np.unique(labels, return_index=True)[1][:_SHEET_SAMPLES].tolist()
    others = (number for number in range(len(split)) if number not in first)
    return sorted([*first, *islice(others, _SHEET_SAMPLES - len(first))], key=lambda number: (labels[number], number))
