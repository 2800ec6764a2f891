"""A shard of a dataset: its entry in the manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardflow.errors import ManifestError

from .json_object import JsonObject

SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_SAMPLES = 2**32 - 1  # an index counts records in 32 bits
MAX_BYTES = 2**63 - 1
MAX_SAMPLE_BYTES = 1 << 29
"""The most bytes of a sample in a tar, and of one input: headers can claim terabytes, and so can sparse files."""

_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(JsonObject):
    """The entry of one shard.

    Raises:
        ManifestError: A value is out of its range.
    """

    name: str  # path of the tar below the dataset, with forward slashes: "train/000000.tar"
    samples: int  # number of samples, 1 … 2³²-1
    bytes: int  # size of the tar, 1 … 2⁶³-1
    sha256: str  # of the tar, 64 hexadecimal digits
    index_sha256: str  # of its index: a wrong index would pair intact members wrongly

    def __post_init__(self) -> None:
        if not is_name(self.name) or not self.name.endswith(".tar"):
            raise ManifestError(f"shard name {self.name!r} is not a relative path of A-Z a-z 0-9 . _ - ending in .tar")
        if not is_count(self.samples, 1, MAX_SAMPLES) or not is_count(self.bytes, 1, MAX_BYTES):
            raise ManifestError(f"shard {self.name}: samples and bytes must be positive integers")
        for digest in (self.sha256, self.index_sha256):
            if not (isinstance(digest, str) and SHA256.fullmatch(digest)):
                raise ManifestError(f"shard {self.name}: {digest!r} is not a SHA-256 of 64 hexadecimal digits")

    @property
    def index_name(self) -> str:
        """Path of the index below the dataset."""
        return self.name[: -len(".tar")] + ".npy"

    @property
    def receipt_name(self) -> str:
        """Path of the receipt below the dataset."""
        return self.name[: -len(".tar")] + ".json"


OnShard: TypeAlias = Callable[[Shard], None] | None
"""A callback that a function calls after each shard."""


def is_name(value: Any) -> bool:
    """Return whether a value is a valid file name in a dataset: a path of A-Z a-z 0-9 . _ - that stays below it."""
    return isinstance(value, str) and bool(_NAME.fullmatch(value)) and not {".", ".."} & set(value.split("/"))


def is_count(value: Any, least: int, most: int) -> bool:
    """Return whether a value is an integer from `least` to `most`, and not a bool."""
    return type(value) is int and least <= value <= most
