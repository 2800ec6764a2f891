"""Wording that messages and output share: numbers with their nouns."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 shard", "2,048 shards"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
