"""The dataset that is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.packed import pack_some


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of the sources, and the dataset that was made of them."""
    return pack_some(tmp_path_factory.mktemp("look"))
