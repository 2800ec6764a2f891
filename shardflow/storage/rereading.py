"""Rereading: a blob whose bytes arrive damaged, or that is replaced while it is read, is read again from the start."""

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

_SAME_TIMES = 4  # reads in a row with the same wrong bytes, which then count as the stored bytes


class RereadingStorage(StorageWrapper):
    """A storage that reads wrong bytes again, as often as the policy allows.

    Damage in transit differs each time. So the same wrong bytes, read `_SAME_TIMES` in a row, are an error at once.
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
            # Besides earlier waits, only the pauses count: the bytes arrived, however long a blob is.
            attempts, passed_s, last, same = Attempts(self._policy), wait.idle_s(), "", 0
            while True:
                try:
                    return attempt()
                except BlobTooLargeError:
                    raise
                except IntegrityError as error:
                    failed = error
                    same = same + 1 if str(error) == last else 1  # the message names the size or digest found
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
