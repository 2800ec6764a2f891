"""Splits of tars without a manifest: the folders that hold them are named like splits."""

from __future__ import annotations

from collections.abc import Iterable

from shardflow.errors import ConfigError

from .manifest import SPLITS


def tar_splits(root: str, names: Iterable[str]) -> dict[str, str]:
    """Return the split of each tar below a root: the folder of its path that is named like a split.

    If no tar has one, all belong to the split after which the root itself is named, or else to "train".

    Raises:
        ConfigError: Only some tars are in such folders, or one is in folders of two splits.
    """
    found = {name: {folder for folder in name.lower().split("/")[:-1] if folder in SPLITS} for name in names}
    remedy = f"splits are {', '.join(SPLITS)}; move it, or name one kind with a pattern: {root}/{{train,val}}/*.tar"
    if several := next((name for name, splits in found.items() if len(splits) > 1), None):
        raise ConfigError(f"{root} has {several!r}, which is in folders of several splits; {remedy}")
    others = [name for name, splits in found.items() if not splits]
    if others and len(others) < len(found):
        inside = next(name for name, splits in found.items() if splits)
        raise ConfigError(f"{root} has {inside!r} in the folder of a split and {others[0]!r} in none; {remedy}")
    last = root.rpartition("/")[2].lower()
    default = last if last in SPLITS else SPLITS[0]
    return {name: next(iter(splits), default) for name, splits in found.items()}
