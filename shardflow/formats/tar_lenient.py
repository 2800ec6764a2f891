"""The members of a tar as others write it: with names and sizes in extended headers, and with more than files.

Sources: POSIX.1-2017, pax utility, "pax Interchange Format"; the GNU tar manual, "Basic Tar Format". Python's `tarfile`
reads both too, but reads an extended header of any length into memory, passes over one that is damaged, takes a
damaged header for the end, and does not say where a name stands, which is what whoever looks for it later has to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

from shardflow.errors import TarError

from .ustar import BLOCK, padding

_MAX_EXTENDED_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_FILES = (b"0", b"\0", b"7")
_WITHOUT_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices and directories, whatever size they have
_PAX, _PAX_FOR_ALL = (b"x", b"X"), b"g"
_GNU_NAME, _GNU_LINK, _GNU_SPARSE = b"L", b"K", b"S"


class Member(NamedTuple):
    """A regular file in a tar, and where its payload lies.

    Attributes:
        name: As UTF-8; other bytes are surrogates, as in names of files.
        offset, size: Of the payload, in bytes; it may reach beyond the end of a tar that is cut short.
        name_offset: Where the bytes of the name lie in one piece; None where POSIX's prefix makes them two.
    """

    name: str
    offset: int
    size: int
    name_offset: int | None


class _Field(NamedTuple):
    """What an extended header says of the next member, and where."""

    value: bytes
    offset: int


def members(file: IO[bytes]) -> Iterator[Member]:
    """Yield the regular files of a tar in order; links, directories and devices are passed over.

    Raises:
        TarError: A header is damaged, or the tar is cut short; it says where. What came before is right.
    """
    end, position = file.seek(0, 2), 0
    said: dict[str, _Field] = {}
    while True:
        block = _read(file, position, BLOCK)
        if len(block) < BLOCK:
            raise TarError(f"it ends at byte {end} without the zero blocks that close a tar")
        if not any(block):
            if said:
                raise TarError(f"the extended header before byte {position} belongs to no member")
            _refuse_more(file, position)
            return
        where = f"the header at byte {position}"
        # The checksum counts its own eight bytes as spaces (0x20 each).
        if _number(block[148:156], where) != sum(block) - sum(block[148:156]) + 8 * 0x20:
            raise TarError(f"{where} is damaged: it fails its checksum")
        kind, size, payload = block[156:157], _number(block[124:136], where), position + BLOCK
        if kind in (*_PAX, _PAX_FOR_ALL, _GNU_NAME, _GNU_LINK):
            where = f"the extended header at byte {position}"
            if size > _MAX_EXTENDED_BYTES:
                raise TarError(f"{where} has {size} bytes; {_MAX_EXTENDED_BYTES} are the most that are read")
            text = _read(file, payload, size)
            if len(text) < size:
                raise TarError(f"{where} is cut short: it reaches to byte {payload + size}, the file ends at {end}")
            found = {"path": _Field(text.split(b"\0", 1)[0], payload)} if kind == _GNU_NAME else {}
            if kind in (*_PAX, _PAX_FOR_ALL):
                found = _records(text, payload, where)
            if found.keys() & said.keys() or (found and kind == _PAX_FOR_ALL):
                raise TarError(f"{where} is damaged: it says the {min(found)} of a member again, or of all members")
            said |= found
        else:
            if kind == _GNU_SPARSE or "sparse" in said:
                raise TarError(f"{where} is that of a sparse file, which is not read; write it without --sparse")
            size = int(said["size"].value) if "size" in said else size
            if kind in _FILES:
                name, at = said.get("path") or _plain(block, position)
                yield Member(name.decode(errors="surrogateescape"), payload, size, at)
            size, said = 0 if kind in _WITHOUT_PAYLOAD else size, {}
            if payload + size > end:
                raise TarError(f"{where} is that of a member that reaches to byte {payload + size}, it ends at {end}")
        position = payload + size + padding(size)


def _refuse_more(file: IO[bytes], end: int) -> None:
    """Make sure that nothing but zeros follows what looks like the end, as readers of tars do not: a hole looks so."""
    file.seek(end)
    while chunk := file.read(_CHUNK_BYTES):
        if rest := chunk.lstrip(b"\0"):
            at = file.tell() - len(rest)
            raise TarError(
                f"its end at byte {end} is none, as more follows at byte {at}: it is damaged, or several tars were put "
                "one behind the other, which only `tar --concatenate` may do"
            )


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _plain(block: bytes, position: int) -> tuple[bytes, int | None]:
    """Return the name in a header that starts at byte `position`, and where it lies."""
    name = block[0:100].split(b"\0", 1)[0]
    # Before POSIX there was no prefix, and GNU tar leaves other things where it stands.
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name, None) if prefix else (name, position)


def _records(text: bytes, offset: int, where: str) -> dict[str, _Field]:
    """Return the path and the size in a pax header, each a record "LENGTH KEYWORD=VALUE\\n"; the last one counts."""
    found: dict[str, _Field] = {}
    text, position = text.rstrip(b"\0"), 0
    while position < len(text):
        digits = text[position : position + 8].partition(b" ")[0]
        stop = position + int(digits) if digits.isdigit() else 0
        equals = text.find(b"=", position + len(digits) + 1, max(0, stop - 1))
        if equals < 0 or text[stop - 1 : stop] != b"\n":
            raise TarError(f"{where} is damaged: at byte {offset + position} is no record of the length that it says")
        keyword, value = text[position + len(digits) + 1 : equals], text[equals + 1 : stop - 1]
        if keyword == b"path" and value:
            found["path"] = _Field(value, offset + equals + 1)
        elif keyword == b"size":
            if not (value.isdigit() and len(value) < 20):
                raise TarError(f"{where} is damaged: the size {value[:40]!r} is no number")
            found["size"] = _Field(value, offset + equals + 1)
        elif keyword.startswith(b"GNU.sparse."):
            found["sparse"] = _Field(value, offset + equals + 1)
        position = stop
    return found


def _number(field: bytes, where: str) -> int:
    """Return a number: octal digits, or, as GNU tar has it where these do not suffice, binary behind a byte 0x80."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if all(0x30 <= digit <= 0x37 for digit in digits):
        return int(digits or b"0", 8)
    raise TarError(f"{where} is damaged: it has {field!r} where a number should be")
