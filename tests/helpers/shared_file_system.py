"""A file system as machines share it, for tests: one process in which calls below a directory `shared` fail or lie.

`shared_file_system.c` has the calls. Functions of a test's module run in the process, which has its faults set anew for
each; the programs that it starts have the same ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

ALWAYS = -1


def fault(call: str, error: str = "", *, skip: int = 0, times: int = ALWAYS) -> str:
    """Return the rule of a call that fails with an error such as "ESTALE", so many times after so many calls."""
    return f"{call} {getattr(errno, error, 0)} {skip} {times};"


@contextlib.contextmanager
def faults(*rules: str) -> Iterator[None]:
    """Let calls of this process, and of those that it starts, fail or lie while the body runs."""
    text = "".join(rules)
    try:
        os.environ["FAULTS"] = text
        ctypes.CDLL(None).set_faults(text.encode())
        yield
    finally:
        ctypes.CDLL(None).set_faults(b"")
        del os.environ["FAULTS"]


@contextlib.contextmanager
def processes(folder: Path, count: int = 1) -> Iterator[ProcessPoolExecutor]:
    """Provide processes on such a file system; `folder` keeps the library."""
    library = folder / "shared_file_system.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
            yield pool
