from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_columns_become_parts(tmp_path: Path) -> None:
    """Labels, splits and captions come from the columns, and the rest is in `.json`."""
    first, second = run("pack_table.py", tmp_path / "out").splitlines()
    assert first == "packed 30 images: 24 train, 6 val"
    colour, rest = second.split(": ", 1)
    assert rest.startswith(f"a disc in {colour}, {{'camera': 'no ")
