"""`shardflow preview`: pictures of what is in a dataset, and a page about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import shardflow
from shardflow.dataset.dataset import Dataset
from shardflow.dataset.verifying import verify_dataset
from shardflow.errors import ConfigError
from shardflow.loading.provenance import describe_versions

from .made import blamed, loader_function
from .shown import file_to_write, shard_bar

if TYPE_CHECKING:
    from shardflow.preview.augmented import Augmented

_PICTURE = "preview.png"
_VERSIONS = "shardflow", "pillow", "torch"


@click.command(short_help="Draw samples of a dataset, or write a page about it.")
@click.argument("url", type=click.Path(), required=False)
@click.option("--split", help="Which split.  [default: train, or the first]")
@click.option(
    "--output",
    type=click.Path(),
    callback=file_to_write,
    metavar="FILE.png",
    help=f"The picture.  [default: {_PICTURE}]",
)
@click.option("--count", type=click.IntRange(1, 500), default=24, show_default=True, help="Pictures on the sheet.")
@click.option(
    "--class", "class_name", metavar="NAME", help="Samples of this class alone, for which whole shards are read."
)
@click.option("--augment", type=click.IntRange(0), metavar="NUMBER", help="What each epoch makes of this sample.")
@click.option("--seed", type=int, help="Of the augmentation, as for the loader.  [default: 0]")
@click.option(
    "--loader",
    "made_by",
    metavar="FILE.py:FUNCTION",
    help="For --augment, in place of URL: the loader that this function of yours returns, with its dataset, decoder, "
    "transform and seed.",
)
@click.option("--quarantine", is_flag=True, help="The inputs that were refused, and why.")
@click.option("--source", type=click.Path(), metavar="SRC", help="What was packed, to show what --quarantine names.")
@click.option(
    "--html",
    type=click.Path(),
    callback=file_to_write,
    metavar="FILE.html",
    help="Write one page with all there is to see.",
)
@click.option("--verify", is_flag=True, help="Read everything for the page: the exit code is 1 when damage is found.")
def preview(
    url: str | None,
    split: str | None,
    output: str | None,
    count: int,
    class_name: str | None,
    augment: int | None,
    seed: int | None,
    made_by: str | None,
    quarantine: bool,
    source: str | None,
    html: str | None,
    verify: bool,
) -> int:
    """Draw some samples of the dataset at URL as a contact sheet, or write a page about it.

    The samples come from all over the split, read one by one: of a bucket a few of them are fetched, and no whole
    shard. The page is one file that needs no network.

    With --loader the pixels are those that training sees, of the same epochs; batch_transform and stages on a device
    come later, and are not shown.

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
    asked = [
        name
        for name, given in (
            ("--class", class_name is not None),
            ("--augment", augment is not None),
            ("--quarantine", quarantine),
        )
        if given
    ]
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} are different pictures: ask for one at a time")
    for name, given, needed, there in (
        ("--verify", verify, "--html", html is not None),
        ("--source", source is not None, "--quarantine", quarantine),
        ("--loader", made_by is not None, "--augment", augment is not None),
    ):
        if given and not there:
            raise click.UsageError(f"{name} goes with {needed}")
    loader = None
    if made_by is not None:
        for name, given in (("URL", url is not None), ("--split", split is not None), ("--seed", seed is not None)):
            if given:
                raise click.UsageError(f"{name} does not go with --loader: the loader has its own")
        with blamed(made_by):
            loader = loader_function(made_by)()
        dataset, split = loader.dataset, loader.split.name
    elif url is not None:
        dataset = shardflow.open(url)
        split = split or ("train" if "train" in dataset else next(iter(dataset)))
    else:
        raise click.UsageError("give the URL of a dataset, or --augment NUMBER and --loader FILE.py:FUNCTION")
    shown = None
    if augment is not None:
        from shardflow.preview.augmented import augmented, augmented_by  # here, because torch takes seconds to import

        with blamed(made_by):
            if loader is None:
                shown = augmented(dataset, split, augment, versions=count - 1, seed=seed or 0)
            else:
                shown = augmented_by(loader, augment, versions=count - 1)
    code = 0 if html is None else _write_page(dataset, html, split, count, shown, verify=verify)
    if html is None or output is not None or asked:
        path = output or _PICTURE
        if quarantine:
            _draw_quarantine(dataset, path, count, source)
        elif shown is not None:
            from shardflow.preview.contact_sheet import draw_sheet

            draw_sheet(shown.tiles, path, title=shown.title, subtitle=shown.subtitle)
        else:
            _draw(dataset, path, split, count, class_name)
        click.echo(f"picture  {path}")
    return code


def _draw(dataset: Dataset, path: str, split: str, count: int, class_name: str | None) -> None:
    from shardflow.preview import choice, contact_sheet, sample_reader, tile  # here: the help does not need them

    samples = sample_reader.SampleReader(dataset, split)
    if class_name is not None:
        with shard_bar(samples.split.shards, "searching") as progress:
            numbers = choice.of_class(samples.split, dataset.classes, class_name, count, progress)
        title = f"{class_name}, in {split}"
    else:
        numbers = choice.spread(samples.split, count)
        title = f"{dataset.url.rstrip('/').rpartition('/')[2]}, {split}"
    tiles = list(tile.tiles_of(samples.samples(numbers), dataset.classes))
    contact_sheet.draw_sheet(tiles, path, title=title, subtitle=f"{len(tiles)} of {len(samples.split):,} samples")


def _draw_quarantine(dataset: Dataset, path: str, count: int, source: str | None) -> None:
    from shardflow.preview.contact_sheet import draw_sheet
    from shardflow.preview.quarantine import quarantined, tiles_of
    from shardflow.storage.resolve import open_storage

    refused = quarantined(dataset)
    if not refused:
        raise ConfigError(f"{dataset.url} has no input in quarantine: all that was found was packed")
    tiles = list(tiles_of(refused[:count], None if source is None else open_storage(source)))
    subtitle = f"{len(tiles)} of {len(refused):,} inputs that were not packed, of {dataset.manifest.inputs:,}"
    draw_sheet(tiles, path, title="Quarantine", subtitle=subtitle)


def _write_page(
    dataset: Dataset, path: str, split: str, count: int, augmented: Augmented | None, *, verify: bool
) -> int:
    from shardflow.preview.page import write_page

    findings = None
    if verify:
        with shard_bar(dataset.shards, "verifying") as progress:
            findings = verify_dataset(dataset, progress=progress)
    installed = describe_versions()
    versions = {name: installed[name] for name in _VERSIONS}
    write_page(dataset, path, split=split, count=count, findings=findings, versions=versions, augmented=augmented)
    click.echo(f"page     {path}")
    return 1 if findings else 0
