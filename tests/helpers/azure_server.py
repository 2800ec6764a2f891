"""Azure Blob Storage for the tests: Azurite, on a free port and in memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from tests.helpers.store import Store

_ACCOUNT = "devstoreaccount1"
# The key that Azurite documents for its one account: https://github.com/Azure/Azurite#default-storage-account
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def _options(endpoint: str) -> dict[str, Any]:
    parts = {"DefaultEndpointsProtocol": "http", "AccountName": _ACCOUNT, "AccountKey": _KEY}
    parts["BlobEndpoint"] = f"{endpoint}/{_ACCOUNT}"
    return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}


def store(endpoint: str) -> Store:
    """Return the one container of an Azurite."""
    return Store(endpoint, "az://tests", _options)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run Azurite until the body ends, with one container, and yield its endpoint."""
    environment = Path(sys.prefix)
    script = environment / "npm/node_modules/azurite/dist/src/blob/main.js"
    assert script.exists(), "the tests need Azurite: tools/environment test"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [environment / "bin/node", script, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log", "wb") as log:
        # In a group of its own: `node` is a script that starts the real one.
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            endpoint = f"http://127.0.0.1:{port}"
            _create_container(store(endpoint), process, folder / "log")
            yield endpoint
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=15)


def _create_container(store: Store, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(store.endpoint.rpartition(":")[2]))):
                break
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text(errors="replace")[-3000:]) from None
            time.sleep(0.05)
    fs = fsspec.filesystem("az", skip_instance_cache=True, **store.options())
    fs.mkdir("tests")
