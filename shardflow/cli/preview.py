"""`shardflow preview [URL]`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click

import shardflow
from shardflow._wording import plural
from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.verifying import verify_dataset
from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.quarantine import FILE_NAME, UNFINISHED_NAME, Quarantined, from_bytes
from shardflow.packing.sources.resolve import list_source
from shardflow.preview.contact_sheet import ContactSheet, draw_contact_sheet, sample_tiles
from shardflow.preview.html_page import write_page
from shardflow.preview.quarantine import quarantine_tiles
from shardflow.preview.sample_reader import SampleReader
from shardflow.storage.resolve import open_storage

from .loader_options import load_function, user_code_errors
from .options import PathOrUrl, column_options, picture_file, with_columns, writable_file
from .progress_bars import shard_bar, show_waiting
from .signals import ending_at_once
from .terminal import say

_SHEET = "preview.png"
_COUNT, _PAGE_COUNT = 24, 240
_MOST_ON_A_SHEET = 500


@click.command()
@click.argument("url", type=PathOrUrl(), required=False)
@click.option("--split", help="Split to show.  [default: train, or the first]")
@click.option(
    "--output",
    type=PathOrUrl(),
    callback=picture_file,
    metavar="FILE.png",
    help=f"File for the contact sheet, .png or .jpg.  [default: {_SHEET}]",
)
@click.option("--count", type=click.IntRange(1, 10_000), help=f"Pictures.  [default: {_COUNT}; page: {_PAGE_COUNT}]")
@click.option("--class", "class_name", metavar="NAME", help="Class to show.")
@click.option("--augment", type=click.IntRange(0), metavar="NUMBER", help="Sample to show as each epoch augments it.")
@click.option("--seed", type=int, help="Seed of the loader, for --augment.  [default: 0]")
@click.option(
    "--loader",
    "user_function",
    metavar="FILE.py:FUNCTION",
    help="Python function that returns your loader, for --augment, instead of URL.",
)
@click.option("--quarantine", is_flag=True, help="Show the inputs that were not packed, with the reasons.")
@click.option("--source", type=PathOrUrl(), metavar="SRC", help="Source that was packed, for --quarantine's pictures.")
@click.option("--html", type=PathOrUrl(), callback=writable_file, metavar="FILE.html", help="File for an HTML page.")
@click.option("--verify", is_flag=True, help="Verify the dataset for the page; the exit code is 1 if it is damaged.")
@column_options
def preview(
    url: str | None,
    split: str | None,
    output: str | None,
    count: int | None,
    class_name: str | None,
    augment: int | None,
    seed: int | None,
    user_function: str | None,
    quarantine: bool,
    source: str | None,
    html: str | None,
    verify: bool,
    **columns: Any,
) -> int:
    """Draw a contact sheet of samples with captions and annotations, or write an HTML page about a dataset.

    The samples are spread evenly over the split and read one by one, without fetching whole shards of a remote dataset.
    One without a caption has the path of its input, if there are receipts.
    The page is one file that works offline.

    With --loader, pixels and annotations are exactly those of training in each epoch, before padding, batch_transform
    and transforms on a device.

    \b
    Examples:
      shardflow preview photos256/
      shardflow preview s3://bucket/photos256 --output sheet.png
      shardflow preview photos256/ --class cat
      shardflow preview photos256/ --augment 17
      shardflow preview --loader train.py:make_loader --augment 17
      shardflow preview photos256/ --quarantine --source photos/
      shardflow preview photos256/ --html photos256.html --verify
    """
    contents = {"--class": class_name is not None, "--augment": augment is not None, "--quarantine": quarantine}
    chosen = [name for name, given in contents.items() if given]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be combined: give one of them")
    for name, given, needed, present in (
        ("--verify", verify, "--html", html is not None),
        ("--source", source is not None, "--quarantine", quarantine),
        ("--loader", user_function is not None, "--augment", augment is not None),
    ):
        if given and not present:
            raise click.UsageError(f"{name} requires {needed}")
    (packed,) = with_columns([] if source is None else [source], columns) or [None]
    on_sheet, on_page = count or _COUNT, count or _PAGE_COUNT
    draws_sheet = html is None or output is not None or augment is not None or quarantine
    if on_sheet > _MOST_ON_A_SHEET and draws_sheet:
        raise click.UsageError(f"--count above {_MOST_ON_A_SHEET} needs --html")
    loader = augmented = None
    if user_function is not None:
        for name, value in (("URL", url), ("--split", split), ("--seed", seed)):
            if value is not None:
                raise click.UsageError(f"{name} cannot be used with --loader, which determines it")
        with user_code_errors(user_function):
            loader = load_function(user_function)()
        dataset, split = loader.dataset.dataset, loader.split.name
    elif url is not None:
        try:
            dataset = shardflow.open(url)
        except NotFoundError:
            if not quarantine or html is not None or not (inputs := _read_quarantine(url, FILE_NAME)):
                raise
            path = output or _SHEET
            draw_contact_sheet(_quarantine_sheet(inputs, on_sheet, packed, "; the pack is not finished"), path)
            say(f"picture  {path}")
            return 0
        split = split or ("train" if "train" in dataset else next(iter(dataset)))
    else:
        raise click.UsageError("give the URL of a dataset, or --augment NUMBER and --loader FILE.py:FUNCTION")
    if augment is not None:
        with ending_at_once():
            from shardflow.preview.augmentation import augment_sample, training_loader  # here: torch is slow to import

        with user_code_errors(user_function):
            loader = loader or training_loader(str(url), split, seed or 0)
            augmented = augment_sample(loader, augment, epochs=on_sheet - 1)
    exit_code = 0
    if html is not None:
        exit_code = _write_page(dataset, html, split, on_page, augmented, class_name, verify=verify)
    if draws_sheet:
        path = output or _SHEET
        sheet = augmented
        if quarantine:
            of = "; the extension is not finished"
            if not (inputs := _read_quarantine(dataset.url, UNFINISHED_NAME)):
                inputs, of = dataset.quarantine(), f", of {dataset.manifest.inputs:,}"
            if not inputs:
                raise ConfigError(f"{dataset.url} has an empty quarantine: every input was packed")
            sheet = _quarantine_sheet(inputs, on_sheet, packed, of)
        draw_contact_sheet(sheet or _sample_sheet(dataset, split, on_sheet, class_name), path)
        say(f"picture  {path}")
    return exit_code


def _sample_sheet(dataset: Dataset, split: str, count: int, class_name: str | None) -> ContactSheet:
    reader = SampleReader(dataset, split)
    if class_name is not None:
        with shard_bar(reader.split.shards, "searching") as progress:
            numbers = reader.samples_of_class(class_name, count, progress)
        title = f"{class_name}, in {split}"
    else:
        numbers = reader.spread_samples(count)
        title = f"{dataset.url.rstrip('/').rpartition('/')[2]}, {split}"
    tiles = list(sample_tiles(reader.samples(numbers), dataset.classes, dataset.manifest.annotations))
    return ContactSheet(title, f"{len(tiles)} of {plural(len(reader.split), 'sample')}", tiles)


def _read_quarantine(url: str, name: str) -> list[Quarantined]:
    """Return the quarantine of a pack or extension that was refused for bad inputs; empty if there is none."""
    try:
        return from_bytes(open_storage(url).read(name))
    except NotFoundError:
        return []


def _quarantine_sheet(inputs: Sequence[Quarantined], count: int, source: Any, of: str) -> ContactSheet:
    with contextlib.nullcontext() if source is None else list_source(source) as opened:
        tiles = list(quarantine_tiles(inputs[:count], opened))
    subtitle = f"{len(tiles)} of {plural(len(inputs), 'quarantined input')}{of}"
    return ContactSheet("Quarantine", subtitle, tiles)


def _write_page(
    dataset: Dataset,
    path: str,
    split: str,
    count: int,
    augmented: ContactSheet | None,
    class_name: str | None,
    *,
    verify: bool,
) -> int:
    findings = None
    if verify:
        with shard_bar(dataset.shards, "verifying") as progress:
            findings = verify_dataset(dataset, progress=progress)
    with show_waiting("drawing"):
        write_page(
            dataset, path, split=split, count=count, findings=findings, augmented=augmented, class_name=class_name
        )
    say(f"page     {path}")
    return 1 if findings else 0
