from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_batches_come_out(tmp_path: Path) -> None:
    """A torchvision dataset is packed, and loads in batches."""
    assert run("pack_torchvision.py", tmp_path / "out") == "images (16, 3, 48, 48), labels (16,)\n" * 2
