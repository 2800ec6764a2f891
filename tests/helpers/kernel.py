"""Packing with the native kernel, and without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from shardflow import native
from shardflow.native import binding


@contextlib.contextmanager
def without_kernel() -> Iterator[None]:
    """Switch the kernel off in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "load", lambda: "switched off by a test")
        yield


@pytest.fixture(scope="module", params=["kernel", "Pillow"])
def either_decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode and resize JPEGs with the kernel, and with Pillow."""
    if request.param == "Pillow":
        with without_kernel():
            yield
    elif native.available():
        yield
    else:
        pytest.skip(native.describe())
