"""Calls a function of this package in its own process and interpreter.

    python child.py MODULE FUNCTION ARGUMENTS

ARGUMENTS is a JSON object. The result is printed as a line of JSON after `MARK`, because libraries print as well. A
generator prints such a line for every value, and goes on when it reads a line; it is closed at the end of the input.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

MARK = "bench-result: "


def main() -> None:
    """Call the function."""
    module, function, arguments = sys.argv[1:]
    result = getattr(importlib.import_module(f"bench.{module}"), function)(**json.loads(arguments))
    if isinstance(result, Generator):
        for value in result:
            _print(value)
            if not sys.stdin.readline():
                result.close()
    else:
        _print(result)


def _print(value: Any) -> None:
    print(f"\n{MARK}{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    main()
    os._exit(0)  # some libraries wait for threads that do not end
