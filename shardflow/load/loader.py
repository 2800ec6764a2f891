"""The loader: `for images, labels in loader`.

The cursor (epoch, position) is the whole state. It lives here, in the training process, and moves when a batch is
handed to the caller; workers are told where an iteration starts and compute everything else.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
import webdataset as wds

from shardflow.dataset import open_dataset
from shardflow.errors import ConfigError, ResumeMismatchError, ShardflowError, WorkerError
from shardflow.schedule import Schedule

from .decode import CenterCropDecoder, Decoder, RandomResizedCropDecoder
from .source import Order, PlanSource, SharedStart, Start
from .stages import Augment, Collate, Decode, Read, guard
from .topology import resolve_rank, usable_cores

STATE_VERSION = 1
WINDOW = 16384


class Loader:
    """Streams one split of a dataset as batches; iterating it again gives the next epoch.

    >>> loader = shardflow.Loader("photos256", split="train", batch_size=256)      # doctest: +SKIP
    >>> for images, labels in loader:    # uint8 [256, 3, 224, 224], int64 [256]     # doctest: +SKIP
    ...     train_step(images, labels)

    Args:
        url: Where the dataset lies.
        split: Which split to read.
        batch_size: Samples per batch and rank.
        decoder: Makes uint8 images of encoded ones, cropping included; called as `decode.Decoder` says. By default
            `RandomResizedCropDecoder(224)` when shuffling, else `CenterCropDecoder(224)`.
        transform: Called with each image, a uint8 tensor [3, H, W]; any torchvision v2 transform. What it draws from
            torch's, Python's or numpy's global generator depends on (seed, epoch, sample) alone.
        batch_transform: Called with the fields of each batch as arguments, in the worker; returns what to hand out.
        fields: What a batch consists of, in order: "image", "label" (int64 [B], from `.cls`), "key" (list of str),
            "valid" (bool [B], False for the repeats of a padded tail), and the name of any part: "txt" (list of str),
            "json" (list of its values), others (list of bytes). By default image and label, or image and key for a
            dataset without labels; with tail="pad", "valid" comes third.
        shuffle: False reads in order.
        window: Samples that are shuffled among each other; larger mixes better, smaller opens fewer shards at a time.
        lanes: Parallel streams the epoch is cut into; by default the world size, or 1 without shuffling. A resumed run
            keeps the lanes of the run that was saved.
        seed: Of the order and of all augmentation.
        tail: What happens to the samples that do not fill a last global batch: "drop" leaves them out, "pad" fills the
            batch by starting over, "short" deals them out (a rank may get an empty batch).
        limit: Use the first `limit` samples of the split alone, for a trial run.
        num_workers: Worker processes; by default one per core that this rank may use. 0 works in this process.
        prefetch_factor: Batches prefetched by each worker.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Put batches into pinned memory; by default where there is a GPU.
        multiprocessing_context: Start method of the workers, as for `torch.utils.data.DataLoader`.
        rank, world_size: By default torch.distributed's when it is initialised, else RANK and WORLD_SIZE from the
            environment, else 0 and 1.
        verify: Check the CRC-32 of every part that is read.

    Raises:
        ConfigError: An argument is wrong.
        NotFoundError: There is no dataset.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        split: str = "train",
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
        num_workers: int | None = None,
        prefetch_factor: int = 4,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        verify: bool = True,
    ) -> None:
        dataset = open_dataset(url)
        for name, value, least in (("limit", limit, 1), ("num_workers", num_workers, 0)):
            if value is not None and value < least:
                raise ConfigError(f"{name} must be {least} or more, found {value}")
        rank, world_size = resolve_rank(rank, world_size)
        self._fingerprint = dataset.fingerprint
        self._order = Order(dataset[split], seed=seed, window=window, shuffle=shuffle, limit=limit)
        self._schedule = Schedule(
            length=self._order.length, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail
        )
        if not len(self):
            raise ConfigError(
                f"split {split!r} has {self._order.length} samples, less than one batch of {batch_size} for each of "
                f"{world_size} ranks; lower batch_size or set tail='pad' or 'short'"
            )
        self._lanes_given = lanes
        self._cursor = Start(epoch=0, position=0, lanes=_default_lanes(world_size, shuffle) if lanes is None else lanes)
        self._order.plan(0, self._cursor.lanes)  # a wrong window or lanes is found here and not in a worker
        self._begun = False  # whether a batch was handed out since the cursor was last set
        self._start = SharedStart()
        num_workers = usable_cores() if num_workers is None else num_workers
        fields = tuple(fields) if fields is not None else _default_fields(dataset.classes is not None, tail)
        if decoder is None:
            decoder = RandomResizedCropDecoder() if shuffle else CenterCropDecoder()
        self._make_batches = functools.partial(
            wds.WebLoader,
            wds.DataPipeline(
                PlanSource(self._order, self._schedule, self._start),
                Read(self._order.split, verify),
                Decode(decoder) if "image" in fields else None,
                Augment(transform) if transform is not None and "image" in fields else None,
                Collate(fields, batch_transform),
                guard,
            ),
            batch_size=None,
            collate_fn=_untouched,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers and num_workers > 0,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            multiprocessing_context=multiprocessing_context if num_workers else None,
            # A generator of its own: making an iterator draws from it, and that must not disturb the user's.
            generator=torch.Generator(),
        )
        self._batches = self._make_batches()

    def __len__(self) -> int:
        """Return the number of batches that each rank gets in a whole epoch."""
        return self._schedule.steps()

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        One iteration at a time: starting another ends the one before it.
        """
        if self._begun:
            self._set_cursor(self._cursor.epoch + 1, 0)
        return self._run(self._start.begin(self._cursor))

    def _run(self, iteration: int) -> Iterator[Any]:
        epoch, first = self._cursor.epoch, self._cursor.position
        steps = self._schedule.steps(first)
        handed_out = 0
        batches = _translated(iter(self._batches))
        try:
            for item in batches:
                if self._start.iteration() != iteration:
                    raise ConfigError("the loader was iterated again, which ended this iteration; use two loaders")
                handed_out += 1
                self._cursor.position, self._begun = self._schedule.after(first, handed_out), True
                yield item
            if handed_out != steps:
                raise WorkerError(f"the workers ended after {handed_out} of {steps} batches; start the iteration again")
        except ShardflowError:
            # The workers are in no known state; end them now, not when somebody drops the traceback.
            self._batches = self._make_batches()
            raise
        finally:
            batches.close()
        self._set_cursor(epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration runs through, from its start.

        Naming the epoch of a state that was just loaded leaves its position alone, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes where it should.
        """
        if epoch < 0:
            raise ConfigError(f"epoch must be 0 or more, found {epoch}")
        if epoch != self._cursor.epoch or self._begun:
            self._set_cursor(epoch, 0)

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
        missing = sorted({*self._identity(), "epoch", "position"} - set(state))
        if missing:
            raise ResumeMismatchError(f"the state has no {', '.join(missing)}; it is not from Loader.state_dict()")
        ours = self._identity()
        if self._lanes_given is None:
            ours["lanes"] = state["lanes"]
        differing = [
            f"{name} is {state[name]!r} in the state and {value!r} here"
            for name, value in ours.items()
            if state[name] != value
        ]
        if differing:
            raise ResumeMismatchError(f"the state belongs to another run: {'; '.join(differing)}; make these equal")
        self._cursor.lanes = int(state["lanes"])
        self._set_cursor(int(state["epoch"]), int(state["position"]))

    def _identity(self) -> dict[str, Any]:
        """Return what has to be equal for a position to mean the same."""
        order = self._order
        return {
            "version": STATE_VERSION,
            "fingerprint": self._fingerprint,
            "split": order.split.name,
            "limit": order.limit,
            "shuffle": order.shuffle,
            "seed": order.seed,
            "lanes": self._cursor.lanes,
            "window": order.window,
        }

    def _set_cursor(self, epoch: int, position: int) -> None:
        self._cursor.epoch, self._cursor.position, self._begun = epoch, position, False


def _default_fields(labelled: bool, tail: str) -> tuple[str, ...]:
    return ("image", "label" if labelled else "key", *(("valid",) if tail == "pad" else ()))


def _default_lanes(world_size: int, shuffle: bool) -> int:
    return world_size if shuffle else 1


def _untouched(item: Any) -> Any:
    return item


def _translated(batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Raise the errors that the workers sent as values, and name the death of a worker as what it is."""
    try:
        for item in batches:
            if isinstance(item, ShardflowError):
                raise item
            yield item
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(
            f"{str(error).rstrip('. ')}; the usual reasons are too little memory or too small a /dev/shm. The state is "
            "still right: save it and start again"
        ) from error
    finally:
        batches.close()  # lets go of the workers, even if a traceback keeps this frame
