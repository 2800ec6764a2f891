"""A Python that has imported torch already: an executable that takes `python`'s arguments and starts within 30 ms.

Tests run scripts as commands, as a reader would, and most of the time of a small one goes into `import torch`. The
executable of `python()` asks a server, which imported torch once, for a fork with its own arguments, environment,
directory and streams. It forwards signals to the fork, and ends as the fork does; if it is killed, so is the fork.

A fork has imported what `_LIBRARIES` names, and what `_OWN` names of this project, unless another copy of the project
is on its path. Its hash seed is that of the server, and its parent is the server. A `sitecustomize` on PYTHONPATH is
imported as at a start. Where the environment or an option asks for what holds from the start of an interpreter, the
executable becomes a plain `python`. If it is killed, the fork lives a moment longer.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib.util
import marshal
import multiprocessing.util
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

_LIBRARIES = "torch", "torch.distributed.run", "torch.nn.parallel", "torch._dynamo", "torchvision", "webdataset", "s3fs"
_LIBRARIES += "adlfs", "gcsfs"  # each takes half a second
"""What scripts import; optimisers import the fourth when one is made."""

MORE = "SHARDFLOW_TEST_LIBRARIES"
"""The environment variable with further libraries, which the server imports for the first process that has it."""

_OWN = "shardflow.cli.pack", "shardflow.loading.loader", "shardflow.storage.s3_transport"
"""What most commands import of this project; they do so within 0.3 s."""

_AT_A_START = "shardflow.cli", "shardflow.loading.fork_server"
"""Modules that look at the process as they are imported."""

_CLIENT = Path(__file__).with_name("warm_client.py")


class _Request(NamedTuple):
    """The arguments after `python`, the environment, the directory and the open descriptors of a process."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    numbers: list[int]


@functools.cache
def python() -> str:
    """Return the executable. The first call in a process of pytest starts its server, which ends with it."""
    if not hasattr(os, "pidfd_open"):  # elsewhere than on Linux
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="shardflow-python-"))
    server = subprocess.Popen(
        [sys.executable, __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Of a process with threads, a fork would hang.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert server.stdout is not None
    atexit.register(_stop, server, folder)
    assert server.stdout.read(1) == b"r", "the server of warm_python ended at its start"
    executable = folder / "python"
    ask = shlex.join([sys.executable, "-IS", str(_CLIENT), str(folder), sys.executable])
    executable.write_text(f'#!/bin/sh\nexec {ask} "$@"\n')
    executable.chmod(0o700)
    return str(executable)


def warm_fork_server() -> None:
    """Let the fork server of multiprocessing be a fork of the warm server.

    What multiprocessing spawns stays a plain `python`: it has to have the number that its parent knows.
    """
    start = multiprocessing.util.spawnv_passfds  # type: ignore[attr-defined]

    def start_warm(path: bytes, arguments: list[str], descriptors: list[int]) -> int:
        is_server = any("multiprocessing.forkserver" in str(argument) for argument in arguments)
        return int(start(os.fsencode(python()) if is_server else path, arguments, descriptors))

    multiprocessing.util.spawnv_passfds = start_warm  # type: ignore[attr-defined]


def _stop(server: subprocess.Popen[bytes], folder: Path) -> None:
    server.kill()
    server.communicate()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _import(libraries: Iterable[str]) -> None:
    if new := [library for library in libraries if library not in sys.modules]:
        for library in new:
            with contextlib.suppress(ImportError):  # which the fork then has as well
                importlib.import_module(library)
        gc.collect()
        gc.freeze()  # or the first collection in each fork would copy the memory of all libraries


def _address(folder: str) -> str:
    return f"\0{folder}"  # of Linux's abstract namespace: of any length, and nothing is left behind


def _collapse() -> None:
    importlib.import_module("huge_pages").collapse()  # of this file's folder, which is on the path of a script
    del sys.modules["huge_pages"]


def serve(folder: str) -> tuple[_Request, list[int]] | None:
    """Fork for each process that asks, until the standard input ends; in a fork, return its request and descriptors."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_address(folder))
    listener.listen(64)
    os.write(1, b"r")
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}  # pid → its pidfd, and the connection to who asked
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                return None
            if key.fileobj is listener:
                connection, _ = listener.accept()
                received = _receive(connection)
                if received is None:
                    connection.close()
                    continue
                _import(received[0].environment.get(MORE, "").split())
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for open_socket in (listener, connection, *(pair[1] for pair in running.values())):
                        open_socket.close()
                    for pidfd, _ in running.values():
                        os.close(pidfd)
                    return received
                for descriptor in received[1]:
                    os.close(descriptor)
                running[pid] = pair = os.pidfd_open(pid), connection
                for one in pair:
                    selector.register(one, selectors.EVENT_READ, pid)
                with contextlib.suppress(OSError):
                    connection.sendall(pid.to_bytes(4, "big"))
            elif key.data in running:  # it has ended, or who asked for it, or both
                pidfd, connection = running.pop(key.data)
                if key.fd != pidfd:
                    os.kill(key.data, signal.SIGKILL)
                _, status = os.waitpid(key.data, 0)
                with contextlib.suppress(OSError):
                    connection.sendall(status.to_bytes(4, "big"))
                selector.unregister(pidfd)
                selector.unregister(connection)
                os.close(pidfd)
                connection.close()


def _receive(connection: socket.socket) -> tuple[_Request, list[int]] | None:
    head, descriptors, *_ = socket.recv_fds(connection, 4, 99)
    with contextlib.suppress(EOFError, ValueError, OSError), connection.makefile("rb") as file:
        return _Request(*marshal.loads(file.read(int.from_bytes(head, "big")))), descriptors
    for descriptor in descriptors:  # it was killed meanwhile
        os.close(descriptor)
    return None


def become(request: _Request, descriptors: list[int], path: list[str], own: dict[str, types.ModuleType]) -> None:
    """Be the process that was asked for, in a fork of the server."""
    import runpy

    import fsspec.config
    import numpy as np
    import torch

    os.setsid()
    above = max(*descriptors, *request.numbers) + 1
    for descriptor, number in zip(
        [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in descriptors], request.numbers, strict=True
    ):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in {*descriptors} - {*request.numbers}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    # torchrun starts ranks with the former, Lightning with the latter.
    sys.executable = os.environ.get("PYTHON_EXEC", sys.executable)
    sys.orig_argv[:] = [sys.executable, *request.arguments]
    os.chdir(request.directory)
    fsspec.config.set_conf_env(fsspec.config.conf)  # options of stores
    np.random.seed()  # or all forks would draw the same numbers
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if "PYTHONFAULTHANDLER" in os.environ:
        import faulthandler

        faulthandler.enable()
    unbuffered = request.arguments[0] == "-u"
    if unbuffered or "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    kind, *arguments = request.arguments[unbuffered:]
    given = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    path = [*given, *path]
    first = {"-m": request.directory, "-c": ""}.get(kind, os.path.dirname(os.path.realpath(kind)))
    sys.path[:] = [first, *path]
    _give(own)
    if any(Path(folder, "sitecustomize.py").exists() for folder in given):  # as at the start of an interpreter
        sys.path[:] = path
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
        sys.path[:] = [first, *path]
    if kind == "-m":
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if kind == "-c":
        sys.argv[:] = ["-c", *arguments[1:]]
        code = compile(arguments[0], "<string>", "exec")
    else:
        sys.argv[:] = [kind, *arguments]
        main.__file__ = os.path.abspath(kind)
        code = compile(Path(kind).read_bytes(), main.__file__, "exec")
    exec(code, vars(main))


def _import_own() -> dict[str, types.ModuleType]:
    """Import what `_OWN` names, and return it: a fork is given it once its path is known."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    for name in _OWN:
        importlib.import_module(name)
    del sys.path[0]
    own = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "shardflow"}
    for name in own:
        del sys.modules[name]
    return {name: module for name, module in own.items() if not name.startswith(_AT_A_START)}


def _give(own: dict[str, types.ModuleType]) -> None:
    """Give this process the project's modules, unless it would find others."""
    found = importlib.util.find_spec("shardflow")
    if found is not None and found.origin == own["shardflow"].__file__:
        sys.modules.update(own)


def _end(code: object) -> NoReturn:
    """End a fork as an interpreter ends, less the destruction of all modules, which would copy their memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def main(folder: str) -> None:
    """Be the server, and in the end a fork of it."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [folder for folder in sys.path[1:] if folder not in given]
    _import(_LIBRARIES)
    own = _import_own()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's tables of operators end with the process: to empty them copies their memory
    gc.freeze()
    _collapse()
    received = serve(folder)
    if received is None:
        return
    try:
        become(*received, path, own)
    except SystemExit as exited:
        _end(exited.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        _end(1)
    _end(0)


if __name__ == "__main__":
    main(sys.argv[1])
