"""The dataset that the examples run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.making import make_dataset

TRAIN, VAL = [20, 9, 31, 7], [11, 6, 20]
"""67 and 37 samples: primes, so that no number of ranks and no batch size divides them."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 training and 37 validation samples, sample n of a split labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": TRAIN, "val": VAL})
