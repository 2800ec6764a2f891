"""Hugging Face datasets: their images as undecoded files, and their classes by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shardflow.errors import ConfigError


def is_dataset(value: object) -> bool:
    """Whether a value is a Hugging Face dataset. The library is not imported for that."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, library.Dataset | library.IterableDataset)


_NAME_FILES_THEMSELVES = ("generator", "imagefolder")
"""Builders whose rows name files of this machine: those of the caller's function, or that the library has found."""


def may_name_files(dataset: Any) -> bool:
    """Return whether a path in a row may be opened: one that the caller or the library wrote there.

    Any other comes from a file of rows. The library does not record whose that is, and most are downloaded. Where it
    does not record a builder, rows in memory are the caller's; streams, and files of rows, can be of any builder.
    """
    files = [Path(each["filename"]) for each in getattr(dataset, "cache_files", ())]
    if any(file.with_name("state.json").exists() for file in files):  # saved: with the files in it, and no other path
        return False
    if (builder := dataset.info.builder_name) is not None:
        return builder in _NAME_FILES_THEMSELVES
    return not files and hasattr(dataset, "cache_files")


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
