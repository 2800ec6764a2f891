"""Hugging Face datasets: their images as undecoded files, and their classes by name."""

from __future__ import annotations

import sys
from typing import Any

from shardflow.errors import ConfigError


def is_dataset(value: object) -> bool:
    """Whether a value is a Hugging Face dataset. The library is not imported for that."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, library.Dataset | library.IterableDataset)


def undecoded(dataset: Any, where: str) -> tuple[Any, list[str], dict[str, tuple[str, ...]]]:
    """Return a dataset that yields undecoded images, its image columns, and its class columns with their names."""
    import datasets

    features = dataset.features or {}
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if not images:
        found = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise ConfigError(f"{where} has no column with images, but {found or 'no known columns'}; cast it to Image()")
    for name in images:
        dataset = dataset.cast_column(name, datasets.Image(decode=False))
    # A list of classes has the class as its `feature`.
    types = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    classes = {name: tuple(each.names) for name, each in types.items() if isinstance(each, datasets.ClassLabel)}
    return dataset, images, classes
