"""shardflow: pack images once into WebDataset tar shards, stream them anywhere.

    shardflow.pack(src, dst)        images -> dataset; src: a folder, or a Table, Coco, Shards, Collection
    shardflow.extend(src, dst)      new images -> new shards of a dataset
    shardflow.Loader(url, ...)      dataset -> batches of tensors
    shardflow.Mix([(url, weight)])  several datasets -> batches of tensors
    shardflow.DevicePrefetcher(...) batches of tensors -> batches on a device, augmented there
    shardflow.samplers              which samples make an epoch: Weighted, Subset, ClassBatches, AspectBuckets
    shardflow.decoders              how images are cropped: RandomResizedCrop, CenterCrop, Image, MultiView, Raw, Cover
    shardflow.samples(url, ...)     dataset -> the head of a WebDataset pipeline
    shardflow.Cache(directory)      where shards and decoded images are kept
    shardflow.open(url)             dataset -> splits and samples by number
    shardflow.verify(url)           dataset -> all damage in it, and what its sources say otherwise
    shardflow.repair(url, source)   dataset -> the same dataset, undamaged
    shardflow.sync(src, dst)        dataset -> the same dataset somewhere else
    shardflow.index(urls, to)       tars of other writers -> a dataset over them, in place
    shardflow.subset(src, dst)      dataset -> a dataset of some of its samples, over the same tars
    shardflow.split(src, dst)       dataset -> a dataset with a split held out, over the same tars
    shardflow.split_folds(src, dst) dataset -> the datasets of a k-fold cross-validation, over the same tars
    shardflow.merge(srcs, dst)      datasets -> one dataset, over the same tars
    shardflow.diff(a, b)            datasets -> their differences
    shardflow.tune(make_loader)     your loader -> the settings that suit this machine
    shardflow.PrometheusExporter(loader), OpenTelemetryExporter(loader)
                                    statistics of a loader -> metrics
    shardflow.errors                the exceptions

Each name is imported on first use, so that `import shardflow` is quick and does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import decoders, samplers
    from .dataset.dataset import Dataset, Split
    from .dataset.dataset import open_dataset as open  # noqa: A004 - `shardflow.open` reads as it should
    from .dataset.diffing import Diff, SplitDiff, diff
    from .dataset.indexing import IndexReport, index
    from .dataset.merging import merge
    from .dataset.splitting import split, split_folds
    from .dataset.subsetting import subset
    from .dataset.syncing import SyncReport, sync
    from .dataset.verifying import Finding
    from .dataset.virtual_dataset import VirtualReport
    from .device.prefetcher import DevicePrefetcher
    from .device.transforms.color_jitter import ColorJitter
    from .device.transforms.decode_jpeg import DecodeJpeg
    from .device.transforms.mixup import CutMix, MixedTargets, MixUp, OneOf
    from .device.transforms.normalize import Normalize
    from .device.transforms.random_erasing import RandomErasing
    from .device.transforms.random_flip import RandomHorizontalFlip
    from .device.transforms.random_resized_crop import RandomResizedCrop
    from .diagnostics.metrics import OpenTelemetryExporter, PrometheusExporter
    from .diagnostics.tuning import tune
    from .formats.annotations import Annotations, Boxes, Keypoints
    from .geometry.objects import CroppedBoxes
    from .loading.loader import Loader
    from .loading.mix import Mix
    from .loading.sample_stream import Samples as samples  # noqa: N813 - used as a function
    from .loading.workers import Workers
    from .order.shuffle import Shuffle
    from .packing.extending import ExtendReport, extend
    from .packing.packing import PackReport, pack
    from .packing.repairing import RepairReport, repair
    from .packing.sources.coco import Coco
    from .packing.sources.collection import Collection
    from .packing.sources.folder import Folder
    from .packing.sources.shards import Shards
    from .packing.sources.table import Table
    from .packing.verifying import verify
    from .storage.cache import Cache

_LAZY = {
    "Annotations": ("formats.annotations", "Annotations"),
    "Boxes": ("formats.annotations", "Boxes"),
    "Cache": ("storage.cache", "Cache"),
    "Coco": ("packing.sources.coco", "Coco"),
    "Collection": ("packing.sources.collection", "Collection"),
    "ColorJitter": ("device.transforms.color_jitter", "ColorJitter"),
    "CroppedBoxes": ("geometry.objects", "CroppedBoxes"),
    "CutMix": ("device.transforms.mixup", "CutMix"),
    "Dataset": ("dataset.dataset", "Dataset"),
    "DecodeJpeg": ("device.transforms.decode_jpeg", "DecodeJpeg"),
    "DevicePrefetcher": ("device.prefetcher", "DevicePrefetcher"),
    "Diff": ("dataset.diffing", "Diff"),
    "ExtendReport": ("packing.extending", "ExtendReport"),
    "Finding": ("dataset.verifying", "Finding"),
    "Folder": ("packing.sources.folder", "Folder"),
    "IndexReport": ("dataset.indexing", "IndexReport"),
    "Keypoints": ("formats.annotations", "Keypoints"),
    "Loader": ("loading.loader", "Loader"),
    "Mix": ("loading.mix", "Mix"),
    "MixUp": ("device.transforms.mixup", "MixUp"),
    "MixedTargets": ("device.transforms.mixup", "MixedTargets"),
    "Normalize": ("device.transforms.normalize", "Normalize"),
    "OneOf": ("device.transforms.mixup", "OneOf"),
    "OpenTelemetryExporter": ("diagnostics.metrics", "OpenTelemetryExporter"),
    "PackReport": ("packing.packing", "PackReport"),
    "PrometheusExporter": ("diagnostics.metrics", "PrometheusExporter"),
    "RandomErasing": ("device.transforms.random_erasing", "RandomErasing"),
    "RandomHorizontalFlip": ("device.transforms.random_flip", "RandomHorizontalFlip"),
    "RandomResizedCrop": ("device.transforms.random_resized_crop", "RandomResizedCrop"),
    "RepairReport": ("packing.repairing", "RepairReport"),
    "Shards": ("packing.sources.shards", "Shards"),
    "Shuffle": ("order.shuffle", "Shuffle"),
    "Split": ("dataset.dataset", "Split"),
    "SplitDiff": ("dataset.diffing", "SplitDiff"),
    "SyncReport": ("dataset.syncing", "SyncReport"),
    "Table": ("packing.sources.table", "Table"),
    "Workers": ("loading.workers", "Workers"),
    "VirtualReport": ("dataset.virtual_dataset", "VirtualReport"),
    "decoders": ("decoders", ""),
    "diff": ("dataset.diffing", "diff"),
    "extend": ("packing.extending", "extend"),
    "index": ("dataset.indexing", "index"),
    "merge": ("dataset.merging", "merge"),
    "open": ("dataset.dataset", "open_dataset"),
    "pack": ("packing.packing", "pack"),
    "repair": ("packing.repairing", "repair"),
    "samplers": ("samplers", ""),
    "samples": ("loading.sample_stream", "Samples"),
    "split": ("dataset.splitting", "split"),
    "split_folds": ("dataset.splitting", "split_folds"),
    "subset": ("dataset.subsetting", "subset"),
    "sync": ("dataset.syncing", "sync"),
    "tune": ("diagnostics.tuning", "tune"),
    "verify": ("packing.verifying", "verify"),
}

__all__ = [
    "Annotations",
    "Boxes",
    "Cache",
    "Coco",
    "Collection",
    "ColorJitter",
    "CroppedBoxes",
    "CutMix",
    "Dataset",
    "DecodeJpeg",
    "DevicePrefetcher",
    "Diff",
    "ExtendReport",
    "Finding",
    "Folder",
    "IndexReport",
    "Keypoints",
    "Loader",
    "Mix",
    "MixUp",
    "MixedTargets",
    "Normalize",
    "OneOf",
    "OpenTelemetryExporter",
    "PackReport",
    "PrometheusExporter",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RepairReport",
    "Shards",
    "Shuffle",
    "Split",
    "SplitDiff",
    "SyncReport",
    "Table",
    "VirtualReport",
    "Workers",
    "decoders",
    "diff",
    "errors",
    "extend",
    "index",
    "merge",
    "open",
    "pack",
    "repair",
    "samplers",
    "samples",
    "split",
    "split_folds",
    "subset",
    "sync",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardflow._imports import import_large  # here, or it would be a name of this module

    module, attribute = _LAZY[name]
    imported = import_large(f".{module}", __name__)
    value = getattr(imported, attribute) if attribute else imported
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
