from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_splits_and_classes_come_along(tmp_path: Path) -> None:
    """A Hugging Face dataset keeps its splits and its class names."""
    printed = run("pack_huggingface.py", tmp_path / "out")
    assert printed == "6 test, 24 train; classes crimson, gold, navy\n"
