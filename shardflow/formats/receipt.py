"""The receipt: what one finished job left behind, and by which a resume knows that it is finished.

It names every input of the job and what became of it, and holds nothing that differs between two runs over the same
inputs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from shardflow.errors import FormatError, ManifestError

from . import statistics
from .manifest import Shard
from .statistics import PixelSums, Statistics

VERSION = 1


class Quarantined(NamedTuple):
    """An input that was not packed.

    Attributes:
        path: Below the source.
        stage: Where it failed: "read", "decode" or "encode".
        reason: What the failing code said.
    """

    path: str
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One job's outcome.

    Attributes:
        first: Ordinal of the job's first input in its split; the keys count from it.
        items_sha256, recipe_sha256: Of the inputs that were asked for, and of how to treat them.
        sources: Path of the input that became each record, in order.
        quarantined: The other inputs.
        skipped: Where these stood among the job's inputs, from 0.
        bytes_in: Total size of the packed inputs.
        pixels: Sums over the packed images.
        statistics: What was counted of them.
        shard: The line for the manifest; None when every input was quarantined.
        index_bytes: Size of the index.
    """

    first: int
    items_sha256: str
    recipe_sha256: str
    sources: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]
    skipped: tuple[int, ...]
    bytes_in: int
    pixels: PixelSums
    statistics: Statistics
    shard: Shard | None
    index_bytes: int

    def inputs(self) -> list[str]:
        """Return the paths of all inputs in the job's order.

        Raises:
            FormatError: The entries contradict each other.
        """
        sources, quarantined, skipped = iter(self.sources), iter(self.quarantined), set(self.skipped)
        try:
            count = len(self.sources) + len(self.quarantined)
            return [next(quarantined).path if slot in skipped else next(sources) for slot in range(count)]
        except StopIteration:
            raise FormatError("a receipt whose inputs do not add up") from None

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        content = {
            **asdict(self),
            "quarantined": [bad._asdict() for bad in self.quarantined],
            "statistics": self.statistics.to_json(),
            "version": VERSION,
        }
        return json.dumps(content, sort_keys=True, indent=1).encode() + b"\n"


def from_bytes(data: bytes) -> Receipt:
    """Read a receipt.

    Raises:
        FormatError: It is none of this version.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        if content.pop("version") != VERSION:
            raise FormatError("a receipt of another version")
        shard, pixels = content.pop("shard"), content.pop("pixels")
        return Receipt(
            sources=tuple(content.pop("sources")),
            quarantined=tuple(Quarantined(**bad) for bad in content.pop("quarantined")),
            skipped=tuple(content.pop("skipped")),
            pixels=PixelSums(pixels["count"], tuple(pixels["sums"]), tuple(pixels["squares"])),
            statistics=statistics.from_json(content.pop("statistics")),
            shard=None if shard is None else Shard(**shard),
            **content,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ManifestError) as error:
        raise FormatError(f"not a receipt: {error}") from error
