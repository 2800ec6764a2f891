"""Reading again: a blob whose bytes arrive wrong, or that is replaced while it is read, is read from the start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from shardflow.errors import IntegrityError

from .interface import MAX_READ_BYTES, BlobTooLargeError, BlobVersion, Storage
from .retry import Attempts, Failure, RetryPolicy, one_wait
from .stores import ChangedError
from .transfers import pause
from .wrapper import StorageWrapper

T = TypeVar("T")
_log = logging.getLogger(__name__)

_SAME_TIMES = 4  # times in a row, after which wrong bytes count as those that are stored


class RereadingStorage(StorageWrapper):
    """A storage that reads wrong bytes again, as often as the policy allows.

    Damage on the way differs each time. The same wrong bytes again and again are those that are stored.
    """

    def __init__(self, inner: Storage, policy: RetryPolicy) -> None:
        super().__init__(inner)
        self._policy = policy

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        return self._repeat(name, partial(self._inner.read, name, most_bytes=most_bytes))

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        return self._repeat(name, partial(self._inner.read_range, name, start, stop, version=version))

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        self._repeat(name, partial(self._inner.get, name, target, size=size, sha256=sha256))

    def _repeat(self, name: str, attempt: Callable[[], T]) -> T:
        with one_wait() as wait:
            wait.leave_quarter(self._policy.idle_timeout_s)
            # In addition to earlier waits, only the pauses count: the bytes came, however long a blob is.
            attempts, passed_s, last, same = Attempts(self._policy), wait.idle_s(), "", 0
            while True:
                try:
                    return attempt()
                except BlobTooLargeError:
                    raise
                except IntegrityError as error:
                    failed = error
                    same = same + 1 if str(error) == last else 1  # it names what was found
                    last = str(error)
                except ChangedError as error:
                    failed = IntegrityError(
                        f"{self.url(name)} was replaced while it was read; stop the process that writes to it"
                    )
                    failed.__cause__ = error
                pause_s = attempts.pause_s(Failure(error=failed, retry=True), passed_s)
                if same == _SAME_TIMES:
                    attempts.give_up(failed, passed_s)
                _log.warning("%s; reading it again in %.1f s", failed, pause_s)
                pause(pause_s)
                passed_s += pause_s
