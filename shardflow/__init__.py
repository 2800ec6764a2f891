"""shardflow: pack images once into WebDataset tar shards, stream them anywhere.

    shardflow.pack(src, dst)        images -> dataset; src: a folder, or a Table, Shards, Collection
    shardflow.extend(src, dst)      new images -> new shards of a dataset
    shardflow.Loader(url, ...)      dataset -> batches of tensors
    shardflow.Mix([(url, weight)])  several datasets -> batches of tensors
    shardflow.DevicePrefetcher(...) batches of tensors -> batches on a device, augmented there
    shardflow.samples(url, ...)     dataset -> the head of a WebDataset pipeline
    shardflow.open(url)             dataset -> splits and samples by number
    shardflow.verify(url)           dataset -> everything that is wrong with it
    shardflow.repair(url, source)   dataset -> the same dataset, undamaged
    shardflow.sync(src, dst)        dataset -> the same dataset somewhere else
    shardflow.index(urls, to)       tars of others -> a dataset, where they are
    shardflow.subset(src, dst)      dataset -> some of its samples as a dataset, its tars where they are
    shardflow.split(src, dst)       dataset -> the same with a split held out, its tars where they are
    shardflow.diff(a, b)            datasets -> how they differ
    shardflow.merge(srcs, dst)      datasets -> one dataset, their tars where they are
    shardflow.tune(make_loader)     your loader -> the settings that suit this machine

The names that need torch are imported on first use, so that `import shardflow` does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .dataset import Dataset, Split
from .dataset import open_dataset as open  # noqa: A004 - `shardflow.open` reads as it should

# Bound here and not on first use: importing the modules of these names would otherwise put the modules in their place.
from .pack import Collection, Folder, PackReport, Shards, Table, pack
from .pack.extend import ExtendReport, extend
from .pack.repair import RepairReport, repair
from .sync import SyncReport, sync
from .verify import Finding, verify
from .views.diff import Diff, SplitDiff, diff
from .views.index import IndexReport, index
from .views.made import ViewReport
from .views.merge import merge
from .views.split import split
from .views.subset import subset

if TYPE_CHECKING:
    from .device.blend import CutMix, MixUp, OneOf
    from .device.crop import RandomResizedCrop
    from .device.encoded import DecodeJpeg, EncodedDecoder
    from .device.erasing import RandomErasing
    from .device.flip import RandomHorizontalFlip
    from .device.jitter import ColorJitter
    from .device.normalize import Normalize
    from .device.prefetcher import DevicePrefetcher
    from .device.stage import Pairs
    from .load.decode import CenterCropDecoder, ImageDecoder, RandomResizedCropDecoder
    from .load.loader import Loader
    from .load.mix import Mix
    from .load.samples import Samples as samples  # noqa: N813 - used as a function
    from .tuning.tune import tune

__version__ = "0.1.0"

_LAZY = {
    "CenterCropDecoder": ("load.decode", "CenterCropDecoder"),
    "ColorJitter": ("device.jitter", "ColorJitter"),
    "CutMix": ("device.blend", "CutMix"),
    "DecodeJpeg": ("device.encoded", "DecodeJpeg"),
    "DevicePrefetcher": ("device.prefetcher", "DevicePrefetcher"),
    "EncodedDecoder": ("device.encoded", "EncodedDecoder"),
    "ImageDecoder": ("load.decode", "ImageDecoder"),
    "Loader": ("load.loader", "Loader"),
    "Mix": ("load.mix", "Mix"),
    "MixUp": ("device.blend", "MixUp"),
    "Normalize": ("device.normalize", "Normalize"),
    "OneOf": ("device.blend", "OneOf"),
    "Pairs": ("device.stage", "Pairs"),
    "RandomErasing": ("device.erasing", "RandomErasing"),
    "RandomHorizontalFlip": ("device.flip", "RandomHorizontalFlip"),
    "RandomResizedCrop": ("device.crop", "RandomResizedCrop"),
    "RandomResizedCropDecoder": ("load.decode", "RandomResizedCropDecoder"),
    "samples": ("load.samples", "Samples"),
    "tune": ("tuning.tune", "tune"),
}

__all__ = [
    "CenterCropDecoder",
    "Collection",
    "ColorJitter",
    "CutMix",
    "Dataset",
    "DecodeJpeg",
    "DevicePrefetcher",
    "Diff",
    "EncodedDecoder",
    "ExtendReport",
    "Finding",
    "Folder",
    "ImageDecoder",
    "IndexReport",
    "Loader",
    "Mix",
    "MixUp",
    "Normalize",
    "OneOf",
    "PackReport",
    "Pairs",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomResizedCropDecoder",
    "RepairReport",
    "Shards",
    "Split",
    "SplitDiff",
    "SyncReport",
    "Table",
    "ViewReport",
    "diff",
    "extend",
    "index",
    "merge",
    "open",
    "pack",
    "repair",
    "samples",
    "split",
    "subset",
    "sync",
    "tune",
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
