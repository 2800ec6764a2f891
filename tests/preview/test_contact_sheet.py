from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from shardflow.errors import ConfigError
from shardflow.preview.contact_sheet import ContactSheet, Tile, draw_contact_sheet


def drawn(path: Path, name: str, caption: str = "", source: str = "") -> bytes:
    """The pixels of a sheet with one tile of this name."""
    draw_contact_sheet(ContactSheet("Names", "", [Tile(name, "", None, caption=caption, source=source)]), path)
    with Image.open(path) as picture:
        return picture.tobytes()


NAMES = ("B\u00e4r", "B\u00f6r", "\u732b", "\u72ac", "\ue000", "a\udcff", "a\nb", "a\tb", "\U0001f408")


def test_every_name_can_be_told_from_others(tmp_path: Path) -> None:
    """Letters of any script are drawn, or escaped where no font has them, and never as one box for all."""
    assert len({drawn(tmp_path / "a.png", name) for name in NAMES}) == len(NAMES)
    assert drawn(tmp_path / "a.png", "Ba\u0308r") == drawn(tmp_path / "a.png", NAMES[0])


def test_captions_are_drawn_in_one_line(tmp_path: Path) -> None:
    """A sheet with captions has one more line, in which a caption of many lines is cut, whatever its length."""
    none, a, lines, line, long, longer = (
        drawn(tmp_path / "a.png", "", caption) for caption in ("", "a", "b\nc", "b c", "m" * 99, "m" * 4000)
    )
    assert len(none) < len(a) == len(longer)
    assert a != line == lines
    assert long == longer
    assert drawn(tmp_path / "a.png", "", "a", "sea/1.jpg") == a
    assert drawn(tmp_path / "a.png", "", "", "a") == a
    assert drawn(tmp_path / "a.png", "", "", "m" * 99 + "1.jpg") != drawn(
        tmp_path / "a.png", "", "", "m" * 99 + "2.jpg"
    )


def test_names_without_fonts(tmp_path: Path) -> None:
    """On a machine without fonts a name is escaped, as Python writes it."""
    code = f"""
from pathlib import Path
from tests.preview.test_contact_sheet import NAMES, drawn
path = Path({str(tmp_path / "a.png")!r})
assert len({{drawn(path, name) for name in NAMES}}) == len(NAMES)
assert drawn(path, "B\\u00e4r \\u732b") == drawn(path, r"B\\xe4r \\u732b")
"""
    nowhere = {**os.environ, "XDG_DATA_DIRS": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=nowhere, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("name", "kind"), [("a.png", "PNG"), ("a", "PNG"), ("a.jpg", "JPEG"), ("a.JPEG", "JPEG")])
def test_the_suffix_is_the_format(tmp_path: Path, name: str, kind: str) -> None:
    """A sheet is a PNG or a JPEG, as its name says."""
    drawn(tmp_path / name, "x")
    with Image.open(tmp_path / name) as picture:
        assert picture.format == kind


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    """A name of another format is refused, and nothing is written."""
    with pytest.raises(ConfigError, match=r"a\.gif: .*\.png or \.jpg"):
        drawn(tmp_path / "a.gif", "x")
    assert not list(tmp_path.iterdir())
