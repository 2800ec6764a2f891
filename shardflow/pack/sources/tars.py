"""The samples of a tar in the WebDataset convention, whoever wrote it, and what is wrong with it.

Python's `tarfile` reads the headers, because others write extensions that our own shards do without. It ends at a
damaged header as if it were the end of the tar, so the end is looked at here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from shardflow import ustar


@dataclass(slots=True)
class Sample:
    """The members of a tar that share a key: part → (offset, size) of its payload.

    `problem` says why they cannot be used; a sample without parts stands for all that could not be found.
    """

    key: str
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""


def samples_of(file: IO[bytes]) -> Iterator[Sample]:
    """Yield the samples of a tar in order. The last one says so when the tar is damaged or cut short."""
    sample, members = None, _Members(file)
    for name, offset, size in members:
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
    if sample is not None:
        if members.problem and not sample.problem:
            sample.problem = "parts of it may be missing: it is the last one before the tar is damaged"
        yield sample
    if members.problem:
        after = f"after sample {sample.key!r}" if sample is not None else "from its start"
        yield Sample("", problem=f"{after} the tar cannot be read: {members.problem}; whatever follows is lost")


class _Members:
    """Name, offset and size of the regular files of a tar; `problem` says afterwards why there are no more of them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.problem = ""

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        position = 0
        try:
            with tarfile.open(fileobj=self._file, mode="r:", errors="surrogateescape") as tar:
                for member in tar:
                    position = tar.offset
                    if member.isreg():
                        yield member.name, member.offset_data, member.size
                position = tar.offset
        except (tarfile.TarError, ValueError, OverflowError) as error:
            self.problem = f"{str(error) or type(error).__name__} at byte {position}"
            return
        self._file.seek(position)
        block = self._file.read(ustar.BLOCK)
        if any(block):
            self.problem = f"the header at byte {position} is damaged"
        elif len(block) < ustar.BLOCK:
            self.problem = f"it ends at byte {position + len(block)} without the zero blocks that close a tar"
