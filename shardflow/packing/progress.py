"""The progress of a pack: counts, and bars that show them in a terminal or a notebook, or now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from shardflow._wording import size_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a pack.

    Attributes:
        inputs: Number of all inputs.
        resumed: Number of inputs that an earlier attempt has done.
        done: Number of inputs packed or quarantined so far, including the resumed ones.
        bytes_in, bytes_out: Bytes that this attempt has read and written.
    """

    inputs: int
    resumed: int
    done: int
    bytes_in: int = 0
    bytes_out: int = 0


ProgressLike = Callable[[Progress], None] | bool | None
"""A function that is called with the progress from time to time, or True for a progress bar."""


DELAY_S = 2.0
"""Work that takes less time does not show a counter."""

LOG_S = 60.0
"""The least time between the lines of a progress bar in a log."""


def progress_bar(**options: Any) -> Any:
    """Return tqdm's progress bar. If stderr is a log, such as a file, it writes a line every `LOG_S` at most."""
    if "ipykernel" in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets, the bar is a line of text
            from tqdm.auto import tqdm as bar_of_notebook

        return bar_of_notebook(**options)
    from tqdm import tqdm  # takes 0.1 s, which workers need not spend

    if not sys.stderr.isatty():
        options |= {"file": _Log(), "delay": LOG_S, "mininterval": LOG_S, "maxinterval": LOG_S}
    return tqdm(**options)


class _Log:
    """What tqdm writes over the last line of a terminal becomes a further line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def counted(inputs: Iterable[T]) -> Iterator[T]:
    """Yield the inputs of a listing; if it takes longer than `DELAY_S`, show their count in a terminal."""
    if not sys.stderr.isatty():
        return iter(inputs)
    return iter(progress_bar(iterable=inputs, desc="listing", unit=" files", delay=DELAY_S, leave=False))


@contextlib.contextmanager
def showing(progress: ProgressLike) -> Iterator[Callable[[Progress], None]]:
    """Yield the function to call with the progress. A bar appears at the first call."""
    bar: Any = None

    def update(now: Progress) -> None:
        nonlocal bar
        if bar is None:
            bar = progress_bar(total=now.inputs, initial=now.resumed, desc="packing", unit=" images")
        bar.set_postfix_str(f"{size_text(now.bytes_in)} -> {size_text(now.bytes_out)}", refresh=False)
        bar.update(now.done - bar.n)

    try:
        yield update if progress is True else progress or (lambda _: None)
    finally:
        if bar is not None:
            bar.close()
