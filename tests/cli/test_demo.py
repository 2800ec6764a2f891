"""`shardflow demo`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from shardflow.cli.demo import demo
from shardflow.demo import pictures
from tests.helpers.folders import write_tree
from tests.helpers.making import jpeg


def test_uses_the_users_folder(tmp_path: Path) -> None:
    """With a flat folder only the training is skipped, and says so; a file that is not an image is reported."""
    photos = {f"{number:02}.jpg": jpeg(number, 120 + number, 100) for number in range(20)}
    folder, output = write_tree(tmp_path / "photos", {**photos, "bad.jpg": b"no image at all"}), tmp_path / "out"
    result = CliRunner().invoke(demo, ["--images", str(folder), "--output", str(output), "--workers", "1"])
    assert result.exit_code == 0, result.output
    for expected in (
        *("20 of 21 images", "1 could not be packed", "no damage: ", "an epoch is 20 images, each exactly once"),
        *("skipped: the images have no labels", "exact: "),
    ):
        assert expected in result.output
    with Image.open(output / "demo.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 1000
    assert not (output / "pictures").exists()


def test_draws_pictures_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--draw` makes a new folder of pictures, and refuses one that exists."""
    monkeypatch.setattr(pictures, "draw", lambda *_: Image.new("RGB", (8, 8)))  # a real one takes 0.1 s
    result = CliRunner().invoke(demo, ["--draw", str(tmp_path / "a")])
    assert result.exit_code == 0, result.output
    assert f"drew 96 pictures of 8 classes in {tmp_path / 'a'}: bricks, city, " in result.output
    assert len(list((tmp_path / "a").glob("train/*/*.jpg"))) == 80
    assert "exists already" in str(CliRunner().invoke(demo, ["--draw", str(tmp_path)]).exception)


@pytest.mark.parametrize("option", ["--epochs", "--workers"])
def test_a_negative_number_is_refused(tmp_path: Path, option: str) -> None:
    """It is refused before anything is written."""
    result = CliRunner().invoke(demo, ["--output", str(tmp_path / "out"), option, "-1"])
    assert result.exit_code != 0
    assert "0 or more" in str(result.exception)
    assert not (tmp_path / "out").exists()
