"""Errors of the user's code in a worker: annotated with their sample, and re-raised in the training process.

A traceback cannot be sent to another process. It is rebuilt from its lines, so that it ends in the line of the
transform that raised the error, as without workers.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType, TracebackType

from torch.utils.data import get_worker_info

from shardflow._wording import add_note
from shardflow.errors import ShardflowError

_STAGES = [str(Path(__file__).with_name(name)) for name in ("stages.py", "collate.py", "damaged_samples.py")]


@contextlib.contextmanager
def add_context(describe: Callable[[], str], types: str = "") -> Iterator[None]:
    """Add a note with the sample or batch to an error of the user's code, and a hint about types if it may need one."""
    try:
        yield
    except ShardflowError:
        raise
    except Exception as error:
        place = f", in worker {info.id}" if (info := get_worker_info()) else ""
        add_note(error, f"shardflow: raised by {describe()}{place}")
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if types and (isinstance(error, TypeError | AttributeError) or raised_in.parent.name == "PIL"):
            add_note(error, f"shardflow: {types}")
        raise


class SentError:
    """An error on its way to the training process, with the lines of its traceback."""

    def __init__(self, error: Exception) -> None:
        self._pickled = _pickle(error)
        self._text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        self._notes = list(getattr(error, "__notes__", ()))
        frames = [
            (frame.filename, frame.lineno or 1, frame.name) for frame in traceback.extract_tb(error.__traceback__)
        ]
        # Frames above the stage are internals of the worker.
        stage = max((number for number, (filename, *_) in enumerate(frames) if filename in _STAGES), default=0)
        self._frames = frames[stage:]
        earlier = error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__
        self._earlier = SentError(earlier) if isinstance(earlier, Exception) else None

    def error(self) -> Exception:
        """Return the error; a RuntimeError with its text if its type cannot be sent."""
        error = RuntimeError(self._text) if self._pickled is None else _unpickle(self._pickled)
        if self._earlier is not None:
            error.__cause__ = self._earlier.error()
        if not hasattr(error, "__notes__"):
            for note in self._notes:
                add_note(error, note)
        return error.with_traceback(_rebuilt(self._frames))


def _pickle(error: Exception) -> bytes | None:
    """Return a pickled error; None if that is impossible. Its `__init__` is not called again."""
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    for contents in ((error,), (type(error), error.args, state), (type(error), error.args, {})):
        with contextlib.suppress(Exception):
            pickled = bytes(ForkingPickler.dumps(contents))
            if type(_unpickle(pickled)) is type(error):
                return pickled
    return None


def _unpickle(pickled: bytes) -> Exception:
    contents = ForkingPickler.loads(pickled)
    if len(contents) == 1:
        whole: Exception = contents[0]
        return whole
    kind, arguments, state = contents
    error: Exception = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(state)
    return error


_FAILING = (lambda: [][0]).__code__


def _rebuilt(frames: list[tuple[str, int, str]]) -> TracebackType | None:
    """Return a traceback of these (file, line, function), outermost first."""
    rebuilt = None
    for filename, line, name in reversed(frames):
        code = _FAILING.replace(co_filename=filename, co_name=name, co_firstlineno=line)
        if sys.version_info >= (3, 11):  # tables of positions without columns (CPython's InternalDocs/code_objects.md)
            units = len(code.co_code) // 2
            table = (bytes((0x80 | 13 << 3 | min(8, units - first) - 1, 0)) for first in range(0, units, 8))
            code = code.replace(co_qualname=name, co_linetable=b"".join(table))
        try:
            FunctionType(code, {})()
        except IndexError as error:
            frame = error.__traceback__ and error.__traceback__.tb_next
            assert frame is not None
            rebuilt = TracebackType(rebuilt, frame.tb_frame, frame.tb_lasti, line)
    return rebuilt
