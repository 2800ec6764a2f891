"""shardflow: pack images once into WebDataset tar shards, stream them anywhere.

    shardflow.pack(src, dst)        image folder -> dataset
    shardflow.Loader(url, ...)      dataset -> batches of tensors
    shardflow.Mix([(url, weight)])  several datasets -> batches of tensors
    shardflow.samples(url, ...)     dataset -> the head of a WebDataset pipeline
    shardflow.open(url)             dataset -> splits and samples by number
    shardflow.verify(url)           dataset -> everything that is wrong with it
    shardflow.sync(src, dst)        dataset -> the same dataset somewhere else

The names that need torch are imported on first use, so that `import shardflow` does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .dataset import Dataset, Split
from .dataset import open_dataset as open  # noqa: A004 - `shardflow.open` reads as it should

# Bound here and not on first use: importing the modules of these names would otherwise put the modules in their place.
from .pack import PackReport, pack
from .sync import SyncReport, sync
from .verify import Finding, verify

if TYPE_CHECKING:
    from .load.decode import CenterCropDecoder, ImageDecoder, RandomResizedCropDecoder
    from .load.loader import Loader
    from .load.mix import Mix
    from .load.samples import Samples as samples  # noqa: N813 - used as a function

__version__ = "0.1.0"

_LAZY = {
    "CenterCropDecoder": ("load.decode", "CenterCropDecoder"),
    "ImageDecoder": ("load.decode", "ImageDecoder"),
    "Loader": ("load.loader", "Loader"),
    "Mix": ("load.mix", "Mix"),
    "RandomResizedCropDecoder": ("load.decode", "RandomResizedCropDecoder"),
    "samples": ("load.samples", "Samples"),
}

__all__ = [
    "CenterCropDecoder",
    "Dataset",
    "Finding",
    "ImageDecoder",
    "Loader",
    "Mix",
    "PackReport",
    "RandomResizedCropDecoder",
    "Split",
    "SyncReport",
    "open",
    "pack",
    "samples",
    "sync",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
