"""The loader: `for images, labels in loader`."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from shardflow._validation import check_callable, check_integer, explain_unknown_arguments
from shardflow._wording import plural
from shardflow.dataset.open_dataset import Dataset, Split, open_dataset
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError
from shardflow.geometry.objects import CroppedBoxes
from shardflow.order.epochs import Epochs
from shardflow.order.mixture import Shares
from shardflow.order.rank_partition import MOST_BATCH, RankPartition
from shardflow.order.sampler import Sampler
from shardflow.order.shuffle_settings import Shuffle
from shardflow.storage.cache import Cache

from . import checkpoint
from .batch_sampler import WholeBatches
from .column_fields import Filled
from .decoders.decoder import Decoder, check_decoder
from .decoders.patches import Patches
from .decoders.repeated_crops import check_mixing, warn_of_enlarging, warn_of_repeated_crops
from .decoders.standard_crops import CenterCrop, Cover, RandomResizedCrop
from .distributed import (
    Group,
    check_default_group,
    check_equal_on_ranks,
    resolve_group,
    warn_of_other_settings,
)
from .engine import Engine
from .explained_sample import ExplainedSample, explain_sample
from .facts import split_facts
from .fields import check_image_fields, resolve_fields
from .map_dataset import MapDataset
from .pixel_cache import PixelCache
from .run_metadata import describe_dataset, describe_object, describe_versions
from .source import IMAGES, EpochStart, Source, Transforms
from .torchvision_transforms import refuse_unfit
from .tv_sample import check_movable
from .whole_sample import WholeSample
from .worker_pool import check_sendable
from .worker_settings import Workers

logger = logging.getLogger(__name__)

ELSEWHERE = {
    "batch_sampler": "batch_size and sampler compose the batches",
    "collate_fn": "batch_transform is called with the fields of each batch",
    "dataset": "the first argument is the path or URL of a packed dataset",
    "drop_last": "tail='drop' leaves the last incomplete batch out, tail='short' keeps it",
    "generator": "seed determines the order and all augmentation",
    "in_order": "batches always come in order",
    "multiprocessing_context": "use num_workers=Workers(..., multiprocessing_context=...)",
    "num_replicas": "use group=(rank, size)",
    "persistent_workers": "use num_workers=Workers(..., persistent_workers=...)",
    "pin_memory": "memory is pinned by default if there is a GPU; see num_workers=Workers(..., pin_memory=...)",
    "pin_memory_device": "pinned memory works for every device",
    "prefetch_factor": "use num_workers=Workers(..., prefetch_factor=...)",
    "rank": "use group=(rank, size)",
    "target_transform": "batch_transform gets the labels of each batch",
    "timeout": "waits for storage and workers always have limits",
    "transforms": "use transform, called with each image, or batch_transform, called with each batch",
    "worker_init_fn": "transforms are seeded for each sample, so workers need none",
    "world_size": "use group=(rank, size)",
}
"""Arguments of PyTorch's loaders and samplers → the equivalent here."""


class Loader(Engine):
    """Streams one split of a dataset as batches; each iteration is the next epoch.

    >>> loader = shardflow.Loader("photos256", split="train", batch_size=256)
    >>> for images, labels in loader:    # uint8 [256, 3, 224, 224], int64 [256]
    ...     train_step(images, labels)

    Args:
        url: The dataset: a directory, or any URL that fsspec serves, such as "s3://bucket/photos256".
        split: Name of the split to read.
        version: Fingerprint of the version to read; by default the newest.
        batch_size: Samples per batch and rank, 1 or more; with `TokenBudget`, bins.
        decoder: Decodes and crops the images of a batch: one of `shardflow.decoders`, or your own subclass; by default
            `RandomResizedCrop(224)` when shuffling, else `CenterCrop(224)`. `MultiView([...])` takes several crops of
            an image. To decode on the device, pass `Raw()` here, and `DecodeJpeg` to `device.Prefetcher`.
        transform: Called with each decoded and cropped image, uint8 [3, H, W]; returns a tensor. Any v2 transform of
            torchvision; if it crops or flips again, a warning names the equivalent decoder. With masks, boxes or
            keypoints among the fields, it takes and returns a dict of tv_tensors by field; as `WholeSample(transform)`,
            a dict of all fields. Random numbers that it draws from the global generators of torch, Python or numpy
            depend only on (seed, epoch, sample). With `MultiView`, one for all views, or a list with one (or None) for
            each.
        batch_transform: Called in the worker with the fields of each batch as arguments; returns the batch. Errors of
            `batch_transform`, `transform` and `decoder` are re-raised unchanged, with a note (Python 3.11) that names
            the sample.
        fields: The elements of a batch, in order. By default image and label, or image and key for a split without
            labels; with tail="pad", "valid" comes third. Of the image: "image", "flipped" (bool [B], True if the
            decoder mirrored it), "crop" (float32 [B, 4]: left, top, right, bottom of the shown part in pixels of the
            stored image), "image_size" (int64 [B, 2], height and width), "pixel_mask" (bool [B, H, W], False in
            padding). With `MultiView`, the first three are tuples with an entry per view. Of the sample: "label" (int64
            [B], from `.cls`), "labels" (float32 [B, classes], 1 for each class), "key" (list of str), "index" (int64
            [B], numbers in the split), "random_key" (int64 [B], for transforms on a device), "valid" (bool [B], False
            for repeats), "source" (int64 [B], in a `Mix`: the loader's number). Any part by its name: "txt" (list of
            str), "json" (list of parsed values), others (list of bytes). Declared annotations, which follow the crop,
            once per view: "mask" or another mask part without ".png" (uint8, or int32 for 16-bit PNGs, [B, 1 or 3, H,
            W]); "boxes" or `CroppedBoxes(min_visibility=...)` (list of float32 [N, 4], in pixels of the crop);
            "box_NAME" (list of int64 or float32 [N]); "keypoints" (list of float32 [N, K, 2 or 3] or [K, 2 or 3]). A
            column from `columns.add`: numbers (a tensor [B]), lists of numbers ([B, D]) or texts (a list of str);
            "has_NAME" (bool [B], True if the sample has a value). `columns.Filled(NAME, default)` fills in missing
            values of a column or a part.
        shuffle: True, False for the split's own order, or `Shuffle(buffer=..., streams=...)`. By default True for the
            split "train" and False for any other: `split="val"` gives each sample once, in order, as a centre crop.
        seed: Seed of the order and of all augmentation.
        tail: Rule for samples that do not fill a last global batch: "drop" omits them, "pad" fills the batch with
            samples from the start of the epoch, "short" distributes them (a rank may get an empty batch). All ranks
            make the same number of steps in each case. By default "drop" when shuffling, else "short".
        limit: Use only the first `limit` samples of the split, for a trial run. Those of an evaluation split, which
            keeps the order of its source, may be of one class.
        samples_per_epoch: Length of an epoch over all ranks, for runs that count steps. Each iteration yields this many
            samples, and the next one continues after them. By default an epoch is one pass over the split.
        sampler: Chooses the samples of an epoch and their batches; by default each sample comes once. One of
            `shardflow.samplers`, such as `Weighted("balanced")`, `Subset("score > 0.5")`, `ClassBatches(4)`,
            `AspectBuckets([(224, 224), ...])` and `TokenBudget(8192)`, or your own. `shuffle` and `limit` also apply.
        max_errors: Number of different damaged samples that may be replaced by others of their batch, so that all ranks
            keep their steps and shapes; `TokenBudget` leaves them out of their bins. `replaced` names them. With 0, the
            first damaged sample raises its error.
        num_workers: Worker processes; by default one per core that this rank may use. 0 loads in this process. Or
            `Workers(8, prefetch_factor=..., pin_memory=..., multiprocessing_context=..., persistent_workers=...)`.
        group: The data-parallel group: (rank, size), a process group, or one dimension of a DeviceMesh, such as
            `mesh["dp"]`. Its ranks get different batches; under tensor and pipeline parallelism, ranks with the same
            place in their groups get the same batches. By default all ranks of torch.distributed if it is initialised,
            else RANK and WORLD_SIZE from the environment, else (0, 1).
        cache: The cache of remote shards: a directory, or `Cache(directory, limit=..., pixels=...)`, shared by ranks,
            workers and runs on a host. By default `shardflow` in the user's cache directory, up to 100 GB. If the
            dataset exceeds the limit, a fixed subset of shards stays cached. `pixels` also keeps decoded images, of
            local datasets too, so that later epochs and runs crop without decoding; batches are the same, bit by bit.
            An image of 256 x 341 pixels takes 262 kB.
        storage_options: Options of fsspec's file system (`endpoint_url`, `anon`, …); not for directories.

    Attributes:
        dataset: The samples as a map-style dataset: `loader.dataset[i]` is (image, label), uint8 [3, H, W] and int;
            `loader.dataset.dataset` is the open dataset with all splits.
        source: The split with its sampler, decoder and transforms.

    Raises:
        ConfigError: An argument is wrong, or the dataset lacks a split or field.
        NotFoundError: `url` has no dataset.
        StoreError: The dataset cannot be reached.
    """

    @explain_unknown_arguments(ELSEWHERE)
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
        fields: Sequence[str | CroppedBoxes | Filled] | None = None,
        shuffle: bool | Shuffle | None = None,
        seed: int = 0,
        tail: str | None = None,
        limit: int | None = None,
        samples_per_epoch: int | None = None,
        sampler: Sampler | None = None,
        max_errors: int = 0,
        num_workers: int | Workers | None = None,
        group: Group | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        workers = num_workers if isinstance(num_workers, Workers) else Workers(num_workers)
        batch_size = check_integer("batch_size", batch_size, 1, MOST_BATCH)
        max_errors = check_integer("max_errors", max_errors, 0)
        _check_callables(transform, batch_transform)
        opened = open_dataset(url, storage_options=storage_options, cache=cache, version=version)
        chosen, classes, (rank, world_size) = opened[split], opened.classes, resolve_group(group)
        self._facts = split_facts(
            chosen, classes, shuffle=shuffle, limit=limit, batch_size=batch_size, world_size=world_size
        )
        self._sampler, self._has_default_group = sampler, group is None
        epochs = Epochs(self._facts, sampler, seed=seed, samples_per_epoch=samples_per_epoch)
        partition = RankPartition(
            length=epochs.length,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            tail=("short" if epochs.shuffle is None else "drop") if tail is None else tail,
            contiguous=epochs.sampler.together == "batch",
        )
        _check_epoch(chosen.name, epochs, partition)
        names, annotations, columns = resolve_fields(fields, opened, chosen, epochs.drawn, pad=partition.tail == "pad")
        given, decoder = decoder, _decoder(decoder, epochs, names, transform)
        refuse_unfit(decoder, transform, annotations.names)
        check_mixing(batch_transform, names, pad=partition.tail == "pad")
        warn_of_repeated_crops(decoder, is_default=given is None, transform=transform, batch_transform=batch_transform)
        warn_of_enlarging(decoder, transform, opened.manifest.recipe if "image" in names else {})
        samples, transformed = min(batch_size, epochs.samples), transform is not None
        check_image_fields(names, annotations.names, decoder, chosen, samples=samples, transformed=transformed)
        images = opened.manifest.annotations.images if IMAGES in names else ()
        if images and epochs.sampler.patch is not None:
            raise ConfigError(f"TokenBudget cannot plan the sizes of {IMAGES!r}; leave the field or the sampler out")
        if isinstance(transform, WholeSample) and ("image" in names or images):
            check_movable(annotations.names)
        elif transform is not None and images:
            raise ConfigError(
                f"with {IMAGES!r} among the fields, a transform must take the whole sample: pass WholeSample(transform)"
            )
        check_sendable(
            workers, decoder=decoder, sampler=epochs.sampler, transform=transform, batch_transform=batch_transform
        )
        self.source = Source(
            split=chosen,
            limit=None if limit is None else int(limit),
            epochs=epochs,
            partition=partition,
            fields=names,
            classes=len(classes or ()),
            images=images,
            decoder=decoder,
            pixel_cache=_pixel_cache(cache, names, chosen, decoder),
            annotations=annotations,
            columns=columns,
            transform=transform,
            batch_transform=batch_transform,
            max_errors=max_errors,
        )
        self.dataset = MapDataset(opened, chosen, epochs.samples, epochs.sampler.chosen)
        self._streams = epochs.default_streams(world_size)
        super().__init__(
            WholeBatches([self.source], Shares([1])),
            fields=self.source.returns,
            classes=self.dataset.classes,
            workers=workers,
        )

    @property
    def split(self) -> Split:
        """The split that is read."""
        return self.source.split

    @property
    def decoder(self) -> Decoder:
        """The decoder in use."""
        return self.source.decoder

    def _steps(self, position: int) -> int:
        return self.source.partition.steps(position)

    def _after(self, position: int, steps: int) -> int:
        return self.source.partition.after(position, steps)

    def _begin(self, epoch: int, position: int) -> tuple[int, list[EpochStart]]:
        return 0, [EpochStart(epoch, position, self._streams)]

    def _check(self) -> None:
        if "source" in self.fields:
            paths = "loader.dataset.split.source(number) is the file of a sample, whose number is the field 'index'"
            raise ConfigError(f"the field 'source' is a loader's number in a Mix, and this one is alone; {paths}")
        self.check_group()
        if self._sampler is not None:
            check_sampler_on_ranks(self.source)
        self.dataset.dataset.refuse_replaced()

    def _compare_ranks(self, starts: Sequence[EpochStart]) -> Callable[[], None]:
        return compare_start_on_ranks(self.dataset.dataset, self.source, starts[0])

    def check_group(self) -> None:
        """Raise ConfigError if the loader was made before torch.distributed was initialised, for another rank."""
        if self._has_default_group:
            check_default_group(self.source.partition.rank, self.source.partition.world_size)

    def __getitem__(self, number: object) -> NoReturn:
        raise TypeError(
            "a Loader replaces PyTorch's DataLoader and yields batches: iterate over it; for single samples, index "
            "loader.dataset"
        )

    def __repr__(self) -> str:
        epochs, partition, split = self.source.epochs, self.source.partition, self.split
        how = "in the split's order"
        if epochs.shuffle is not None:
            how = f"shuffled with seed {epochs.seed} ({self._streams} streams, buffer {epochs.shuffle.buffer})"
        if self._sampler is not None:
            how += f", chosen by {self._sampler!r}"
        epoch = "" if epochs.length == epochs.samples else f", {epochs.length} per epoch"
        samples = f"{plural(epochs.samples, 'sample')}{epoch}"
        return (
            f"<shardflow.Loader of {self.dataset.dataset.url}, split {split.name!r}: {samples} "
            f"in {plural(len(split.shards), 'shard')}, {how}; {len(self)} batches of {self.batch_size} x "
            f"({', '.join(self.fields)}) by {self.decoder!r}, tail {partition.tail!r}; "
            f"rank {partition.rank} of {partition.world_size}, "
            f"{plural(self.num_workers, 'worker')}; epoch {self._cursor.next[0]}, {self.remaining} of its batches left>"
        )

    def explain(self, number: int, *, epoch: int = 0, sample: Sample | None = None) -> ExplainedSample | None:
        """Return sample `number` of the split as training gets it in an epoch; None if the epoch does not have it.

        The workers' stages run in this process, without `batch_transform` and transforms on a device. With
        `samples_per_epoch`, `epoch` counts passes over the split. If the sample comes several times, the first counts.
        Pass `sample` if you have read it already.

        >>> loader = shardflow.Loader("photos256", batch_size=256)
        >>> image = loader.explain(17, epoch=3).images[0]  # uint8 [3, 224, 224]

        Raises:
            ConfigError: The loader returns no images, the sample does not exist, or `sample` is a different one.
        """
        if {"image", IMAGES}.isdisjoint(self.source.fields):
            raise ConfigError(f"the loader reads no images; add 'image' to its fields, found {self.source.fields}")
        number = check_integer("the number of a sample", number, 0, self.source.epochs.samples - 1)
        visit = self.source.epochs.visit(number, check_integer("epoch", epoch, 0), self._streams)
        if visit is None:
            return None
        shard, record = self.split.locate(number)
        if sample is None:
            sample = self.split.reader.read(shard, record)
        elif (sample.url, sample.record) != (self.split.reader.url(shard), record):
            raise ConfigError(f"sample= is record {sample.record} of {sample.url}, not sample {number}")
        return explain_sample(self.source, sample, visit)

    def describe(self) -> dict[str, Any]:
        """Return the settings that identify the data of a run, for its log: plain JSON, without credentials.

        They stay equal throughout a run, and on all ranks of equal machines. To load this version of the dataset again,
        pass `fingerprint` as `version=`.

        >>> entries = shardflow.Loader("photos256", batch_size=256).describe()  # mlflow.log_dict(entries, "data.json")
        """
        source, opened = self.source, self.dataset.dataset
        plan = checkpoint.identity(opened, source, self._streams)
        del plan["version"]
        transform = source.transform
        return {
            **describe_dataset(opened),
            "fields": list(self.fields),
            **({"boxes": repr(self.annotations.boxes)} if self.annotations.objects else {}),
            "decoder": describe_object(source.decoder),
            "transform": [describe_object(each) for each in transform]
            if isinstance(transform, Sequence)
            else describe_object(transform),
            "batch_transform": describe_object(source.batch_transform),
            "batch_size": self.batch_size,
            "world_size": source.partition.world_size,
            "tail": source.partition.tail,
            "max_errors": self.max_errors,
            "num_workers": self.num_workers,
            **plan,
            "samples": source.epochs.pass_length,
            "versions": {"python": platform.python_version(), **describe_versions()},
        }

    def set_sampler(self, sampler: Sampler) -> None:
        """Replace the sampler for the next epochs; a running epoch ends.

        The loader must have been made with a sampler, because only then each epoch begins with a check that all ranks
        have the same. New worker processes start. A state names its sampler: set it before `load_state_dict`.

        >>> loader = shardflow.Loader("photos256", batch_size=256, sampler=shardflow.samplers.Weighted(1))
        >>> loader.set_sampler(shardflow.samplers.Weighted(losses.clip(0.2, 3)))

        Raises:
            ConfigError: The sampler does not fit, the loader was made without one, or it was resumed within an epoch
                and not iterated since.
        """
        if self._sampler is None:
            raise ConfigError("the loader was made without a sampler; make it with sampler=samplers.Weighted(1)")
        old = self.source
        new = Epochs(self._facts, sampler, seed=old.epochs.seed, samples_per_epoch=old.epochs.samples_per_epoch)
        if new.sampler.identity == old.epochs.sampler.identity:
            return
        ways = [(each.together, each.shapes, each.patch) for each in (old.epochs.sampler, new.sampler)]
        if ways[0] != ways[1]:
            raise ConfigError(f"{sampler!r} forms batches differently from the current sampler; make another loader")
        if self._cursor.position and not self._cursor.begun:
            raise ConfigError(
                f"the loader is at position {self._cursor.position} of an epoch of another sampler; "
                "call set_sampler before load_state_dict"
            )
        check_sendable(self.workers, sampler=new.sampler)
        self._replace_source(epochs=new, partition=replace(old.partition, length=new.length))
        self._sampler = sampler
        self.dataset = MapDataset(self.dataset.dataset, self.split, new.samples, new.sampler.chosen)
        if self._cursor.begun:
            epoch, position = self._cursor.next_start
            self._cursor.set(epoch + (position > 0))

    def set_batch_size(self, batch_size: int) -> None:
        """Change the batch size of the next batches. All ranks must call this together.

        In the middle of an epoch, leave its loop: the next iteration continues there, so the epoch still has each
        sample once. New worker processes start. A state fits any batch size.

        >>> loader = shardflow.Loader("photos256", batch_size=128)
        >>> loader.set_batch_size(256)

        Raises:
            ConfigError: The size does not fit, differs on another rank, or the sampler composes batches of one size.
        """
        old, batch_size = self.source, check_integer("batch_size", batch_size, 1, MOST_BATCH)
        check_equal_on_ranks("batch_size", str(batch_size), old.partition.world_size)
        if old.epochs.sampler.together != "sample":
            raise ConfigError("ClassBatches and AspectBuckets have a fixed batch size; make another loader")
        self._replace_source(epochs=old.epochs, partition=replace(old.partition, batch_size=batch_size))
        self._facts = replace(self._facts, batch_size=batch_size)
        self._cursor.set(self._cursor.epoch, self._cursor.position)

    def _replace_source(self, *, epochs: Epochs, partition: RankPartition) -> None:
        _check_epoch(self.split.name, epochs, partition)
        self.source = self._plan.sources[0] = replace(self.source, epochs=epochs, partition=partition)
        self._plan.unit = partition.global_batch
        self._control.end()
        self._pool.end()  # the workers have the old source

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch: a few plain values, to save with the model.

        Prefetched batches count only once the loop has received them.
        """
        self._warn_of_held()
        start = EpochStart(self._cursor.epoch, self._cursor.position, self._streams)
        return checkpoint.save(self.dataset.dataset, self.source, start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved. World size, batch size and workers may differ.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
        """
        start = checkpoint.restore(state, self.dataset.dataset, self.source, self._streams)
        self._streams = start.streams
        self._cursor.set(start.epoch, start.position)
        self._control.end()


def check_sampler_on_ranks(source: Source) -> None:
    """Check that all ranks, which call this together, have the same sampler; ConfigError if not."""
    identity = json.dumps(source.epochs.sampler.identity, sort_keys=True)
    check_equal_on_ranks("sampler", identity, source.partition.world_size)


def compare_start_on_ranks(dataset: Dataset, source: Source, start: EpochStart) -> Callable[[], None]:
    """Warn if the rank that began first has another dataset, started elsewhere, or over other samples of the split.

    Returns a check for the end of the pass, which warns if this rank reads alone.
    """
    settings = checkpoint.save(dataset, source, start)
    settings |= {"batch_size": source.partition.batch_size, "tail": source.partition.tail}
    return warn_of_other_settings(source.split.name, settings, source.partition.world_size)


def _check_callables(transform: Transforms, batch_transform: object) -> None:
    transforms = list(transform) if isinstance(transform, Sequence) and not isinstance(transform, str) else [transform]
    listed = transforms if isinstance(transform, Sequence) else []
    if any(isinstance(each, WholeSample) for each in (batch_transform, *listed)):
        raise ConfigError("WholeSample takes all views and fields of a sample: pass it as transform=, not in a list")
    for name, value in (*(("transform", each) for each in transforms), ("batch_transform", batch_transform)):
        image = "the image, or a dict of fields as WholeSample(transform)" if name == "transform" else ""
        check_callable(name, value, image)
        if type(value).__module__.startswith("shardflow.device."):
            raise ConfigError(
                f"{type(value).__name__} runs on the device: pass it to device.Prefetcher(transforms=...), not as "
                f"{name}; the device may be 'cpu'"
            )


def _check_epoch(split: str, epochs: Epochs, partition: RankPartition) -> None:
    """Check that an epoch has a batch for each rank and drops no sample with `samples_per_epoch`; log warnings."""
    for warning in epochs.sampler.warnings:
        logger.warning("%s", warning)
    if not partition.steps():
        whose = f" for each of {partition.world_size} ranks" if partition.world_size > 1 else ""
        raise ConfigError(
            f"an epoch of split {split!r} has {plural(epochs.length, 'sample')}, less than one batch of "
            f"{partition.batch_size}{whose}; lower batch_size, or set tail='short' or 'pad'{epochs.sampler.length_rule}"
        )
    if epochs.samples_per_epoch is not None and partition.tail == "drop" and epochs.length % partition.global_batch:
        raise ConfigError(
            f"samples_per_epoch={epochs.length} is not a multiple of the {partition.global_batch} samples that all "
            "ranks take in a step, so each epoch would drop some; choose a multiple, or another tail"
        )


def _decoder(decoder: Decoder | None, epochs: Epochs, fields: Sequence[str], transform: Transforms) -> Decoder:
    """Return the given decoder or the sampler's default; ConfigError if it does not fit the other arguments."""
    shapes, patch = epochs.sampler.shapes, epochs.sampler.patch
    if decoder is None:
        if patch:
            decoder = Patches(patch)
        elif epochs.shuffle is None:  # evaluation: no randomness
            decoder = Cover(random=False, hflip=0) if shapes else CenterCrop()
        else:
            decoder = Cover() if shapes else RandomResizedCrop()
    check_decoder(decoder)
    if isinstance(transform, Sequence) and len(transform) != (views := max(1, len(decoder.views))):
        raise ConfigError(
            f"a list of transforms must have one for each view of a MultiView, found {len(transform)} for "
            f"{plural(views, 'view')}; to chain transforms, use torchvision's v2.Compose"
        )
    side = decoder.patch
    if bool(patch) != bool(side) or (patch and side and (patch % side or "image" not in fields)):
        raise ConfigError(
            f"{decoder!r} does not fit the sampler: decoders.Patches and samplers.TokenBudget(patch=...) go together, "
            "with 'image' among the fields and a patch that divides the sampler's; patch=None counts only texts"
        )
    if bool(shapes) != decoder.needs_shape or (shapes and "image" not in fields):
        raise ConfigError(
            f"{decoder!r} does not fit the sampler: decoders.Cover and samplers.AspectBuckets go together, with "
            "'image' among the fields"
        )
    if not {"image", IMAGES}.isdisjoint(fields):
        decoder.load_libraries()
    return decoder


def _pixel_cache(cache: object, fields: Sequence[str], split: Split, decoder: Decoder) -> PixelCache | None:
    if not isinstance(cache, Cache) or cache.pixel_limit_bytes is None:
        return None
    if "image" not in fields:
        raise ConfigError(f"Cache(pixels=...) needs 'image' among the fields, found {tuple(fields)}")
    return PixelCache(split, cache, decoder)
