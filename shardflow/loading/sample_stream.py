"""A WebDataset source that yields samples in the loader's order, for custom pipelines."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import IterableDataset, get_worker_info

from shardflow._validation import check_integer
from shardflow.dataset.open_dataset import open_dataset
from shardflow.errors import ConfigError
from shardflow.order.epochs import Epochs
from shardflow.order.keyed_rng import I64
from shardflow.order.shuffle_settings import Shuffle
from shardflow.storage.cache import Cache

from .distributed import Group, check_default_group, resolve_group
from .facts import split_facts
from .shard_prefetcher import prefetching
from .shared_integers import SharedIntegers

logger = logging.getLogger(__name__)

_CHUNK = 256
_SPLITTERS = wds.split_by_node.__code__, wds.split_by_worker.__code__


class Samples(IterableDataset[dict[str, Any]]):
    """The first stage of a `wds.DataPipeline`: yields sample dicts in the same order as `Loader`.

    >>> source = shardflow.samples("photos256", split="train")
    >>> pipeline = wds.DataPipeline(source, wds.decode("torchrgb8"), wds.to_tuple("jpg", "cls"))

    Ranks and DataLoader workers share the samples: together they yield each exactly once, and shares differ by one
    sample at most. Without workers, or with persistent ones, each iteration yields the next epoch; otherwise call
    `set_epoch`: new workers that begin the same epoch again log a warning.

    Args:
        url, split, version, shuffle, seed, limit, group, cache, storage_options: As for `Loader`.

    Raises:
        ConfigError: An argument is wrong.
        NotFoundError: `url` has no dataset.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        split: str = "train",
        version: str | None = None,
        shuffle: bool | Shuffle | None = None,
        seed: int = 0,
        limit: int | None = None,
        group: Group | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        dataset = open_dataset(url, storage_options=storage_options, cache=cache, version=version)
        self._split = dataset[split]
        self._order = Epochs(split_facts(self._split, dataset.classes, shuffle=shuffle, limit=limit), seed=seed)
        self._rank, self._world_size = resolve_group(group)
        self._has_default_group = group is None
        self._streams = self._order.default_streams(self._world_size)
        self._epoch = SharedIntegers(2)  # the epoch, and how often it was set
        self._begun = SharedIntegers(2)  # the epoch that worker 0 began last, counted from 1, and how often it was set
        self._iterated = 0, 0  # how often the epoch had been set at the last iteration, and iterations since

    def __getattr__(self, name: str) -> NoReturn:
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if hasattr(wds.DataPipeline, name) or hasattr(wds, name):
            message += f"; use it as the first stage of a pipeline: wds.DataPipeline(source, wds.{name}(...))"
        raise AttributeError(message)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration yield `epoch`."""
        epoch = check_integer("epoch", epoch, 0)
        values = self._epoch.to_set()
        values += torch.tensor([epoch - int(values[0]), 1], device="cpu")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._has_default_group:
            check_default_group(self._rank, self._world_size)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        epoch, times_set = self._epoch.values.tolist()
        since = self._iterated[1] if self._iterated[0] == times_set else 0
        self._iterated = times_set, since + 1
        if info is not None and worker == 0:
            begun = [epoch + since + 1, times_set]
            if not since and self._order.shuffle is not None and self._begun.values.tolist() == begun:
                logger.warning(
                    "new workers begin epoch %d again, in the same order; pass persistent_workers=True, or call "
                    "set_epoch(epoch) on the samples before each epoch",
                    epoch,
                )
            self._begun.values[:] = torch.tensor(begun, device="cpu")
        positions = np.arange(self._rank, self._order.length, self._world_size)[worker::workers]
        return self._run(epoch + since, positions, workers)

    def _run(self, epoch: int, positions: I64, workers: int) -> Iterator[dict[str, Any]]:
        if (stage := sys._getframe(1).f_code) in _SPLITTERS:
            message = f"leave wds.{stage.co_name} out: each worker of each rank gets its share of the samples already"
            raise ConfigError(f"{message}, and {stage.co_name} would drop most of it")
        needs = self._order.needs(epoch, 0, self._streams, self._rank, self._world_size)
        period = self._order.pass_length
        with prefetching(self._split, needs, workers=workers, period=period) as advance:
            for begin in range(0, len(positions), _CHUNK):
                chunk = positions[begin : begin + _CHUNK]
                advance(int(chunk[0]), int(chunk[-1]) + 1)
                found = self._order.locate(epoch, chunk, self._streams)
                for shard, record in zip(found.shards.tolist(), found.records.tolist(), strict=True):
                    sample = self._split.reader.read(shard, record, sequential=True)
                    payloads = {part: bytes(payload) for part, payload in sample.parts.items()}
                    yield {**payloads, "__key__": sample.key, "__url__": sample.url}
