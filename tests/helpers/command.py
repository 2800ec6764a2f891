"""The `shardflow` command: as a user runs it, and in this process where that is enough."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

from shardflow.cli.main import main

COMMAND = [sys.executable, "-c", "from shardflow.cli.main import main; main()"]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the command to its end, in a process of its own; `options` are those of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([*COMMAND, *map(str, arguments)], **options)


def exit_code(*arguments: str) -> int:
    """Run the command in this process, and return its exit code; its handler of SIGTERM does not stay."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        main(arguments)
    except SystemExit as exited:
        return int(exited.code or 0)
    finally:
        signal.signal(signal.SIGTERM, handler)
