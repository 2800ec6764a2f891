"""The native tests need the kernel; where it cannot be, they say why."""

from __future__ import annotations

import pytest

from shardflow import native


@pytest.fixture(autouse=True)
def _needs_kernel() -> None:
    if not native.available():
        pytest.skip(native.describe())
