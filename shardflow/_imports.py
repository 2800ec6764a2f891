"""Imports: of large packages with the garbage collector paused, and of a namespace's names on first use."""

from __future__ import annotations

import ast
import gc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def import_large(name: str, package: str | None = None) -> ModuleType:
    """Import a module as `importlib.import_module` does, with the garbage collector paused.

    Importing creates hundreds of thousands of permanent objects, which the collector walks again and again. That takes
    a quarter of the import time of torch, and nearly half that of the S3 clients.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name, package)
    finally:
        if was_enabled:
            gc.enable()


def lazy_names(namespace: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module whose names are imported on first use.

    The names are those that the module imports `if TYPE_CHECKING:`, so each is listed once, for type checkers and
    editors too. Packing thus never imports torch.

        if TYPE_CHECKING:
            from .dataset.open_dataset import open_dataset as _open_dataset
            from .loading.loader import Loader as Loader

            open = _open_dataset
        else:
            __getattr__, __dir__, __all__ = lazy_names(__name__)
    """
    module, places = sys.modules[namespace], named_places(namespace)

    def import_name(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        source, attribute = places[name]
        value = import_large(source)
        setattr(module, name, getattr(value, attribute) if attribute else value)
        return module.__dict__[name]

    return import_name, lambda: sorted(places), sorted(name for name in places if not name.startswith("__"))


def named_places(namespace: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module imports `if TYPE_CHECKING:` → (module, name in it; "" for the module itself)."""
    spec: Any = sys.modules[namespace].__spec__
    source = spec.loader.get_source(namespace)
    if source is None:
        raise ImportError(f"{namespace}: its source file, which lists its names, is missing; install the .py files")
    places: dict[str, tuple[str, str]] = {}
    checked = (each for each in ast.parse(source).body if isinstance(each, ast.If))
    for line in (line for each in checked if ast.unparse(each.test) == "TYPE_CHECKING" for line in each.body):
        if isinstance(line, ast.ImportFrom):
            base = importlib.util.resolve_name("." * line.level + (line.module or ""), spec.parent)
            for alias in line.names:
                place = (base, alias.name) if line.module else (f"{base}.{alias.name}", "")
                places[alias.asname or alias.name] = place
        elif isinstance(line, ast.Assign):
            places[ast.unparse(line.targets[0])] = places[ast.unparse(line.value)]
    return {name: place for name, place in places.items() if name.startswith("__") or not name.startswith("_")}
