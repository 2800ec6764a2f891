"""The samples of a tar in the WebDataset convention, whoever wrote it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from shardflow.errors import TarError

from .tar_lenient import members


@dataclass(slots=True)
class Sample:
    """The members of a tar that share a key: part → (offset, size) of its payload.

    `key_offset` is where the key stands in one piece, in one of their headers. `problem` says why they cannot be used;
    a sample without parts stands for all that could not be found.
    """

    key: str
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    key_offset: int | None = None
    problem: str = ""


def samples_of(file: IO[bytes]) -> Iterator[Sample]:
    """Yield the samples of a tar in order. The last one says so when the tar is damaged or cut short."""
    sample: Sample | None = None
    loss = ""
    try:
        for name, offset, size, name_offset in members(file):
            folder, slash, base = name.rpartition("/")
            stem, dot, part = base.partition(".")
            if not stem or not dot or not part:
                continue  # such as __metadata__, which WebDataset passes over as well
            key, part = folder + slash + stem, part.lower()
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = Sample(key)
            if part in sample.parts:
                sample.problem = f"has two parts {part!r}"
            sample.parts[part] = (offset, size)
            if sample.key_offset is None:
                sample.key_offset = name_offset
    except TarError as error:
        loss = str(error)
    if sample is not None:
        if loss and not sample.problem:
            sample.problem = "parts of it may be missing: it is the last one before the tar is damaged"
        yield sample
    if loss:
        after = f"after sample {sample.key!r}" if sample is not None else "from its start"
        yield Sample("", problem=f"{after} the tar cannot be read: {loss}; whatever follows is lost")
