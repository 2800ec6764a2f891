"""shardflow: pack images once into WebDataset tar shards, stream them anywhere.

    shardflow.pack(src, dst)        images -> dataset; src: a folder, a table, a COCO set, tars, or one of `sources`
    shardflow.extend(src, dst)      more images -> new shards of a dataset
    shardflow.remove(url, keys)     dataset -> the same dataset without some samples
    shardflow.Loader(url, ...)      dataset -> batches of tensors
    shardflow.Mix([(url, weight)])  several datasets -> batches of tensors
    shardflow.samples(url, ...)     dataset -> the first stage of a WebDataset pipeline
    shardflow.Cache(directory)      a local cache of shards and decoded images
    shardflow.open(url)             dataset -> splits and samples by number
    shardflow.verify(url)           dataset -> its damage, and its differences from the source
    shardflow.repair(url, source)   dataset -> the same dataset, undamaged
    shardflow.sync(src, dst)        dataset -> the same dataset somewhere else
    shardflow.index(urls, to)       tars of other tools -> a dataset over them, in place
    shardflow.subset(src, dst)      dataset -> a selection of its samples, over the same tars
    shardflow.split(src, dst)       dataset -> the same samples with a split held out, over the same tars
    shardflow.split_folds(src, dst) dataset -> the folds of a cross-validation, over the same tars
    shardflow.merge(srcs, dst)      datasets -> one dataset, over the same tars
    shardflow.diff(a, b)            datasets -> their differences
    shardflow.tune(make_loader)     your loader -> the fastest settings on this machine

    shardflow.sources               inputs of `pack`: Folder, Table, Parquet, Coco, Yolo, Voc, Shards, Collection
    shardflow.annotations           the meaning of parts: Annotations, Boxes, Keypoints
    shardflow.columns               values per sample, added to a dataset without rewriting its tars: add, drop
    shardflow.decoders              from encoded images to tensors: RandomResizedCrop, CenterCrop, MultiView, ...
    shardflow.samplers              the samples of an epoch, and their order
    shardflow.device                prefetching and augmentation on the GPU: Prefetcher, Normalize, MixUp, ...
    shardflow.metrics               statistics of a loader for Prometheus and OpenTelemetry
    shardflow.reports               the results of the functions above
    shardflow.errors                the exceptions

Names are imported on first use, so `import shardflow` is fast and does not load torch.
"""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from . import annotations as annotations
    from . import columns as columns
    from . import decoders as decoders
    from . import device as device
    from . import errors as errors
    from . import metrics as metrics
    from . import reports as reports
    from . import samplers as samplers
    from . import sources as sources
    from ._version import __version__ as __version__
    from .dataset.diffing import diff as diff
    from .dataset.indexing_tars import index as index
    from .dataset.merging import merge as merge
    from .dataset.open_dataset import Dataset as Dataset
    from .dataset.open_dataset import Split as Split
    from .dataset.open_dataset import open_dataset as _open_dataset
    from .dataset.splitting import split as split
    from .dataset.splitting import split_folds as split_folds
    from .dataset.subsetting import subset as subset
    from .dataset.syncing import sync as sync
    from .diagnostics.tuning import tune as tune
    from .loading.loader import Loader as Loader
    from .loading.mix import Mix as Mix
    from .loading.sample_stream import Samples as _Samples
    from .loading.worker_settings import Workers as Workers
    from .order.shuffle_settings import Shuffle as Shuffle
    from .packing.creating import pack as pack
    from .packing.extending import extend as extend
    from .packing.removing import remove as remove
    from .packing.repairing import repair as repair
    from .packing.verifying import verify as verify
    from .storage.cache import Cache as Cache

    open = _open_dataset  # noqa: A001 - `shardflow.open` reads as it should
    samples = _Samples
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
