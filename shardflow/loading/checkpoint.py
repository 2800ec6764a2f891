"""The checkpoint of a loader: the cursor (epoch, position), and the settings on which its meaning depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.order.shuffle_settings import MOST_STREAMS

from .source import EpochStart, Source

_ARGUMENTS = {
    "sampler": "sampler=, batch_size= and world_size=, or set_sampler before load_state_dict",
    "shard_affinity": "shuffle=Shuffle(shard_affinity=...)",
    "source": "its place among the sources of a Mix",
}
"""Entry of a state → the arguments that determine it, if they have other names."""

MOST_EPOCHS = 2**31 - 1
"""The largest epoch that can be set; workers receive the epochs after it in 64 bits."""

_BOUNDS = {"epoch": (0, MOST_EPOCHS), "position": (0, None), "streams": (1, MOST_STREAMS)}

STATE_VERSION = 1


@dataclass(slots=True)
class Cursor:
    """Where the next batch starts, and how iterating, leaving early, `set_epoch` and resuming move that.

    An iteration that is left early ends its epoch, as each iteration of a DataLoader has another order. One that is
    left after its first batch is a peek: the next iteration starts where it did. Only one peek in a row is, since some
    draw every batch by a new iteration.
    """

    epoch: int = 0
    position: int = 0  # the first one of the epoch that has not been handed out
    begun: bool = False  # whether a batch was handed out since the cursor was set, loaded or moved to a new epoch
    running: bool = False  # whether an iteration is running
    peeked_at: int | None = None  # where the iteration began that was a peek
    may_peek: bool = True
    was_peek: bool = False  # whether the last iteration was left after one batch

    def set(self, epoch: int, position: int = 0) -> None:
        """Make the next iteration start at this position."""
        self.epoch, self.position, self.begun = epoch, position, False
        self.running, self.peeked_at, self.may_peek, self.was_peek = False, None, True, False

    @property
    def next(self) -> tuple[int, int]:
        """Epoch and position of the next batch, of the running iteration or else of the next one."""
        return (self.epoch, self.position) if self.running else self.next_start

    @property
    def next_start(self) -> tuple[int, int]:
        """Epoch and position where the next iteration starts."""
        if not self.begun:
            return self.epoch, self.position
        return (self.epoch + 1, 0) if self.peeked_at is None else (self.epoch, self.peeked_at)

    def begin(self) -> tuple[int, int]:
        """Begin an iteration, which ends the current one, and return its start."""
        self.epoch, self.position = self.next_start
        self.may_peek = self.may_peek and self.peeked_at is None
        self.begun, self.running, self.peeked_at = False, True, None
        return self.epoch, self.position

    def leave(self, peeked_at: int | None = None) -> None:
        """End an iteration early; if it was a peek, `peeked_at` is its start."""
        self.running, self.was_peek = False, peeked_at is not None
        if self.may_peek:
            self.peeked_at = peeked_at

    def set_epoch(self, epoch: int) -> bool:
        """Move to the start of an epoch, and return whether the cursor moved, see `Loader.set_epoch`."""
        epoch = check_integer("epoch", epoch, 0, MOST_EPOCHS)
        if epoch == self.epoch and not self.begun:
            return False
        self.set(epoch)
        return True

    def advance(self, position: int) -> None:
        """Record that all positions before `position` have been handed out."""
        self.position, self.begun = position, True


def identity(dataset: Dataset, source: Source, streams: int) -> dict[str, Any]:
    """Return the settings that must be equal for a position to mean the same sample."""
    order = source.epochs
    return {
        "version": STATE_VERSION,
        "fingerprint": dataset.fingerprint,
        "split": source.split.name,
        "limit": source.limit,
        "samples_per_epoch": order.samples_per_epoch,
        "seed": order.seed,
        "source": order.source,
        "shuffle": order.shuffle is not None,
        "streams": streams,
        "shuffle_buffer": None if order.shuffle is None else order.shuffle.buffer,
        "shard_affinity": order.shuffle is not None and order.shuffle.shard_affinity,
        "sampler": order.sampler.identity,
    }


def save(dataset: Dataset, source: Source, start: EpochStart) -> dict[str, Any]:
    """Return the state of a source at a start, as plain values for `restore`."""
    return {**identity(dataset, source, start.streams), "epoch": start.epoch, "position": start.position}


def restore(state: Mapping[str, Any], dataset: Dataset, source: Source, streams: int) -> EpochStart:
    """Return the start in a saved state, with the state's streams unless the run sets them.

    Raises:
        ResumeMismatchError: The state belongs to another dataset, split or order, or is damaged.
    """
    if not isinstance(state, Mapping):
        raise ResumeMismatchError(f"a state is a dict from Loader.state_dict(), found {state!r}")
    expected, order = identity(dataset, source, streams), source.epochs
    missing = sorted({*expected, "epoch", "position"} - set(state))
    if missing:
        inner = next(
            (name for name, value in state.items() if isinstance(value, Mapping) and "position" in value), None
        )
        remedy = "" if inner is None else f": that is its entry {inner!r}"
        raise ResumeMismatchError(f"the state has no {', '.join(missing)}; it is not from Loader.state_dict(){remedy}")
    if state["version"] != STATE_VERSION:
        raise ResumeMismatchError(
            f"the state has version {state['version']!r}, but this shardflow reads version {STATE_VERSION}, with "
            "another order of samples; start a new epoch, or use the shardflow that saved the state"
        )
    if order.shuffle is None or order.shuffle.streams is None:
        expected = {name: value for name, value in expected.items() if name != "streams"}
    if differences := compare(state, expected):
        arguments = [how for name, how in _ARGUMENTS.items() if state[name] != expected[name]]
        remedy = "make these equal" + (f" ({'; '.join(arguments)})" if arguments else "")
        if state["fingerprint"] != dataset.fingerprint:
            old = f"{dataset.url} is another dataset; open the dataset of the run"
            if dataset.has_version(str(state["fingerprint"])):
                old = (
                    f"the dataset has a newer version; read the old one, Loader(..., version={state['fingerprint']!r})"
                )
            remedy = f"{old}, or begin an epoch of this one: loader.set_epoch(…) without the state"
        raise ResumeMismatchError(f"the state belongs to another run: {'; '.join(differences)}; {remedy}")
    start = EpochStart(*saved_integers(state, "epoch", "position", "streams"))
    if start.position > order.length:
        raise ResumeMismatchError(
            f"the state is damaged: position {start.position} in an epoch of {plural(order.length, 'sample')}"
        )
    return start


def compare(state: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return a description of each entry of a state that differs from the expected one."""
    return [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in expected.items()
        if state.get(name) != value
    ]


def saved_integers(state: Mapping[str, Any], *names: str) -> list[int]:
    """Return entries of a saved state; ResumeMismatchError if they are not integers within their bounds."""
    try:
        values: list[Any] = [state.get(name) for name in names]  # None is refused
        return [check_integer(name, value, *_BOUNDS[name]) for name, value in zip(names, values, strict=True)]
    except ConfigError as error:
        raise ResumeMismatchError(f"the state is damaged: {error}") from None
