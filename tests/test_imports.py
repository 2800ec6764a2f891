from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shardflow._imports import import_large, named_places


def test_garbage_collector_is_left_as_it_was() -> None:
    """Importing, also when it fails, leaves the garbage collector running, or off where it was off."""
    with pytest.raises(ImportError):
        import_large("shardflow.no_such_module")
    assert gc.isenabled()
    gc.disable()
    try:
        assert import_large("shardflow.errors").__name__ == "shardflow.errors"
        assert not gc.isenabled()
    finally:
        gc.enable()


NAMESPACE = """
from typing import TYPE_CHECKING

from shardflow._imports import lazy_names

if TYPE_CHECKING:
    from . import other as other
    from .other import Loud as Loud
    from .other import quiet as _quiet

    silent = _quiet
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package with a module `other`, whose names it imports on first use."""
    folder = tmp_path / "namespace_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text(NAMESPACE)
    (folder / "other.py").write_text("class Loud: ...\ndef quiet(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(folder.name)
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_names_are_imported_on_first_use(package: ModuleType) -> None:
    """A name is imported when it is asked for, under the name that type checkers see, and then it stays."""
    assert dir(package) == package.__all__ == ["Loud", "other", "silent"]
    assert f"{package.__name__}.other" not in sys.modules
    assert package.Loud.__name__ == "Loud"
    assert package.silent is package.other.quiet
    assert {"Loud", "silent"} <= vars(package).keys()
    with pytest.raises(AttributeError, match=r"module 'namespace_of_a_test' has no attribute '_quiet'"):
        package._quiet  # noqa: B018
    names: dict[str, object] = {}
    exec("from namespace_of_a_test import *", names)
    assert names["other"] is package.other


def test_a_namespace_without_source_says_so(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the .py files were left out, the error says what is missing."""
    monkeypatch.setattr(package.__spec__.loader, "get_source", lambda _: None)
    with pytest.raises(ImportError, match=r"^namespace_of_a_test: its source file"):
        named_places(package.__name__)
