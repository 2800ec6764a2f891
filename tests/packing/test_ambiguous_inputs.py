"""Inputs that can mean two things are refused, or named: they would be packed wrong, and nobody would know."""

from __future__ import annotations

import contextlib
import json
import logging
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError, SampleError
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import image_folder, photo, quarantined, write_tree
from tests.helpers.tars import write_tar

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}


@pytest.mark.parametrize(
    "label",
    [
        torch.tensor([0, 0, 1]),
        np.array([0, 1]),
        torch.tensor([95, 71, 226, 313]),
        [0, 0, 1],
        [1, 0],
        [[1], [2]],
        {"a": 1},
        True,
    ],
    ids=["one-hot", "multi-hot", "box", "list", "pair", "nested", "mapping", "bool"],
)
def test_vectors_are_not_lists_of_classes(label: Any, tmp_path: Path) -> None:
    """A vector of zeros and ones, or of coordinates, would give all samples the same classes."""
    with pytest.raises(ConfigError, match=r"label|class"):
        sf.pack([{"image": photo(0), "label": label}], tmp_path / "dst", **SMALL)


def test_a_list_of_classes(tmp_path: Path) -> None:
    """A list of different classes is several labels."""
    sf.pack([{"image": photo(0), "label": [2, 0]}, {"image": photo(1), "label": (1,)}], tmp_path / "dst", **SMALL)
    assert [json.loads(sample["labels.json"]) for sample in sf.open(tmp_path / "dst")["train"]] == [[0, 2], [1]]


def test_arrays_become_lists(tmp_path: Path) -> None:
    """Arrays and numbers of numpy and torch are lists and numbers in `.json`, whole, and what is missing is null."""
    import pandas as pd

    others: dict[str, Any] = {
        "long": np.arange(2000),
        "boxes": [torch.tensor([1.5, 2.0])],
        "area": np.float32(0.5),
        "missing": [float("nan"), pd.NA, np.datetime64("NaT")],
        "days": np.array(["2026-01-02"], "datetime64[D]"),
    }
    sf.pack([{"image": photo(0), **others}, (photo(1), {"box": np.zeros(4)})], tmp_path / "dst", **SMALL)
    first, second = (json.loads(sample["json"]) for sample in sf.open(tmp_path / "dst")["train"])
    assert first == {
        "long": [*range(2000)],
        "boxes": [[1.5, 2.0]],
        "area": 0.5,
        "missing": [None, None, None],
        "days": ["2026-01-02"],
    }
    assert second == {"box": [0.0] * 4}


@pytest.mark.parametrize(
    "value", [[photo(0)], {"mask": photo(0)}, [Image.new("L", (2, 2))]], ids=["list", "map", "image"]
)
def test_images_inside_of_other_values(tmp_path: Path, value: Any) -> None:
    """Bytes and images that are not values of a sample by themselves are refused: as text they would be lost."""
    with pytest.raises(ConfigError, match="inside"):
        sf.pack([{"image": photo(0), "others": value}], tmp_path / "dst", **SMALL)


def test_classes_that_differ_in_case_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class that is written in another case in another split is named in a warning; letters may be classes."""
    write_tree(tmp_path / "in", {"train/Cat/1.jpg": photo(1), "val/cat/1.jpg": photo(2)})
    list_source(tmp_path / "in")
    assert [record.levelname for record in caplog.records if "'Cat'" in record.getMessage()] == ["WARNING"]
    caplog.clear()
    write_tree(tmp_path / "letters", {"a/1.jpg": photo(1), "A/1.jpg": photo(2)})
    list_source(tmp_path / "letters")
    assert not caplog.records


@pytest.mark.parametrize("rows_before", [1, 150])
def test_json_lines_that_begin_without_a_label(tmp_path: Path, rows_before: int) -> None:
    """A row that leaves out its label or split does not make images of all rows without labels, for training."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(3)})
    rows: list[dict[str, str]] = [{"image": "0.jpg", "label": "cat", "split": "train"}] * 4
    rows += [{"image": "2.jpg", "label": "dog", "split": "val"}]
    for use in ("label", "split"):
        first = [{name: value for name, value in rows[0].items() if name != use}] * rows_before
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*first, *rows]))
        if rows_before > 1 or use == "split":
            with pytest.raises(ConfigError, match=use):
                list_source(tmp_path / "t.jsonl")
            continue
        with list_source(tmp_path / "t.jsonl") as source:
            assert {split: [item.label for item in items] for split, items in source.splits.items()} == {
                "train": [None, 0, 0, 0, 0],
                "val": [1],
            }
            with pytest.raises(SampleError, match="label"):
                source.reader.read(source.splits["train"][0])


def test_classes_that_are_not_utf8(tmp_path: Path) -> None:
    """Two names of classes in another encoding are refused: as text that is not readable, they would be one class."""
    for number, name in enumerate((b"caf\xe9", b"caf\xe8")):
        write_tree(tmp_path / "in", {f"{number}.jpg": photo(number), f"{number}.cls": name})
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for file in sorted((tmp_path / "in").iterdir()):
            tar.add(file, file.name)
    with pytest.raises(ConfigError, match="UTF-8"):
        list_source(tmp_path / "in.tar")


def test_a_missing_caption_is_not_a_text(tmp_path: Path) -> None:
    """None and NaN are named in the quarantine, and text stays as it is."""
    samples = [
        {"image": photo(n), "text": text} for n, text in enumerate(["a cat", None, float("nan"), b"caf\xc3\xa9"])
    ]
    source = sf.sources.Collection(samples, caption="text")
    sf.pack(source, tmp_path / "dst", **SMALL, max_errors=2)
    assert [sample["txt"] for sample in sf.open(tmp_path / "dst")["train"]] == [b"a cat", "café".encode()]
    assert {bad["path"] for bad in quarantined(tmp_path / "dst")} == {"train#1", "train#2"}


def test_a_part_does_not_replace_another(tmp_path: Path) -> None:
    """Of two values for one part, neither is dropped: the first sample with both is refused."""
    for sample, options in (
        ({"jpg": photo(0), "json": b'{"a": 1}', "id": 5}, {}),
        ({"jpg": photo(0), "txt": b"one", "cap": "two"}, {"caption": "cap"}),
    ):
        with pytest.raises(ConfigError, match="part"):
            sf.pack(sf.sources.Collection([sample], **options), tmp_path / "dst", **SMALL)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("odd", ["NA", "-1", "3.0"])
def test_one_odd_label_does_not_renumber_all(kind: str, odd: str, tmp_path: Path) -> None:
    """With a label that is not a whole number all labels are names, and 10 would come after 1."""
    labels = [*map(str, range(11)), odd]
    rows = [{"image": f"{n}.jpg", "label": label} for n, label in enumerate(labels)]
    write_tree(tmp_path, {row["image"]: photo(n) for n, row in enumerate(rows)})
    table = tmp_path / f"t.{kind}"
    lines = [f"{row['image']},{row['label']}" for row in rows]
    table.write_text("\n".join(["image,label", *lines] if kind == "csv" else map(json.dumps, rows)))
    with pytest.raises(ConfigError, match="--classes"):
        sf.pack(table, tmp_path / "dst", **SMALL)


def test_names_with_digits_stay_names(tmp_path: Path) -> None:
    """Names whose order is that of their numbers, and codes with leading zeros, are classes as ever."""
    rows = [{"image": f"{n}.jpg", "label": label} for n, label in enumerate(["0", "1", "A", "007x"])]
    write_tree(tmp_path, {row["image"]: photo(n) for n, row in enumerate(rows)})
    (tmp_path / "t.csv").write_text("image,label\n" + "\n".join(f"{row['image']},{row['label']}" for row in rows[:3]))
    sf.pack(tmp_path / "t.csv", tmp_path / "dst", **SMALL)
    assert sf.open(tmp_path / "dst").classes == ["0", "1", "A"]


def test_a_json_caption_of_a_csv_stays_text(tmp_path: Path) -> None:
    """The cell is the caption, byte by byte; other columns are parsed."""
    write_tree(tmp_path, {"0.jpg": photo(0)})
    (tmp_path / "t.csv").write_text('image,talk,boxes\n0.jpg,"[{""from"": ""it\'s"", ""n"": 1.50}]","[[1, 2]]"\n')
    sf.pack(sf.sources.Table(tmp_path / "t.csv", caption="talk"), tmp_path / "dst", **SMALL)
    (sample,) = sf.open(tmp_path / "dst")["train"]
    assert sample["txt"] == b'[{"from": "it\'s", "n": 1.50}]'
    assert json.loads(sample["json"]) == {"boxes": [[1, 2]]}


def test_a_caption_in_tsv_does_not_swallow_rows(tmp_path: Path) -> None:
    """A text that begins with a quote would reach to the quote in a later row."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(3)})
    (tmp_path / "t.tsv").write_text('image\ttext\n0.jpg\t"hello\n1.jpg\tworld"\n2.jpg\tx\n')
    with pytest.raises(ConfigError, match=r"t\.tsv, line 3"):
        sf.pack(sf.sources.Table(tmp_path / "t.tsv", caption="text"), tmp_path / "dst", **SMALL)


def test_classes_that_look_alike(tmp_path: Path) -> None:
    """One name in two Unicode forms, as on Linux and on a Mac, is not two classes."""
    for split, form in (("train", "NFC"), ("val", "NFD")):
        write_tree(tmp_path / "src", {f"{split}/{unicodedata.normalize(form, 'café')}/0.jpg": photo(0)})
    with pytest.raises(ConfigError, match=r"caf\\xe9"):
        sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL)


def test_classes_with_blanks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name that begins with a blank, as after the commas of a table, stays as it is with a warning."""
    write_tree(tmp_path, {"t.csv": b"path,label\n0.jpg, cat\n1.jpg, dog\n"})
    assert list_source(tmp_path / "t.csv").classes == (" cat", " dog")
    assert [message.partition("t.csv ")[2] for message in caplog.messages] == [
        "has the class ' cat', which begins or ends with a blank; remove it if it has no meaning"
    ]


@pytest.mark.parametrize("kind", ["object", "parquet"])
def test_columns_with_classes(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column named label comes first; of several with classes none is chosen; one that was perhaps meant is named."""
    import datasets

    def packed(name: str, **columns: Any) -> list[str] | None:
        kinds = {"cls": datasets.ClassLabel(names=["x", "y"]), "int": datasets.Value("int64")}
        types = {key.rpartition("__")[0]: kinds[key.rpartition("__")[2]] for key in columns}
        features = datasets.Features({"image": datasets.Image(), **types})
        values = {key.rpartition("__")[0]: value for key, value in columns.items()}
        rows = datasets.Dataset.from_dict({"image": [photo(0), photo(1)], **values}, features=features)
        if kind == "parquet":
            rows.to_parquet(tmp_path / f"{name}.parquet")
        sf.pack(rows if kind == "object" else tmp_path / f"{name}.parquet", tmp_path / name, **SMALL)
        return sf.open(tmp_path / name).classes

    assert packed("a", label__int=[2, 0], kind__cls=[0, 1]) == ["0", "1", "2"]
    with pytest.raises(ConfigError, match="fine, coarse"):
        packed("b", fine__cls=[0, 1], coarse__cls=[1, 0])
    with caplog.at_level(logging.WARNING):
        assert packed("c", target__int=[0, 1]) is None
    assert "'target'" in caplog.text


def _tar(path: Path, names: list[str], links: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for n, name in enumerate(names):
            (path.parent / "file").write_bytes(photo(n))
            tar.add(path.parent / "file", name)
        for name, kind in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, names[0]
            tar.addfile(info)
    return path


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_tars_are_named(kind: bytes, tmp_path: Path) -> None:
    """`cp -al` and deduplicating tools leave links, which have no bytes in the tar."""
    tar = _tar(tmp_path / "a.tar", ["0.jpg", "1.jpg"], {"2.jpg": kind, "folder": kind})
    report = sf.index(tar, tmp_path / "index", max_errors=1)
    assert (report.samples, [Path(bad.path).name for bad in report.bad]) == ({"train": 2}, ["2"])
    assert sf.pack(tar, tmp_path / "dst", **SMALL, max_errors=1).packed == 2
    assert "--hard-dereference" in quarantined(tmp_path / "dst")[0]["reason"]


def test_two_images_in_a_sample_of_a_tar(tmp_path: Path) -> None:
    """The first of two would be the image, which is the mask of every other sample in an unsorted tar."""
    tar = _tar(tmp_path / "a.tar", ["0.jpg", "0.png", "1.png", "1.jpg", "2.jpg", "2.seg.png"], {})
    report = sf.index(tar, tmp_path / "index", max_errors=2)
    assert (report.samples, [Path(bad.path).name for bad in report.bad]) == ({"train": 1}, ["0", "1"])


def test_a_tar_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    """Labels are read when a tar is listed: images of another tar do not get them."""
    tar = _tar(tmp_path / "a.tar", ["0.jpg", "1.jpg"], {})
    other = _tar(tmp_path / "b.tar", ["1.jpg", "0.jpg"], {})

    source = list_source(tar)
    other.replace(tar)
    with pytest.raises(SampleError, match="changed"):
        source.reader.read(source.splits["train"][0])


@pytest.mark.parametrize("kind", ["tar", "list"])
def test_an_empty_label(tmp_path: Path, kind: str) -> None:
    """An empty label is not a class: the sample is quarantined as the only one without a label."""
    labels = ["cat", "", "dog"]
    if kind == "tar":
        files = [{f"{n}.jpg": photo(n), f"{n}.cls": label.encode()} for n, label in enumerate(labels)]
        source: Any = str(write_tar(tmp_path / "a.tar", [pair for each in files for pair in each.items()]))
    else:
        source = [{"image": photo(n), "label": label} for n, label in enumerate(labels)]
    sf.pack(source, tmp_path / "dst", max_errors=1, **SMALL)
    assert sf.open(tmp_path / "dst").classes == ["cat", "dog"]
    assert [bad["reason"] for bad in quarantined(tmp_path / "dst")] == ["has no label, but others of its split have"]
    with pytest.raises(ConfigError, match="''"):
        sf.pack([{"image": photo(0), "label": ["", "dog"]}], tmp_path / "other", **SMALL)


def test_an_image_that_moves_to_another_split(tmp_path: Path) -> None:
    """It would be in both: the row is a conflict, also if the file was copied since."""
    image_folder(tmp_path / "img", 6)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "img").rglob("*.jpg"))
    table = tmp_path / "t.csv"

    def write(splits: list[str]) -> Path:
        table.write_text(
            "image,split\n" + "".join(f"{name},{split}\n" for name, split in zip(names, splits, strict=False))
        )
        return table

    sf.pack(write(["train"] * 4), tmp_path / "dst", **SMALL)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"1 of 6.*{names[0]}"):
            sf.extend(write(["val", *["train"] * 5]), tmp_path / "dst", executor="serial")
        (tmp_path / names[0]).touch()


def test_images_that_are_there_under_other_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that were moved into folders of splits are packed again: a warning counts them."""
    image_folder(tmp_path / "src", 6)
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL)
    (tmp_path / "src/train").mkdir()
    for folder in [path for path in (tmp_path / "src").iterdir() if path.name != "train"]:
        folder.rename(tmp_path / "src/train" / folder.name)
    with caplog.at_level(logging.WARNING):
        sf.extend(tmp_path / "src", tmp_path / "dst", executor="serial")
    assert "6 of 6 new inputs" in caplog.text


def test_an_extension_with_fewer_parts(tmp_path: Path) -> None:
    """Training would stop at the first new sample in mid-epoch."""
    write_tree(
        tmp_path / "src",
        {f"{n}.{kind}": photo(n) if kind == "jpg" else b"t" for n in range(3) for kind in ("jpg", "txt")},
    )
    sf.pack(sf.sources.Folder(tmp_path / "src", parts=("txt",)), tmp_path / "dst", **SMALL)
    write_tree(tmp_path / "src", {"9.jpg": photo(9), "9.txt": b"t"})
    with pytest.raises(ConfigError, match="'txt'"):
        sf.extend(tmp_path / "src", tmp_path / "dst", executor="serial")
    assert (
        sf.extend(sf.sources.Folder(tmp_path / "src", parts=("txt",)), tmp_path / "dst", executor="serial").packed == 1
    )


def test_a_part_without_its_image_is_counted(tmp_path: Path) -> None:
    """A mask whose image is missing is among the files that were ignored."""
    write_tree(tmp_path / "src", {"0.jpg": photo(0), "0.txt": b"a", "1.txt": b"b"})
    report = sf.pack(sf.sources.Folder(tmp_path / "src", parts=("txt",)), tmp_path / "dst", **SMALL)
    assert report.ignored == {".txt": 1}


def test_a_column_of_ids_is_not_taken_for_the_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only a column whose values repeat is named; and a class for nearly every image is warned of."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n % 5) for n in range(24)})
    rows = "".join(f"{n}.jpg,id{n},{'scab' if n % 2 else 'rust'}\n" for n in range(24))
    (tmp_path / "t.csv").write_text("image,image_id,diagnosis\n" + rows)
    with caplog.at_level(logging.WARNING):
        sf.pack(tmp_path / "t.csv", tmp_path / "a", **SMALL)
    assert "'diagnosis'" in caplog.text
    assert "image_id" not in caplog.text
    with caplog.at_level(logging.WARNING):
        sf.pack(sf.sources.Table(tmp_path / "t.csv", label="image_id"), tmp_path / "b", **SMALL)
    assert "24 for 24" in caplog.text


@pytest.mark.parametrize(
    ("names", "warned"),
    [
        (["scab", "rust", "scab rust"], '["scab", "rust"]'),
        (["x", "x|y", "x|z", "y|z"], '["x", "y"]'),
        (["1, 2", "2, 3", "3, 1", "1"], '["1", "2"]'),
        (["golden retriever", "golden eagle", "bald eagle"], ""),
        (["red bus", "red car", "red van", "blue bus", "blue car", "blue van"], ""),
        (["tench, Tinca tinca", "goldfish"], ""),
    ],
)
def test_a_class_that_lists_several(
    tmp_path: Path, names: list[str], warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A class whose name joins those of others, as in a column of several labels, is named, with the list to write."""
    rows = [{"path": f"{number}.jpg", "label": name} for number, name in enumerate(names)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.suppress(ConfigError):  # a single "1" among them is refused, too
        list_source(sf.sources.Table(tmp_path / "t.jsonl"))
    assert ("may be several" in caplog.text, warned in caplog.text) == (bool(warned), True)
