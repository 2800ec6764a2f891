"""The shard writer: writes encoded samples as a shard and its index.

A shard is written as *partial tars*: the members of a few samples each, without the zero blocks that end a tar. The
shard is their concatenation, so several processes can write it, and its bytes do not depend on their number.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardflow.dataset.tar_file import of_descriptor
from shardflow.errors import EncodeError, IntegrityError
from shardflow.formats import shard_index, ustar
from shardflow.formats.shard import MAX_SAMPLE_BYTES, Shard

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTar:
    """A finished partial tar: the name of its file, and the number of samples, size and CRC-32 that it must have."""

    name: str
    samples: int
    size: int
    crc32: int


def check_sample(parts: Mapping[str, bytes]) -> None:
    """Raise an EncodeError if a sample of these parts would exceed the bytes that readers accept."""
    total = sum(ustar.BLOCK + len(payload) + ustar.padding(len(payload)) for payload in parts.values())
    if total > MAX_SAMPLE_BYTES:
        most = f"{MAX_SAMPLE_BYTES:,} is the most for a sample"
        raise EncodeError(f"its parts have {total:,} bytes; {most}: leave some out, or make the image smaller")


def sample(key: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the tar bytes of the members of a sample, sorted by name."""
    blocks: list[bytes] = []
    for part in sorted(parts):
        payload = parts[part]
        blocks += [ustar.header(f"{key}.{part}", len(payload)), payload, bytes(ustar.padding(len(payload)))]
    return b"".join(blocks)


def assemble(target: Path, name: str, partials: Sequence[tuple[Path, PartialTar]]) -> tuple[Shard, bytes]:
    """Write a shard from its partial tars, in order; return its entry in the manifest and the bytes of its index.

    The index is made from the file on disk, which is read back and compared.
    """
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
                raise IntegrityError(f"{path} does not hold the bytes that were written; check the disk")
        digest.update(ustar.END)
        size += tar.write(ustar.END)
    with open(target, "rb") as file:
        written = of_descriptor(file.fileno(), str(target), hashed=True)
        try:
            index, keys = shard_index.build(written)
        finally:  # also if damage makes the tar unreadable
            if written.sha256() != digest.hexdigest():
                raise IntegrityError(f"{target} does not hold the bytes that were written; check the disk")
    if len(keys) != sum(partial.samples for _, partial in partials):
        raise IntegrityError(f"{target} has {len(keys)} samples, {[each.samples for _, each in partials]} were written")
    data = shard_index.to_bytes(index)
    index_sha256 = hashlib.sha256(data).hexdigest()
    sha256 = digest.hexdigest()
    return Shard(name=name, samples=len(keys), bytes=size, sha256=sha256, index_sha256=index_sha256), data
