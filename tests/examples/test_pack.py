from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_splits_and_classes_come_along(tmp_path: Path) -> None:
    """A Hugging Face dataset keeps its splits and its class names."""
    printed = run("pack_huggingface.py", tmp_path / "out")
    assert printed == "6 test, 24 train; classes crimson, gold, navy\n"


def test_shards_are_packed_anew(tmp_path: Path) -> None:
    """Three shards of another writer become two of ours, and captions stay with their images."""
    assert run("pack_shards.py", tmp_path / "out").startswith(
        "packed 30 samples into 2 shards; the first is 'a disc in "
    )


def test_mask_and_box_stay_together(tmp_path: Path) -> None:
    """After resizing and cropping, the box is where the mask is."""
    printed = run("pack_masks.py", tmp_path / "out")
    assert printed.startswith("packed 20 images; mask and box of 'a disc in ")
    assert printed.endswith(" agree to 1 pixel\n")


def test_batches_come_out(tmp_path: Path) -> None:
    """A torchvision dataset is packed, and loads in batches."""
    assert run("pack_torchvision.py", tmp_path / "out") == "images (16, 3, 48, 48), labels (16,)\n" * 2


def test_columns_become_parts(tmp_path: Path) -> None:
    """Labels, splits and captions come from the columns, and the rest is in `.json`."""
    first, second = run("pack_table.py", tmp_path / "out").splitlines()
    assert first == "packed 30 images: 24 train, 6 val"
    colour, rest = second.split(": ", 1)
    assert rest.startswith(f"a disc in {colour}, {{'camera': 'no ")
