"""`shardflow demo`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from shardflow.cli.demo import demo
from tests.helpers.making import jpeg


def test_uses_the_users_folder(tmp_path: Path) -> None:
    """With a flat folder only the training is skipped, and says so; a file that is not an image is reported."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(20):
        (photos / f"{number:02}.jpg").write_bytes(jpeg(number, 120 + number, 100))
    (photos / "bad.jpg").write_bytes(b"no image at all")
    output = tmp_path / "out"
    result = CliRunner().invoke(demo, ["--images", str(photos), "--output", str(output), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert "20 of 21 images" in result.output
    assert "1 could not be packed" in result.output
    assert "no damage: " in result.output
    assert "an epoch is 20 images, each exactly once" in result.output
    assert "skipped: the images have no labels" in result.output
    assert "exact: " in result.output
    with Image.open(output / "demo.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 1000
    assert not (output / "pictures").exists()


@pytest.mark.parametrize("option", ["--epochs", "--workers"])
def test_a_negative_number_is_refused(tmp_path: Path, option: str) -> None:
    """It is refused before anything is written."""
    result = CliRunner().invoke(demo, ["--output", str(tmp_path / "out"), option, "-1"])
    assert result.exit_code != 0
    assert "0 or more" in str(result.exception)
    assert not (tmp_path / "out").exists()
