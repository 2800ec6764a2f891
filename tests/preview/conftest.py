"""The dataset of the previews."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.packed import pack_some


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of the sources, and the dataset that was packed from it."""
    return pack_some(tmp_path_factory.mktemp("preview"))
