"""The loader: `for images, labels in loader`.

The cursor (epoch, position) is the whole state. It lives here, in the training process, and moves when a batch is
handed out; workers receive the start of an iteration and compute everything else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import webdataset as wds
from torch.utils.data import DataLoader

from shardflow._validation import check_callable, check_integer, explain_unknown_arguments
from shardflow._wording import plural
from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError
from shardflow.geometry.objects import CroppedBoxes
from shardflow.order.epochs import Epochs
from shardflow.order.sampler import Sampler
from shardflow.order.schedule import MOST_BATCH, Schedule
from shardflow.order.shuffle import Shuffle
from shardflow.storage.cache import Cache

from . import checkpoint
from .annotation_fields import AnnotationFields
from .batch_run import BatchRun
from .checkpoint import Cursor
from .decoders.center_crop import CenterCrop
from .decoders.cover import Cover
from .decoders.decoder import Decoder, check_decoder
from .decoders.random_resized_crop import RandomResizedCrop
from .facts import split_facts
from .fields import check_image_fields, check_stackable, resolve_fields, split_options
from .map_dataset import MapDataset
from .pipeline import PipelineSource, build_pipeline, describe_batches
from .pixel_cache import PixelCache
from .provenance import describe_dataset, describe_object, describe_versions
from .sampler import EpochStart, PlanSampler, WorkerControl
from .shared_memory import SLOTS_BEYOND_PREFETCH
from .stages import Transforms
from .stats import Stats, StatsRecorder
from .topology import check_equal_on_ranks, resolve_rank, usable_cores
from .tv_sample import check_movable
from .workers import WorkerPool, check_sendable

logger = logging.getLogger(__name__)

_ELSEWHERE = {
    "cache_dir": "use cache",
    "cache_limit": "use cache=shardflow.Cache(directory, limit=...)",
    "batch_sampler": "batch_size and shuffle decide what a batch is",
    "cache_size": "use cache=shardflow.Cache(directory, limit=...)",
    "collate_fn": "batch_transform is called with the fields of each batch",
    "dataset": "the first argument is the path or URL of a packed dataset",
    "device": "device.Prefetcher(loader, device) brings batches to a device",
    "drop_last": "tail='drop' leaves the last incomplete batch out, tail='short' keeps it",
    "generator": "seed decides all that is random",
    "handler": "max_bad says how many damaged samples others may replace",
    "image_size": "the size of crops is the decoder's: decoder=shardflow.decoders.RandomResizedCrop(224)",
    "in_order": "batches always come in order",
    "nodesplitter": "every rank gets its own share, without a splitter",
    "num_replicas": "use world_size",
    "pin_memory_device": "pin_memory serves every device",
    "resampled": "an epoch has each sample once; samples_per_epoch gives it another length",
    "samples_per_class": "sampler=shardflow.samplers.ClassBatches(...) composes batches by class",
    "shardshuffle": "shuffle=True shuffles the shards too",
    "size": "the size of crops is the decoder's: decoder=shardflow.decoders.RandomResizedCrop(224)",
    "target_transform": "batch_transform gets the labels of each batch",
    "timeout": "waits for storage and workers have limits of their own",
    "transforms": "use transform, called with each image, or batch_transform",
    "weights": "sampler=shardflow.samplers.Weighted(...) draws samples by weight",
    "worker_init_fn": "transforms are seeded for each sample, so workers need none",
    "workers": "use num_workers",
    "workersplitter": "every worker gets its own share, without a splitter",
}
"""What arguments of the loaders and datasets of PyTorch and webdataset are here."""


class BatchSampler(NamedTuple):
    """The one attribute of a torch DataLoader that trainers look for on a loader.

    Lightning calls `loader.batch_sampler.sampler.set_epoch` and reads `loader.batch_sampler.batch_size`. There is no
    `loader.sampler`: where that exists, Lightning replaces it to shuffle by itself.
    """

    sampler: Any  # the loader or mix itself
    batch_size: int


class Loader:
    """Streams one split of a dataset as batches; iterating it again gives the next epoch.

    >>> loader = shardflow.Loader("photos256", split="train", batch_size=256)      # doctest: +SKIP
    >>> for images, labels in loader:    # uint8 [256, 3, 224, 224], int64 [256]     # doctest: +SKIP
    ...     train_step(images, labels)

    Args:
        url: The dataset: a directory, or any URL that fsspec serves, such as "s3://bucket/photos256".
        split: Name of the split to read.
        version: Fingerprint of the version to read, if the dataset was extended since; by default the newest.
        batch_size: Samples per batch and rank, 1 or more.
        decoder: Decodes and crops the images of a batch: one of `shardflow.decoders`, or of a class that inherits from
            one; by default `RandomResizedCrop(224)` when shuffling, else `CenterCrop(224)`. Several crops of an image:
            `MultiView([...])`. To decode on the device, `Raw()` here and `DecodeJpeg` among the transforms of
            `device.Prefetcher`.
        transform: Called with each image, a uint8 tensor [3, H, W]; returns a tensor. Any torchvision v2 transform.
            With masks, boxes or keypoints among the fields, called with a dict of them and the image as tv_tensors, by
            the names of the fields, and returns the dict. Random numbers that it draws from torch's, Python's or
            numpy's global generator depend on (seed, epoch, sample) alone. With `MultiView`, one for all views, with
            random numbers of its own for each, or a list with one (or None) for each view.
        batch_transform: Called in the worker with the fields of each batch as arguments; returns the batch. An error
            that it, `transform` or `decoder` raises arrives as it is, with a note (Python 3.11) that names the sample.
        fields: What a batch consists of, in order: "image", "flipped" (bool [B], whether the decoder mirrored the
            image), "crop" (float32 [B, 4], the part of the stored image that it shows: left, top, right, bottom in
            pixels; both with `MultiView` a tuple with one for each view), "pixel_mask" (bool [B, H, W], False where a
            batch is padded), "image_size" (int64 [B, 2], height, width), "label" (int64 [B], from `.cls`), "labels"
            (float32 [B, classes], 1 for each class of a sample, from `.labels.json` or `.cls`), "key" (list of str),
            "valid" (bool [B], False for the repeats in a padded tail), "random_key" (int64 [B], from (seed, epoch,
            sample) alone, for transforms on a device), "index" (int64 [B], the samples' numbers in the split, as in
            `samplers.Subset`), "source" (int64 [B], the number of the samples' loader in a `Mix`; 0 without), and the
            name of any part: "txt" (list of str), "json" (list of parsed values), others (list of bytes).
            Annotations that the dataset declares are cropped, resized and flipped as the image is: "mask", or another
            part that is a mask, without its ".png" (uint8, of 16-bit PNGs int32, [B, 1 or 3, H, W]), "boxes" or
            `CroppedBoxes(min_visibility=...)` (a list of float32 [N, 4]: left, top, right, bottom in pixels of the
            crop), "box_NAME" for a field of the boxes (a list of int64 or float32 [N]) and "keypoints" (a list of
            float32 [N, K, 2 or 3] or [K, 2 or 3]). By default image and label, or image and key for a dataset without
            labels; with tail="pad", "valid" comes third.
        shuffle: True, False for the split's own order, or `Shuffle(window=..., lanes=...)`.
        seed: Seed of the order and of all augmentation.
        tail: How to treat samples that do not fill a last global batch: "drop" omits them, "pad" fills the batch with
            samples from the start of the epoch, "short" distributes them (a rank may get an empty batch). All ranks
            make the same number of steps in each. By default "drop" when shuffling, as for training, else "short", so
            that an evaluation has each sample exactly once.
        limit: Use only the first `limit` samples of the split, for a trial run.
        samples_per_epoch: Length of an epoch over all ranks, for runs that count steps: each iteration hands out that
            many samples and the next one continues after them, from pass to pass over the split without a gap. By
            default an epoch is one pass.
        sampler: Which samples make an epoch, and how they form batches; by default each sample comes once. One of
            `shardflow.samplers`, such as `Weighted("balanced")`, `Subset(numbers)`, `ClassBatches(4)` and
            `AspectBuckets([(224, 224), ...])`, or one that you write. `shuffle` and `limit` count for it too.
        max_bad: Number of different damaged samples that may be replaced by others of their batch, so that all ranks
            keep their steps and shapes; `substituted` names them. With 0, the first damaged sample raises its error.
        num_workers: Worker processes; by default one per core that this rank may use. 0 loads in this process.
        prefetch_factor: Batches prefetched by each worker, 1 or more.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Put batches into pinned memory; by default where there is a GPU.
        multiprocessing_context: Start method of the workers, as for `torch.utils.data.DataLoader`.
        rank, world_size: By default those of torch.distributed if it is initialised, else RANK and WORLD_SIZE from the
            environment, else 0 and 1.
        cache: Where shards that are not on a local disk are kept: a directory, or `Cache(directory, limit=...,
            pixels=...)`. Ranks, workers and runs on a host share it. By default `shardflow` in the user's cache
            directory, up to 100 GB. Of a dataset larger than the limit, the same shards stay. With `pixels`,
            decoded images are kept too, also those of a local dataset, so that later epochs and runs crop without
            decoding; batches are the same, bit by bit. An image of 256 x 341 pixels takes 262 kB; images that do not
            fit are decoded every time.
        storage_options: Options of fsspec's file system (`endpoint_url`, `anon`, …); not for directories.

    Attributes:
        dataset: The samples as PyTorch's map-style datasets are: `len(loader.dataset)` of them, `loader.dataset[i]` is
            (image, label), uint8 [3, H, W] and int. Its `dataset` is the open dataset with all of its splits.
        split: The split that is read.
        fields: What a batch consists of.
        annotations: Which of the fields follow the crops, and which boxes stay.
        batch_size, num_workers, max_bad: As given, or chosen.
        order: The order of the epochs.
        persistent: Whether workers are kept from epoch to epoch.
        is_mixed: Whether it is part of a `Mix`, which counts on the length of its epochs.
        decoder: The decoder in use.
        pixel_cache: The cache of decoded images; None without one.

    Raises:
        ConfigError: An argument is wrong, or the dataset lacks a field.
        NotFoundError: There is no dataset at `url`.
        StoreError: The dataset cannot be reached.
    """

    @explain_unknown_arguments(_ELSEWHERE)
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        split: str = "train",
        version: str | None = None,
        batch_size: int,
        decoder: Decoder | None = None,
        transform: Transforms = None,
        batch_transform: Callable[..., Any] | None = None,
        fields: Sequence[str | CroppedBoxes] | None = None,
        shuffle: bool | Shuffle = True,
        seed: int = 0,
        tail: str | None = None,
        limit: int | None = None,
        samples_per_epoch: int | None = None,
        sampler: Sampler | None = None,
        max_bad: int = 0,
        num_workers: int | None = None,
        prefetch_factor: int = 4,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        batch_size = check_integer("batch_size", batch_size, 1, MOST_BATCH)
        num_workers = usable_cores() if num_workers is None else check_integer("num_workers", num_workers, 0)
        prefetch_factor = check_integer("prefetch_factor", prefetch_factor, 1)
        transforms = list(transform) if isinstance(transform, Sequence) else [transform]
        for name, value in (*(("transform", each) for each in transforms), ("batch_transform", batch_transform)):
            check_callable(name, value)
            if type(value).__module__.startswith("shardflow.device."):
                raise ConfigError(
                    f"{type(value).__name__} is no {name} of a loader: put it into the transforms of a "
                    "device.Prefetcher, which takes device='cpu' too"
                )
        self.max_bad = check_integer("max_bad", max_bad, 0)
        self._transform, self._batch_transform, self.persistent = transform, batch_transform, persistent_workers

        self._opened = open_dataset(url, storage_options=storage_options, cache=cache, version=version)
        self.split = self._opened[split]
        rank, world_size = resolve_rank(rank, world_size)
        self._facts = split_facts(
            self.split,
            self._opened.classes,
            shuffle=shuffle,
            limit=limit,
            batch_size=batch_size,
            world_size=world_size,
        )
        self._limit, self._is_sampled = None if limit is None else int(limit), sampler is not None
        self.order = self._new_order(sampler, seed, samples_per_epoch)
        if tail is None:
            tail = "short" if self.order.shuffle is None else "drop"
        self._schedule = Schedule(
            length=self.order.length,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            tail=tail,
            contiguous=self.order.sampler.together == "batch",
        )
        self._check_epoch(self.order, self._schedule)
        self._lanes = self.order.default_lanes(world_size)
        self.is_mixed = False
        self._cursor = Cursor()
        self._control = WorkerControl(num_workers)
        self._sampler = PlanSampler(self.split, self.order, self._schedule, self._control)

        self.dataset = MapDataset(self._opened, self.split, self.order.samples)
        names, boxes = split_options(fields)
        self.fields = resolve_fields(names, self._opened, self.split, pad=tail == "pad")
        self.batch_size, self.num_workers = batch_size, num_workers
        shapes = self.order.sampler.shapes
        if decoder is None and shapes:
            decoder = Cover()
        elif decoder is None:
            decoder = CenterCrop() if self.order.shuffle is None else RandomResizedCrop()
        check_decoder(decoder)
        if bool(shapes) != decoder.needs_shape or (shapes and "image" not in self.fields):
            raise ConfigError(
                f"{decoder!r} and {sampler!r}: decoders.Cover and samplers.AspectBuckets go together, with 'image' "
                "among the fields"
            )
        self.decoder = decoder
        self._check_transforms(transforms)
        self.annotations = AnnotationFields(self.fields, self._opened.manifest.annotations, boxes, decoder.max_pixels)
        if transform is not None and self.annotations.names:
            check_movable(self.annotations.names)
        if "image" in self.fields:
            decoder.load_libraries()
        check_image_fields(
            self.fields, views=bool(decoder.views), moved=self.annotations.names, padding=decoder.padding
        )
        if decoder.keeps_sizes and decoder.padding.needs_one_size and transform is None and "image" in self.fields:
            check_stackable(self.split, min(batch_size, self.order.samples))
        self.pixel_cache: PixelCache | None = None
        if isinstance(cache, Cache) and cache.pixel_limit_bytes is not None:
            if "image" not in self.fields:
                raise ConfigError(f"Cache(pixels=...) needs 'image' among the fields, found {self.fields}")
            self.pixel_cache = PixelCache(self.split, cache, decoder)
        if num_workers:
            check_sendable(
                multiprocessing_context, decoder=decoder, transform=transform, batch_transform=batch_transform
            )
        self._pool_options: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "pin_memory": pin_memory,
            "multiprocessing_context": multiprocessing_context,
        }
        self._workers = self.new_workers(
            partial(
                build_pipeline,
                self._sampler,
                [self.pipeline_source()],
                fields=self.fields,
                classes=len(self._opened.classes or ()),
                batch_transform=batch_transform,
                substitute=self.max_bad > 0,
            )
        )
        self._run = BatchRun(self._workers, self._control, max_bad=self.max_bad, what="loader")

    def new_workers(self, pipeline: Callable[..., wds.DataPipeline]) -> WorkerPool:
        """Return workers with the settings of this loader for a pipeline, which is called with the number of slots."""
        slots = self._pool_options["prefetch_factor"] + SLOTS_BEYOND_PREFETCH
        return WorkerPool(pipeline(slots=slots), **self._pool_options)

    def mix_settings(self) -> dict[str, Any]:
        """Return what must be equal for samples of several loaders to come in one batch."""
        return {
            "batch_size": self.batch_size,
            "rank": self._schedule.rank,
            "world_size": self._schedule.world_size,
            "batch_transform": self._batch_transform,
            "annotation fields": self.annotations.kinds,
        }

    def pipeline_source(self) -> PipelineSource:
        """Return how the samples of this loader are read, decoded and transformed, in its workers or in a mix's."""
        return PipelineSource(
            split=self.split,
            decoder=self.decoder,
            pixel_cache=self.pixel_cache,
            annotations=self.annotations,
            transform=self._transform,
        )

    @property
    def substituted(self) -> set[str]:
        """The problem of each sample that was replaced by another."""
        return self._run.substituted

    def _check_transforms(self, transforms: Sequence[Any]) -> None:
        if isinstance(self._transform, Sequence) and len(transforms) != (views := len(self.decoder.views) or 1):
            raise ConfigError(
                f"a list of transforms has one for each view of a MultiView; found {len(transforms)} for "
                f"{plural(views, 'view')}; to apply several in a row, use torchvision's v2.Compose"
            )

    def _check_epoch(self, order: Epochs, schedule: Schedule) -> None:
        """Check that an epoch has a batch for each rank, and that none of its samples is lost at a border."""
        if not schedule.steps():
            whose = f" for each of {schedule.world_size} ranks" if schedule.world_size > 1 else ""
            raise ConfigError(
                f"an epoch of split {self.split.name!r} has {plural(order.length, 'sample')}, less than one batch of "
                f"{schedule.batch_size}{whose}; lower batch_size, or set tail='short' or 'pad' (shuffle=False, for "
                "evaluation, implies 'short')"
            )
        if order.samples_per_epoch is not None and schedule.tail == "drop" and order.length % schedule.global_batch:
            raise ConfigError(
                f"samples_per_epoch={order.length} is not a multiple of the {schedule.global_batch} samples that all "
                "ranks take in a step, so each epoch would drop some; choose a multiple, or another tail"
            )

    def _new_order(self, sampler: Sampler | None, seed: int, samples_per_epoch: int | None) -> Epochs:
        order = Epochs(self._facts, sampler, seed=seed, samples_per_epoch=samples_per_epoch)
        for warning in order.sampler.warnings:
            logger.warning("%s", warning)
        return order

    def __len__(self) -> int:
        """Return the number of batches that each rank gets in a whole epoch, also after a resume: see `remaining`."""
        return self._schedule.steps()

    def __getitem__(self, number: object) -> NoReturn:
        raise TypeError(
            "a Loader yields batches and takes the place of PyTorch's DataLoader: iterate over it as it is; single "
            "samples are in loader.dataset"
        )

    def __repr__(self) -> str:
        order, schedule = self.order, self._schedule
        how = "in the split's order"
        if order.shuffle is not None:
            how = f"shuffled with seed {order.seed} ({self._lanes} lanes, window {order.shuffle.window})"
        epoch = "" if order.samples_per_epoch is None else f", {order.samples_per_epoch} per epoch"
        return (
            f"<shardflow.Loader of {self._opened.url}, split {self.split.name!r}: {order.samples} samples{epoch} "
            f"in {plural(len(self.split.shards), 'shard')}, {how}; {len(self)} batches of {self.batch_size} x "
            f"({', '.join(self.fields)}), tail {schedule.tail!r}; rank {schedule.rank} of {schedule.world_size}, "
            f"{plural(self.num_workers, 'worker')}; epoch {self.epoch}, {self.remaining} of its batches left>"
        )

    @property
    def epoch(self) -> int:
        """The epoch of the batch that was handed out last; before the first, the one that iterating begins with."""
        return self._cursor.epoch

    @property
    def remaining(self) -> int:
        """The batches of this epoch that are not handed out yet: all of them before it begins, fewer after a resume."""
        return self._schedule.steps(self._cursor.position)

    @property
    def classes(self) -> list[str]:
        """The class names, label 0 first; empty without labels."""
        return self.dataset.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name."""
        return self.dataset.class_to_idx

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        The start is fixed when the first batch is requested: Lightning calls `iter` before it sets the epoch.
        One iteration at a time: starting another, or moving the loader, ends the one before it.
        """
        if self._cursor.begun:
            self._cursor.set(self._cursor.epoch + 1)
        self.check_ranks()
        start = EpochStart(self._cursor.epoch, self._cursor.position, self._lanes)
        iteration = self._control.begin(start)
        batches = self._run.batches(
            iteration, self._schedule.steps(start.position), partial(self._batches_in_progress, start)
        )
        with contextlib.closing(batches):
            for handed_out, columns in batches:
                self._cursor.advance(self._schedule.after(start.position, handed_out))
                yield columns
        if self._control.iteration() != iteration:
            return
        self._cursor.set(start.epoch + 1)
        if not self.persistent:
            self._workers.end()

    def check_ranks(self) -> None:
        """Check that all ranks have the same sampler, which all of them call; ConfigError if not."""
        if self._is_sampled:
            identity = json.dumps(self.order.sampler.identity, sort_keys=True)
            check_equal_on_ranks("sampler", identity, self._schedule.world_size)

    def _batches_in_progress(self, start: EpochStart) -> str:
        """Describe the batches that the workers began last: a dead worker died on one of them."""
        steps = self._control.steps_begun()
        return describe_batches({n: self._sampler.batch(start, step) for n, step in steps.items()}, [self.split])

    def stats(self, *, whole_run: bool = False) -> Stats:
        """Return where the time went since the iteration began, or in all; its `str` says what to do about it."""
        return self._run.stats.stats(whole_run=whole_run)

    def count_in(self, recorder: StatsRecorder) -> None:
        """Count the batches in the statistics of a mix as well."""
        self._run.counted_by.append(recorder)

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data and to load it again: plain JSON, without credentials.

        The same from start to end of a run, and for all its ranks on equal machines. `version=` takes `fingerprint`.

        >>> mlflow.log_dict(loader.describe(), "data.json")      # doctest: +SKIP
        """
        plan = self._identity()
        del plan["version"]
        return {
            **describe_dataset(self._opened),
            "fields": list(self.fields),
            **({"boxes": repr(self.annotations.boxes)} if self.annotations.objects else {}),
            "decoder": describe_object(self.decoder),
            "transform": [describe_object(each) for each in self._transform]
            if isinstance(self._transform, Sequence)
            else describe_object(self._transform),
            "batch_transform": describe_object(self._batch_transform),
            "batch_size": self._schedule.batch_size,
            "world_size": self._schedule.world_size,
            "tail": self._schedule.tail,
            "max_bad": self.max_bad,
            "num_workers": self.num_workers,
            **plan,
            "samples": self.order.pass_length,
            "versions": {"python": platform.python_version(), **describe_versions()},
        }

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, from its start.

        Setting the epoch of a state that was just loaded keeps its position, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes at the right place.
        """
        if self._cursor.set_epoch(epoch):
            self._control.end()

    def set_sampler(self, sampler: Sampler) -> None:
        """Set another sampler for the epochs to come; a running epoch ends with that.

        The loader must have been made with a sampler, so that all ranks expect it: each epoch begins with a check that
        they have the same. New worker processes are started. A state names its sampler: set it again before
        `load_state_dict`.

        >>> loader = shardflow.Loader(url, batch_size=256, sampler=Weighted(1), fields=("image", "label", "index"))
        ...     # doctest: +SKIP
        >>> loader.set_sampler(Weighted(losses.clip(0.2, 3)))      # doctest: +SKIP

        Raises:
            ConfigError: The sampler does not fit, or the loader was made without any, is part of a `Mix`, or was
                resumed in the middle of an epoch and has not gone on yet.
        """
        if self.is_mixed:
            raise ConfigError("a loader of a mix keeps its sampler; make loaders with the others, and a Mix of these")
        if not self._is_sampled:
            raise ConfigError(
                "set_sampler changes the sampler of a loader that has one; make it with sampler=samplers.Weighted(1)"
            )
        order = self._new_order(sampler, self.order.seed, self.order.samples_per_epoch)
        old = self.order.sampler
        if order.sampler.identity == old.identity:
            return
        if (order.sampler.together, order.sampler.shapes) != (old.together, old.shapes):
            raise ConfigError(f"{sampler!r} forms batches in another way than before; make another loader")
        if self._cursor.begun:
            self._cursor.set(self._cursor.epoch + 1)
        elif self._cursor.position:
            raise ConfigError(
                f"the loader stands at position {self._cursor.position} of an epoch of another sampler; "
                "call set_sampler before load_state_dict"
            )
        schedule = replace(self._schedule, length=order.length)
        self._check_epoch(order, schedule)
        self.order, self._schedule = self._sampler.order, self._sampler.schedule = order, schedule
        self._control.end()
        self._workers.end()  # they have the old one

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning looks for `set_epoch` and the batch size."""
        return BatchSampler(sampler=self, batch_size=self._schedule.batch_size)

    @property
    def data_loader(self) -> DataLoader[Any]:
        """The DataLoader inside, for reading its settings; its `dataset.pipeline` has the stages of a worker."""
        return self._workers.data_loader

    def close(self) -> None:
        """End the worker processes now; another iteration starts new ones."""
        self._workers.end()

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch starts: a few plain values, to be saved with the model.

        Batches count when they are handed out, not when they are prefetched.
        """
        return {**self._identity(), "epoch": self._cursor.epoch, "position": self._cursor.position}

    def _identity(self) -> dict[str, Any]:
        return checkpoint.identity(self._opened, self.split.name, self._limit, self.order, self._lanes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved; rank, world size, batch size and workers may differ.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
        """
        self.move_to(self.start_of(state))

    def start_of(self, state: Mapping[str, Any]) -> EpochStart:
        """Return where a saved state starts, without moving the loader; raises as `load_state_dict` does."""
        return checkpoint.restore(state, self._identity(), self._opened, self.order)

    def move_to(self, start: EpochStart) -> None:
        """Make the next iteration begin at this start."""
        self._lanes = start.lanes
        self._cursor.set(start.epoch, start.position)
        self._control.end()

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and position of the next batch."""
        return self._cursor.epoch, self._cursor.position

    @property
    def has_moved(self) -> bool:
        """Whether it is not at the start of epoch 0, where a new one is: it was iterated, moved or resumed."""
        return self._cursor != Cursor()

    def join_mix(self, number: int) -> None:
        """Make this source `number` of a mix, with its own random keys and order."""
        self.is_mixed = True
        self.order = self._sampler.order = self.order.as_source(number)
        self._workers.end()  # they have another order

    def first_start(self) -> EpochStart:
        """Return the start of epoch 0."""
        return EpochStart(0, 0, self._lanes)

    def after(self, start: EpochStart, steps: int) -> EpochStart:
        """Return the start of an iteration that goes on `steps` batches after one that begins at `start`."""
        if steps < (left := self._schedule.steps(start.position)):
            return EpochStart(start.epoch, self._schedule.after(start.position, steps), start.lanes)
        epochs, step = divmod(steps - left, len(self))
        return EpochStart(start.epoch + 1 + epochs, self._schedule.after(0, step), start.lanes)
