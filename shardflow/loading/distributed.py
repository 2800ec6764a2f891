"""The data-parallel group of this process, and the ranks of this host; the only reader of a launcher's environment."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.distributed as dist
from torch.distributed import distributed_c10d

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


logger = logging.getLogger(__name__)

Group: TypeAlias = "tuple[int, int] | ProcessGroup | DeviceMesh"
"""The argument `group` of a loader."""

_LATE_S = 3  # for which a rank that has read its part waits for others to begin
_begun = Counter[str]()  # how many loaders of a split this process has begun to iterate


def resolve_group(group: Group | None) -> tuple[int, int]:
    """Return (rank, size): the group's; by default torch.distributed's if initialised, otherwise the environment's."""
    if group is None:
        if _is_initialised():
            return dist.get_rank(), dist.get_world_size()
        if bool(os.environ.get("WORLD_SIZE")) != bool(os.environ.get("RANK")):
            message = "the environment has one of RANK and WORLD_SIZE: make the loader after init_process_group (in "
            raise ConfigError(f"{message}Lightning's train_dataloader()) or set both; group=(0, 1) gives each rank all")
        return _environment("RANK", 0), _environment("WORLD_SIZE", 1)
    if isinstance(group, Sequence) and len(group) == 2:
        return check_integer("rank", group[0]), check_integer("the size of the group", group[1])
    given: Any = group
    if hasattr(given, "get_local_rank"):
        if given.ndim != 1:
            raise ConfigError(
                f"group is a mesh of {given.ndim} dimensions, {given.mesh_dim_names}; pass the data-parallel one, such "
                "as mesh['dp'], or flatten several, such as mesh['dp_replicate', 'dp_shard']._flatten()"
            )
        if given.get_coordinate() is None:
            raise ConfigError("this rank is not in the mesh of group; make the loader only on ranks of the mesh")
        return int(given.get_local_rank()), int(given.size())
    if hasattr(given, "rank") and hasattr(given, "size"):
        return int(given.rank()), int(given.size())
    raise ConfigError(
        "group must be (rank, size), such as (0, 8), a process group that this rank is in, or one dimension of a "
        f"DeviceMesh; found {given!r}"
    )


def check_default_group(rank: int, size: int) -> None:
    """Raise ConfigError if torch.distributed was initialised after the default group was resolved, and differs."""
    if _is_initialised() and (now := resolve_group(None)) != (rank, size):
        made, place = f"rank {rank} of {size}", f"rank {now[0]} of {now[1]}"
        remedy = f"make it after init_process_group, or pass group=({rank}, {size}) to stay that rank"
        raise ConfigError(f"the loader was made for {made}, but torch.distributed says {place}; {remedy}")


def check_equal_on_ranks(name: str, value: str, size: int) -> None:
    """Compare a value on all ranks of torch.distributed, if it is initialised; all ranks must call this.

    Ranks of other groups are included, because they repeat this rank's batches. With groups of `size` 1 nothing is
    compared, because a rank may read alone, for example in an evaluation.

    Raises:
        ConfigError: On each rank, if the ranks have different values.
    """
    if size < 2 or not _is_initialised():
        return
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, value)
    if others := [rank for rank, other in enumerate(found) if other != found[0]]:
        raise ConfigError(f"{name} must be equal on all ranks, but rank {others[0]} differs from rank 0")


def warn_of_other_settings(what: str, settings: Mapping[str, Any], size: int) -> Callable[[], None]:
    """Warn if the rank that began first has other settings for its loader of `what`, the n-th on each rank.

    If their "fingerprint" differs, no other setting is named: they read other datasets, or versions of one.
    No rank waits for another, because ranks may look at a batch alone. With groups of `size` 1 nothing is compared.

    Returns:
        A check for the end of the pass, which warns if this rank reads alone.
    """
    if size < 2 or not _is_initialised():
        return check_nothing
    _begun[what] += 1
    key = f"shardflow/{size}/{what}/{_begun[what]}"
    mine = json.dumps({"rank": dist.get_rank(), **settings}, sort_keys=True, default=str)
    try:
        store = distributed_c10d._get_default_store()
        store.add(f"{key}/ranks", 1)
        first = json.loads(store.compare_set(key, "", mine))
    except (RuntimeError, AttributeError) as error:  # the process that has the store ended; MPI has none
        logger.info("the settings of ranks are not compared: %s", error)
        return check_nothing
    rank, here = first.pop("rank"), json.loads(mine)
    names = [name for name in first if first[name] != here.get(name)]
    names = ["fingerprint"] if "fingerprint" in names else names
    if differing := [f"{name} {here.get(name)!r}, not {first[name]!r}" for name in names]:
        same = "give all ranks one version of the dataset" if "fingerprint" in names else "make them equal on all ranks"
        remedy = f"{same}, or pass group=(0, 1) to a loader that one rank reads alone"
        logger.warning(
            "this rank begins with %s as rank %d does: samples can be missing or repeated; %s",
            ", ".join(differing),
            rank,
            remedy,
        )
    return functools.partial(_warn_if_alone, what, f"{key}/ranks", size)


def check_nothing() -> None:
    """Without ranks to compare."""


def _warn_if_alone(what: str, key: str, size: int) -> None:
    """Warn if fewer than `size` ranks have begun to read what this rank has read; late ones have some seconds."""
    with contextlib.suppress(RuntimeError, ValueError):  # the process that has the store, or the group, ended
        store, deadline = distributed_c10d._get_default_store(), time.monotonic() + _LATE_S
        while (begun := store.add(key, 0)) < size and time.monotonic() < deadline:
            time.sleep(0.05)
        if begun < size:
            message = "this rank has read its part of split %r, but %d of %d ranks have not begun to read theirs: "
            remedy = "add up the results of all ranks, or pass group=(0, 1) to a loader that one rank reads alone"
            logger.warning(message + remedy, what, size - begun, size)


def _is_initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def local_ranks() -> int:
    """Return the number of ranks on this host."""
    return max(1, _environment("LOCAL_WORLD_SIZE", 1))


def _environment(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    try:
        return int(value) if value else default
    except ValueError:
        raise ConfigError(f"the environment variable {name} must be an integer, found {value!r}") from None
