from __future__ import annotations

import os
import pickle
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow._pillow import MISSING_CODECS
from shardflow.errors import ConfigError, NotFoundError, SampleError
from shardflow.packing.sources.folder import NoImagesError
from shardflow.packing.sources.items import Item
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import photo, write_tree
from tests.helpers.web_server import Folder, serving


def _listed(root: Path, *names: str) -> dict[str, list[tuple[str, int | None]]]:
    source = list_source(write_tree(root, dict.fromkeys(names, b"x")))
    return {split: [(item.path, item.label) for item in items] for split, items in source.splits.items()}


LAYOUTS = {
    "classes, sorted": (
        {"train": [("cat/deep/er/1.PNG", 0), ("dog/1.jpeg", 1), ("dog/2.jpg", 1)]},
        ("cat", "dog"),
    ),
    "splits share classes": (
        {"train": [("train/a/1.jpg", 0), ("train/c/1.jpg", 2)], "val": [("Val/b/1.jpg", 1), ("Val/c/1.jpg", 2)]},
        ("a", "b", "c"),
    ),
    "flat, without labels": ({"train": [("10.jpg", None), ("2.jpg", None)]}, None),
    "splits without classes": ({"test": [("test/2.jpg", None)], "train": [("train/1.jpg", None)]}, None),
    "a class named like a split": ({"train": [("bus/1.jpg", 0), ("train/1.jpg", 1)]}, ("bus", "train")),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_layouts(tmp_path: Path, case: str) -> None:
    """Top folders are splits if all are named like one, otherwise classes; a class has one label in every split."""
    expected, classes = LAYOUTS[case]
    assert _listed(tmp_path, *(path for items in expected.values() for path, _ in reversed(items))) == expected
    assert list_source(tmp_path).classes == classes


def test_a_folder_that_is_called_as_a_split_is_that_split(tmp_path: Path) -> None:
    """Images of a folder `Test` become the split `test`, with classes or without; folders in it count first."""
    assert _listed(tmp_path / "Test", "1.jpg") == {"test": [("1.jpg", None)]}
    for name, split in {"test_images": "test", "Val-Set": "val", "testing": "test", "train_data": "train"}.items():
        assert _listed(tmp_path / name, "1.jpg") == {split: [("1.jpg", None)]}
    assert _listed(tmp_path / "test_tubes", "1.jpg") == {"train": [("1.jpg", None)]}
    assert _listed(tmp_path / "val", "a/1.jpg", "b/1.jpg") == {"val": [("a/1.jpg", 0), ("b/1.jpg", 1)]}
    assert _listed(tmp_path / "other/test", "train/a/1.jpg") == {"train": [("train/a/1.jpg", 0)]}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["1.jpg", "a/1.jpg"], "'1.jpg'"),
        (["train/a/1.jpg", "train/2.jpg"], "'train/2.jpg'"),
        (["train/a/1.jpg", "old/1.jpg"], "'old'"),
        (["notes.txt", "a/1.psd"], r"1 \.psd, such as 'a/1\.psd' \(convert them to JPEG or PNG\); 1 \.txt"),
        ([], r"holds no images \(.*\) and no other files"),
    ],
)
def test_mixed_and_empty_layouts_are_refused(tmp_path: Path, names: list[str], found: str) -> None:
    """What fits no layout is refused, naming what was found and what is expected."""
    with pytest.raises(ConfigError, match=rf"{found}.*expected CLASS/x\.jpg"):
        _listed(tmp_path, *names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1.jpg", "a/1.jpg", "a/b/c/1.jpg"], {"train": [("1.jpg", None), ("a/1.jpg", None), ("a/b/c/1.jpg", None)]}),
        (["train/1.jpg", "train/a/1.jpg", "Val/b/1.jpg"], ["Val/b/1.jpg", "train/1.jpg", "train/a/1.jpg"]),
        (["1.jpg", "train/a/1.jpg"], "mixes images, such as '1.jpg'"),
        (["a/train/1.jpg", "a/Test/b/1.jpg"], r"has 'a/Test/b/1\.jpg', in a folder named like a split below another"),
        (["a/1.jpg", "images/val/1.jpg"], r"has 'images/val/1\.jpg', .*move splits to the top"),
        (["a/1.jpg", "train/1.jpg"], r"mixes splits \(train\) and other folders, such as 'a'"),
        (["train_set/1.jpg", "val_set/a/1.jpg"], "has folders named like splits"),
    ],
)
def test_a_tree_without_labels(tmp_path: Path, names: list[str], expected: Any) -> None:
    """With `classes=()` images lie at any depth; folders named like splits are splits, and may not be some of them."""
    source = sf.sources.Folder(write_tree(tmp_path, dict.fromkeys(names, b"x")), classes=())
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            source.list()
        return
    if isinstance(expected, list):
        expected = {"train": [(name, None) for name in expected[1:]], "val": [(expected[0], None)]}
    listed = source.list()
    assert {split: [(item.path, item.label) for item in items] for split, items in listed.splits.items()} == expected
    assert listed.classes is None


def test_splits_below_classes(tmp_path: Path) -> None:
    """Images in `CLASS/test` do not become training data."""
    names = ("a/train/1.jpg", "b/train/1.jpg", "a/test/2.jpg")
    with pytest.raises(ConfigError, match=r"'a/test/2\.jpg', .* would train on it; move splits to the top"):
        list_source(write_tree(tmp_path, dict.fromkeys(names, b"x")))


def test_a_split_without_classes_next_to_others(tmp_path: Path) -> None:
    """A test set without labels next to labelled splits is refused, and the message says which folder to move."""
    with pytest.raises(
        ConfigError, match=r"without, such as 'Test/1\.jpg'; move Test elsewhere, and pack it by itself"
    ):
        _listed(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "Test/1.jpg")


def test_folders_next_to_splits_are_not_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Folders without images next to the splits, such as a dataset packed there, are not taken for classes."""
    write_tree(tmp_path, {"train/a/1.jpg": photo(1), "out/train/000000.tar": b""})
    (tmp_path / "old/b").mkdir(parents=True)
    assert list_source(tmp_path).classes == ("a",)
    assert not caplog.records
    write_tree(tmp_path, {"val/c/notes.txt": b""})
    assert list_source(tmp_path).classes == ("a",)
    assert [record.message for record in caplog.records] == [
        f"{tmp_path} has 1 folder without images: 'c'; they are not counted as classes"
    ]


def test_folders_that_were_perhaps_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the folder below when all images are in folders of one class, and a JSON named like COCO's."""
    names = ("train/a/1.jpg", "train/b/1.jpg", "annotations/captions_val.json")
    write_tree(tmp_path / "up/photos", dict.fromkeys(names, b""))
    assert list_source(tmp_path / "up").classes == ("photos",)
    assert [record.message for record in caplog.records] == [
        f"2 images, all of the class 'photos', in folders below it; to use those as classes, pack {tmp_path}/up/photos"
    ]
    caplog.clear()
    write_tree(tmp_path / "up", {"photos/annotations/instances_val2017.json": b"", "photos/instances_train.json": b""})
    assert list_source(tmp_path / "up/photos").classes == ("a", "b")
    message = f"{tmp_path}/up/photos/annotations/instances_val2017.json looks like a COCO set, whose boxes are left out"
    assert [record.message for record in caplog.records] == [f"{message}; to keep them, pack that file"]


def test_missing_source(tmp_path: Path) -> None:
    """A source that is not there, or no directory, is refused."""
    with pytest.raises(NotFoundError, match=r"nowhere.*directory"):
        list_source(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"directory.*\.json.*\.tar"):
        list_source(tmp_path / "file")


def test_other_files_are_counted(tmp_path: Path) -> None:
    """Files that are not images by their extension are counted by it; hidden files and folders are not looked at."""
    write_tree(tmp_path, dict.fromkeys(["a/1.jpg", "a/2.txt", "a/README", ".cache/3.jpg", "a/._1.jpg"], b""))
    source = list_source(tmp_path)
    assert (source.inputs, source.skipped) == (1, [])
    assert source.ignored == {".txt": 1, "": 1}


def test_images_of_other_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of kinds that are not read are listed with the remedy, also those without an extension."""
    monkeypatch.setitem(MISSING_CODECS, "HEIF", "HEIF is read after pip install 'shardflow[heic]'")
    files = {"a/1.jpg": b"", "a/2.HEIC": b"", "a/3.psd": b"", "a/4": photo(1), "a/5": b"BMW", "a/6.csv": b""}
    source = list_source(write_tree(tmp_path, files))
    assert [item.path for item in source.splits["train"]] == ["a/1.jpg"]
    assert source.skipped == [
        ("a/2.HEIC", "list", "HEIF is read after pip install 'shardflow[heic]'"),
        ("a/3.psd", "list", "convert them to JPEG or PNG"),
        ("a/4", "list", "give them the right extension, such as x.jpg"),
    ]
    assert source.ignored == {"": 1, ".csv": 1}


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["a/x.jpg", "a/x.mask.png"], "--mask mask.png"),
        (["a/x.mask.png", "a/x.png"], "--mask mask.png"),
        (["x.JPG", "x.depth.left.tif", "x.old.jpg"], "--parts depth.left.tif"),
        (["a/x.jpg", "a/x.bmp"], "rename the second to end in .mask.png and pack both as one sample with --mask mask"),
        (["a.b/x.webp", "a.b/x.png"], "--mask mask.png"),
    ],
)
def test_masks_are_not_images(tmp_path: Path, names: list[str], parts: str) -> None:
    """Files that look like an image and its mask are refused with the remedy; `parts` says what they are."""
    write_tree(tmp_path, dict.fromkeys(names, b""))
    with pytest.raises(ConfigError, match=f"look like an image and its mask; .*{re.escape(parts)}"):
        list_source(tmp_path)
    assert sf.sources.Folder(tmp_path, parts=()).list().inputs == len(names)
    if "rename" not in parts and "/x.webp" not in names[0]:
        assert sf.sources.Folder(tmp_path, parts=(parts.split()[1],)).list().inputs == len(names) - 1


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images/{}.jpg", "masks/{}.png"),
        ("train/imgs/{}.PNG", "train/labels/{}.PNG"),
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
        ("train_images/{}.jpg", "train_masks/{}_mask.png"),
        ("images/{}.jpg", "annotations/trimaps/{}.png"),
        ("a/{}.jpg", "a/{}_mask.png"),
        ("{}.jpg", "{}-seg.tif"),
    ],
)
def test_masks_in_other_files_are_not_images(tmp_path: Path, images: str, masks: str) -> None:
    """Folders and names with a word for masks are refused where they have the images' names, as masks have."""
    names = [*map(images.format, "xyz"), *map(masks.format, "xy")]
    write_tree(tmp_path, dict.fromkeys(names, b""))
    for classes in (None, ()):
        with pytest.raises(ConfigError, match=r"look like an image and its mask; .*--mask-column"):
            sf.sources.Folder(tmp_path, classes=classes).list()
    assert sf.sources.Folder(tmp_path, parts=(), classes=()).list().inputs == 5


def test_packing_a_path_refuses_masks(tmp_path: Path) -> None:
    """`pack` and `extend` of a path refuse masks that would become images, as the commands do."""
    images = write_tree(tmp_path / "images", {"1.jpg": photo(1)})
    both = write_tree(tmp_path / "both", {"x.jpg": photo(2), "x.png": photo(3)})
    with pytest.raises(ConfigError, match="look like an image and its mask"):
        sf.pack(both, tmp_path / "refused", executor="serial")
    sf.pack(images, tmp_path / "dst", executor="serial")
    with pytest.raises(ConfigError, match="look like an image and its mask"):
        sf.extend(both, tmp_path / "dst", executor="serial")


@pytest.mark.parametrize("name", ["x.png", "x.depth.png"])
def test_parts_do_not_make_masks_images(tmp_path: Path, name: str) -> None:
    """A file that looks like the mask of an image is refused also where another part is named."""
    write_tree(tmp_path, {"a/x.jpg": b"", f"a/{name}": b"", "a/x.txt": b"x"})
    with pytest.raises(ConfigError, match=rf"a/{name}.*look.*image"):
        sf.sources.Folder(tmp_path, parts=("txt",)).list()


def test_a_part_begins_behind_a_dot(tmp_path: Path) -> None:
    """`_mask.png` as a part is refused, because `x_mask.png` is another file than `x.jpg`."""
    write_tree(tmp_path, {"x.jpg": b"", "x_mask.png": b""})
    with pytest.raises(ConfigError, match=r"'_mask\.png' would be 'x\._mask\.png'.*--mask-column"):
        sf.sources.Folder(tmp_path, parts=("_mask.png",)).list()


def test_names_that_are_not_of_masks(tmp_path: Path) -> None:
    """Numbers in names, other lossy files, and files in other folders are images like any other."""
    names = ["x.jpg", "x.1.png", "x.old.jpg", "x.webp", "y.png", "y.pgm", "z/x.png", "z/shot.0001.png", "z/shot.png"]
    names = [f"a/{name}" for name in names]
    names += [
        "b/1.png",
        "with_mask/1.png",
        "with_mask/2.png",
        "with_mask/3.png",
        "labels/1.jpg",
        "unmasked/1.png",
        "c/x_mask.png",
    ]
    assert list_source(write_tree(tmp_path, dict.fromkeys(names, b""))).inputs == len(names)


def test_the_error_of_an_empty_folder_crosses_processes(tmp_path: Path) -> None:
    """What a folder holds instead of images is still in its error after a way through a pickle."""
    write_tree(tmp_path, {"notes.txt": b"x"})
    with pytest.raises(NoImagesError) as caught:
        sf.sources.Folder(tmp_path).list()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.ignored) == (str(caught.value), {".txt": 1})


def test_order_is_by_bytes(tmp_path: Path) -> None:
    """Inputs are sorted by the bytes of their whole paths in any locale, and names need not be UTF-8."""
    names = [b"a/\xff.jpg", "a/é.jpg".encode(), b"a/Z.jpg", b"a/a b.jpg", b"a/a\n.jpg", b"B/x.y.jpg", b"a-b/x.jpg"]
    names += [b"a/b.jpg", b"a/b/c.jpg", b"a/b-c.jpg", b"a0/x.jpg", b"a/b.webp", "ä/1.jpg".encode(), b"a!/z.jpg"]
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


def test_a_class_behind_a_broken_link_is_not_left_out(tmp_path: Path) -> None:
    """A link without an extension to a missing place, such as an unmounted disk, is a skipped input with the remedy."""
    write_tree(tmp_path, {"a/1.jpg": b"x"})
    (tmp_path / "b").symlink_to(tmp_path / "nothing")
    ((path, _, reason),) = list_source(tmp_path).skipped
    assert (path, reason.partition(";")[0]) == ("b", "perhaps links to folders of images")


@pytest.mark.parametrize("split", ["", "train/"])
def test_class_names_of_a_web_folder_are_decoded(tmp_path: Path, split: str) -> None:
    """The links of a page are percent-encoded; the class is named as on a disk, and its images are read."""
    write_tree(tmp_path, {f"{split}{name}/1.jpg": name.encode() for name in ("my cat", "ünï", "50%25")})
    with serving(Folder(tmp_path)) as store:
        source = list_source(store.endpoint)
        assert source.classes == ("50%25", "my cat", "ünï")
        read = {source.classes[item.label]: source.reader.read(item).image for item in source.splits["train"]}
    assert read == {name: name.encode() for name in source.classes}


def test_changed_since_listed(tmp_path: Path) -> None:
    """An input whose size is not the listed one is refused: its digest would vouch for other bytes."""
    write_tree(tmp_path, {"1.jpg": b"12345"})
    with pytest.raises(SampleError, match=r"4.*5"):
        list_source(tmp_path).reader.read(Item("1.jpg", None, 4, 0))


@pytest.mark.parametrize("layout", ["", "train/"])
def test_folders_without_images_do_not_shift_classes(
    tmp_path: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty folder beside classes is refused unless the classes are listed; one with other files is only said."""
    write_tree(tmp_path, {f"{layout}{name}": b"x" for name in ("ant/1.jpg", "cat/1.jpg", "notes/a.txt")})
    assert list_source(tmp_path).classes == ("ant", "cat")
    assert "'notes'" in caplog.text
    (tmp_path / layout / "bee/deeper").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"'bee'.*--classes"):
        list_source(tmp_path)
    source = list_source(sf.sources.Folder(tmp_path, classes=("ant", "bee", "cat")))
    assert [item.label for item in source.splits["train"]] == [0, 2]


def test_an_empty_class_in_one_split_shifts_nothing(tmp_path: Path) -> None:
    """Classes are shared by all splits, so one that only training has keeps its number."""
    write_tree(tmp_path, dict.fromkeys(("train/ant/1.jpg", "train/cat/1.jpg", "val/cat/1.jpg"), b"x"))
    (tmp_path / "val/ant").mkdir()
    assert list_source(tmp_path).classes == ("ant", "cat")


def test_files_are_looked_up_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow path many files are waited for at once, in folders and in tables, and their order stays."""
    write_tree(tmp_path, {f"{number // 300}/{number:04}.jpg": b"x" for number in range(600)})
    names = [f"{number // 300}/{number:04}.jpg" for number in range(600)]
    (tmp_path / "table.csv").write_text("\n".join(["path", *names]))
    stat, waiting = os.stat, {"now": 0, "most": 0}
    met, lock = threading.Event(), threading.Lock()

    def slow(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if os.fsencode(path).endswith(b".jpg"):
            with lock:
                waiting["now"] += 1
                waiting["most"] = max(waiting["most"], waiting["now"])
                if waiting["now"] == 8:
                    met.set()
            if not met.wait(20):
                met.set()  # one call at a time: the others need not wait as well
            with lock:
                waiting["now"] -= 1
        return stat(path, *arguments, **options)

    monkeypatch.setattr("shardflow.packing.sources.reader.os.stat", slow)
    for source in (tmp_path, tmp_path / "table.csv"):
        waiting["most"] = 0
        met.clear()
        assert [item.path for item in list_source(source).splits["train"]] == names
        assert waiting["most"] >= 8


def test_a_terminal_gets_a_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long listing is counted in a terminal, and nowhere else."""
    write_tree(tmp_path, {f"a/{number}.jpg": b"x" for number in range(30)})
    monkeypatch.setattr("shardflow.packing.progress.DELAY_S", 0)
    list_source(tmp_path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list_source(tmp_path)
    assert "listing: " in capsys.readouterr().err


@pytest.mark.parametrize("names", [("train_images", "test_images"), ("train2017", "val2017"), ("test-set",)])
def test_folders_that_look_like_splits_are_not_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Folders such as train_images are refused as classes, unless the classes are listed."""
    write_tree(tmp_path / "src", {f"{name}/{n}.jpg": photo(n) for name in names for n in range(2)})
    with pytest.raises(ConfigError, match=rf"named like splits.*{names[0]}"):
        list_source(tmp_path / "src")
    assert list_source(sf.sources.Folder(tmp_path / "src", classes=names)).classes == names
