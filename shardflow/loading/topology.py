"""The topology of a run: the rank of this process, and the cores that it may use.

Only this module reads a launcher's environment variables.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from shardflow._cores import allowed_cores
from shardflow._validation import check_integer
from shardflow.errors import ConfigError


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world_size): torch.distributed's when initialised, else the arguments, else RANK and WORLD_SIZE.

    `rank=0, world_size=1` always reads everything in this process, so that one rank can evaluate alone.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank and world_size go together, found rank={rank} and world_size={world_size}")
    arguments = None
    if rank is not None and world_size is not None:
        arguments = check_integer("rank", rank), check_integer("world_size", world_size)
    if dist.is_available() and dist.is_initialized():
        actual = dist.get_rank(), dist.get_world_size()
        if arguments not in (None, actual, (0, 1)):
            raise ConfigError(
                f"rank and world_size are {arguments}, torch.distributed has {actual}; leave them out, "
                "or pass rank=0, world_size=1 to read everything on this rank"
            )
        return arguments or actual
    if arguments is not None:
        return arguments
    return _environment("RANK", 0), _environment("WORLD_SIZE", 1)


def check_equal_on_ranks(name: str, value: str, world_size: int) -> None:
    """Compare a value on all ranks of torch.distributed, where it is initialised; all of them call this.

    Raises:
        ConfigError: On each rank, if the ranks have different values.
    """
    if world_size < 2 or not (dist.is_available() and dist.is_initialized()):
        return
    found: list[str] = [""] * world_size
    dist.all_gather_object(found, value)
    if others := [rank for rank, other in enumerate(found) if other != found[0]]:
        raise ConfigError(f"{name} must be the same on all ranks; rank {others[0]} has others than rank 0")


def usable_cores() -> int:
    """Return how many cores this rank may use: its share of the cores that affinity and control group allow."""
    return max(1, allowed_cores() // local_ranks())


def local_ranks() -> int:
    """Return the number of ranks on this host."""
    return max(1, _environment("LOCAL_WORLD_SIZE", 1))


def _environment(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    try:
        return int(value) if value else default
    except ValueError:
        raise ConfigError(f"the environment variable {name} must be an integer, found {value!r}") from None
