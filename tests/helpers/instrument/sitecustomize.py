"""Named points at which a process can be killed: each write, publication, removal and request to a bucket.

Python imports a module of this name by itself when it starts. So a command and its workers, started with this folder
on PYTHONPATH, are watched from outside, and the product has no hooks. What to do is in the environment,
as JSON in FIRE:

    roots   only what lies below these paths counts; each path has a name that stands for it
    trace   file to which every point is appended as it is passed: "role when operation name #occurrence"
    kill    one of those lines: there the process ends itself with SIGKILL
    fired   file that is made at that moment; it dies once, not again in the worker that takes the dead one's place
    parts   size from which uploads to a bucket on S3 go in parts, and of these parts
    store   "gcs" or "azure" for a bucket of that kind
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import json
import os
import re
import shutil  # noqa: F401 - it looks at the functions of `os` as it is imported, and must see the real ones
import signal
import sys
from collections import Counter
from typing import Any

_PLAN = json.loads(os.environ.get("FIRE", "null"))
_ROLE = "worker" if "shardflow.packing.executors.worker_process" in " ".join(sys.orig_argv) else "parent"
_TOKEN = re.compile(r"(?<=\.)[0-9a-f]{8}$|(?<=^staging)[^/]*")
_passed: Counter[str] = Counter()


def _label(path: object, folder: int | None = None) -> str | None:
    """Return how a path is called, without what differs between two runs; None where it does not count."""
    if isinstance(path, int):
        folder, path = path, ""
    if folder is not None:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))  # type: ignore[call-overload]
    text = os.path.normpath(os.path.abspath(os.fspath(path)))  # type: ignore[call-overload]
    for root, name in _PLAN["roots"].items():
        if text.startswith(root):
            return _TOKEN.sub("*", name + text.removeprefix(root))
    return None


def _point(when: str, operation: str, label: str) -> None:
    """Pass a point, or die there."""
    _passed[f"{when} {operation} {label}"] += 1
    line = f"{_ROLE} {when} {operation} {label} #{_passed[f'{when} {operation} {label}']}"
    if "trace" in _PLAN:
        descriptor = os.open(_PLAN["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
    if line == _PLAN.get("kill"):
        try:
            os.close(os.open(_PLAN["fired"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(operation: str, *, named_by: int = 0) -> None:
    """Put points before and after a function of `os`."""
    original = getattr(os, operation)

    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        label = _label(arguments[named_by], options.get("dir_fd"))
        if label is None:
            return original(*arguments, **options)
        _point("before", operation, label)
        result = original(*arguments, **options)
        _point("after", operation, label)
        return result

    setattr(os, operation, watched)


class _Written:
    """A file that is written to, with points before, in the middle of, and after each write."""

    def __init__(self, file: Any, label: str) -> None:
        self._file, self._label = file, label

    def write(self, data: Any) -> int:
        """Write in two halves; what was written before a point has left the process."""
        view = memoryview(data).cast("B")
        _point("before", "write", self._label)
        for half, when in ((view[: len(view) // 2], "half"), (view[len(view) // 2 :], "after")):
            self._file.write(half)
            self._file.flush()
            _point(when, "write", self._label)
        return len(view)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _watch_open() -> None:
    original = io.open

    def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        writes = set(mode) & set("wxa") and "b" in mode and not isinstance(file, int)
        label = _label(file) if writes else None
        opened = original(file, mode, *arguments, **options)
        return opened if label is None else _Written(opened, label)

    io.open = builtins.open = watched  # type: ignore[assignment]


def _watch_pathlib() -> None:
    """Give the functions with points to pathlib too, which in Python 3.10 keeps those it found when it was imported."""
    from pathlib import _NormalAccessor  # type: ignore[attr-defined]

    _NormalAccessor.open = staticmethod(io.open)
    for operation in ("unlink", "rmdir", "mkdir", "replace", "rename", "link"):
        setattr(_NormalAccessor, operation, staticmethod(getattr(os, operation)))


def _watch_requests() -> None:
    from shardflow.storage.s3_transport import S3Transport

    call, make = S3Transport._call, S3Transport.__init__

    async def watched(self: S3Transport, method: str, name: str, **arguments: Any) -> Any:
        label = f"{name} part {arguments['PartNumber']}" if "PartNumber" in arguments else name or "prefix"
        _point("before", method, label)
        answer = await call(self, method, name, **arguments)
        _point("after", method, label)
        return answer

    def small_parts(self: S3Transport, *arguments: Any) -> None:
        make(self, *arguments)
        self._part_bytes = _PLAN["parts"]

    S3Transport._call = watched  # type: ignore[method-assign]
    S3Transport.__init__ = small_parts  # type: ignore[method-assign]


def _watch_store(kind: str) -> None:
    """Put points before and after the requests to a bucket of another kind, other than reads of its objects."""
    transport: Any = importlib.import_module(f"shardflow.storage.{kind}_transport")
    transport = transport.GcsTransport if kind == "gcs" else transport.AzureTransport

    def watch(method: str, request: Any) -> Any:
        @functools.wraps(request)
        async def watched(self: Any, what: Any) -> Any:
            label = what if isinstance(what, str) else what.name
            _point("before", method, label or "prefix")
            answer = await request(self, what)
            _point("after", method, label or "prefix")
            return answer

        return watched

    for method in ("_send", "_delete", "_page", "_describe"):
        setattr(transport, method, watch(method.strip("_"), getattr(transport, method)))


if _PLAN:
    for _operation in ("fsync", "unlink", "rmdir", "mkdir"):
        _watch(_operation)
    for _operation in ("replace", "rename", "link"):
        _watch(_operation, named_by=1)
    _watch_open()
    if sys.version_info < (3, 11):
        _watch_pathlib()
    if "parts" in _PLAN:
        _watch_requests()
    if "store" in _PLAN:
        _watch_store(_PLAN["store"])
