"""The settings of worker processes: their number, start method, prefetching and pinned memory."""

from __future__ import annotations

import multiprocessing
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from shardflow._cores import allowed_cores
from shardflow._validation import check_integer, check_switch
from shardflow.errors import ConfigError

from .distributed import local_ranks

DEFAULT_PREFETCH_FACTOR = 2
"""As in `torch.utils.data.DataLoader`."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker processes of a loader; `num_workers=8` means `num_workers=Workers(8)`.

    >>> loader = shardflow.Loader("photos256", batch_size=256, num_workers=shardflow.Workers(8, prefetch_factor=4))

    Attributes:
        num_workers: Worker processes; by default one per core that this rank may use. 0 loads in this process.
        prefetch_factor: Batches prefetched by each worker, 1 or more.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Put batches into pinned memory; by default if there is a GPU.
        multiprocessing_context: Start method of the workers, as for `torch.utils.data.DataLoader`.

    Raises:
        ConfigError: A value is out of its range.
    """

    num_workers: int | None = None
    _: KW_ONLY
    prefetch_factor: int = DEFAULT_PREFETCH_FACTOR
    persistent_workers: bool = True
    pin_memory: bool | None = None
    multiprocessing_context: Any = None

    def __post_init__(self) -> None:
        number = usable_cores() if self.num_workers is None else check_integer("num_workers", self.num_workers, 0)
        object.__setattr__(self, "num_workers", number)
        object.__setattr__(self, "prefetch_factor", check_integer("prefetch_factor", self.prefetch_factor, 1))
        check_switch("persistent_workers", self.persistent_workers)
        pin_memory = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        object.__setattr__(self, "pin_memory", check_switch("pin_memory", pin_memory))
        methods, context = multiprocessing.get_all_start_methods(), self.multiprocessing_context
        if number and context not in (None, *methods) and not hasattr(context, "get_start_method"):
            raise ConfigError(
                f"multiprocessing_context must be one of {', '.join(methods)}, or a context of multiprocessing, "
                f"found {context!r}"
            )

    @property
    def count(self) -> int:
        """The number of worker processes."""
        return self.num_workers or 0

    @property
    def start_method(self) -> str:
        """The start method of the worker processes: "fork", "spawn" or "forkserver"."""
        context = self.multiprocessing_context
        method = context.get_start_method() if hasattr(context, "get_start_method") else context
        default = multiprocessing.get_start_method(allow_none=True)
        return method or default or multiprocessing.get_all_start_methods()[0]


def usable_cores() -> int:
    """Return the number of cores of this rank: its share of the cores that affinity and cgroup allow."""
    return max(1, allowed_cores() // local_ranks())
