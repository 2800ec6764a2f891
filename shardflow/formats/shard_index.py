"""The index of a shard: one row per member, so that a sample is a range of bytes, and no tar is searched.

The file is a plain `.npy` of a structured little-endian array (numpy.lib.format version 1.0); `numpy.load` loads it.
This module writes the header, because its bytes must not depend on the version of numpy: the manifest has the SHA-256.
An index can be rebuilt from its shard.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow.errors import IntegrityError, ShardIndexError, TarError

from .image_types import IMAGE_PARTS, image_size
from .shard import MAX_SAMPLE_BYTES
from .tar_members import TarBytes, crc32, members
from .tar_samples import split_member_name
from .ustar import BLOCK, padding

KEY_PART = b""
"""The part of a row that locates the key of a sample instead of a member, where the key is not in a plain header."""

DTYPE = np.dtype(
    [
        ("record", "<u4"),  # ordinal of the sample in its shard, 0 … samples-1
        ("part", "S16"),  # without the key and its dot: b"jpg"
        ("offset", "<u8"),  # of the payload, from the start of the shard
        ("size", "<u4"),  # of the payload, in bytes
        ("crc32", "<u4"),  # of the payload (zlib's CRC-32)
        ("width", "<u2"),  # in pixels; 0 if the member is not an image or its size is not known
        ("height", "<u2"),
    ]
)
Index = npt.NDArray[Any]  # a 1-d array of DTYPE

MAX_ROWS = 1 << 22
"""The most rows of an index: 0.2 GB."""

_MAGIC = b"\x93NUMPY\x01\x00"
_MAX_U2 = 0xFFFF
_ROWS_AT_A_TIME = 4096


class Row(NamedTuple):
    """One row of an index, in the order of the columns."""

    record: int
    part: bytes
    offset: int
    size: int
    crc32: int
    width: int
    height: int


def make_row(record: int, part: str, offset: int, payload: memoryview | bytes) -> Row:
    """Return the row of one member."""
    try:
        name = part.encode()
    except UnicodeEncodeError:
        raise ShardIndexError(f"part name {part!a} is not UTF-8; rename it") from None
    if len(name) > 16:
        raise ShardIndexError(f"part name {part!r} is longer than 16 bytes; shorten the extension")
    width, height = image_size(payload) if _is_image(part) else (0, 0)
    if max(width, height) > _MAX_U2:
        width = height = 0
    return Row(record, name, offset, len(payload), zlib.crc32(payload), width, height)


def read_row(tar: TarBytes, record: int, part: str, offset: int, size: int) -> Row:
    """Return the row of a member of a tar. The caller checks `size`: an image is read into memory whole."""
    if _is_image(part):
        return make_row(record, part, offset, tar.read(offset, size))
    return make_row(record, part, offset, b"")._replace(size=size, crc32=crc32(tar, offset, size))


def _is_image(part: str) -> bool:
    return bool({part, part.rpartition(".")[2]} & IMAGE_PARTS)


def read_rows(tar: TarBytes) -> Iterator[tuple[str, Row]]:
    """Yield the key and the row of each member of a shard, in order.

    Raises:
        TarError: The tar is damaged, or shardflow did not write it.
    """
    records: dict[str, int] = {}  # key → record
    parts: set[str] = set()  # of the last record
    total = 0  # bytes of its members
    for number, member in enumerate(members(tar)):
        if (key_and_part := split_member_name(member.name)) is None:
            raise TarError(f"member {member.name!r} is not named KEY.PART, as the WebDataset convention asks")
        key, part = key_and_part
        if key not in records:
            records[key], parts, total = len(records), set(), 0
        elif records[key] < len(records) - 1:
            raise TarError(f"the members of sample {key!r} are not neighbours")
        if part in parts:
            raise TarError(f"member {member.name!r} comes twice; each name can come once only")
        parts.add(part)
        total += BLOCK + member.size + padding(member.size)
        if total > MAX_SAMPLE_BYTES:
            raise TarError(f"a sample has {total:,} bytes; {MAX_SAMPLE_BYTES:,} is the most: leave it out")
        check_rows(number + 1)
        yield key, read_row(tar, records[key], part, member.offset, member.size)


def check_rows(rows: int) -> None:
    """Raise a TarError if a tar has more members than an index may have rows."""
    if rows > MAX_ROWS:
        raise TarError(f"a tar has more than {MAX_ROWS:,} members; divide it into several")


def build(tar: TarBytes) -> tuple[Index, list[str]]:
    """Rebuild the index of a shard from its bytes; return it with the keys of the samples in order."""
    rows, keys = IndexRows(), dict[str, None]()
    for key, row in read_rows(tar):
        rows.append(row)
        keys[key] = None
    return rows.index(), list(keys)


class IndexRows:
    """The rows of an index that is being built, in a tenth of the memory of a list of rows."""

    def __init__(self) -> None:
        self._done: list[Index] = []
        self._rows: list[Row] = []

    def append(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) == _ROWS_AT_A_TIME:
            self._done.append(from_rows(self._rows))
            self._rows.clear()

    def index(self) -> Index:
        """Return all rows."""
        return np.concatenate([*self._done, from_rows(self._rows)])


def rebuild(tar: TarBytes, sha256: str) -> bytes:
    """Return the contents of a lost index, rebuilt from its shard; raise IntegrityError if the SHA-256 differs."""
    data = to_bytes(build(tar)[0])
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IntegrityError(
            "neither the index nor one rebuilt from the tar is the one packed; run `shardflow verify` and restore them"
        )
    return data


def from_rows(rows: Sequence[Row]) -> Index:
    """Return an index of these rows."""
    return np.array(rows, dtype=DTYPE)


def to_bytes(index: Index) -> bytes:
    """Return the contents of the `.npy` file."""
    return _header(len(index)) + index.astype(DTYPE).tobytes()


def from_bytes(data: bytes, *, samples: int, tar_bytes: int) -> Index:
    """Read an index and check that it can belong to a shard of `samples` samples and `tar_bytes` bytes.

    Raises:
        ShardIndexError: The data is not an index, or belongs to another shard.
    """
    # All headers have one form and need no parsing: the number of rows follows from the length of the file.
    for length in {(len(data) - len(_header(example))) // DTYPE.itemsize for example in (0, 10**9)}:
        header = _header(max(0, length))
        if data.startswith(header) and len(data) == len(header) + length * DTYPE.itemsize:
            index = np.frombuffer(data, DTYPE, offset=len(header))
            _check(index, samples, tar_bytes)
            return index
    raise ShardIndexError(f"not a shardflow index ({len(data)} bytes); delete the file, it is rebuilt from the shard")


def most_bytes(samples: int, tar_bytes: int) -> int:
    """Return the most bytes that the index of such a shard can have: each member has a header of `BLOCK` bytes."""
    return len(_header(10**9)) + DTYPE.itemsize * (tar_bytes // BLOCK + samples)


def _header(length: int) -> bytes:
    text = f"{{'descr': {DTYPE.descr!r}, 'fortran_order': False, 'shape': ({length},), }}"
    text += " " * (-(len(_MAGIC) + 2 + len(text) + 1) % 64) + "\n"  # the data starts at a multiple of 64
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii")


def is_index(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is an index, of any length."""
    return head.startswith(_MAGIC) and head[len(_MAGIC) + 2 :].startswith(f"{{'descr': {DTYPE.descr!r}".encode())


def _check(index: Index, samples: int, tar_bytes: int) -> None:
    for rows in (index, index[index["part"] != KEY_PART]):
        records = rows["record"].astype(np.int64)
        steps = np.diff(records, prepend=-1, append=samples)
        if samples and (len(rows) == 0 or records[0] != 0 or steps[-1] != 1 or not np.isin(steps, (0, 1)).all()):
            raise ShardIndexError(f"the records do not run from 0 to {samples - 1} in order; rebuild the index")
    if not samples and len(index):
        raise ShardIndexError(f"{len(index)} members for no samples; rebuild the index")
    for part in set(index["part"].tolist()):
        try:
            part.decode()
        except UnicodeDecodeError:
            raise ShardIndexError(f"part name {part!r} is not UTF-8; rebuild the index") from None
    ends = index["offset"].astype(np.uint64) + index["size"]
    if len(index) and (index["offset"].max() > tar_bytes or ends.max() > tar_bytes):
        raise ShardIndexError(f"a member reaches to byte {int(ends.max())} of {tar_bytes}; rebuild the index")
