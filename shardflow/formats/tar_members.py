"""The members of any tar: pax and GNU headers are read, directories are skipped, and links are marked.

Sources: POSIX.1-2017, pax utility, "pax Interchange Format" and "ustar Interchange Format"; the GNU tar manual, "Basic
Tar Format".

Python's `tarfile` reads these headers too. But it reads an extended header of any length into memory, skips a damaged
one, takes a damaged header for the end of the tar, and hides the offset of a name, which an index stores.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from shardflow.errors import TarError

from .ustar import BLOCK, padding

_CHUNK_BYTES = 1 << 20
_MAX_EXTENDED_BYTES = 1 << 20
_FILES = (b"0", b"\0", b"7")
_LINKS = (b"1", b"2")  # hard, symbolic
_WITHOUT_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, directories, pipes; readers ignore their size
_PAX, _PAX_GLOBAL = (b"x", b"X"), b"g"
_GNU_NAME, _GNU_LINK, _GNU_SPARSE = b"L", b"K", b"S"


class TarBytes(Protocol):
    """The bytes of a local or remote tar, read by position: the only interface that walks of a tar use."""

    @property
    def size(self) -> int:
        """Number of bytes of the tar."""
        ...

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from an offset on, fewer at the end of the tar; none for a negative offset.

        The call allocates memory for these bytes: the caller checks a size that comes from a header.
        """
        ...


class Member(NamedTuple):
    """A regular file or a link in a tar. The payload can reach beyond the end of a tar that is cut short."""

    name: str  # bytes that are not UTF-8 become surrogates, as in file names
    offset: int
    size: int
    name_offset: int | None = None  # of the name in the tar; None if the ustar prefix splits the name in two
    is_link: bool = False


class Header(NamedTuple):
    """The fields of a header: its type, the size of the payload, and the name, which a prefix may split in two."""

    kind: bytes
    size: int
    name: bytes
    is_split: bool


class _Field(NamedTuple):
    """A value for the next member in an extended header, and its offset in the tar."""

    value: bytes
    offset: int


def parse_header(block: bytes, position: int) -> Header:
    """Return the fields of the header `block` at byte `position`; raise a TarError if the header is damaged."""
    where = f"the header at byte {position}"
    if len(block) < BLOCK:
        raise TarError(f"{where} is cut short")
    # The checksum counts its own eight bytes as spaces (0x20 each).
    if _number(block[148:156], where) != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise TarError(f"{where} is damaged: it fails its checksum")
    name = block[0:100].split(b"\0", 1)[0]
    # Formats before POSIX lack the prefix, and GNU tar has other fields in its place.
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    name = prefix + b"/" + name if prefix else name
    return Header(block[156:157], _number(block[124:136], where), name, bool(prefix))


def members(tar: TarBytes) -> Iterator[Member]:
    """Yield the regular files and links of a tar in order, without directories and devices. Only headers are read.

    Raises:
        TarError: A header is damaged, or the tar is cut short; the message says where. The members before it are valid.
    """
    end, position = tar.size, 0
    extended: dict[str, _Field] = {}
    while True:
        block = bytes(tar.read(position, BLOCK))
        if len(block) < BLOCK:
            raise TarError(f"it ends at byte {end} without the zero blocks that close a tar: it is cut short")
        if not any(block):
            if extended:
                raise TarError(f"the extended header before byte {position} belongs to no member")
            if (at := first_nonzero(tar, position)) is not None:  # other readers take a hole in a tar for its end
                raise TarError(
                    f"it seems to end at byte {position}, but more follows at byte {at}: it is damaged, or several "
                    "tars were joined, which only `tar --concatenate` can do"
                )
            return
        header, payload, where = parse_header(block, position), position + BLOCK, f"the header at byte {position}"
        kind, size = header.kind, header.size
        if kind in (*_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK):
            where = f"the extended header at byte {position}"
            if size > _MAX_EXTENDED_BYTES:
                raise TarError(f"{where} has {size} bytes; at most {_MAX_EXTENDED_BYTES} are read")
            text = bytes(tar.read(payload, size))
            if len(text) < size:
                raise TarError(f"{where} is cut short: it reaches to byte {payload + size}, the file ends at {end}")
            found = {"path": _Field(text.split(b"\0", 1)[0], payload)} if kind == _GNU_NAME else {}
            if kind in (*_PAX, _PAX_GLOBAL):
                found = _records(text, payload, where)
            if found.keys() & extended.keys() or (found and kind == _PAX_GLOBAL):
                raise TarError(
                    f"{where} is damaged: it repeats the {min(found)} of a member, or sets it for all members"
                )
            extended |= found
        else:
            if kind == _GNU_SPARSE or "sparse" in extended:
                raise TarError(f"{where} is of a sparse file, which cannot be read; write the tar without --sparse")
            size = int(extended["size"].value) if "size" in extended else size
            size = 0 if kind in _WITHOUT_PAYLOAD else size
            if kind in (*_FILES, *_LINKS):
                name, at = extended.get("path") or (header.name, None if header.is_split else position)
                yield Member(name.decode(errors="surrogateescape"), payload, size, at, kind in _LINKS)
            extended = {}
            if payload + size > end:
                raise TarError(
                    f"{where} has a member that reaches to byte {payload + size}, the tar ends at byte {end}: it is "
                    "cut short"
                )
        position = payload + size + padding(size)


def _records(text: bytes, offset: int, where: str) -> dict[str, _Field]:
    """Return path, size and a sparse marker of a pax header; of repeated records "LENGTH KEYWORD=VALUE\\n" the last."""
    found: dict[str, _Field] = {}
    text, position = text.rstrip(b"\0"), 0
    while position < len(text):
        digits = text[position : position + 8].partition(b" ")[0]
        stop = position + int(digits) if digits.isdigit() else 0
        equals = text.find(b"=", position + len(digits) + 1, max(0, stop - 1))
        if equals < 0 or text[stop - 1 : stop] != b"\n":
            raise TarError(
                f"{where} is damaged: the record at byte {offset + position} does not have the length that it states"
            )
        keyword, value = text[position + len(digits) + 1 : equals], text[equals + 1 : stop - 1]
        if keyword == b"path" and value:
            found["path"] = _Field(value, offset + equals + 1)
        elif keyword == b"size":
            if not (value.isdigit() and len(value) < 20):
                raise TarError(f"{where} is damaged: the size {value[:40]!r} is not a number")
            found["size"] = _Field(value, offset + equals + 1)
        elif keyword.startswith(b"GNU.sparse."):
            found["sparse"] = _Field(value, offset + equals + 1)
        position = stop
    return found


def _number(field: bytes, where: str) -> int:
    """Return a number: octal digits or, for large numbers of GNU tar, a byte 0x80 and a big-endian integer."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if all(0x30 <= digit <= 0x37 for digit in digits):
        return int(digits or b"0", 8)
    raise TarError(f"{where} is damaged: expected a number, found {field!r}")


def first_nonzero(tar: TarBytes, offset: int) -> int | None:
    """Return the offset of the first nonzero byte of a tar from an offset on; None if all are zero."""
    for at in range(offset, tar.size, _CHUNK_BYTES):
        chunk = bytes(tar.read(at, _CHUNK_BYTES))
        if rest := chunk.lstrip(b"\0"):
            return at + len(chunk) - len(rest)
    return None


def crc32(tar: TarBytes, offset: int, size: int) -> int:
    """Return the CRC-32 of a range of a tar, which is read in chunks."""
    value = 0
    for at in range(offset, offset + size, _CHUNK_BYTES):
        value = zlib.crc32(tar.read(at, min(_CHUNK_BYTES, offset + size - at)), value)
    return value
