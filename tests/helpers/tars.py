"""Tars of other writers: Python's tarfile in any of its formats, with unusual members."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from shardflow.formats import ustar
from tests.helpers.making import jpeg


class TarInMemory:
    """A tar whose bytes are in memory, see `TarBytes`."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self.size = len(self._data)

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from an offset on, fewer where the tar ends before."""
        return self._data[offset : offset + size] if offset >= 0 else self._data[:0]


Members = Iterable[tuple[str, bytes]]


def write_tar(path: Path, members: Members, *, kind: int = tarfile.PAX_FORMAT, mtime: float = 1.5) -> Path:
    """Write a tar; a fractional mtime makes pax write an extended header before every member, as webdataset does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size, info.mtime = len(payload), mtime if kind == tarfile.PAX_FORMAT else int(mtime)
            tar.addfile(info, io.BytesIO(payload))
    return path


def plain_tar(members: Members) -> bytes:
    """Return a tar as shardflow writes it."""
    blocks = [ustar.header(name, len(data)) + data + bytes(ustar.padding(len(data))) for name, data in members]
    return b"".join(blocks) + ustar.END


def members_of(numbers: Iterable[int], *, label: bool = True) -> list[tuple[str, bytes]]:
    """The members of samples as img2dataset writes them: image, caption and metadata, with a label if asked."""
    members = []
    for n in numbers:
        members += [(f"{n:05}.jpg", jpeg(n)), (f"{n:05}.json", b'{"n": %d}' % n), (f"{n:05}.txt", b"caption %d" % n)]
        members += [(f"{n:05}.cls", b"%d" % (n % 3))] if label else []
    return members
