"""ustar headers: the 512 bytes before each member of a shard.

Source: POSIX.1-2017, pax utility, "ustar Interchange Format". Shards use its plainest part: regular files, no links, no
extensions, and a fixed value in every field that could differ between two machines. Any ustar or GNU header of a
regular file is read; any other header is an error, and never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardflow.errors import TarError

from .tar_bytes import TarBytes, first_nonzero

BLOCK = 512
END = bytes(2 * BLOCK)
_MAX_SIZE = 8**11 - 1  # eleven octal digits


class Member(NamedTuple):
    """One file in a tar: its name, and offset and size of its payload in bytes."""

    name: str
    offset: int
    size: int


def padding(size: int) -> int:
    """Return the number of zero bytes that follow a payload of `size` bytes."""
    return -size % BLOCK


def header(name: str, size: int) -> bytes:
    """Return the header of a member: mtime 0, uid and gid 0, mode 0444."""
    encoded = name.encode()
    if not 0 < len(encoded) <= 100:
        raise TarError(f"member name {name!r} has {len(encoded)} bytes, ustar holds 1 to 100")
    if b"\0" in encoded:
        raise TarError(f"member name {name!r} has a zero byte, which ends a name in ustar")
    if size > _MAX_SIZE:
        raise TarError(f"member {name!r} has {size} bytes, ustar holds {_MAX_SIZE} at most")
    block = bytearray(BLOCK)
    block[0 : len(encoded)] = encoded
    block[100:108] = b"0000444\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[148:156] = b"        "  # the checksum counts itself as spaces
    block[156:157] = b"0"
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def walk(tar: TarBytes) -> Iterator[Member]:
    """Yield the members of a tar in order. Only headers are read.

    Raises:
        TarError: A header is damaged, a payload or the end is cut off, or a member is not a regular file.
    """
    position, end = 0, tar.size
    while True:
        block = bytes(tar.read(position, BLOCK))
        if len(block) < BLOCK:
            raise TarError(f"it ends at byte {end} without the two zero blocks that close a tar: it is cut short")
        if not any(block):
            if end - position < len(END) or first_nonzero(tar, position) is not None:
                raise TarError(f"the zero block at byte {position} is not followed by zeros to the end: it is damaged")
            return
        member = parse(block, position + BLOCK)
        position = member.offset + member.size + padding(member.size)
        if position > end:
            raise TarError(
                f"member {member.name!r} reaches to byte {position}, the file ends at {end}: it is cut short"
            )
        yield member


def parse(block: bytes, payload: int) -> Member:
    """Return the member whose header is `block` and whose payload starts at byte `payload`."""
    where = f"the header at byte {payload - BLOCK}"
    # The checksum counts its own eight bytes as spaces (0x20 each).
    expected = sum(block) - sum(block[148:156]) + 8 * 0x20
    if _octal(block[148:156], where) != expected:
        raise TarError(f"{where} fails its checksum: the bytes are damaged, or this is not a tar")
    if block[257:262] != b"ustar":
        raise TarError(f"{where} is not ustar; write the tar with `tar --format=ustar`")
    kind = block[156:157]
    if kind not in (b"0", b"\0"):
        raise TarError(f"{where} has type {kind!r}; only regular files are read, as `tar --format=ustar` writes them")
    # GNU tar has other fields where POSIX has the prefix of the name.
    prefix = b"" if block[257:265] == b"ustar  \0" else block[345:500].split(b"\0", 1)[0]
    name = block[0:100].split(b"\0", 1)[0]
    try:
        text = (prefix + b"/" + name if prefix else name).decode()
    except UnicodeDecodeError:
        raise TarError(f"{where} has a name that is not UTF-8") from None
    return Member(text, payload, _octal(block[124:136], where))


def _octal(field: bytes, where: str) -> int:
    digits = field.strip(b" \0")
    if digits and all(0x30 <= digit <= 0x37 for digit in digits):
        return int(digits, 8)
    raise TarError(f"{where} has a number that is not octal: {field!r}")
