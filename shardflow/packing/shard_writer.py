"""The shard writer: encoded samples become a shard and its index.

A shard is written in *partial tars*: the members of a few samples each, without the zero blocks that end a tar. The
shard is their concatenation, so several processes can work on it, and its bytes do not depend on their number.
"""

from __future__ import annotations

import hashlib
import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardflow.errors import IntegrityError
from shardflow.formats import shard_index, ustar

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTar:
    """A finished partial tar: the name of its file, and the samples, size and CRC-32 that the file must have."""

    name: str
    samples: int
    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A whole shard: size in bytes and SHA-256 of the tar, and the content of its index."""

    size: int
    sha256: str
    index: bytes


def sample(key: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the members of one sample as they are in a tar, sorted by name."""
    blocks: list[bytes] = []
    for part in sorted(parts):
        payload = parts[part]
        blocks += [ustar.header(f"{key}.{part}", len(payload)), payload, bytes(ustar.padding(len(payload)))]
    return b"".join(blocks)


def assemble(target: Path, partials: Sequence[tuple[Path, PartialTar]]) -> ShardFile:
    """Write a shard from its partial tars, in order, and read it back: the index is made from the file on disk."""
    digest = hashlib.sha256()
    size = 0
    with open(target, "wb") as tar:
        for path, partial in partials:
            crc32 = 0
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    crc32 = zlib.crc32(chunk, crc32)
                    digest.update(chunk)
                    size += tar.write(chunk)
            if crc32 != partial.crc32:
                raise IntegrityError(f"{path} does not hold what was written to it; check the disk")
        digest.update(ustar.END)
        size += tar.write(ustar.END)
    with open(target, "rb") as written, mmap.mmap(written.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            if hashlib.sha256(view).digest() != digest.digest():
                raise IntegrityError(f"{target} does not hold what was written to it; check the disk")
            index, keys = shard_index.build(view)
        finally:
            view.release()
    if len(keys) != sum(partial.samples for _, partial in partials):
        raise IntegrityError(f"{target} has {len(keys)} samples, {[each.samples for _, each in partials]} were written")
    return ShardFile(size=size, sha256=digest.hexdigest(), index=shard_index.to_bytes(index))
