from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
import torchvision.tv_tensors
from PIL import Image
from torchvision.transforms import v2

import shardflow as sf
from shardflow.errors import ConfigError, PackIncompleteError
from tests.helpers.folders import XMP_FORMS, contents, encoded, image_folder, photo, quarantined, turned, xmp_file

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)

MASK = encoded(Image.fromarray((PIXELS[:, :, 0] > 99).astype(np.uint8)), "PNG")


def _packed(samples: Any, dst: Path, **settings: Any) -> list[dict[str, Any]]:
    """Pack samples as they are, without loss, and return those of the training split."""
    sf.pack(samples, dst, preset="lossless", short_side=None, executor="serial", shuffle=False, **settings)
    return list(sf.open(dst)["train"])


def _pixels(sample: dict[str, Any]) -> Any:
    return np.asarray(Image.open(io.BytesIO(sample["png"])))


@pytest.fixture(scope="module")
def hugging() -> Any:
    """A Hugging Face dataset with images as files, classes by name, and texts."""
    import datasets

    columns = {"pic": [photo(n) for n in range(6)], "kind": [0, 1, 2, 0, 1, -1], "says": [f"no {n}" for n in range(6)]}
    types = (datasets.Image(), datasets.ClassLabel(names=["cat", "dog", "eel"]), datasets.Value("string"))
    return datasets.Dataset.from_dict(columns, features=datasets.Features(zip(columns, types, strict=True)))


def test_hugging_face(hugging: Any, tmp_path: Path) -> None:
    """Image and class columns are found by their types, and files are taken as they are."""
    sf.pack(hugging.select(range(5)), tmp_path / "dst", preset="original", executor="serial", shuffle=False)
    samples = list(sf.open(tmp_path / "dst")["train"])
    assert sf.open(tmp_path / "dst").classes == ["cat", "dog", "eel"]
    assert [sample["jpg"] for sample in samples] == [photo(n) for n in range(5)]
    assert [sample.get("cls") for sample in samples] == [b"0", b"1", b"2", b"0", b"1"]
    assert json.loads(samples[3]["json"]) == {"says": "no 3"}


def test_samples_without_labels(hugging: Any, tmp_path: Path) -> None:
    """-1 and None are no label: a split may have none at all, but a sample without one among others is quarantined."""
    hidden = [(PIXELS, None), PIXELS]
    report = sf.pack({"train": hugging, "test": hidden}, tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.inputs, report.packed) == (8, 7)
    assert [sample.get("cls") for sample in sf.open(tmp_path / "dst")["test"]] == [None, None]
    (row,) = quarantined(tmp_path / "dst")
    assert (row["path"], row["stage"]) == ("train#5", "read")
    assert "has no label, but others of its split have" in row["reason"]
    assert sf.verify(tmp_path / "dst") == []


def test_hugging_face_splits_and_streams(hugging: Any, tmp_path: Path) -> None:
    """A dictionary of datasets has splits, a column can be named as the caption, and a stream is gone through once."""
    import datasets

    both = datasets.DatasetDict({"train": hugging.select([4, 2]), "validation": hugging.select(range(5))})
    sf.pack(sf.sources.Collection(both, caption="says"), tmp_path / "dst", **SMALL)
    dataset = sf.open(tmp_path / "dst")
    assert [sample["txt"] for sample in dataset["train"]] == [b"no 4", b"no 2"]
    assert len(dataset["validation"]) == 5
    assert "json" not in dataset["train"][0]
    sf.pack(hugging.to_iterable_dataset(), tmp_path / "stream", **SMALL, max_errors=1)
    assert len(sf.open(tmp_path / "stream")["train"]) == 5


@pytest.mark.parametrize("kind", ["loaded", "streamed", "concatenated", "saved"])
def test_hugging_face_rows_do_not_name_files(kind: str, tmp_path: Path) -> None:
    """A path in the rows of a loaded file, which may be anyone's, is not opened: a file of this machine stays here."""
    import datasets

    image_folder(tmp_path / "own", 2)
    own = sorted(map(str, (tmp_path / "own").rglob("*.jpg")))
    rows = [{"pic": {"bytes": photo(0), "path": "a.jpg"}}, {"pic": {"bytes": None, "path": own[1]}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    settings: dict[str, Any] = {"data_files": str(tmp_path / "rows.parquet"), "cache_dir": str(tmp_path / "cache")}
    found = datasets.load_dataset("parquet", split="train", streaming=kind == "streamed", **settings)
    found = found.cast_column("pic", datasets.Image())
    if kind == "concatenated":
        other = datasets.Dataset.from_dict({"pic": [photo(1)]}, features=found.features)
        found = datasets.concatenate_datasets([found, other])
    if kind == "saved":
        # Another writer than the library can leave such a file.
        found.save_to_disk(tmp_path / "saved")
        saved = datasets.load_from_disk(tmp_path / "saved").with_format("arrow")[:]
        bare = pa.Table.from_pylist(rows, schema=saved.schema)
        (path,) = (tmp_path / "saved").glob("*.arrow")
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, bare.schema) as writer:
            writer.write_table(bare)
        info = json.loads((tmp_path / "saved/dataset_info.json").read_text())
        (tmp_path / "saved/dataset_info.json").write_text(json.dumps({**info, "builder_name": "imagefolder"}))
        found = datasets.load_from_disk(tmp_path / "saved")
    report = sf.pack(found, tmp_path / "dst", **SMALL, max_errors=1)
    assert report.quarantined == 1
    (row,) = quarantined(tmp_path / "dst")
    assert row["path"] == "train#1"
    assert own[1] in row["reason"]


def test_hugging_face_rows_of_the_caller_name_files(tmp_path: Path) -> None:
    """Paths that the caller or the library wrote into rows are opened, and so are those of a trusted iterable."""
    import datasets

    image_folder(tmp_path / "own", 2)
    own = sorted(map(str, (tmp_path / "own").rglob("*.jpg")))
    given = datasets.Dataset.from_dict({"image": own}).cast_column("image", datasets.Image())
    assert sf.pack(given, tmp_path / "given", **SMALL).packed == 2
    settings: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "split": "train"}
    folder = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "own"), **settings)
    assert sf.pack(folder, tmp_path / "folder", **SMALL).packed == 2
    (tmp_path / "rows.csv").write_text("image\n" + "\n".join(own) + "\n")
    rows = datasets.load_dataset("csv", data_files=str(tmp_path / "rows.csv"), **settings)
    trusted = rows.cast_column("image", datasets.Image())
    assert sf.pack((row for row in trusted), tmp_path / "trusted", **SMALL).packed == 2


def test_hugging_face_without_images(hugging: Any, tmp_path: Path) -> None:
    """A dataset without images says which columns it has, of which types."""
    with pytest.raises(ConfigError, match=r"column.*images"):
        sf.pack(hugging.remove_columns("pic"), tmp_path / "dst")


def test_image_folder_of_torchvision(tmp_path: Path) -> None:
    """torchvision's ImageFolder gives the shards of the folder itself, unless a transform changes its images."""
    src = image_folder(tmp_path / "src", 8)
    sf.pack(src, tmp_path / "folder", **SMALL)
    sf.pack(torchvision.datasets.ImageFolder(str(src)), tmp_path / "object", **SMALL)
    tar = "train/000000.tar"
    assert (tmp_path / "object" / tar).read_bytes() == (tmp_path / "folder" / tar).read_bytes()
    assert sf.open(tmp_path / "object").classes == ["a", "b", "c"]
    grey = torchvision.datasets.ImageFolder(str(src), v2.Grayscale())
    (sample, *_) = _packed(grey, tmp_path / "grey")
    assert (np.ptp(_pixels(sample), axis=-1) == 0).all()


class _Turned(torchvision.datasets.ImageFolder):
    """An ImageFolder with code that changes what it loads."""

    def __getitem__(self, number: int) -> Any:
        image, label = super().__getitem__(number)
        return image.crop((0, 0, 20, 10)), 2 - label


class _Listed:
    """A user's dataset, with the paths of its images in a list as torchvision has it."""

    def __init__(self, folder: Path) -> None:
        self._inner = _Turned(str(folder))
        self.samples, self.classes = self._inner.samples, self._inner.classes

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        return self._inner[number]


@pytest.mark.parametrize("kind", ["subclass", "loader", "alike"])
def test_code_of_the_user_is_called(kind: str, tmp_path: Path) -> None:
    """The files behind a dataset are packed only where nothing but torchvision's own code would load them."""
    image_folder(tmp_path / "src", 4)
    samples: Any = {
        "subclass": lambda: _Turned(str(tmp_path / "src")),
        "loader": lambda: torchvision.datasets.ImageFolder(
            str(tmp_path / "src"), loader=lambda path: Image.open(path).crop((0, 0, 20, 10))
        ),
        "alike": lambda: _Listed(tmp_path / "src"),
    }[kind]()
    packed = _packed(samples, tmp_path / "dst")
    assert [int(sample["cls"]) for sample in packed] == [samples[n][1] for n in range(4)]
    for number, sample in enumerate(packed):
        assert np.array_equal(_pixels(sample), np.asarray(samples[number][0]))


def test_a_transform_of_images_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The results of a torchvision dataset's transform are packed, once for all epochs; a warning says so."""
    src = str(image_folder(tmp_path / "src", 3))
    changed = torchvision.datasets.ImageFolder(src, transform=torchvision.transforms.RandomCrop(16))
    for samples in (changed, torch.utils.data.Subset(changed, [0, 2])):
        _packed(samples, tmp_path / f"{len(samples)}")
        assert "the dataset has the transform RandomCrop, whose results are packed" in caplog.text
        caplog.clear()
    joint = torchvision.datasets.ImageFolder(src)
    joint.transforms = torchvision.transforms.v2.Identity()  # as torchvision's detection datasets have it
    _packed(joint, tmp_path / "joint")
    assert "the dataset has the transform Identity" in caplog.text
    caplog.clear()
    _packed(torchvision.datasets.ImageFolder(src), tmp_path / "plain")
    assert "transform" not in caplog.text


def test_images_that_change_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dataset whose images differ when they are read again has random transforms, whatever holds them."""

    class Cropped(torch.utils.data.Dataset[tuple[Any, int]]):
        def __init__(self, crop: Any) -> None:
            self.augmentation = crop

        def __len__(self) -> int:
            return 3

        def __getitem__(self, number: int) -> tuple[Any, int]:
            return self.augmentation(Image.open(io.BytesIO(photo(number)))), number

    _packed(Cropped(v2.CenterCrop(16)), tmp_path / "same")
    assert not caplog.messages
    _packed(torch.utils.data.Subset(Cropped(v2.RandomCrop(16)), [2, 0]), tmp_path / "other")
    assert "has another image when it is read again, and only one is packed" in caplog.text


def test_a_subset_has_the_classes_of_its_dataset(tmp_path: Path) -> None:
    """PyTorch's `Subset`, also of another one, keeps class names, absent ones too, and packs the files themselves."""
    samples = torchvision.datasets.ImageFolder(str(image_folder(tmp_path / "src", 6)))
    some = torch.utils.data.Subset(torch.utils.data.Subset(samples, [1, 2, 4, 5]), [1, 3])
    packed = _packed(some, tmp_path / "dst")
    assert [int(sample["cls"]) for sample in packed] == [samples[2][1], samples[5][1]]
    assert sf.open(tmp_path / "dst").classes == list(samples.classes)
    assert sf.open(tmp_path / "dst")["train"].sources() == [
        os.path.relpath(samples.samples[number][0], tmp_path / "src") for number in (2, 5)
    ]
    whole = _packed(samples, tmp_path / "whole")
    for mine, theirs in zip(packed, (whole[2], whole[5]), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[part] == theirs[part] for part in mine if part[0] != "_")


def test_files_have_their_paths_as_sources(tmp_path: Path) -> None:
    """Samples that name files are known by these, as the rows of a table are; what cannot be a name has its number."""
    files = [tmp_path / f"{name}.jpg" for name in "ab"]
    for number, file in enumerate(files):
        file.write_bytes(photo(number))
    rows = [(files[0], 1), {"image": str(files[1]), "label": 0}, ("x\0.jpg", 0), (Image.open(files[0]), 0)]
    sf.pack(rows, tmp_path / "dst", executor="serial", short_side=16, shuffle=False, max_errors=1)
    assert sf.open(tmp_path / "dst")["train"].sources() == [*map(str, files), "train#3"]


def test_labels_that_a_transform_changes(hugging: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Classes of a transform of labels have the names that it returns or `classes=` gives, not the set's."""
    src = str(image_folder(tmp_path / "src", 6))
    binary = torchvision.datasets.ImageFolder(src, target_transform=lambda label: int(label > 0))
    labels = [int(sample["cls"]) for sample in _packed(binary, tmp_path / "numbers")]
    assert labels == [binary[number][1] for number in range(6)]
    assert sf.open(tmp_path / "numbers").classes == ["0", "1"]
    assert "a transform or class_to_idx may give classes other numbers" in caplog.text
    _packed(sf.sources.Collection(binary, classes=("rest", "a")), tmp_path / "given")
    named = torchvision.datasets.ImageFolder(src, target_transform=lambda label: "zy"[label > 0])
    assert [int(sample["cls"]) for sample in _packed(named, tmp_path / "named")] == [1 - label for label in labels]
    assert [sf.open(tmp_path / name).classes for name in ("given", "named")] == [["rest", "a"], ["y", "z"]]
    changed = hugging.select(range(3)).with_transform(
        lambda rows: {**rows, "kind": [2 - kind for kind in rows["kind"]]}
    )
    assert [int(sample["cls"]) for sample in _packed(changed, tmp_path / "rows")] == [2, 1, 0]
    assert sf.open(tmp_path / "rows").classes == ["0", "1", "2"]


def test_classes_that_class_to_idx_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Names of classes whose labels `class_to_idx` numbers in another order are left out, with a warning."""
    samples = torchvision.datasets.ImageFolder(str(image_folder(tmp_path / "src", 6)))
    first, second = samples.classes[:2]
    samples.class_to_idx |= {first: 1, second: 0}
    _packed(samples, tmp_path / "dst")
    assert sf.open(tmp_path / "dst").classes == [str(number) for number in range(len(samples.classes))]
    assert "a transform or class_to_idx may give classes other numbers" in caplog.text


def test_any_indexable_collection(tmp_path: Path) -> None:
    """Whatever has a length and an index will do, and what it raises at a sample quarantines that one."""

    class Photos:
        classes = ("x", "y")

        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> tuple[Image.Image, int]:
            if number == 2:
                raise OSError("disk on fire")
            return Image.fromarray(PIXELS), number % 2

    report = sf.pack(Photos(), tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.inputs, report.packed) == (4, 3)
    assert sf.open(tmp_path / "dst").classes == ["x", "y"]
    (row,) = quarantined(tmp_path / "dst")
    assert row["path"] == "train#2"
    assert "disk on fire" in row["reason"]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(PIXELS), PIXELS),
        (PIXELS, PIXELS),
        (PIXELS[:, :, 0], PIXELS[:, :, [0, 0, 0]]),
        (PIXELS[:, :, :1], PIXELS[:, :, [0, 0, 0]]),
        (torch.from_numpy(PIXELS).permute(2, 0, 1), PIXELS),
        (torchvision.tv_tensors.Image(PIXELS.transpose(2, 0, 1).copy()), PIXELS),
        (encoded(Image.fromarray(PIXELS), "BMP"), PIXELS),
        ({"bytes": encoded(Image.fromarray(PIXELS), "PNG"), "path": None}, PIXELS),
        (Image.fromarray(PIXELS).quantize(256).convert("P"), None),
        (Image.fromarray(PIXELS).convert("RGBA"), PIXELS),
        (Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257), PIXELS[:, :, [0, 0, 0]]),
        (Image.fromarray(PIXELS).convert("CMYK"), None),
    ],
)
def test_images_arrive_without_loss(tmp_path: Path, image: Any, expected: Any) -> None:
    """Pillow images of every mode, arrays, tensors and files have the pixels in the shard that they have here."""
    (sample,) = _packed([image], tmp_path / "dst")
    if expected is None:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(_pixels(sample), expected)


CMYK = Image.fromarray(PIXELS).convert("CMYK")


TURNED = {
    "PNG": encoded(Image.fromarray(PIXELS), "PNG", exif=turned(6)),
    "PNG with XMP": xmp_file("PNG", Image.fromarray(PIXELS), 6),
    "TIFF": encoded(CMYK, "TIFF", exif=turned(6)),
    "TIFF with odd XMP": xmp_file("TIFF", CMYK, 6, XMP_FORMS[1]),
    "TIFF with XMP": xmp_file("TIFF", CMYK, 6),
}


@pytest.mark.parametrize("case", TURNED)
def test_images_keep_their_orientation(tmp_path: Path, case: str) -> None:
    """A Pillow image that was opened from a turned photograph is packed upright, as its file would be."""
    from_file, from_image = _packed([TURNED[case], Image.open(io.BytesIO(TURNED[case]))], tmp_path / "dst")
    assert from_file["png"] == from_image["png"]
    assert _pixels(from_image).shape == (60, 40, 3)


def test_images_that_code_has_changed_are_not_turned(tmp_path: Path) -> None:
    """Pillow keeps the EXIF of an image that is converted or turned by hand: its pixels are packed as they are."""
    opened = Image.open(io.BytesIO(encoded(Image.fromarray(PIXELS), "PNG", exif=turned(6))))
    by_hand, converted = opened.rotate(270, expand=True), opened.convert("RGB")
    for sample, image in zip(_packed([by_hand, converted], tmp_path / "dst"), (by_hand, converted), strict=True):
        assert image.getexif()[274] == 6
        assert np.array_equal(_pixels(sample), np.asarray(image))


def test_a_split_in_samples_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An entry 'split' of samples does not divide them, and a warning says how to."""
    rows = [{"image": Image.fromarray(PIXELS), "label": number, "split": "val"} for number in range(2)]
    _packed(rows, tmp_path / "dst")
    assert "an entry 'split', which goes to .json: all are in train; pass a mapping from splits" in caplog.text


def test_a_transparent_colour_is_kept(tmp_path: Path) -> None:
    """A Pillow image with one transparent colour is packed on white, as its file would be."""
    file = encoded(Image.new("RGB", (40, 40), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    from_file, from_image = _packed([file, Image.open(io.BytesIO(file))], tmp_path / "dst")
    assert from_file["png"] == from_image["png"]
    assert (_pixels(from_image) == 255).all()


def test_targets(tmp_path: Path) -> None:
    """A target is a class, several classes, a mask, or annotations; of a mapping, bytes are parts of their name."""
    mask = Image.open(io.BytesIO(MASK))
    annotations = [{"bbox": [10, 10, 20, 20], "id": 1}]
    file = encoded(Image.fromarray(PIXELS), "PNG")
    labelled = [(PIXELS, np.int64(2)), (PIXELS, torch.tensor(1)), (PIXELS, [2, 0])]
    others = [(PIXELS, annotations), (PIXELS, {"boxes": [[1, 2, 3, 4]]}), (PIXELS, None)]
    named = [{"__key__": "k", "png": file, "cls": b"1", "seg.png": MASK}]
    both = {"train": labelled + named, "val": others}
    samples = [*_packed(both, tmp_path / "dst"), *sf.open(tmp_path / "dst")["val"]]
    samples += _packed([(PIXELS, mask)], tmp_path / "masks")
    assert sf.verify(tmp_path / "dst") == []
    given = [{part: data for part, data in sample.items() if not part.startswith("__")} for sample in samples]
    assert [" ".join(sorted(parts)) for parts in given] == [
        *("cls png", "cls png", "labels.json png", "cls png seg.png"),
        *("json png", "json png", "png", "mask.png png"),
    ]
    assert (given[0]["cls"], given[2]["labels.json"], given[3]["cls"]) == (b"2", b"[0, 2]", b"1")
    for sample, part in ((given[3], "seg.png"), (given[7], "mask.png")):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample[part]))), np.asarray(mask))
    assert json.loads(given[4]["json"]) == {"annotations": annotations}


class _Named(list[Any]):
    """A torchvision dataset of one image, with class names."""

    def __init__(self, *classes: str) -> None:
        super().__init__([(PIXELS, 0)])
        self.classes = classes


def _opened(paths: Iterable[Path]) -> Iterator[tuple[Image.Image, str]]:
    for path in paths:
        yield Image.open(io.BytesIO(path.read_bytes())), "c"


@pytest.mark.parametrize("broken", ["0.jpg", "2.jpg"])
def test_a_damaged_pillow_image_is_one_bad_input(tmp_path: Path, broken: str) -> None:
    """An image that Pillow has opened but cannot decode is quarantined with its place; so it is in the first sample."""
    paths = [tmp_path / f"{number}.jpg" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(photo(number) if path.name != broken else photo(number)[:-300])
    report = sf.pack(_opened(paths), tmp_path / "dst", executor="serial", max_errors=1, short_side=32)
    assert (report.packed, report.quarantined) == (3, 1)
    (bad,) = sf.open(tmp_path / "dst").quarantine()
    assert (bad.path, "truncated" in bad.reason) == (f"train#{broken[0]}", True)


def test_an_error_of_the_callers_iterator_is_unchanged(tmp_path: Path) -> None:
    """An OSError of the code that makes the samples comes as it is, not as one of the disk."""
    with pytest.raises(FileNotFoundError) as caught:
        sf.pack(_opened([tmp_path / "absent.jpg"]), tmp_path / "dst", executor="serial")
    assert type(caught.value) is FileNotFoundError


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "list has no samples"),
        (iter(()), "has no samples; an iterator yields them only once"),
        ([3], "first sample of list: expected an image, found int"),
        ([(PIXELS, [[1], [2]])], r"\[\[1\], \[2\]\]"),
        ([(PIXELS, 1, 2)], r"expected \(image, target\), found 3 values"),
        ([{"photo": PIXELS}], "has none of image, img, .* but photo"),
        ([{"image": PIXELS, "depth": PIXELS}], "second image, 'depth'"),
        ([{"image": PIXELS, "cls": b"cat"}], "number or the name of a class as JSON, found b'cat'"),
        ([PIXELS / 255], "array of float64 has no defined range"),
        ([np.zeros((4, 4, 7), np.uint8)], r"shape \(4, 4, 7\)"),
        ({"dev": [PIXELS]}, "split 'dev'; splits are named train, val"),
        ({"train": _Named("a", "b"), "val": _Named("b")}, "split 'val' has other classes than"),
        (3, "expected a path, a URL, a source or samples, found int$"),
        ([(PIXELS, (1, 2))], "a tuple holds several targets; give a dict, .* or a list for several classes"),
        ({"test": "images/"}, "or samples, found str; a path or a source is passed without a dict, and its folders"),
        (
            pd.DataFrame({"image": ["1.jpg"]}),
            r"a DataFrame is not .*; write it to a file and pass shardflow\.sources\.Table\(file, image=\.\.\.\) if it "
            r"names files, or Collection\(frame.to_dict\('records'\)\), .* if it has the images",
        ),
    ],
)
def test_what_cannot_be_packed(tmp_path: Path, samples: Any, message: str) -> None:
    """What has no images says what was found instead, before anything is written."""
    with pytest.raises(ConfigError, match=message):
        sf.pack(samples, tmp_path / "dst", executor="serial")
    assert not (tmp_path / "dst").exists()


def test_an_iterator_is_resumed_by_content(tmp_path: Path) -> None:
    """A second run over equal samples goes on where the first one stopped, and does again what changed."""

    def samples(changed: int | None = None) -> Iterator[dict[str, Any]]:
        for n in range(20):
            picture = Image.fromarray(PIXELS + n + (n == changed))
            yield {"image": encoded(picture, "BMP"), "label": "even" if n % 2 == 0 else "odd"}
        yield {"image": b"no image", "label": "odd"}

    settings: dict[str, Any] = {**SMALL, "shard_samples": 7}
    with pytest.raises(PackIncompleteError):
        sf.pack(samples(), tmp_path / "dst", **settings)
    with pytest.raises(PackIncompleteError):
        sf.pack(samples(), tmp_path / "dst", **settings, progress=(seen := []).append)
    assert seen[0].done == 21
    assert sf.pack(samples(changed=3), tmp_path / "dst", **settings, max_errors=1).resumed == 14
    sf.pack(samples(changed=3), tmp_path / "fresh", **settings, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")


def test_processes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes make the same shards of objects, and the copy that they read them from is gone afterwards."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    samples = [(Image.open(io.BytesIO(photo(n))), n % 3) for n in range(40)]
    sf.pack(samples, tmp_path / "serial", **SMALL)
    sf.pack(samples, tmp_path / "processes", **{**SMALL, "executor": "processes", "workers": 2})
    assert contents(tmp_path / "serial") == contents(tmp_path / "processes")
    assert list(temporary.iterdir()) == []


def test_the_loader_hands_out_several_labels(tmp_path: Path) -> None:
    """The field "labels" has a 1 for each class of a sample, and is also there where each has one."""
    samples = [{"image": PIXELS, "label": label} for label in (["a", "c"], [], ["b"])]
    sf.pack(samples, tmp_path / "several", **SMALL)
    sf.pack([(PIXELS, 1), (PIXELS, 0)], tmp_path / "one", **SMALL)
    options: dict[str, Any] = {"shuffle": False, "num_workers": 0, "fields": ("labels",), "tail": "short"}
    ((labels,),) = sf.Loader(tmp_path / "several", batch_size=3, **options)
    assert labels.dtype == torch.float32
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    ((labels,),) = sf.Loader(tmp_path / "one", batch_size=2, **options)
    assert labels.tolist() == [[0, 1], [1, 0]]


def test_masks_may_be_paths(tmp_path: Path) -> None:
    """The mask of a mapping is a path as text or not, as its image is; a path as the target of a pair is a mask."""
    for name, data in (("1.png", encoded(Image.fromarray(PIXELS), "PNG")), ("m.png", MASK)):
        (tmp_path / name).write_bytes(data)
    image, mask = tmp_path / "1.png", tmp_path / "m.png"
    rows = sf.sources.Collection([{"image": str(image), "of": str(mask)}, {"image": image, "of": mask}], mask="of")
    for number, source in enumerate((rows, [(image, mask)])):
        for sample in _packed(source, tmp_path / f"{number}"):
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["mask.png"]))), np.asarray(Image.open(mask)))


def test_only_collections_take_objects() -> None:
    """A frame as the URL of a table is refused without printing it."""
    with pytest.raises(ConfigError, match=r"Table takes a path or URL, found DataFrame; save .*csv file; .*Collection"):
        sf.sources.Table(pd.DataFrame({"image": ["1.jpg"]}))  # type: ignore[arg-type]


def test_paths_as_samples(tmp_path: Path) -> None:
    """Paths are read where they are, and one that is missing is quarantined."""
    (tmp_path / "1.jpg").write_bytes(photo(1))
    report = sf.pack([(tmp_path / "1.jpg", "a"), (tmp_path / "2.jpg", "a")], tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.packed, report.quarantined) == (1, 1)
