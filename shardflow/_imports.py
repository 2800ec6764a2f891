"""Imports of large packages, without the garbage collector."""

from __future__ import annotations

import gc
import importlib
from types import ModuleType


def import_large(name: str, package: str | None = None) -> ModuleType:
    """Import a module as `importlib.import_module` does, with the garbage collector paused.

    Importing creates objects that stay, by the hundred thousand, and the collector walks all of them again and again:
    a quarter of the time that torch takes, and nearly half of that of the clients of S3.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name, package)
    finally:
        if was_enabled:
            gc.enable()
