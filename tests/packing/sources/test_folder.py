from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, NotFoundError, SampleError
from shardflow.packing.sources.folder import NoImagesError
from shardflow.packing.sources.items import Item
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import write_tree


def _listed(root: Path, *names: str) -> dict[str, list[tuple[str, int | None]]]:
    source = list_source(write_tree(root, dict.fromkeys(names, b"x")))
    return {split: [(item.path, item.label) for item in items] for split, items in source.splits.items()}


def test_image_folder(tmp_path: Path) -> None:
    """Top folders are the classes, sorted, and everything below them belongs to them."""
    listed = _listed(tmp_path, "dog/2.jpg", "cat/deep/er/1.PNG", "dog/1.jpeg")
    assert listed == {"train": [("cat/deep/er/1.PNG", 0), ("dog/1.jpeg", 1), ("dog/2.jpg", 1)]}


def test_split_tree_shares_classes(tmp_path: Path) -> None:
    """A class has the same label in every split, also where a split lacks some classes."""
    listed = _listed(tmp_path, "train/a/1.jpg", "train/c/1.jpg", "Val/b/1.jpg", "Val/c/1.jpg")
    assert listed == {
        "train": [("train/a/1.jpg", 0), ("train/c/1.jpg", 2)],
        "val": [("Val/b/1.jpg", 1), ("Val/c/1.jpg", 2)],
    }
    assert list_source(tmp_path).classes == ("a", "b", "c")


def test_flat(tmp_path: Path) -> None:
    """Images that lie directly in the source have no labels."""
    assert _listed(tmp_path, "2.jpg", "10.jpg") == {"train": [("10.jpg", None), ("2.jpg", None)]}
    assert list_source(tmp_path).classes is None


def test_splits_without_classes(tmp_path: Path) -> None:
    """Folders named like splits that hold images directly are unlabelled splits."""
    assert _listed(tmp_path, "train/1.jpg", "test/2.jpg") == {
        "test": [("test/2.jpg", None)],
        "train": [("train/1.jpg", None)],
    }


def test_a_class_may_be_named_like_a_split(tmp_path: Path) -> None:
    """Among other classes, a folder `train` full of images is a class: there are pictures of trains."""
    assert _listed(tmp_path, "bus/1.jpg", "train/1.jpg") == {"train": [("bus/1.jpg", 0), ("train/1.jpg", 1)]}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["1.jpg", "a/1.jpg"], "'1.jpg'"),
        (["train/a/1.jpg", "train/2.jpg"], "'train/2.jpg'"),
        (["train/a/1.jpg", "val/1.jpg"], "'val/1.jpg'"),
        (["train/a/1.jpg", "old/1.jpg"], "'old'"),
        (["notes.txt", "a/1.heic"], r"1 \.heic"),
        ([], "no files at all"),
    ],
)
def test_mixed_and_empty_layouts_are_refused(tmp_path: Path, names: list[str], found: str) -> None:
    """What fits no layout is refused, naming what was found and what is expected."""
    with pytest.raises(ConfigError, match=rf"{found}.*expected CLASS/x\.jpg"):
        _listed(tmp_path, *names)


def test_missing_source(tmp_path: Path) -> None:
    """A source that is not there, or no directory, is refused."""
    with pytest.raises(NotFoundError, match=r"nowhere does not exist; give the directory"):
        list_source(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a directory; give the directory"):
        list_source(tmp_path / "file")


def test_other_files_are_counted(tmp_path: Path) -> None:
    """Files that are not images by their extension are counted by it; hidden files and folders are not looked at."""
    write_tree(tmp_path, dict.fromkeys(["a/1.jpg", "a/2.heic", "a/README", ".cache/3.jpg", "a/._1.jpg"], b""))
    source = list_source(tmp_path)
    assert source.inputs == 1
    assert source.skipped == {".heic": 1, "": 1}


def test_the_error_of_an_empty_folder_crosses_processes(tmp_path: Path) -> None:
    """What a folder holds instead of images is still in its error after a way through a pickle."""
    write_tree(tmp_path, {"notes.txt": b"x"})
    with pytest.raises(NoImagesError) as caught:
        sf.Folder(tmp_path).list()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.skipped) == (str(caught.value), {".txt": 1})


def test_order_is_by_bytes(tmp_path: Path) -> None:
    """Inputs are sorted by the bytes of their paths in any locale, and names need not be UTF-8."""
    names = [b"a/\xff.jpg", "a/é.jpg".encode(), b"a/Z.jpg", b"a/a b.jpg", b"a/a\n.jpg", b"B/x.y.jpg"]
    listed = _listed(tmp_path, *map(os.fsdecode, names))["train"]
    assert [os.fsencode(path) for path, _ in listed] == sorted(names)


def test_symlink_loop_ends(tmp_path: Path) -> None:
    """A link back to a folder above does not make the walk endless, and adds nothing."""
    write_tree(tmp_path, {"a/1.jpg": b"x"})
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert [item.path for item in list_source(tmp_path).splits["train"]] == ["a/1.jpg"]


def test_broken_link_and_fifo_are_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    """What is named like an image and cannot be read is an input with a reason, and never blocks."""
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jpg")
    gone, pipe = list_source(tmp_path).splits["train"]
    with pytest.raises(SampleError, match="No such file"):
        list_source(tmp_path).reader.read(gone)
    with pytest.raises(SampleError, match="not a regular file"):
        list_source(tmp_path).reader.read(pipe)


def test_changed_since_listed(tmp_path: Path) -> None:
    """An input whose size is not the listed one is refused: its digest would vouch for other bytes."""
    write_tree(tmp_path, {"1.jpg": b"12345"})
    with pytest.raises(SampleError, match="had 4 bytes when it was listed and has 5 now"):
        list_source(tmp_path).reader.read(Item("1.jpg", None, 4, 0))
