"""The options that choose a loader for `bench`, `tune` and `preview`: a default one, or one of the user's code."""

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

from shardflow.dataset.open_dataset import open_dataset
from shardflow.errors import ShardflowError
from shardflow.order.shuffle_settings import Shuffle
from shardflow.storage.urls import shown_url

from .options import PathOrUrl, option_group
from .signals import ending_at_once

_ENDLESS = 1 << 20
"""Batches per epoch, enough for no epoch to end during a measurement."""

loader_options = option_group(
    click.argument("url", type=PathOrUrl(), required=False),
    click.option("--split", default="train", show_default=True, help="Split to read."),
    click.option("--batch-size", default=256, show_default=True, type=click.IntRange(1), help="Samples per batch."),
    click.option("--size", default=224, show_default=True, help="Side of the crops, in pixels."),
    click.option(
        "--loader",
        "user_function",
        metavar="FILE.py:FUNCTION",
        help="Python function that returns your loader, instead of URL; it gets num_workers=Workers(...).",
    ),
)


@contextlib.contextmanager
def chosen_loader(
    url: str | None, *, split: str, batch_size: int, size: int, user_function: str | None
) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield a function from settings to a loader, and a description of the loader; report errors of the user's code.

    Arguments are checked before torch, which takes seconds to import.
    """
    if (url is None) == (user_function is None):
        raise click.UsageError("give either the URL of a dataset or --loader FILE.py:FUNCTION")
    if url is not None:
        _ = open_dataset(url)[split]
    elif user_function is not None:
        _split_function(user_function)
    with ending_at_once():
        from shardflow import Loader, decoders
    with user_code_errors(user_function):
        if user_function is not None:
            yield load_function(user_function), user_function
            return
        crop = decoders.CenterCrop if Shuffle.of(None, split) is None else decoders.RandomResizedCrop
        settings: dict[str, Any] = {"split": split, "batch_size": batch_size, "decoder": crop(size)}
        make_loader = functools.partial(Loader, str(url), **settings, samples_per_epoch=batch_size * _ENDLESS)
        yield make_loader, f"{shown_url(str(url))}, {split}, {size} pixels"


def _split_function(user_function: str) -> tuple[Path, str]:
    """Return the file and the name of "FILE.py:FUNCTION"."""
    file, _, name = user_function.rpartition(":")
    if not file or not name:
        example = user_function.strip(":") or "train.py"
        raise click.UsageError(f"--loader {user_function}: expected FILE.py:FUNCTION, such as {example}:make_loader")
    path = Path(file).expanduser().resolve()
    if path.suffix == ".ipynb":
        remedy = f"move {name} into a file, such as train.py, and use --loader train.py:{name}"
        raise click.UsageError(f"--loader {user_function}: a notebook cannot be imported; {remedy}")
    if path.suffix != ".py" or not path.is_file():
        raise click.UsageError(f"--loader {user_function}: found no Python file {file!r}; expected FILE.py:FUNCTION")
    return path, name


def load_function(user_function: str) -> Callable[..., Any]:
    """Return the function of "FILE.py:FUNCTION". The file is executed."""
    path, name = _split_function(user_function)

    from shardflow import Loader, Mix

    # Under its module name, so that workers that are not forked can import it.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # of a file that ends in .py
    assert spec.loader is not None
    if getattr(sys.modules.get(path.stem), "__file__", str(path)) != str(path):
        raise click.UsageError(f"--loader {user_function}: another module is named {path.stem!r}; rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    with user_code_errors(user_function):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise click.UsageError(f"--loader {user_function}: {path} has no function {name!r}")

    def make_loader(**settings: Any) -> Loader:
        loader = function(**settings)
        if not isinstance(loader, Loader):
            remedy = "; return one of the loaders of the Mix" if isinstance(loader, Mix) else ""
            raise click.UsageError(
                f"--loader {user_function}: the function must return a shardflow.Loader, but returned {loader!r:.80}"
                f"{remedy}"
            )
        return loader

    return make_loader


@contextlib.contextmanager
def user_code_errors(user_function: str | None) -> Iterator[None]:
    """Report an error of the user's code, in this process or a worker, as one line; without --loader, do nothing."""
    try:
        yield
    except (ShardflowError, click.ClickException):
        raise
    except Exception as error:
        if user_function is None:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        lines = str(error).strip().splitlines() or [""]
        place = f"{frame.filename}, line {frame.lineno}"
        if "DataLoader worker" in lines[0]:  # the worker's traceback follows, with place and error at its end
            place = next(text.strip() for text in reversed(lines) if text.strip().startswith("File "))
            raise click.UsageError(f"--loader {user_function}: {place}: {lines[-1]}") from error
        raise click.UsageError(f"--loader {user_function}: {place}: {type(error).__name__}: {lines[0]}") from error
