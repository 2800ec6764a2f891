"""The rank of this process in a distributed run, and the cores that it may use.

Only this module reads a launcher's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch.distributed as dist

from shardflow._cores import allowed_cores
from shardflow._validation import check_integer
from shardflow.errors import ConfigError


def resolve_group(group: tuple[int, int] | None) -> tuple[int, int]:
    """Return (rank, size): torch.distributed's when initialised, else the argument, else RANK and WORLD_SIZE.

    (0, 1) always reads everything in this process, so that one rank can evaluate alone.
    """
    arguments = None
    if group is not None:
        if not isinstance(group, Sequence) or len(group) != 2:
            raise ConfigError(f"group must be (rank, size), such as (0, 8); found {group!r}")
        arguments = check_integer("rank", group[0]), check_integer("the size of the group", group[1])
    if dist.is_available() and dist.is_initialized():
        actual = dist.get_rank(), dist.get_world_size()
        if arguments not in (None, actual, (0, 1)):
            raise ConfigError(
                f"group is {arguments}, torch.distributed has {actual}; leave it out, or pass group=(0, 1) to read "
                "everything on this rank"
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
