"""The loader that `bench`, `tune` and `preview` work on: one for a dataset, or one that the user's own code makes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from shardflow.errors import ShardflowError

from .options import together

_ENDLESS = 1 << 20
"""Batches of an epoch: one that does not end while it is measured, however small the dataset is."""


loader_options = together(
    click.argument("url", type=click.Path(), required=False),
    click.option("--split", default="train", show_default=True, help="Which split."),
    click.option("--batch-size", default=256, show_default=True, type=click.IntRange(1), help="Samples per batch."),
    click.option("--size", default=224, show_default=True, help="Pixels of the random crops."),
    click.option(
        "--loader",
        "made_by",
        metavar="FILE.py:FUNCTION",
        help="Use the loader that this function of yours returns, in place of one for URL; it is called with "
        "the settings that are tried: num_workers, prefetch_factor.",
    ),
)
"""What says which loader."""


def make_loader_of(
    url: str | None, *, split: str, batch_size: int, size: int, made_by: str | None
) -> tuple[Callable[..., Any], str]:
    """Return what makes the loader from its settings, and what to call it."""
    import shardflow

    if made_by is not None and url is None:
        return loader_function(made_by), made_by
    if made_by is not None or url is None:
        raise click.UsageError("give either the URL of a dataset or --loader FILE.py:FUNCTION")
    make_loader = functools.partial(
        shardflow.Loader,
        url,
        split=split,
        batch_size=batch_size,
        decoder=shardflow.RandomResizedCropDecoder(size),
        samples_per_epoch=batch_size * _ENDLESS,
    )
    return make_loader, f"{url}, {split}, {size} pixels"


def loader_function(named: str) -> Callable[..., Any]:
    """Return a function of a file of the user's, who names it himself: running it is what was asked for."""
    from shardflow import Loader

    file, _, name = named.rpartition(":")
    path = Path(file).resolve()
    # Under its own name, by which a worker that was not forked finds it again.
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise click.UsageError(f"--loader {named}: expected FILE.py:FUNCTION, and there is no Python file {file!r}")
    if getattr(sys.modules.get(path.stem), "__file__", str(path)) != str(path):
        raise click.UsageError(f"--loader {named}: another module has the name {path.stem!r}; rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    with blamed(named):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise click.UsageError(f"--loader {named}: {file} has no function {name!r}")

    def made(**settings: Any) -> Loader:
        loader = function(**settings)
        if not isinstance(loader, Loader):
            raise click.UsageError(f"--loader {named}: it must return a shardflow.Loader, and returned {loader!r:.80}")
        return loader

    return made


@contextlib.contextmanager
def blamed(named: str | None) -> Iterator[None]:
    """Say in one line that the user's code has failed, and where, be it here or in a worker; None: it is not theirs."""
    try:
        yield
    except (ShardflowError, click.ClickException):
        raise
    except Exception as error:
        if named is None:
            raise
        line = traceback.extract_tb(error.__traceback__)[-1]
        what = str(error).strip().splitlines() or [""]
        place = f"{line.filename}, line {line.lineno}"
        if "DataLoader worker" in what[0]:  # what follows is the traceback there: place and error are at its end
            place = next(text.strip() for text in reversed(what) if text.strip().startswith("File "))
            raise click.UsageError(f"--loader {named}: {place}: {what[-1]}") from error
        raise click.UsageError(f"--loader {named}: {place}: {type(error).__name__}: {what[0]}") from error
