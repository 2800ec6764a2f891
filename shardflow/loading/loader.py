"""The loader: `for images, labels in loader`.

The cursor (epoch, position) is the whole state. It lives here, in the training process, and moves when a batch is
handed to the caller; workers are told where an iteration starts and compute everything else.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import webdataset as wds
from torch.utils.data import DataLoader

from shardflow._validation import check_integer
from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError, IntegrityError, ResumeMismatchError, WorkerError
from shardflow.order.plan import WINDOW, default_lanes
from shardflow.order.schedule import Schedule
from shardflow.storage.cache import Cache, as_cache

from .batch_sampler import BatchSampler
from .checkpoint import Cursor, saved_integers
from .decoders import CenterCropDecoder, Decoder, RandomResizedCropDecoder, new
from .pixel_cache import PixelCache
from .provenance import describe_dataset, describe_object, describe_versions
from .sampler import EpochOrder, EpochStart, PlanSampler, WorkerControl
from .shared_memory import SLOTS_BEYOND_PREFETCH, BatchSender
from .stages import Augment, Collate, Decode, Read, guard
from .stats import Stats, StatsRecorder
from .topology import resolve_rank, usable_cores
from .workers import end_workers, receive_batches

logger = logging.getLogger(__name__)

STATE_VERSION = 2  # 1: the first windows of a lane were longer, so a position meant another sample


class Loader:
    """Streams one split of a dataset as batches; iterating it again gives the next epoch.

    >>> loader = shardflow.Loader("photos256", split="train", batch_size=256)      # doctest: +SKIP
    >>> for images, labels in loader:    # uint8 [256, 3, 224, 224], int64 [256]     # doctest: +SKIP
    ...     train_step(images, labels)

    Args:
        url: Where the dataset lies: a directory, or any URL that fsspec serves, "s3://bucket/photos256".
        split: Which split to read.
        version: Fingerprint of the version to read, where the dataset was extended since; by default the newest.
        batch_size: Samples per batch and rank.
        decoder: Makes uint8 images of encoded ones, cropping included; called as `decode.Decoder` says. By default
            `RandomResizedCropDecoder(224)` when shuffling, else `CenterCropDecoder(224)`. To decode on the device,
            `EncodedDecoder()`, with `DecodeJpeg` among the stages of `DevicePrefetcher`.
        transform: Called with each image, a uint8 tensor [3, H, W]; any torchvision v2 transform. What it draws from
            torch's, Python's or numpy's global generator depends on (seed, epoch, sample) alone.
        batch_transform: Called with the fields of each batch as arguments, in the worker; returns what to hand out.
        fields: What a batch consists of, in order: "image", "label" (int64 [B], from `.cls`), "labels" (float32
            [B, classes], 1 for each class of a sample, from `.labels.json` or `.cls`), "key" (list of str),
            "valid" (bool [B], False for the repeats of a padded tail), "random_key" (int64 [B], from (seed, epoch,
            sample) alone, for stages on a device), and the name of any part: "txt" (list of str),
            "json" (list of its values), others (list of bytes). By default image and label, or image and key for a
            dataset without labels; with tail="pad", "valid" comes third.
        shuffle: False reads in order.
        window: Samples of a lane that are shuffled among each other; larger mixes better, smaller opens fewer shards.
        lanes: Parallel streams the epoch is cut into; by default eight per rank, or one without shuffling. A resumed
            run keeps the lanes of the run that was saved.
        seed: Of the order and of all augmentation.
        tail: What happens to the samples that do not fill a last global batch: "drop" leaves them out, "pad" fills the
            batch by starting over, "short" deals them out (a rank may get an empty batch).
        limit: Use the first `limit` samples of the split alone, for a trial run.
        samples_per_epoch: Length of an epoch over all ranks, for runs that count steps: each iteration hands out that
            many samples and the next one goes on after them, from pass to pass over the split without a gap. By default
            an epoch is one pass.
        on_error: "raise" stops at a sample that is damaged or does not decode. "substitute" puts another sample of the
            batch in its place, so that all ranks keep their steps and shapes, and notes it in `substituted`.
        max_substituted: How many different samples may be substituted before the loader stops after all.
        num_workers: Worker processes; by default one per core that this rank may use. 0 works in this process.
        prefetch_factor: Batches prefetched by each worker.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Put batches into pinned memory; by default where there is a GPU.
        multiprocessing_context: Start method of the workers, as for `torch.utils.data.DataLoader`.
        rank, world_size: By default torch.distributed's when it is initialised, else RANK and WORLD_SIZE from the
            environment, else 0 and 1.
        cache: Where shards that are not on a local disk are kept, shared by all ranks and workers of a host and by all
            runs: a `Cache`, or its directory; by default `shardflow` in the user's cache directory. A dataset that is
            larger than the cache streams through it once per epoch. Shards on a local disk are read where they lie.
        decoded_cache: Keep images as pixels too, in at most that many bytes ("20GB") of the cache directory's disk, so
            that later epochs and runs crop without decoding; batches stay the same, bit by bit. An image of 256 x 341
            takes 262 kB; those that do not fit are decoded every time. By default none are kept.
        storage_options: What fsspec's file system takes (`endpoint_url`, `anon`, …); not for directories.

    Attributes:
        dataset, split: What was opened, and the split of it that is read.
        fields: What a batch consists of.
        decoder: What makes the images.
        decoded_cache: Where they are kept as pixels, if they are.
        substituted: What was wrong with each sample that another one has stood in for.

    Raises:
        ConfigError: An argument is wrong.
        NotFoundError: There is no dataset.
        StoreError: It is out of reach.
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
        shuffle: bool = True,
        window: int = WINDOW,
        lanes: int | None = None,
        seed: int = 0,
        tail: str = "drop",
        limit: int | None = None,
        samples_per_epoch: int | None = None,
        on_error: str = "raise",
        max_substituted: int = 100,
        num_workers: int | None = None,
        prefetch_factor: int = 4,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        decoded_cache: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        batch_size = check_integer("batch_size", batch_size, 1)
        num_workers = usable_cores() if num_workers is None else check_integer("num_workers", num_workers, 0)
        prefetch_factor = check_integer("prefetch_factor", prefetch_factor, 1)
        lanes = None if lanes is None else check_integer("lanes", lanes)
        for name, value in (("decoder", decoder), ("transform", transform), ("batch_transform", batch_transform)):
            if value is not None and not callable(value):
                raise ConfigError(f"{name} must be something to call, such as an object of its class; found {value!r}")
        if on_error not in ("raise", "substitute"):
            raise ConfigError(f"on_error must be 'raise' or 'substitute', found {on_error!r}")
        self.dataset = open_dataset(url, storage_options=storage_options, cache=cache, version=version)
        self.split = self.dataset[split]
        rank, world_size = resolve_rank(rank, world_size)
        self._order = EpochOrder(
            self.split,
            seed=seed,
            window=window,
            shuffle=shuffle,
            limit=limit,
            samples_per_epoch=samples_per_epoch,
        )
        self._schedule = Schedule(
            length=self._order.length, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail
        )
        if samples_per_epoch is not None and not self._order.pass_length:
            raise ConfigError(f"split {split!r} has no samples to make epochs of; choose another split")
        if not len(self):
            raise ConfigError(
                f"split {split!r} has {self._order.length} samples, less than one batch of {batch_size} for each of "
                f"{world_size} ranks; lower batch_size or set tail='pad' or 'short'"
            )
        if samples_per_epoch is not None and tail == "drop" and samples_per_epoch % self._schedule.global_batch:
            raise ConfigError(
                f"samples_per_epoch={samples_per_epoch} is no multiple of the {self._schedule.global_batch} samples "
                "that all ranks take in a step, so each epoch would drop some; choose a multiple, or another tail"
            )
        self._lanes_given = lanes
        self._lanes = default_lanes(world_size, shuffle) if lanes is None else lanes
        self._cursor = Cursor()
        self._shared = WorkerControl(num_workers)
        self._source = PlanSampler(self._order, self._schedule, self._shared)
        self._source.batch(self._begin_at(), 0)  # a wrong window or lanes is found here and not in a worker
        self._max_substituted = check_integer("max_substituted", max_substituted, 0)
        self.substituted: set[str] = set()
        classes = self.dataset.classes
        self.fields = fields = _default_fields(classes is not None, tail) if fields is None else _checked_fields(fields)
        self._meter = StatsRecorder()
        if decoder is None:
            decoder = RandomResizedCropDecoder() if shuffle else CenterCropDecoder()
        decoded = None
        if decoded_cache is not None:
            if "image" not in fields:
                raise ConfigError(f"decoded_cache needs 'image' among the fields, found {fields}")
            beside = self.split.reader.cache or as_cache(cache)
            decoded = PixelCache(self.split, beside, decoded_cache, decoder)
        self.decoder, self.decoded_cache = decoder, decoded
        handover = BatchSender(slots=prefetch_factor + SLOTS_BEYOND_PREFETCH)
        # Transforms may keep what they were given, so only batches that meet none are decoded into memory that is lent.
        empty = handover.empty if transform is None and batch_transform is None else new
        may_substitute = on_error == "substitute"
        self._batches = wds.WebLoader(
            wds.DataPipeline(
                self._source,
                Read(
                    self.split,
                    keys="key" in fields,
                    substitute=may_substitute,
                    decoded=decoded,
                    fields=fields,
                ),
                Decode(decoder, empty, substitute=may_substitute, decoded=decoded) if "image" in fields else None,
                Augment(transform) if transform is not None and "image" in fields else None,
                Collate(fields, batch_transform, len(classes or ())),
                guard,
                handover,
            ),
            batch_size=None,
            collate_fn=_untouched,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            multiprocessing_context=_checked_context(multiprocessing_context) if num_workers else None,
            # A generator of its own: making an iterator draws from it, and that must not disturb the user's.
            generator=torch.Generator(),
        )
        self._persistent = persistent_workers
        self._transform, self._batch_transform, self._on_error = transform, batch_transform, on_error

    def __len__(self) -> int:
        """Return the number of batches that each rank gets in a whole epoch."""
        return self._schedule.steps()

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        Where that is gets settled when the first batch is asked for: Lightning calls `iter` before it sets the epoch.
        One iteration at a time: starting another, or moving the loader, ends the one before it.
        """
        if self._cursor.begun:
            self._cursor.set(self._cursor.epoch + 1)
        start = self._begin_at()
        iteration = self._shared.begin(start)
        steps = self._schedule.steps(start.position)
        handed_out = 0
        batches = receive_batches(self._batches)
        try:
            for made in self._meter.timed(batches):
                if made.substituted:
                    self._note(made.substituted)
                handed_out += 1
                self._cursor.hand_out(self._schedule.after(start.position, handed_out))
                yield made.columns
                if self._shared.iteration() != iteration:
                    break
            else:
                if handed_out != steps:
                    raise WorkerError(
                        f"the workers ended after {handed_out} of {steps} batches; start the iteration again"
                    )
        except GeneratorExit:  # first: as the interpreter exits, the name that is asked for next is gone
            raise
        except Exception as error:
            end_workers(self._batches)  # they are in no known state
            if isinstance(error, WorkerError):
                raise WorkerError(f"{error}. {self._in_the_making(start)}") from error
            raise
        finally:
            batches.close()
        if self._shared.iteration() != iteration:
            if handed_out < steps:
                raise ConfigError(
                    "the loader was iterated again, or moved by set_epoch or load_state_dict, which ended this "
                    "iteration; move it between iterations, and use two loaders for two at once"
                )
            return
        self._cursor.set(start.epoch + 1)
        if not self._persistent:
            end_workers(self._batches)

    def _note(self, substituted: Sequence[str]) -> None:
        for problem in substituted:
            if problem not in self.substituted:
                self.substituted.add(problem)
                logger.warning("substituted: %s", problem)
        if len(self.substituted) > self._max_substituted:
            raise IntegrityError(
                f"{len(self.substituted)} samples had to be substituted, {self._max_substituted} are allowed "
                f"(max_substituted); the last: {substituted[-1]}"
            )

    def _in_the_making(self, start: EpochStart) -> str:
        """Say which samples the workers began last: among them are those that a dead worker died on."""
        places = []
        for worker in range(self._shared.workers):
            if (step := self._shared.made_by(worker)) >= 0:
                batch = self._source.batch(start, step)
                reader, shard, record = self.split.reader, int(batch.shards[0]), int(batch.records[0])
                # The worker may have died for want of the very shard: an error message does not wait for it.
                sample = f"sample {reader.key(shard, record)}" if reader.is_local(shard) else f"record {record}"
                others = f" and {len(batch.keys) - 1} more" if len(batch.keys) > 1 else ""
                places.append(f"worker {worker}: {reader.url(shard)}, {sample}{others}")
        return f"In the making were {'; '.join(places)}" if places else "No batch had been begun"

    def stats(self) -> Stats:
        """Return where the time went since the iteration began; `print` it to know what to do about it."""
        return self._meter.stats()

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data, and to have it again: plain JSON, without credentials.

        The same from start to end of a run, and for all its ranks on machines that are alike. `fingerprint` is what
        `version=` takes.

        >>> mlflow.log_dict(loader.describe(), "data.json")      # doctest: +SKIP
        """
        plan = {name: value for name, value in self._identity().items() if name != "version"}
        return {
            **describe_dataset(self.dataset),
            "fields": list(self.fields),
            "decoder": describe_object(self.decoder),
            "transform": describe_object(self._transform),
            "batch_transform": describe_object(self._batch_transform),
            "batch_size": self._schedule.batch_size,
            "world_size": self._schedule.world_size,
            "tail": self._schedule.tail,
            "on_error": self._on_error,
            "num_workers": self.data_loader.num_workers,
            **plan,
            "samples": self._order.pass_length,
            "versions": {"python": platform.python_version(), **describe_versions()},
        }

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration runs through, from its start.

        Naming the epoch of a state that was just loaded leaves its position alone, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes where it should.
        """
        if self._cursor.set_epoch(epoch):
            self._shared.end()

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning looks for `set_epoch`: this loader, and its batch size."""
        return BatchSampler(sampler=self, batch_size=self._schedule.batch_size)

    @property
    def data_loader(self) -> DataLoader[Any]:
        """The DataLoader inside, whose settings can be read; the stages of a worker are its `dataset.pipeline`."""
        inside: DataLoader[Any] = self._batches.pipeline[0]
        return inside

    def close(self) -> None:
        """End the worker processes now, and not when this object goes; another iteration starts new ones."""
        end_workers(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch starts: a few plain values, to be saved with the model.

        It counts the batches handed to the caller, not those prefetched.
        """
        return {**self._identity(), "epoch": self._cursor.epoch, "position": self._cursor.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the saved one stood; rank, world size, batch size and workers may differ.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
        """
        self.go_to(self.place_of(state))

    def place_of(self, state: Mapping[str, Any]) -> EpochStart:
        """Return where a saved state stood.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
        """
        if not isinstance(state, Mapping):
            raise ResumeMismatchError(f"a state is a dict from Loader.state_dict(), found {state!r}")
        missing = sorted({*self._identity(), "epoch", "position"} - set(state))
        if missing:
            raise ResumeMismatchError(f"the state has no {', '.join(missing)}; it is not from Loader.state_dict()")
        if state["version"] != STATE_VERSION:
            raise ResumeMismatchError(
                f"the state has version {state['version']!r}, and this shardflow reads {STATE_VERSION}, by which "
                "samples come in another order: begin an epoch anew, or go on with the shardflow that saved the state"
            )
        ours = self._identity()
        if self._lanes_given is None:
            ours["lanes"] = state["lanes"]
        differing = [
            f"{name} is {state[name]!r} in the state and {value!r} here"
            for name, value in ours.items()
            if state[name] != value
        ]
        if differing:
            remedy = "make these equal"
            if state["fingerprint"] != ours["fingerprint"] and self.dataset.has_version(str(state["fingerprint"])):
                remedy = f"the dataset was extended since; Loader(..., version={state['fingerprint']!r}) reads the old"
            raise ResumeMismatchError(f"the state belongs to another run: {'; '.join(differing)}; {remedy}")
        start = EpochStart(*saved_integers(state, "epoch", "position", "lanes"))
        if start.position > self._order.length:
            raise ResumeMismatchError(
                f"the state is damaged: position {start.position} in an epoch of {self._order.length} samples"
            )
        return start

    def go_to(self, place: EpochStart) -> None:
        """Make the next iteration start there."""
        self._lanes = place.lanes
        self._cursor.set(place.epoch, place.position)
        self._shared.end()

    def _identity(self) -> dict[str, Any]:
        """Return what has to be equal for a position to mean the same."""
        order = self._order
        return {
            "version": STATE_VERSION,
            "fingerprint": self.dataset.fingerprint,
            "split": self.split.name,
            "limit": order.limit,
            "samples_per_epoch": order.samples_per_epoch,
            "shuffle": order.shuffle,
            "seed": order.seed,
            "lanes": self._lanes,
            "window": order.window,
        }

    def _begin_at(self) -> EpochStart:
        return EpochStart(self._cursor.epoch, self._cursor.position, self._lanes)

    def seek(self, steps: int) -> None:
        """Make the next iteration start where this many batches from the very first epoch on have been handed out."""
        epoch, step = divmod(steps, len(self))
        self.go_to(EpochStart(epoch, self._schedule.after(0, step), self._lanes))


def _default_fields(labelled: bool, tail: str) -> tuple[str, ...]:
    return ("image", "label" if labelled else "key", *(("valid",) if tail == "pad" else ()))


def _checked_fields(fields: Sequence[str]) -> tuple[str, ...]:
    if isinstance(fields, str) or len(set(fields)) != len(fields):
        raise ConfigError(f"fields must be different names, such as ('image', 'label'); found {fields!r}")
    return tuple(fields)


def _checked_context(context: Any) -> Any:
    methods = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise ConfigError(f"multiprocessing_context must be one of {', '.join(methods)}, found {context!r}")
    return context


def _untouched(item: Any) -> Any:
    return item
