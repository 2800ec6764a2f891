"""The dataset whose batches are augmented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.making import make_dataset


@pytest.fixture(scope="package")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 labelled samples in three shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [13, 20, 7])
