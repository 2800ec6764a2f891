"""The manifest: `shardflow.json`, the one file that makes a directory a dataset.

It is written last and create-only, so whoever can read it sees a whole dataset. JSON with sorted keys, so that equal
datasets have equal manifests. Reading it checks every value: the names in it become paths, and nothing in a dataset
may reach outside of it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardflow.errors import ConfigError, ManifestError

from . import sharding
from .roots import Root, split_shard_name
from .sharding import Sharding
from .statistics import Statistics, from_json

FILE_NAME = "shardflow.json"
QUARANTINE_NAME = "quarantine.jsonl"
VERSION = 1
SPLITS = ("train", "val", "valid", "validation", "test")
"""Names by which folders are taken for splits."""

_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SAMPLES = 2**32 - 1  # an index counts records in 32 bits
_MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One tar as the manifest knows it.

    Args:
        name: Its path below the dataset, with forward slashes: "train/000000.tar".
        samples: Number of samples, 1 … 2³²-1.
        bytes: Size of the tar, 1 … 2⁶³-1.
        sha256: Of the tar, 64 hexadecimal digits.
        index_sha256: Of the index beside it. A wrong index would pair sound members wrongly, so it is sealed as well.

    Raises:
        ManifestError: A value is out of its range.
    """

    name: str
    samples: int
    bytes: int
    sha256: str
    index_sha256: str

    def __post_init__(self) -> None:
        if not is_name(self.name) or not self.name.endswith(".tar"):
            raise ManifestError(f"shard name {self.name!r} is not a relative path of A-Z a-z 0-9 . _ - ending in .tar")
        if not _is_count(self.samples, 1, _MAX_SAMPLES) or not _is_count(self.bytes, 1, _MAX_BYTES):
            raise ManifestError(f"shard {self.name}: samples and bytes must be positive integers")
        for digest in (self.sha256, self.index_sha256):
            if not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
                raise ManifestError(f"shard {self.name}: {digest!r} is not a SHA-256 of 64 hexadecimal digits")

    @property
    def index_name(self) -> str:
        """Path of the index below the dataset."""
        return self.name[: -len(".tar")] + ".npy"

    @property
    def receipt_name(self) -> str:
        """Path of the receipt below the dataset."""
        return self.name[: -len(".tar")] + ".json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a dataset consists of.

    Args:
        splits: Name → shards in order.
        classes: Class names, label 0 first; None when the samples have no labels.
        recipe: How the images were made, as `pack.recipe` describes it.
        tools: Versions of what made them; not part of the fingerprint.
        inputs: Number of inputs, packed and quarantined together.
        mean, std: Of the packed images, one number in 0 … 1 per channel (RGB); None when they were not measured.
        statistics: Split → what was counted of its images; None when nothing was.
        sharding: How the inputs were cut into shards; None where that is not known.
        roots: Name → where the tars of a virtual dataset lie, see `roots`; empty if the dataset has its own. Not part
            of the fingerprint. On the disk the entry is called `bases`.

    Raises:
        ManifestError: A value is out of its range.
    """

    splits: Mapping[str, tuple[Shard, ...]]
    classes: tuple[str, ...] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    inputs: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    statistics: Mapping[str, Statistics] | None = None
    sharding: Sharding | None = None
    roots: Mapping[str, Root] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.splits:
            raise ManifestError("a dataset has at least one split")
        names = [shard.name for shards in self.splits.values() for shard in shards]
        for split in self.splits:
            if not is_name(split) or "/" in split:
                raise ManifestError(f"split name {split!r} is not made of A-Z a-z 0-9 . _ -")
        if len(set(names)) != len(names):
            raise ManifestError("a shard is named twice")
        if not _is_count(self.inputs, 0, _MAX_BYTES):
            raise ManifestError(f"inputs must be an integer, 0 or more, found {self.inputs!r}")
        if not all(isinstance(text, str) for text in (*(self.classes or ()), *self.tools.values())):
            raise ManifestError("classes and the versions of tools must be strings")
        if not all(_is_fraction(number) for number in (*(self.mean or ()), *(self.std or ()))):
            raise ManifestError(f"mean and std must be numbers from 0 to 1, found {self.mean!r} and {self.std!r}")
        if self.statistics is not None and self.statistics.keys() != self.splits.keys():
            raise ManifestError(f"statistics of {sorted(self.statistics)} in a dataset with {sorted(self.splits)}")
        if self.roots and not {split_shard_name(name)[0] for name in names} <= self.roots.keys():
            raise ManifestError(f"a shard is in none of the roots {sorted(self.roots)}")

    @property
    def samples(self) -> int:
        """Number of samples of all splits."""
        return sum(shard.samples for shards in self.splits.values() for shard in shards)

    @property
    def quarantined(self) -> int:
        """Number of inputs that were not packed."""
        return self.inputs - self.samples

    @functools.cached_property
    def fingerprint(self) -> str:
        """The dataset's identity: "sha256:" and the digest of everything but the tools' versions and the roots."""
        content = {name: value for name, value in self._content().items() if name not in ("tools", "bases")}
        return "sha256:" + hashlib.sha256(_canonical(content)).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the contents of `shardflow.json`."""
        text = json.dumps({**self._content(), "fingerprint": self.fingerprint}, sort_keys=True, indent=1)
        return text.encode() + b"\n"

    def _content(self) -> dict[str, Any]:
        counted = {split: each.to_json() for split, each in (self.statistics or {}).items()}
        return {
            "classes": None if self.classes is None else list(self.classes),
            "inputs": self.inputs,
            "mean": None if self.mean is None else list(self.mean),
            "recipe": dict(self.recipe),
            "splits": {
                split: [{slot: getattr(shard, slot) for slot in Shard.__slots__} for shard in shards]
                for split, shards in self.splits.items()
            },
            "std": None if self.std is None else list(self.std),
            "tools": dict(self.tools),
            "version": VERSION,
            **({"statistics": counted} if counted else {}),  # manifests without them keep their fingerprints
            **({"layout": self.sharding.to_json()} if self.sharding else {}),
            **({"bases": {name: root.to_json() for name, root in self.roots.items()}} if self.roots else {}),
        }


def kept_name(fingerprint: str) -> str:
    """Return the name under which the manifest of a version is kept that a later one has replaced.

    Raises:
        ConfigError: That is no fingerprint.
    """
    kind, _, digest = fingerprint.partition(":")
    if kind != "sha256" or not _SHA256.fullmatch(digest):
        raise ConfigError(f"version {fingerprint!r} is no fingerprint; it looks like sha256: and 64 hexadecimal digits")
    return f"manifests/{digest}.json"


def from_bytes(data: bytes) -> Manifest:
    """Read `shardflow.json`.

    Raises:
        ManifestError: It is not a manifest of this version, or its fingerprint does not fit its content.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        if version != VERSION:
            raise ManifestError(f"manifest version {version!r}, this shardflow reads {VERSION}; update shardflow")
        manifest = Manifest(
            splits={name: tuple(Shard(**entry) for entry in entries) for name, entries in content["splits"].items()},
            classes=_tuple(content["classes"]),
            recipe=dict(content["recipe"]),
            tools=dict(content["tools"]),
            inputs=content["inputs"],
            mean=_tuple(content["mean"]),
            std=_tuple(content["std"]),
            statistics=_statistics(content.get("statistics")),
            sharding=sharding.from_json(content["layout"]) if "layout" in content else None,
            roots={name: Root(**root) for name, root in content.get("bases", {}).items()},
        )
        claimed = content.pop("fingerprint")
        # What was read must say all that is written, or an edit could hide in what is not looked at.
        complete = _canonical(content) == _canonical(manifest._content())
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"not a shardflow manifest: {type(error).__name__}: {error}") from error
    if claimed != manifest.fingerprint:
        raise ManifestError(
            f"the manifest says its fingerprint is {claimed}, its content has {manifest.fingerprint}; "
            "it was edited or damaged: restore it"
        )
    if not complete:
        raise ManifestError("the manifest has entries that none of its version has; it was edited: restore it")
    return manifest


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)


def _statistics(content: Mapping[str, Any] | None) -> dict[str, Statistics] | None:
    return None if content is None else {split: from_json(counted) for split, counted in content.items()}


def is_name(value: Any) -> bool:
    """Return whether something can name a file of a dataset: a path of A-Z a-z 0-9 . _ - that leads nowhere else."""
    return isinstance(value, str) and bool(_NAME.fullmatch(value)) and not {".", ".."} & set(value.split("/"))


def _is_count(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_fraction(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
