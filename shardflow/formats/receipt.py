"""The receipt: the outcome of one finished job of `pack`, by which a resume knows that the job is finished.

It lists every input of the job with its outcome. Two runs over the same content write equal receipts, except for
`identities`, which tell whether an input is still the same file without reading it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardflow.errors import ConfigError, FormatError

from .json_object import JsonObject, entry, nested
from .quarantine import Quarantined
from .shard import Shard, is_count
from .shard_layout import sample_key
from .statistics import PixelSums, Statistics

VERSION = 2
MAX_BYTES = 1 << 25
"""The most bytes of a receipt; parsing takes up to 25 times as much memory."""

UNREAD = "0" * 16
"""The content of an input that could not be read."""

_MAX_COUNT = (1 << 63) - 1
_BYTES_BESIDE_PATH = 43  # content and identity, quotes and commas, and the digits of the size


class InputRecord(NamedTuple):
    """The entry of one input in a receipt."""

    size: int  # bytes of the image; -1 where it could not be read
    content: str  # 16 hexadecimal digits, digest of the image, its label and all other parts
    identity: str  # 16 hexadecimal digits, digest of what was known before reading: see `Item.identity`
    is_packed: bool  # whether it is in the shard; otherwise it was quarantined or removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(JsonObject):
    """The outcome of a job. The fields are the schema of the file.

    Attributes:
        first: Ordinal of the job's first input in its split; the keys count from it.
        items_sha256, recipe_sha256: Digests of the job's inputs, and of the recipe with the versions of the codecs.
        sources: Path of the input of each record, in order.
        quarantined: The inputs that were not packed.
        skipped: Positions of the quarantined inputs in the job, from 0.
        bytes_in: Total size of the packed inputs.
        pixels: Sums over the packed images.
        statistics: Counts over the packed images.
        shard: The shard's entry in the manifest; None if every input was quarantined.
        index_bytes: Size of the index.
        sizes: Bytes of the image of each input, in the order of the job; -1 if it could not be read, or was removed.
        contents, identities: 16 hexadecimal digits for each input in that order, see `InputRecord`.
        removed: Positions of inputs whose samples were removed later; of these, only the digest of the content is kept.
    """

    first: int
    items_sha256: str
    recipe_sha256: str
    sources: tuple[str, ...] = field(metadata=entry(read=tuple))
    quarantined: tuple[Quarantined, ...] = field(
        metadata=entry(
            write=lambda inputs: [each._asdict() for each in inputs],
            read=lambda inputs: tuple(Quarantined(**each) for each in inputs),
        )
    )
    skipped: tuple[int, ...] = field(metadata=entry(read=tuple))
    bytes_in: int
    pixels: PixelSums = field(metadata=nested(PixelSums))
    statistics: Statistics = field(metadata=nested(Statistics))
    shard: Shard | None = field(
        metadata=entry(
            write=lambda shard: None if shard is None else shard.to_json(),
            read=lambda shard: None if shard is None else Shard.from_json(shard),
        )
    )
    index_bytes: int
    sizes: tuple[int, ...] = field(metadata=entry(write=list, read=tuple))
    contents: str
    identities: str
    removed: tuple[int, ...] = field(default=(), metadata=entry(read=tuple, optional=True))

    @property
    def items(self) -> int:
        """Number of inputs of the job."""
        return len(self.sources) + len(self.quarantined) + len(self.removed)

    def inputs(self) -> list[str]:
        """Return the paths of all inputs in the job's order; "" for removed inputs."""
        paths = dict(zip(self.packed_slots(), self.sources, strict=True))
        paths |= {slot: bad.path for slot, bad in zip(self.skipped, self.quarantined, strict=True)}
        return [paths.get(slot, "") for slot in range(self.items)]

    def packed_slots(self) -> list[int]:
        """Return the position of the input of each record of the shard."""
        others = {*self.skipped, *self.removed}
        return [slot for slot in range(self.items) if slot not in others]

    def keys(self) -> list[str]:
        """Return the key of each record of the shard."""
        return [sample_key(self.first + slot) for slot in self.packed_slots()]

    def record(self, slot: int) -> InputRecord:
        """Return the record of the input at a position."""
        place = slice(16 * slot, 16 * slot + 16)
        return InputRecord(
            self.sizes[slot], self.contents[place], self.identities[place], slot not in (*self.skipped, *self.removed)
        )

    def to_bytes(self) -> bytes:
        """Return the contents of the file.

        Raises:
            ConfigError: They have more than `MAX_BYTES`.
        """
        content = {"version": VERSION, **self.to_json()}
        data = json.dumps({**content, "sha256": _digest(content)}, sort_keys=True, indent=1).encode() + b"\n"
        check_bytes(len(data), self.items)
        return data


def _digest(content: dict[str, Any]) -> str:
    """Return the checksum of a receipt, which no other file has."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_bytes(size: int, inputs: int) -> None:
    """Raise a ConfigError if a receipt of `size` bytes for `inputs` inputs is larger than `MAX_BYTES`."""
    if size > MAX_BYTES:
        message = f"the receipt of a shard of {inputs:,} inputs would have {size:,} bytes; the limit is {MAX_BYTES:,}"
        raise ConfigError(f"{message}; choose fewer samples per shard (--shard-samples)")


def least_bytes(paths: Iterable[str]) -> int:
    """Return the least size in bytes of a receipt of inputs with these paths."""
    return sum(len(path) + _BYTES_BESIDE_PATH for path in paths)


def from_bytes(data: bytes) -> Receipt:
    """Read a receipt.

    Raises:
        FormatError: It is damaged, or of another version.
    """
    if len(data) > MAX_BYTES:
        raise FormatError(f"not a receipt: it has {len(data):,} bytes, {MAX_BYTES:,} is the most; restore it")
    try:
        content: dict[str, Any] = json.loads(data)
        if content.pop("sha256") != _digest(content):
            raise FormatError("its checksum differs, so it was changed since it was written; restore it from a copy")
        if (version := content.pop("version")) != VERSION:
            raise FormatError(f"a receipt of version {version}, expected {VERSION}")
        receipt = Receipt.from_json(content)
        _check_records(receipt)
        return receipt
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"not a receipt: {error}") from error


def _check_records(receipt: Receipt) -> None:
    count = receipt.items
    texts = [receipt.items_sha256, receipt.recipe_sha256, *receipt.sources, *itertools.chain(*receipt.quarantined)]
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("paths, reasons and digests must be texts")
    for name in ("first", "bytes_in", "index_bytes"):
        if not is_count(value := getattr(receipt, name), 0, _MAX_COUNT):
            raise FormatError(f"{name} must be a whole number, 0 or more, found {value!r}")
    for slots in ((-1, *receipt.skipped, count), (-1, *receipt.removed, count)):
        if not all(type(slot) is int for slot in slots) or not all(a < b for a, b in itertools.pairwise(slots)):
            raise FormatError(f"skipped and removed must be ascending numbers below {count}")
    if not {*receipt.skipped}.isdisjoint(receipt.removed):
        raise FormatError("an input is both skipped and removed")
    samples = len(receipt.sources) if receipt.shard is None else receipt.shard.samples
    if len(receipt.skipped) != len(receipt.quarantined) or len(receipt.sources) != samples:
        raise FormatError("its inputs do not add up")
    digits = re.compile(rf"[0-9a-f]{{{16 * count}}}")
    if len(receipt.sizes) != count or not all(type(size) is int for size in receipt.sizes):
        raise FormatError(f"expected sizes of {count} inputs")
    for name, value in (("contents", receipt.contents), ("identities", receipt.identities)):
        if not isinstance(value, str) or not digits.fullmatch(value):
            raise FormatError(f"expected {name} of {count} inputs")
