"""Hugging Face datasets: their images as undecoded files, and their classes by name."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from shardflow.errors import ConfigError


class Features(NamedTuple):
    """The columns of a dataset that have images, and those that have classes, with the names of the classes."""

    images: tuple[str, ...]
    classes: dict[str, tuple[str, ...]]


def is_dataset(value: object) -> bool:
    """Whether a value is a Hugging Face dataset. The library is not imported for that."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, library.Dataset | library.IterableDataset)


def undecoded(dataset: Any, where: str) -> tuple[Any, Features]:
    """Return a dataset that yields the bytes of its images instead of decoding them, and its columns.

    Args:
        dataset: A Hugging Face dataset.
        where: Its name in messages.

    Raises:
        ConfigError: No column has images.
    """
    import datasets

    features = dataset.features or {}
    images = tuple(name for name, feature in features.items() if isinstance(feature, datasets.Image))
    if not images:
        found = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise ConfigError(f"{where} has no column with images, but {found or 'no known columns'}; cast it to Image()")
    for name in images:
        dataset = dataset.cast_column(name, datasets.Image(decode=False))
    classes = {}
    for name, feature in features.items():
        one = getattr(feature, "feature", feature)  # a list of classes has the class as its `feature`
        if isinstance(one, datasets.ClassLabel):
            classes[name] = tuple(one.names)
    return dataset, Features(images, classes)
