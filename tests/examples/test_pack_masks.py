from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_mask_and_box_stay_together(tmp_path: Path) -> None:
    """After resizing and cropping, the box is where the mask is."""
    printed = run("pack_masks.py", tmp_path / "out")
    assert printed.startswith("packed 20 images; mask and box of 'a disc in ")
    assert printed.endswith(" agree to 1 pixel\n")
