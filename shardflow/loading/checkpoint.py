"""The cursor: (epoch, position), and how iterating, leaving early, `set_epoch` and resuming move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardflow._validation import check_integer
from shardflow.errors import ConfigError, ResumeMismatchError


def saved_integers(state: Mapping[str, Any], *names: str) -> list[int]:
    """Return the numbers of a saved state that have these names.

    Raises:
        ResumeMismatchError: One is missing, or is none that is saved.
    """
    try:
        return [check_integer(name, state.get(name), 0) for name in names]  # type: ignore[arg-type] # None is none
    except ConfigError as error:
        raise ResumeMismatchError(f"the state is damaged: {error}") from None


@dataclass(slots=True)
class Cursor:
    """Where the next batch starts.

    Attributes:
        epoch: From 0.
        position: Within the epoch; how far it has been handed out.
        begun: Whether anything was handed out since the cursor was set, loaded or moved on to a new epoch.
    """

    epoch: int = 0
    position: int = 0
    begun: bool = False

    def set(self, epoch: int, position: int = 0) -> None:
        """Put the cursor somewhere; the next iteration starts there."""
        self.epoch, self.position, self.begun = epoch, position, False

    def set_epoch(self, epoch: int) -> bool:
        """Move to the start of an epoch, and return whether that changed anything.

        Naming the epoch of a state that was just loaded leaves its position alone, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes where it should.
        """
        epoch = check_integer("epoch", epoch, 0)
        if epoch == self.epoch and not self.begun:
            return False
        self.set(epoch)
        return True

    def hand_out(self, position: int) -> None:
        """Note that everything before `position` has been handed out."""
        self.position, self.begun = position, True
