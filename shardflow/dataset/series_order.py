"""Values that a pandas Series has by path, in the order of a split; the Series itself has the order of some table."""

from __future__ import annotations

import os
from typing import Any

from shardflow.errors import ConfigError

from .open_dataset import Split


def is_series(values: object) -> bool:
    """Return whether these are a pandas Series, without importing pandas."""
    return hasattr(values, "reindex") and hasattr(values, "index")


def in_split_order(split: Split, argument: str, series: Any) -> list[Any]:
    """Return the value of each sample of a split, by its path, or its path without extension, in the Series' index.

    Raises:
        ConfigError: The index lacks one, or has it twice.
        NotFoundError: A receipt, which has the paths, is missing.
    """
    paths = split.sources()
    stems = [os.path.splitext(path)[0] for path in paths]
    by_name = series.set_axis(series.index.map(str))
    for names in (paths, stems) if len({*stems}) == len({*paths}) else (paths,):
        if by_name.index.is_unique and by_name.index.isin(names).sum() == len({*names}):
            return [*by_name.loc[names]]
    raise ConfigError(
        f"{argument} is a Series, which has the order of its table, and its index does not have each sample "
        f"of split {split.name!r} once, such as {paths[0]!r}: set the table's index to its column of paths or ids, or "
        "pass .to_numpy() of values in the order of Split.sources()"
    )
