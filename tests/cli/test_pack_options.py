from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

import shardflow
from shardflow.cli.pack import pack
from shardflow.errors import ConfigError
from shardflow.packing.recipe import PRESETS
from tests.helpers.folders import encoded, image_folder, turned, write_tree


def _packed(src: Path, dst: Path, *options: str) -> Result:
    arguments = [str(src), str(dst), "--executor", "serial", *options]
    return CliRunner().invoke(pack, arguments, catch_exceptions=False)


def test_help_lists_the_presets() -> None:
    """The help says what each preset is for."""
    text = CliRunner().invoke(pack, ["--help"], terminal_width=140).output
    for name, preset in PRESETS.items():
        assert f"  {name:10}{preset.purpose}" in text


def test_options_reach_the_recipe(tmp_path: Path) -> None:
    """Options of the command line are in the manifest; the preset sets the others."""
    src = image_folder(tmp_path / "src", 3)
    _packed(src, tmp_path / "1", "--preset", "fine", "--short-side", "48", "--square", "--filter", "lanczos")
    assert {"short_side": 48, "square": True, "filter": "lanczos", "quality": 95, "subsampling": "4:4:4"}.items() <= (
        shardflow.open(tmp_path / "1").recipe.items()
    )
    options = ("--format", "webp", "--quality", "70", "--long-side", "300", "--enlarge", "--no-square")
    _packed(src, tmp_path / "2", *options)
    assert {"format": "webp", "quality": 70, "long_side": 300, "enlarge": True, "square": False}.items() <= (
        shardflow.open(tmp_path / "2").recipe.items()
    )


def test_operations_are_reported(tmp_path: Path) -> None:
    """A pack counts images that were not only resized: here one animation, and one that was rotated."""
    frames = [Image.new("RGB", (60, 40), colour) for colour in ("red", "green")]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    write_tree(tmp_path / "src", {"1.gif": animation, "2.jpg": encoded(frames[0], "JPEG", exif=turned(8))})
    assert (
        "\noperations   1 reduced to the first frame; 1 rotated upright\n"
        in _packed(tmp_path / "src", tmp_path / "dst").output
    )


def test_contradictions_are_config_errors(tmp_path: Path) -> None:
    """Options that contradict each other are refused before anything is written."""
    src = image_folder(tmp_path / "src", 1)
    with pytest.raises(ConfigError, match="long_side and square exclude each other"):
        _packed(src, tmp_path / "dst", "--square", "--long-side", "300")
    assert not (tmp_path / "dst").exists()


def test_original_preset_copies(tmp_path: Path) -> None:
    """`--preset original` leaves the bytes of ordinary files alone."""
    src = image_folder(tmp_path / "src", 2, 700, 500)
    _packed(src, tmp_path / "dst", "--preset", "original")
    images = [sample["jpg"] for sample in shardflow.open(tmp_path / "dst")["train"]]
    assert sorted(images) == sorted(path.read_bytes() for path in src.rglob("*.jpg"))
    assert Image.open(io.BytesIO(images[0])).size == (700, 500)
