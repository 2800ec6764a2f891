"""Copies of one image under different labels, and in several splits."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from tests.helpers.folders import photo, write_tree


def _pack(tmp_path: Path, name: str, images: dict[str, int]) -> Path:
    src = write_tree(tmp_path / name, {path: photo(number, 32, 24) for path, number in images.items()})
    sf.pack(src, tmp_path / f"{name}32", short_side=16, shard_samples=2, executor="serial")
    return tmp_path / f"{name}32"


def test_pack(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pack names images that are in two classes or two splits with their keys, but none that is there once."""
    dirty = {"train/cat/1.jpg": 1, "train/dog/2.jpg": 1, "train/cat/3.jpg": 3, "val/cat/4.jpg": 3, "val/dog/5.jpg": 5}
    _pack(tmp_path, "dirty", dirty)
    assert caplog.messages == [
        "1 image packed with different labels, such as 'train/cat/1.jpg' (train:000000001) and 'train/dog/2.jpg' "
        "(train:000000002): remove the samples with wrong ones (`shardflow remove --keys`), or pack such an "
        "image once with all its labels",
        "1 image packed in several splits, such as 'train/cat/3.jpg' (train:000000000) and 'val/cat/4.jpg' "
        "(val:000000000): keep it in one, or results will look too good",
    ]
    caplog.clear()
    _pack(tmp_path, "clean", {"cat/1.jpg": 1, "cat/2.jpg": 1, "dog/3.jpg": 3})
    assert not caplog.messages


def test_indexes_of_large_datasets_are_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack does not end with minutes of reading: above a number of samples, images are not compared."""
    monkeypatch.setattr("shardflow.dataset.image_copies._MOST_SAMPLES", 2)
    monkeypatch.setattr("shardflow.dataset.image_copies.read_index", lambda *_: pytest.fail("read"))
    with caplog.at_level("INFO"):
        _pack(tmp_path, "large", {"cat/1.jpg": 1, "dog/2.jpg": 1, "dog/3.jpg": 3})
    assert "not checked, because there are over 2 samples" in caplog.text


def test_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table that lists an image once for each label of it is noticed; images without a label do not conflict."""
    write_tree(tmp_path, {"1.jpg": photo(1, 32, 24), "t.csv": b"image,label\n1.jpg,cat\n1.jpg,dog\n"})
    sf.pack(tmp_path / "t.csv", tmp_path / "dst", executor="serial")
    assert caplog.messages[0].startswith(
        "1 image packed with different labels, such as '1.jpg' (train:000000000) and '1.jpg' (train"
    )
    caplog.clear()
    image = photo(1, 32, 24)
    samples = {"train": [{"image": image, "label": 0}], "test": [{"image": image}]}
    sf.pack(samples, tmp_path / "dst2", executor="serial")
    assert [message[:32] for message in caplog.messages] == ["1 image packed in several splits"]


def test_extend_and_merge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An extension and a merge compare new images with all others; without an index, that is the warning."""
    one, two = (
        _pack(tmp_path, name, {"cat/1.jpg": 1, f"{label}/2.jpg": 2}) for name, label in (("a", "cat"), ("b", "dog"))
    )
    sf.merge([one, two], tmp_path / "both")
    assert caplog.messages[0].startswith(
        "1 image packed with different labels, such as 'cat/2.jpg' (train:000000000) and "
    )
    caplog.clear()
    write_tree(tmp_path / "a", {"dog/3.jpg": photo(1, 32, 24)})
    sf.extend(tmp_path / "a", one, executor="serial")
    assert caplog.messages[0].startswith(
        "1 image packed with different labels, such as 'cat/1.jpg' (train:000000001) and "
    )
    caplog.clear()
    lost = one / "train" / "000001.npy"
    lost.unlink()
    write_tree(tmp_path / "a", {"dog/4.jpg": photo(4, 32, 24)})
    sf.extend(tmp_path / "a", one, executor="serial")
    assert caplog.messages[0].startswith(f"whether images come twice was not checked: {lost} does")
