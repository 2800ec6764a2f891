"""`shardflow preview`: pictures of what is in a dataset, and a page about it."""

from __future__ import annotations

import click

import shardflow
from shardflow.dataset import Dataset
from shardflow.errors import ConfigError
from shardflow.system import describe_system

from .shown import file_to_write, shard_bar

_PICTURE = "preview.png"
_VERSIONS = "shardflow", "pillow", "torch"


@click.command(short_help="Draw samples of a dataset, or write a page about it.")
@click.argument("url", type=click.Path())
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
@click.option("--seed", default=0, show_default=True, help="Of the augmentation, as for the loader.")
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
    url: str,
    split: str | None,
    output: str | None,
    count: int,
    class_name: str | None,
    augment: int | None,
    seed: int,
    quarantine: bool,
    source: str | None,
    html: str | None,
    verify: bool,
) -> int:
    """Draw some samples of the dataset at URL as a contact sheet, or write a page about it.

    The samples come from all over the split, read one by one: of a bucket a few of them are fetched, and no whole
    shard. The page is one file that needs no network.

    \b
    Examples:
      shardflow preview photos256/
      shardflow preview s3://bucket/photos256 --output sheet.png
      shardflow preview photos256/ --class cat
      shardflow preview photos256/ --augment 17
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
    for name, given, needed in (("--verify", verify, html is not None), ("--source", source is not None, quarantine)):
        if given and not needed:
            raise click.UsageError(f"{name} goes with {'--html' if name == '--verify' else '--quarantine'}")
    dataset = shardflow.open(url)
    split = split or ("train" if "train" in dataset else next(iter(dataset)))
    code = _write_page(dataset, html, split, count, verify=verify) if html is not None else 0
    if html is None or output is not None or asked:
        path = output or _PICTURE
        _draw(dataset, path, split, count, class_name, augment, seed, quarantine=quarantine, source=source)
        click.echo(f"picture  {path}")
    return code


def _draw(
    dataset: Dataset,
    path: str,
    split: str,
    count: int,
    class_name: str | None,
    augment: int | None,
    seed: int,
    *,
    quarantine: bool,
    source: str | None,
) -> None:
    from shardflow.look import choice, peek, sheet, tile  # here: the help does not need them

    samples = peek.Peek(dataset, split)
    total = len(samples.split)
    if quarantine:
        _draw_quarantine(dataset, path, count, source)
    elif augment is not None:
        if augment >= total:
            raise ConfigError(f"--augment {augment}: split {split!r} has the samples 0 to {total - 1}")
        from shardflow.look.augmented import augmented  # here, because torch takes seconds to import

        (sample,) = samples.samples([augment])
        tiles = [*tile.tiles_of([sample], dataset.classes), *augmented(sample, versions=count - 1, seed=seed)]
        subtitle = f"as packed, and as a loader with seed {seed} crops and mirrors it in each epoch"
        sheet.draw_sheet(tiles, path, title=f"Sample {augment} of {split}", subtitle=subtitle)
    else:
        if class_name is not None:
            with shard_bar(samples.split.shards, "searching") as progress:
                numbers = choice.of_class(samples.split, dataset.classes, class_name, count, progress)
            title = f"{class_name}, in {split}"
        else:
            numbers = choice.spread(samples.split, count)
            title = f"{dataset.url.rstrip('/').rpartition('/')[2]}, {split}"
        tiles = list(tile.tiles_of(samples.samples(numbers), dataset.classes))
        sheet.draw_sheet(tiles, path, title=title, subtitle=f"{len(tiles)} of {total:,} samples")


def _draw_quarantine(dataset: Dataset, path: str, count: int, source: str | None) -> None:
    from shardflow.look.quarantine import quarantined, tiles_of
    from shardflow.look.sheet import draw_sheet
    from shardflow.store import open_store

    refused = quarantined(dataset)
    if not refused:
        raise ConfigError(f"{dataset.url} has no input in quarantine: all that was found was packed")
    tiles = list(tiles_of(refused[:count], None if source is None else open_store(source)))
    subtitle = f"{len(tiles)} of {len(refused):,} inputs that were not packed, of {dataset.manifest.inputs:,}"
    draw_sheet(tiles, path, title="Quarantine", subtitle=subtitle)


def _write_page(dataset: Dataset, path: str, split: str, count: int, *, verify: bool) -> int:
    from shardflow.look.page import write_page

    findings = None
    if verify:
        with shard_bar([shard for each in dataset.values() for shard in each.shards], "verifying") as progress:
            findings = shardflow.verify(dataset.url, progress=progress)
    system = describe_system()
    versions = {name: system[name] for name in _VERSIONS}
    write_page(dataset, path, split=split, count=count, findings=findings, versions=versions)
    click.echo(f"page     {path}")
    return 1 if findings else 0
