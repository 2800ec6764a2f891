"""The progress of a pack: counts, and a bar that shows them in a terminal or a notebook."""

from __future__ import annotations

import contextlib
import sys
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


def counted(inputs: Iterable[T]) -> Iterator[T]:
    """Yield the inputs of a listing; if it takes longer than `DELAY_S`, show their count in a terminal."""
    if not sys.stderr.isatty():
        return iter(inputs)
    from tqdm.auto import tqdm

    return iter(tqdm(inputs, desc="listing", unit=" files", delay=DELAY_S, leave=False))


@contextlib.contextmanager
def showing(progress: ProgressLike) -> Iterator[Callable[[Progress], None]]:
    """Yield the function to call with the progress. A bar appears at the first call."""
    bar: Any = None

    def update(now: Progress) -> None:
        nonlocal bar
        if bar is None:
            from tqdm.auto import tqdm  # takes 0.1 s, which workers need not spend

            bar = tqdm(total=now.inputs, initial=now.resumed, desc="packing", unit=" images")
        bar.set_postfix_str(f"{size_text(now.bytes_in)} -> {size_text(now.bytes_out)}", refresh=False)
        bar.update(now.done - bar.n)

    try:
        yield update if progress is True else progress or (lambda _: None)
    finally:
        if bar is not None:
            bar.close()
