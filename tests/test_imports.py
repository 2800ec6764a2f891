from __future__ import annotations

import gc

import pytest

from shardflow._imports import import_large


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
