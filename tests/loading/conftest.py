from __future__ import annotations

import pytest

from shardflow import native


@pytest.fixture(params=["kernel", "torchvision"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the native kernel, and as where it was not built."""
    if request.param == "torchvision":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("needs the native kernel")
