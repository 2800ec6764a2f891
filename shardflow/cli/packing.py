"""What the commands that pack show while they do."""

from __future__ import annotations

from typing import NoReturn

import click
from tqdm import tqdm

from shardflow.packing.run import Progress

from .shown import megabytes


class Packing:
    """A progress bar that appears with the first news, and a word to whoever stops it."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> Packing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit)):
            click.echo("shardflow: stopped; what was packed is kept: run the same command again to go on", err=True)

    def show(self, progress: Progress) -> None:
        """Show how far it is."""
        if self._bar is None:
            self._bar = tqdm(total=progress.inputs, initial=progress.resumed, desc="packing", unit=" images")
        self._bar.set_postfix_str(f"{megabytes(progress.bytes_in)} -> {megabytes(progress.bytes_out)}", refresh=False)
        self._bar.update(progress.done - self._bar.n)
