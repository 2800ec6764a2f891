"""The `shardflow` command, run in a process of its own, or in this process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

from shardflow.cli.main import main
from tests.helpers.warm_python import python

COMMAND = [sys.executable, "-c", "from shardflow.cli.main import main; main()"]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the command in a process of its own, a warm one; `options` are those of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([python(), *COMMAND[1:], *map(str, arguments)], **options)


def exit_code(*arguments: str) -> int:
    """Run the command in this process, and return its exit code; the handler of SIGTERM is restored."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        main(arguments)
    except SystemExit as exited:
        return int(exited.code or 0)
    finally:
        signal.signal(signal.SIGTERM, handler)
