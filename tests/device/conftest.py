"""The dataset whose batches are copied and augmented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.making import make_dataset


@pytest.fixture(scope="package")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 labelled samples in three uneven shards; label and position in the dataset are equal."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [20, 9, 31])
