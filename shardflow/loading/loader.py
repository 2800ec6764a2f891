"""The loader: `for images, labels in loader`.

The cursor (epoch, position) is the whole state. It lives here, in the training process, and moves when a batch is
handed out; workers receive the start of an iteration and compute everything else.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from shardflow._validation import check_callable, check_integer
from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError, IntegrityError, WorkerError
from shardflow.order.class_batches import ClassBatches
from shardflow.order.schedule import Schedule
from shardflow.order.weights import Weights
from shardflow.storage.cache import Cache

from . import checkpoint
from .aspect_buckets import AspectBucketDecoder, sample_buckets
from .checkpoint import Cursor
from .decoders import CenterCropDecoder, Decoder, RandomResizedCropDecoder, warn_without_kernel
from .pipeline import build_pipeline
from .pixel_cache import PixelCache
from .provenance import describe_dataset, describe_object, describe_versions
from .sample_weights import WeightsLike, class_labels, make_weights
from .sampler import Buckets, EpochOrder, EpochStart, PlanSampler, Shuffle, WorkerControl
from .shared_memory import SLOTS_BEYOND_PREFETCH
from .stats import Stats, StatsRecorder
from .topology import check_equal_on_ranks, resolve_rank, usable_cores
from .workers import WorkerPool

logger = logging.getLogger(__name__)

_KERNEL_DECODERS = (RandomResizedCropDecoder, CenterCropDecoder, AspectBucketDecoder)


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
        decoder: Decodes and crops the images of a batch, as the protocol `loading.decoders.Decoder` describes. By
            default `RandomResizedCropDecoder(224)` when shuffling, else `CenterCropDecoder(224)`. To decode on the
            device, `EncodedDecoder()` here and `DecodeJpeg` among the stages of `DevicePrefetcher`.
        transform: Called with each image, a uint8 tensor [3, H, W]; any torchvision v2 transform. Random numbers that
            it draws from torch's, Python's or numpy's global generator depend on (seed, epoch, sample) alone.
        batch_transform: Called in the worker with the fields of each batch as arguments; returns the batch.
        fields: What a batch consists of, in order: "image", "label" (int64 [B], from `.cls`), "labels" (float32
            [B, classes], 1 for each class of a sample, from `.labels.json` or `.cls`), "key" (list of str),
            "valid" (bool [B], False for the repeats in a padded tail), "random_key" (int64 [B], from (seed, epoch,
            sample) alone, for stages on a device), "index" (int64 [B], the samples' numbers in the split, as in
            `set_weights` and `Subset`), and the name of any part: "txt" (list of str),
            "json" (list of parsed values), others (list of bytes). By default image and label, or image and key for a
            dataset without labels; with tail="pad", "valid" comes third.
        shuffle: True, False for the split's own order, or `Shuffle(window=..., lanes=...)`.
        seed: Seed of the order and of all augmentation.
        tail: How to treat samples that do not fill a last global batch: "drop" omits them, "pad" fills the batch with
            samples from the start of the epoch, "short" distributes them (a rank may get an empty batch).
        limit: Use only the first `limit` samples of the split, for a trial run.
        samples_per_epoch: Length of an epoch over all ranks, for runs that count steps: each iteration hands out that
            many samples and the next one continues after them, from pass to pass over the split without a gap. By
            default an epoch is one pass.
        weights: How often each sample comes in an epoch, on average; by default once. A number per sample, 0 or more
            ([N], or the path of a `.npy`), or a `Subset`; or a mapping from class to number, 1 for the others; or
            "balanced", each class equally often, or "sqrt", a class in proportion to the square root of its images,
            which both keep the length of the epoch. Its length is the sum of the weights, rounded. In each epoch a
            sample comes its weight rounded up or down times, and each time with a random key of its own.
        samples_per_class: Compose each batch of `batch_size / samples_per_class` different classes, with this many
            samples of each, one class after the other: for losses over pairs and triplets. A sample comes once at most
            in an epoch; those that fill no batch are others in each. Batches have samples from all over the split.
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
        dataset, split: The open dataset, and the split that is read.
        fields: What a batch consists of.
        decoder: The decoder in use.
        pixel_cache: The cache of decoded images; None without one.
        substituted: The problem of each sample that was replaced by another.

    Raises:
        ConfigError: An argument is wrong.
        NotFoundError: There is no dataset at `url`.
        StoreError: The dataset cannot be reached.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        split: str = "train",
        version: str | None = None,
        batch_size: int,
        decoder: Decoder | None = None,
        transform: Callable[[torch.Tensor], Any] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        fields: Sequence[str] | None = None,
        shuffle: bool | Shuffle = True,
        seed: int = 0,
        tail: str = "drop",
        limit: int | None = None,
        samples_per_epoch: int | None = None,
        weights: WeightsLike = None,
        samples_per_class: int | None = None,
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
        batch_size = check_integer("batch_size", batch_size, 1)
        num_workers = usable_cores() if num_workers is None else check_integer("num_workers", num_workers, 0)
        prefetch_factor = check_integer("prefetch_factor", prefetch_factor, 1)
        for name, value in (("decoder", decoder), ("transform", transform), ("batch_transform", batch_transform)):
            check_callable(name, value)
        self._max_bad = check_integer("max_bad", max_bad, 0)
        self._transform, self._batch_transform, self._persistent = transform, batch_transform, persistent_workers

        self.dataset = open_dataset(url, storage_options=storage_options, cache=cache, version=version)
        self.split = self.dataset[split]
        rank, world_size = resolve_rank(rank, world_size)
        self._order = EpochOrder(
            self.split, seed=seed, shuffle=shuffle, limit=limit, samples_per_epoch=samples_per_epoch
        )
        if weights is not None:
            self._order.set_weights(self._make_weights(weights))
        if samples_per_class is not None:
            self._order.set_class_batches(self._make_class_batches(batch_size, samples_per_class))
        self._schedule = Schedule(
            length=self._order.length,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            tail=tail,
            contiguous=samples_per_class is not None,
        )
        self._check_epoch()
        self._lanes = self._order.default_lanes(world_size)
        self._cursor = Cursor()
        self._control = WorkerControl(num_workers)
        self._sampler = PlanSampler(self._order, self._schedule, self._control)

        if fields is None:
            fields = ("image", "key" if self.dataset.classes is None else "label", *["valid"] * (tail == "pad"))
        elif isinstance(fields, str) or len(set(fields)) != len(fields):
            raise ConfigError(f"fields must be different names, such as ('image', 'label'); found {fields!r}")
        self.fields = tuple(fields)
        if decoder is None:
            decoder = RandomResizedCropDecoder() if self._order.shuffle else CenterCropDecoder()
        self.decoder = decoder
        if isinstance(decoder, AspectBucketDecoder):
            self._order.set_buckets(self._make_buckets(decoder, samples_per_class))
        if "image" in self.fields and isinstance(decoder, _KERNEL_DECODERS):
            warn_without_kernel()
        self.pixel_cache: PixelCache | None = None
        if isinstance(cache, Cache) and cache.pixel_limit_bytes is not None:
            if "image" not in self.fields:
                raise ConfigError(f"Cache(pixels=...) needs 'image' among the fields, found {self.fields}")
            self.pixel_cache = PixelCache(self.split, cache, decoder)
        self.substituted: set[str] = set()
        self._stats = StatsRecorder()
        self._workers = WorkerPool(
            build_pipeline(
                self._sampler,
                self.split,
                fields=self.fields,
                classes=len(self.dataset.classes or ()),
                decoder=decoder,
                pixel_cache=self.pixel_cache,
                transform=transform,
                batch_transform=batch_transform,
                substitute=max_bad > 0,
                slots=prefetch_factor + SLOTS_BEYOND_PREFETCH,
            ),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context,
        )

    def _check_epoch(self) -> None:
        """Check that an epoch has a batch for each rank, and that none of its samples is lost at a border."""
        order, schedule = self._order, self._schedule
        if order.samples_per_epoch is not None and not order.pass_length:
            raise ConfigError(f"split {self.split.name!r} has no samples to form epochs of; choose another split")
        if not len(self):
            raise ConfigError(
                f"split {self.split.name!r} has {order.length} samples, less than one batch of {schedule.batch_size} "
                f"for each of {schedule.world_size} ranks; lower batch_size or set tail='pad' or 'short'"
            )
        if order.samples_per_epoch is not None and schedule.tail == "drop" and order.length % schedule.global_batch:
            raise ConfigError(
                f"samples_per_epoch={order.length} is no multiple of the {schedule.global_batch} samples that all "
                "ranks take in a step, so each epoch would drop some; choose a multiple, or another tail"
            )

    def _make_weights(self, weights: WeightsLike) -> Weights:
        return make_weights(weights, self.split, self.dataset.classes, self._order.samples)

    def _make_class_batches(self, batch_size: int, samples_per_class: int) -> ClassBatches:
        samples_per_class = check_integer("samples_per_class", samples_per_class, 1)
        order = self._order
        for wrong, reason in (
            (batch_size % samples_per_class, f"batch_size={batch_size} is no multiple of it"),
            (order.weights is not None, "weights would have no effect"),
            (not order.shuffle, "without shuffling there is no order of such batches"),
            ((order.samples_per_epoch or 0) % batch_size, "samples_per_epoch is no multiple of batch_size"),
        ):
            if wrong:
                raise ConfigError(f"samples_per_class={samples_per_class}: {reason}; change one of them")
        labels = class_labels(self.split, self.dataset.classes)[: order.samples]
        return ClassBatches(labels, batch_size // samples_per_class, samples_per_class)

    def _make_buckets(self, decoder: AspectBucketDecoder, samples_per_class: int | None) -> Buckets:
        order, schedule = self._order, self._schedule
        if samples_per_class is not None or order.samples_per_epoch is not None or "image" not in self.fields:
            raise ConfigError(
                "AspectBucketDecoder groups samples into batches of one shape; it needs 'image' among the fields, and "
                "neither samples_per_class nor samples_per_epoch"
            )
        return Buckets(
            sample_buckets(decoder, self.split, order.samples),
            [list(size) for size in decoder.sizes],
            schedule.global_batch,
        )

    def __len__(self) -> int:
        """Return the number of batches that each rank gets in a whole epoch."""
        return self._schedule.steps()

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        The start is fixed when the first batch is requested: Lightning calls `iter` before it sets the epoch.
        One iteration at a time: starting another, or moving the loader, ends the one before it.
        """
        if self._cursor.begun:
            self._cursor.set(self._cursor.epoch + 1)
        if (weights := self._order.weights) is not None:
            check_equal_on_ranks("weights", weights.digest, self._schedule.world_size)
        start = EpochStart(self._cursor.epoch, self._cursor.position, self._lanes)
        iteration = self._control.begin(start)
        steps = self._schedule.steps(start.position)
        handed_out = 0
        batches = self._workers.batches()
        try:
            for output in self._stats.timed(batches):
                if output.substituted:
                    self._record_substituted(output.substituted)
                handed_out += 1
                self._cursor.advance(self._schedule.after(start.position, handed_out))
                yield output.columns
                if self._control.iteration() != iteration:
                    break
            else:
                if handed_out != steps:
                    raise WorkerError(
                        f"the workers ended after {handed_out} of {steps} batches; start the iteration again"
                    )
        except GeneratorExit:  # must be first: at interpreter exit the name in the next clause no longer exists
            raise
        except Exception as error:
            self._workers.end()  # their state is unknown
            if isinstance(error, WorkerError):
                raise WorkerError(f"{error}. {self._batches_in_progress(start)}") from error
            raise
        finally:
            batches.close()
        if self._control.iteration() != iteration:
            if handed_out < steps:
                raise ConfigError(
                    "the loader was iterated again, or moved by set_epoch or load_state_dict, which ended this "
                    "iteration; move it between iterations, and use two loaders for two at once"
                )
            return
        self._cursor.set(start.epoch + 1)
        if not self._persistent:
            self._workers.end()

    def _record_substituted(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self.substituted:
                self.substituted.add(problem)
                logger.warning("substituted: %s", problem)
        if len(self.substituted) > self._max_bad:
            raise IntegrityError(
                f"{len(self.substituted)} samples are damaged, {self._max_bad} are allowed (max_bad); the last: "
                f"{problems[-1]}"
            )

    def _batches_in_progress(self, start: EpochStart) -> str:
        """Describe the batches that the workers began last: a dead worker died on one of them."""
        batches, reader = [], self.split.reader
        for worker, step in self._control.steps_begun().items():
            batch = self._sampler.batch(start, step)
            shard, record = int(batch.shards[0]), int(batch.records[0])
            # A missing shard may be what the worker died of: an error message must not wait for it.
            sample = f"sample {reader.key(shard, record)}" if reader.is_local(shard) else f"record {record}"
            others = f" and {len(batch.keys) - 1} more" if len(batch.keys) > 1 else ""
            batches.append(f"worker {worker}: {reader.url(shard)}, {sample}{others}")
        return f"Batches in progress: {'; '.join(batches)}" if batches else "No batch was in progress"

    def stats(self) -> Stats:
        """Return where the time went since the iteration began; its `str` says what to do about it."""
        return self._stats.stats()

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data and to load it again: plain JSON, without credentials.

        The same from start to end of a run, and for all its ranks on equal machines. `version=` takes `fingerprint`.

        >>> mlflow.log_dict(loader.describe(), "data.json")      # doctest: +SKIP
        """
        plan = checkpoint.identity(self.dataset, self._order, self._lanes)
        del plan["version"]
        return {
            **describe_dataset(self.dataset),
            "fields": list(self.fields),
            "decoder": describe_object(self.decoder),
            "transform": describe_object(self._transform),
            "batch_transform": describe_object(self._batch_transform),
            "batch_size": self._schedule.batch_size,
            "world_size": self._schedule.world_size,
            "tail": self._schedule.tail,
            "max_bad": self._max_bad,
            "num_workers": self.data_loader.num_workers,
            **plan,
            "samples": self._order.pass_length,
            "versions": {"python": platform.python_version(), **describe_versions()},
        }

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, from its start.

        Setting the epoch of a state that was just loaded keeps its position, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes at the right place.
        """
        if self._cursor.set_epoch(epoch):
            self._control.end()

    def set_weights(self, weights: WeightsLike) -> None:
        """Set other weights for the epochs to come, as for the argument `weights`; between epochs.

        The loader must have been made with `weights`, so that all ranks expect them: each epoch begins with a check
        that they have the same. New worker processes are started. A state names its weights: set them again before
        `load_state_dict`.

        >>> loader = shardflow.Loader("photos256", batch_size=256, weights=1, fields=("image", "label", "index"))
        ...     # doctest: +SKIP
        >>> loader.set_weights(losses.clip(0.2, 3))      # doctest: +SKIP

        Raises:
            ConfigError: The weights do not fit, the loader was made without any, or stands in the middle of an epoch.
        """
        if self._order.weights is None or weights is None:
            raise ConfigError("set_weights changes the weights of a loader that has some; make it with weights=1")
        made = self._make_weights(weights)
        if made.digest == self._order.weights.digest:
            return
        if self._cursor.begun:
            self._cursor.set(self._cursor.epoch + 1)
        elif self._cursor.position:
            raise ConfigError(
                f"the loader stands at position {self._cursor.position} of an epoch with other weights; "
                "call set_weights before load_state_dict"
            )
        old = self._order.weights
        self._set_weights(made)
        try:
            self._check_epoch()
        except ConfigError:
            self._set_weights(old)
            raise

    def _set_weights(self, weights: Weights) -> None:
        self._order.set_weights(weights)
        self._schedule = self._sampler.schedule = replace(self._schedule, length=self._order.length)
        self._control.end()
        self._workers.end()  # they have the old ones

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
        return checkpoint.save(self.dataset, self._order, self._lanes, self._cursor)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved; rank, world size, batch size and workers may differ.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
        """
        self.move_to(self.start_of(state))

    def start_of(self, state: Mapping[str, Any]) -> EpochStart:
        """Return where a saved state starts, without moving the loader; raises as `load_state_dict` does."""
        return checkpoint.restore(state, self.dataset, self._order, self._lanes)

    def move_to(self, start: EpochStart) -> None:
        """Make the next iteration begin at this start."""
        self._lanes = start.lanes
        self._cursor.set(start.epoch, start.position)
        self._control.end()

    def first_start(self) -> EpochStart:
        """Return the start of epoch 0."""
        return EpochStart(0, 0, self._lanes)

    def after(self, start: EpochStart, steps: int) -> EpochStart:
        """Return the start of an iteration that goes on `steps` batches after one that begins at `start`."""
        if steps < (left := self._schedule.steps(start.position)):
            return EpochStart(start.epoch, self._schedule.after(start.position, steps), start.lanes)
        epochs, step = divmod(steps - left, len(self))
        return EpochStart(start.epoch + 1 + epochs, self._schedule.after(0, step), start.lanes)
