"""ustar headers: the 512 bytes before each member of a shard.

Source: POSIX.1-2017, pax utility, "ustar Interchange Format". Shards use its simplest subset: regular files, no links,
no extensions, and a fixed value in every field that could differ between machines. `tar_members` reads headers.
"""

from __future__ import annotations

import contextlib

from shardflow.errors import TarError

BLOCK = 512
END = bytes(2 * BLOCK)
_MAX_SIZE = 8**11 - 1  # eleven octal digits


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


def is_header(block: bytes) -> bool:
    """Return whether `header` returns exactly this block for some name and size."""
    with contextlib.suppress(ValueError, TarError):
        return header(block[:100].rstrip(b"\0").decode(), int(block[124:135], 8)) == block
    return False
