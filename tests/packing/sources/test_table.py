from __future__ import annotations

import csv
import http.server
import io
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError, NotFoundError, PackIncompleteError
from shardflow.packing.sources.items import Item
from shardflow.packing.sources.resolve import list_source
from tests.helpers.command import exit_code
from tests.helpers.folders import contents, encoded, image_folder, photo, quarantined, write_tree

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as the kind of table that the path names."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue())
    return path


def _items(table: Path) -> dict[str, list[Item]]:
    return {split: list(items) for split, items in list_source(table).splits.items()}


def test_a_caption_of_another_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column of texts that may be the caption goes to `.json` with a hint, in tables of paths or of images."""
    write_tree(tmp_path, {"1.jpg": photo(1), "t.csv": b"path,title\n1.jpg,a\n"})
    pyarrow.parquet.write_table(pyarrow.table({"jpg": [photo(1)], "title": ["a"]}), tmp_path / "t.parquet")
    for name, kind in (("t.csv", sf.sources.Table), ("t.parquet", sf.sources.Parquet)):
        list_source(tmp_path / name)
        (hint,) = caplog.messages
        assert hint.endswith(
            f"{name} has no column 'caption', so its texts go to .json; to use 'title', name it with caption= or "
            "--caption-column"
        )
        caplog.clear()
        list_source(kind(tmp_path / name, caption="title"))
        assert not caplog.messages


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_become_samples(tmp_path: Path, kind: str) -> None:
    """Every kind of table gives the same samples: labels by name, splits, the other columns in `.json`."""
    image_folder(tmp_path / "img", 6)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "img").rglob("*.jpg"))
    rows = [
        {"path": name, "label": name.split("/")[1], "split": "val" if n > 3 else "train", "by": f"né {n}"}
        for n, name in enumerate(names)
    ]
    report = sf.pack(_write(tmp_path / f"table{kind}", rows), tmp_path / "dst", **SMALL)
    dataset = sf.open(tmp_path / "dst")
    assert (report.packed, dataset.classes) == (6, ["a", "b", "c"])
    assert {split: [int(sample["cls"]) for sample in dataset[split]] for split in dataset} == {
        "train": [0, 0, 1, 1],
        "val": [2, 2],
    }
    assert [json.loads(sample["json"]) for sample in dataset["val"]] == [{"by": "né 4"}, {"by": "né 5"}]


def test_named_columns(tmp_path: Path) -> None:
    """Columns can be named, captions become `.txt`, and rows keep their order, also when an image comes twice."""
    write_tree(tmp_path, {"b.jpg": photo(1), "a.jpg": photo(2)})
    rows = [{"file": name, "kind": "x", "says": f"no {n}"} for n, name in enumerate(["b.jpg", "a.jpg", "b.jpg"])]
    table = sf.sources.Table(_write(tmp_path / "t.csv", rows), image="file", label="kind", caption="says")
    sf.pack(table, tmp_path / "dst", **SMALL)
    samples = list(sf.open(tmp_path / "dst")["train"])
    assert [sample["txt"] for sample in samples] == [b"no 0", b"no 1", b"no 2"]
    assert samples[0]["jpg"] == samples[2]["jpg"] != samples[1]["jpg"]
    assert "json" not in samples[0]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_column_of_captions_is_known(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A column `caption` becomes `.txt` where a row has a text; of lists it goes to `.json`, or is refused if named."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    write_list = json.dumps if name == "t.csv" else list
    captions = {"texts": ["[a]", ""], "lists": [write_list(["b", "c"]), write_list(["d"])]}
    found = {}
    for which, values in captions.items():
        rows = [{"path": "1.jpg", "caption": value} for value in values]
        with list_source(_write(tmp_path / f"{which}-{name}", rows)) as source:
            found[which] = [source.reader.read(item).parts for item in source.splits["train"]]
    assert found["texts"] == [{"txt": b"[a]"}, {}]
    assert json.loads(found["lists"][0]["json"]) == {"caption": ["b", "c"]}
    assert "'caption' has values of type list, so it goes to .json" in caplog.text
    if name == "t.csv":
        return  # where a caption that is named is any text
    with pytest.raises(ConfigError, match=r"column 'caption' has values of type list; a caption is one text.*'json'"):
        list_source(sf.sources.Table(tmp_path / f"lists-{name}", caption="caption"))


def test_empty_cells_are_missing(tmp_path: Path) -> None:
    """An empty cell of CSV, quoted or not, is null in `.json`, as in pandas; in JSON lines, a text may be empty."""
    write_tree(tmp_path, {"1.jpg": photo(1), "t.csv": b'path,note,n,x\n1.jpg,,"",7\n'})
    (tmp_path / "t.jsonl").write_text('{"path": "1.jpg", "note": "", "n": null}')
    for name, expected in (("t.csv", {"note": None, "n": None, "x": "7"}), ("t.jsonl", {"note": "", "n": None})):
        with list_source(tmp_path / name) as source:
            (item,) = source.splits["train"]
            assert json.loads(source.reader.read(item).parts["json"]) == expected


def test_json_without_numbers_that_json_lacks(tmp_path: Path) -> None:
    """NaN and infinities of a table become null, so that any reader takes the part `json`."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    (tmp_path / "t.jsonl").write_text('{"path": "1.jpg", "a": Infinity, "b": [NaN, {"c": -Infinity}, 1.5]}')
    with list_source(tmp_path / "t.jsonl") as source:
        (item,) = source.splits["train"]
        assert source.reader.read(item).parts["json"] == b'{"a": null, "b": [null, {"c": null}, 1.5]}'


def test_numbers_are_labels(tmp_path: Path) -> None:
    """Numbers stay the numbers of classes, in text tables as well, and a file can name them."""
    write_tree(tmp_path, {"1.jpg": photo(1), "classes.txt": b"ant\nbee\r\ncat\n\n"})
    table = _write(tmp_path / "t.csv", [{"path": "1.jpg", "label": label} for label in (10, 2)])
    source = list_source(table)
    assert [item.label for item in source.splits["train"]] == [10, 2]
    assert source.classes == tuple(map(str, range(11)))
    named = _write(tmp_path / "u.csv", [{"path": "1.jpg", "label": label} for label in ("cat", "bee")])
    source = list_source(sf.sources.Table(named, classes=tmp_path / "classes.txt"))
    assert source.classes == ("ant", "bee", "cat")
    assert [item.label for item in source.splits["train"]] == [2, 1]
    with pytest.raises(ConfigError, match=r"10,.*3"):
        list_source(sf.sources.Table(table, classes=tmp_path / "classes.txt"))


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
def test_names_may_look_like_numbers(tmp_path: Path, kind: str) -> None:
    """A text is the class of that name if `classes` has one, and such names beside other numbers are refused."""
    write_tree(tmp_path, {"1.jpg": photo(1), "digits.txt": b"1\n2\n9\n0\n"})
    table = _write(tmp_path / f"t{kind}", [{"path": "1.jpg", "label": label} for label in (0, 1, 9)])
    source = list_source(sf.sources.Table(table, classes=tmp_path / "digits.txt"))
    assert [item.label for item in source.splits["train"]] == [3, 0, 2]
    with pytest.raises(ConfigError, match=r"class '0'.*3 given"):
        list_source(sf.sources.Table(table, classes=["1", "2", "9"]))
    numbered = list_source(sf.sources.Table(table, classes=[f"n{number}" for number in range(10)]))
    assert [item.label for item in numbered.splits["train"]] == [0, 1, 9]


def test_classes_in_another_encoding(tmp_path: Path) -> None:
    """A file of class names that is not UTF-8 is refused by name; a byte order mark is no part of a name."""
    write_tree(tmp_path, {"1.jpg": photo(1), "latin.txt": b"caf\xe9\n", "utf.txt": "\ufeffcafé\n".encode()})
    table = _write(tmp_path / "t.csv", [{"path": "1.jpg", "label": "café"}])
    assert list_source(sf.sources.Table(table, classes=tmp_path / "utf.txt")).classes == ("café",)
    with pytest.raises(ConfigError, match=r"latin\.txt.*UTF-8.*UTF-8"):
        list_source(sf.sources.Table(table, classes=tmp_path / "latin.txt"))


def test_a_line_of_class_names_is_a_class(tmp_path: Path) -> None:
    """A blank line between class names is refused, because it may hold a number; only line feeds end a line."""
    table = _write(tmp_path / "t.csv", [{"path": "1.jpg", "label": "cat"}])
    write_tree(tmp_path, {"gap.txt": b"ant\n\ncat\n", "one.txt": "ant\u2028bee\ncat\n".encode()})
    with pytest.raises(ConfigError, match=r"gap\.txt, line 2"):
        list_source(sf.sources.Table(table, classes=tmp_path / "gap.txt"))
    assert list_source(sf.sources.Table(table, classes=tmp_path / "one.txt")).classes == ("ant\u2028bee", "cat")


def test_lists_are_several_labels(tmp_path: Path) -> None:
    """A label that is a list, in CSV as JSON, makes a sample of several classes."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    rows: list[dict[str, Any]] = [{"path": "1.jpg", "label": label} for label in (["b", "a"], [], ["c"])]
    lists = _items(_write(tmp_path / "t.jsonl", rows))["train"]
    texts = _items(_write(tmp_path / "t.csv", [{**row, "label": json.dumps(row["label"])} for row in rows]))["train"]
    assert [item.label for item in lists] == [item.label for item in texts] == [(0, 1), (), (2,)]


@pytest.mark.parametrize("text", ["['b', 'a']", "('b',)", "(0, 1)", '"a b"'])
def test_lists_as_python_prints_them_are_not_classes(tmp_path: Path, text: str) -> None:
    """A label that reads as a list, as pandas writes a column of lists, or as JSON, is an error with the remedy."""
    rows = [{"path": "1.jpg", "label": label} for label in (text, "(a)")]
    with pytest.raises(ConfigError, match=r"as Python prints it; write plain names, or JSON lists"):
        _items(_write(tmp_path / "t.csv", rows))


@pytest.mark.parametrize("missing", ["nan", "NA", "<NA>", "None"])
def test_a_class_that_may_be_a_missing_label_is_named(
    tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What programs write for a missing value is a class by its name, and a warning says so, unless it was listed."""
    table = _write(tmp_path / "t.csv", [{"path": f"{label}.jpg", "label": label} for label in ("0", "1", missing)])
    _items(table)
    assert [message.partition("has the class ")[2] for message in caplog.messages] == [
        f"{missing!r}; if it stands for a missing label, leave the cell empty"
    ]
    caplog.clear()
    (tmp_path / "classes.txt").write_text(f"0\n1\n{missing}\n")
    list_source(sf.sources.Table(table, classes=tmp_path / "classes.txt"))
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["csv", "jsonl", "table of paths", "table of images"])
def test_given_names_that_are_numbers_are_labels_by_name(tmp_path: Path, kind: str) -> None:
    """A number is the name of a class where the given names are ids, in every kind of table; others are refused."""
    images = {f"{n}.jpg": photo(n) for n in range(4)}
    write_tree(tmp_path, images)

    def table(labels: Sequence[Any]) -> Any:
        rows = [{"path": path, "label": label} for path, label in zip(images, labels, strict=False)]
        if kind == "csv":
            written = [{**row, "label": json.dumps(row["label"])} for row in rows]
            return _write(tmp_path / "t.csv", written)
        if kind == "jsonl":
            (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            return tmp_path / "t.jsonl"
        if kind == "table of images":
            rows = [{"jpg": images[row["path"]], "label": row["label"]} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    def labels(given: Sequence[Any], classes: Sequence[str]) -> list[Any]:
        of = sf.sources.Parquet if kind == "table of images" else sf.sources.Table
        return [item.label for item in list_source(of(table(given), classes=classes)).splits["train"]]

    assert labels([1, 2, 3, 4], list("12345")) == [0, 1, 2, 3]
    assert labels([9929, 3000000, 9929], ["9929", "3000000"]) == [0, 1, 0]
    assert labels([1, 7], ["7", "other", "1"]) == [2, 0]
    assert labels([1, 0], ["ant", "bee"]) == [1, 0]
    assert labels([1, 0], ["0", "1"]) == [1, 0]
    assert labels([[1, 2], [3]], list("12345")) == [(0, 1), (2,)]
    for wrong in ([3, 7], [3, 9929]):
        with pytest.raises(ConfigError, match="has the class '3', not one of the 2 given"):
            labels(wrong, ["9929", "12311"])
    ids = sf.sources.Table(table([1, 2, 2, 4]), classes=list("1245")) if kind != "table of images" else None
    if ids is not None:
        sf.pack(ids, tmp_path / "dst", **SMALL)
        assert sf.verify(tmp_path / "dst", sources=[ids.url]) == sf.verify(tmp_path / "dst", sources=[ids]) == []
        sources = [sf.sources.Table(table([1, 2, 5, 4]))]
        assert ["has the label '2'" in str(each) for each in sf.verify(tmp_path / "dst", sources=sources)] == [True]


def test_folders_named_by_numbers_are_compared_by_name(tmp_path: Path) -> None:
    """A further class folder of a number is no error for `verify`, whose dataset lacks it."""
    write_tree(tmp_path / "src", {f"{n}/{n}.jpg": photo(n) for n in (1, 3)})
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL)
    write_tree(tmp_path / "src", {"2/2.jpg": photo(2)})
    assert sf.verify(tmp_path / "dst", sources=[tmp_path / "src"]) == []


def test_numbers_in_one_text_name_the_list(tmp_path: Path) -> None:
    """Several numbers in a cell are refused with the JSON list to write, also where the classes are given."""
    table = _write(tmp_path / "t.csv", [{"path": f"{label}.jpg", "label": label} for label in ("0 3", "0", "1", "3")])
    with pytest.raises(ConfigError, match=r"'0 3' is not a number; write a JSON list, such as \[0, 3\]"):
        _items(table)
    (tmp_path / "classes.txt").write_text("0\n1\n2\n3\n")
    with pytest.raises(ConfigError, match=r"'0 3', not one of the 4 given; .* JSON list, such as \[\"0\", \"3\"\]"):
        sf.sources.Table(table, classes=tmp_path / "classes.txt").list()


def test_mistakes_of_tables_name_the_remedy(tmp_path: Path) -> None:
    """A list for a column, the same class twice in a cell, and paths of Windows are errors that say what to do."""
    table = _write(tmp_path / "t.csv", [{"path": "a\\b.jpg", "label": '["x", "y", "x"]'}])
    with pytest.raises(ConfigError, match=r"a column is named by a text, found \['x', 'y'\]; several need one"):
        sf.sources.Table(table, label=["x", "y"]).list()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\['x', 'y', 'x'\]; expected a list of different classes"):
        _items(table)
    table = _write(tmp_path / "t.csv", [{"path": "a\\b.jpg"}])
    with pytest.raises(PackIncompleteError, match=r"write / in place of \\ in the paths"):
        sf.pack(table, tmp_path / "dst", **SMALL)


def test_classes_by_number(tmp_path: Path) -> None:
    """A map from numbers to names, as JSON has it, is in the order of the numbers; other maps and files are refused."""
    table = _write(tmp_path / "t.csv", [{"path": f"{number}.jpg", "label": number} for number in range(12)])
    names = [f"class {number}" for number in range(12)]
    by_text = {str(number): names[number] for number in sorted(range(12), key=str)}
    for classes in (names, by_text, dict(enumerate(names))):
        assert sf.sources.Table(table, classes=classes).list().classes == tuple(names)  # type: ignore[arg-type]
    (tmp_path / "names.json").write_text(json.dumps(by_text, indent=1))
    for wrong, message in (
        ({"a": 0, "b": 1}, "keys a, b; expected each number from 0"),
        ({1: "a", 2: "b"}, "keys 1, 2; expected each number from 0"),
        ([0, 1], "a class is named by a text, found 0"),
        (tmp_path / "names.json", "is JSON; write one name per line"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.sources.Table(table, classes=wrong).list()  # type: ignore[arg-type]


def test_a_row_without_a_label_among_lists_is_told_of_the_empty_list(tmp_path: Path) -> None:
    """An empty cell is not an image of no class, which has the list []: it is quarantined, with the remedy."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(3)})
    rows = [("0.jpg", ["a", "b"]), ("1.jpg", []), ("2.jpg", None)]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows))
    assert sf.pack(table, tmp_path / "dst", **SMALL, max_errors=1).packed == 2
    (row,) = quarantined(tmp_path / "dst")
    assert (row["path"], row["reason"].partition("; ")[2]) == ("2.jpg", "the list of an image of no class is []")


def test_what_is_missing_is_quarantined(tmp_path: Path) -> None:
    """A file that is not there, and a row without an image or a label, are quarantined by name; the rest is packed."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    rows = [("1.jpg", "a"), ("gone.jpg", "a"), ("", "a"), ("1.jpg", "")]
    table = _write(tmp_path / "t.csv", [{"path": path, "label": label} for path, label in rows])
    report = sf.pack(table, tmp_path / "dst", **SMALL, max_errors=3)
    assert (report.inputs, report.packed) == (4, 1)
    found = quarantined(tmp_path / "dst")
    assert [(row["path"], row["stage"], row["reason"]) for row in found] == [
        ("1.jpg", "read", "has no label, but others of its split have"),
        ("gone.jpg", "read", "No such file or directory"),
        ("row 3", "read", "row 3 has no path"),
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_test_split_without_labels(tmp_path: Path, kind: str) -> None:
    """Rows of a split in which no row has a label are packed without one, next to a split with labels."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(3)})
    labels = {"train": "a", "val": "b", "test": None if kind == "jsonl" else ""}
    rows = [{"path": f"{n}.jpg", "split": split, "label": labels[split]} for n, split in enumerate(labels)]
    report = sf.pack(_write(tmp_path / f"t.{kind}", rows), tmp_path / "dst", **SMALL)
    assert report.samples == {"test": 1, "train": 1, "val": 1}
    loader = sf.Loader(tmp_path / "dst", split="test", batch_size=1, num_workers=0)
    assert [keys for _, keys in loader] == [["000000000"]]


def test_a_named_label_column_without_labels(tmp_path: Path) -> None:
    """A label column that was asked for, and is empty in all rows, is an error, not a dataset without labels."""
    write_tree(tmp_path, {"0.jpg": photo(0)})
    table = _write(tmp_path / "t.csv", [{"path": "0.jpg", "species": ""}])
    with pytest.raises(ConfigError, match="no label in column 'species'"):
        list_source(sf.sources.Table(table, label="species"))


def test_the_slot_of_a_bad_row(tmp_path: Path) -> None:
    """Of two rows with one path, the receipt says which was quarantined."""
    image_folder(tmp_path, 1)
    mask = encoded(Image.new("L", (96, 64)), "PNG")
    write_tree(tmp_path, {"good.png": mask, "bad.png": b""})
    table = _write(tmp_path / "t.csv", [{"path": "a/0000.jpg", "mask": f"{kind}.png"} for kind in ("bad", "good")])
    sf.pack(sf.sources.Table(table, mask="mask"), tmp_path / "dst", **SMALL, max_errors=1)
    assert json.loads((tmp_path / "dst/train/000000.json").read_text())["skipped"] == [0]


def test_names_that_no_file_has(tmp_path: Path) -> None:
    """A name with a zero byte or half a character is quarantined, and such a caption is packed as far as it is text."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    rows = [{"path": "\0.jpg", "text": ""}, {"path": "\ud800", "text": ""}, {"path": "1.jpg", "text": "\ud800 x"}]
    rows += [{"path": None, "text": "x"}]
    sf.pack(
        sf.sources.Table(_write(tmp_path / "t.jsonl", rows), caption="text"), tmp_path / "dst", **SMALL, max_errors=3
    )
    (sample,) = sf.open(tmp_path / "dst")["train"]
    assert sample["txt"] == b"? x"
    found = quarantined(tmp_path / "dst")
    assert [row["path"] for row in found] == ["row 1", "row 2", "row 4"]
    assert found[1]["reason"] == "row 2: '\\ud800' is not a file name"


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("t.csv", "file_,label\nx,y\n", {}, "none of the columns image, path.*but file_, label; name the column"),
        ("t.csv", "path\nx\n", {"label": "species"}, "no column 'species'; it has path"),
        ("t.csv", "path;label\nx;y\n", {"label": "label"}, "no column 'label'; separate the columns by commas in .csv"),
        ("t.csv", "path,split\nx,dev\n", {}, "row 1: unknown split 'dev' in column 'split'; write one of train, val"),
        ("t.csv", "image;label\nx;y\n", {}, "but image;label; separate the columns by commas in .csv"),
        ("t.csv", "img/1.JPG,dog\n2.jpg,dog\n", {}, "but img/1.JPG, dog; the first line must name the columns"),
        (
            "t.csv",
            "path,label\nx, y.jpg,a\n",
            {},
            "line 2: expected 2 columns, found 3; quote cells that contain the sep",
        ),
        ("t.csv", "path;label\nx.jpg;a,b\n", {}, "line 2: .*; separate the columns by commas"),
        ("t.csv", "path\n", {}, "has no rows"),
        ("t.csv", "path,label\nx,1.5\ny,2.25\n", {}, r"'1.5' as .* a measured number belongs in a col.*\.json"),
        ("t.csv", "path,label\nx,5.0\ny,2.5\n", {}, r"'5.0' as .* because '2.5' is not a class number; a measured"),
        ("t.csv", "path,label\nx,1.0\ny,0.0\n", {}, r"the label '1.0'; write class numbers without a point.*Int64"),
        ("t.csv", "path,label\nx,5\ny,-1\n", {}, "'5' as text, which would become class 1, because '-1' is not a cl"),
        ("t.csv", "path,label\nx\n", {}, "line 2: expected 2 columns, found 1"),
        ("t.csv", "path\n\xff\n", {}, "line .*save it as UTF-8"),
        ("t.tsv", 'path\tcaption\nx\ty\nx\t"y\nz\ty\n', {}, "line 3: .*; perhaps because a text begins with a quote"),
        ("t.jsonl", '{"path": "x"}\n{"path"\n', {}, "line 2: not JSON"),
        ("t.jsonl", "[1]\n", {}, "line 1: expected a JSON object"),
        ("t.jsonl", '{"path": "x", "label": 1}\n{"path": "x", "label": "a"}\n', {}, "both numbers and names as labels"),
        ("t.jsonl", '{"path": "x", "label": 7000000}\n', {}, "label 7000000; expected a number from 0 to 999999"),
        ("t.jsonl", '{"path": "x", "label": 1.5}\n', {}, "label 1.5; expected the number or the name"),
        ("t.jsonl", '{"path": "x", "label": true}\n', {}, "x has the label True; expected the number"),
        ("t.jsonl", '{"path": "x", "label": 1}\n{"path": "y", "label": true}\n', {}, "y has the label True"),
        ("t.jsonl", '{"path": "x", "label": 1}\n{"path": "y", "label": 1.0}\n', {}, "y has the label 1.0; .*Int64"),
        ("t.jsonl", '{"path": "x", "label": 1}\n{"path": "y", "label": -1}\n', {}, "y has the label -1, .*write null"),
        ("t.jsonl", '{"path": "x", "label": [2, true]}\n', {}, "x has the label True; expected the number"),
        ("t.parquet", "no", {}, "is not a readable Parquet file"),
        ("t.csv", "path,label,label\nx,a,b\n", {}, "two columns 'label'; rename or remove one"),
        ("t.tsv", "path\tlabel\tpath\n", {}, "two columns 'path'"),
        ("t.jsonl", '{"path": "x"}\n{"path": "x", "path": "y"}\n', {}, "line 2: .*'path' twice"),
        ("t.jsonl", '{"path": "x", "at": {"a": 1, "a": 2}}\n', {}, "line 1: .*'a' twice"),
        ("t.txt", "path\n", {}, "does not have the extension of a table; expected .csv"),
    ],
)
def test_wrong_tables(tmp_path: Path, name: str, text: str, options: dict[str, str], message: str) -> None:
    """What is wrong with a table is said by name, row and column, before anything is written."""
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        sf.pack(sf.sources.Table(tmp_path / name, **options), tmp_path / "dst", **SMALL)
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("end", [b"", b"2,b\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("lines", [0, 3000])
def test_the_line_that_is_not_utf_8(tmp_path: Path, lines: int, mark: bytes, end: bytes) -> None:
    """A table in another encoding is refused with the line of the byte, however far down it is."""
    texts = {
        "t.csv": (b"path,label\n", b"1.jpg,ab\n", b"1.jpg,caf\xe9"),
        "t.jsonl": (b"", b'{"path": "1"}\n', b'{"a": "\xe9'),
    }
    for name, (header, line, bad) in texts.items():
        (tmp_path / name).write_bytes(mark + header + line * lines + bad + end)
        number = lines + 1 + bool(header)
        message = f"^{name}, line {number}: the byte 0xe9 is not UTF-8; save it as"
        with pytest.raises(ConfigError, match=message):
            list_source(tmp_path / name)


def test_columns_are_named_in_python(tmp_path: Path) -> None:
    """`pack` of a path without a known column of images, and with the column as its own argument, names `Table`."""
    table = tmp_path / "t.csv"
    table.write_text("image_id,species\n1,a\n")
    named = rf"with shardflow\.sources\.Table\('{table}', image=\.\.\.\) or --image-column"
    with pytest.raises(ConfigError, match=named):
        sf.pack(table, tmp_path / "dst", **SMALL)
    pairs = ("image", "image"), ("image_column", "image"), ("label_column", "label"), ("image_folder", "images")
    for argument, name in pairs:
        with pytest.raises(ConfigError, match=rf"no argument '{argument}'; .* shardflow\.sources\.Table\(src, {name}="):
            sf.pack(table, tmp_path / "dst", **SMALL, **{argument: "image_id"})


def test_columns_that_were_perhaps_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Labels and splits in columns of other names are said to be unused, unless they are named."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    (tmp_path / "t.csv").write_text("image, label,Split,note\n1.jpg,dog,val,x\n")
    assert list_source(tmp_path / "t.csv").classes is None
    label, split = (record.message for record in caplog.records)
    assert label.endswith(
        "no column 'label', so the images have no labels; to use ' label', name it with label= or --label-column"
    )
    assert "all rows are in the split train; to use 'Split'" in split
    caplog.clear()
    (tmp_path / "u.jsonl").write_text(
        '{"image": "1.jpg", "species": null}\n'
        '{"image": "1.jpg", "box": [1, 2], "sharp": true, "set": "val", "species": "cat"}\n'
    )
    assert list_source(tmp_path / "u.jsonl").classes is None
    assert "no labels; to use 'species', name it with label=" in caplog.records[0].message
    caplog.clear()
    rows = [f"{n}.jpg,p{n // 2},{'abc'[n % 3]},{n % 2}.5,{n % 2},{n // 5}" for n in range(9)]
    (tmp_path / "v.csv").write_text("\n".join(["image,patient,kind,age,fold,site_id", *rows]))
    assert list_source(tmp_path / "v.csv").classes is None
    assert "no labels; to use 'kind', name it with label=" in caplog.records[0].message
    caplog.clear()
    assert list_source(sf.sources.Table(tmp_path / "t.csv", label=" label", split="Split")).classes == ("dog",)
    assert not caplog.records


def test_a_column_of_masks_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column whose paths are probably masks' is said to be unused, with its option, and is never called a label."""
    write_tree(tmp_path, {"1.jpg": photo(1), "2.jpg": photo(2)})
    rows = [{"image": f"{number}.jpg", "mask": "m.png", "split": "train"} for number in (1, 2)]
    assert list_source(_write(tmp_path / "t.csv", rows)).classes is None
    (found,) = (record.message for record in caplog.records)
    assert found.endswith("so its paths go to .json; to use 'mask', name it with mask= or --mask-column")
    caplog.clear()
    with pytest.raises(PackIncompleteError, match=r"mask\.png 'm\.png': No such file"):
        sf.pack(sf.sources.Table(tmp_path / "t.csv", mask="mask"), tmp_path / "dst", **SMALL)


@pytest.mark.parametrize("behind", ["disk", "url"])
def test_ids(tmp_path: Path, behind: str) -> None:
    """In the folder of images, a path without a known extension is that of its only image; of two, both are named."""
    mask = encoded(Image.new("L", (96, 64)), "PNG")
    files = {"scan.1.JPG": photo(1), "sub/b.png": photo(2), "c": photo(3), "c.jpg": photo(4), "b.mask.png": mask}
    write_tree(tmp_path / "images", {**files, "two.jpg": photo(5), "two.webp": photo(6), "two.txt": b""})
    table = tmp_path / "t.csv"
    table.write_text("id,mask,label\nscan.1,b.mask,x\nsub/b,b.mask,y\nc,b.mask,x\ngone,b.mask,y\n")
    options: dict[str, Any] = {"image": "id", "mask": "mask"}
    folder: Any = tmp_path / "images"
    if behind == "url":
        memory = fsspec.filesystem("memory")
        memory.put(str(folder), "/ids", recursive=True)
        folder = "memory://ids"
    source = list_source(sf.sources.Table(table, **options, images=folder))
    assert [item.path for item in source.splits["train"]] == ["scan.1.JPG", "sub/b.png", "c", "gone"]
    assert [json.loads(item.more)["parts"]["mask.png"] for item in source.splits["train"]] == [["b.mask.png"]] * 4
    table.write_text("id,label\nscan.1,x\ntwo,y\n")
    with pytest.raises(ConfigError, match=r"row 2: 'two' matches 'two.jpg' and 'two.webp' in .*; write the extension"):
        list_source(sf.sources.Table(table, image="id", images=folder))
    (alone, _) = list_source(sf.sources.Table(table, image="id")).splits["train"]
    assert alone.path == "scan.1"


def test_paths_that_are_nowhere(tmp_path: Path) -> None:
    """If no path of a table exists, the message says what they are relative to; a missing mask is named as one."""
    write_tree(tmp_path, {"1.jpg": photo(1), "t.csv": b"image,mask\n1.jpg,m.png\n", "dir.csv/x.jpg": photo(1)})
    with pytest.raises(PackIncompleteError, match="relative to the table"):
        sf.pack(sf.sources.Table(tmp_path / "t.csv", image="mask"), tmp_path / "one", **SMALL)
    with pytest.raises(PackIncompleteError, match=r"'1\.jpg'.*mask\.png"):
        sf.pack(sf.sources.Table(tmp_path / "t.csv", mask="mask"), tmp_path / "two", **SMALL)
    with pytest.raises(ConfigError, match="directory, but columns"):
        list_source(sf.sources.Table(tmp_path / "dir.csv", label="x"))


def test_bytes_in_a_table(tmp_path: Path) -> None:
    """A table whose images are bytes is refused with a way to pack it; a missing table by its path."""
    table = _write(tmp_path / "t.jsonl", [{"image": {"bytes": "AA==", "path": "x.jpg"}}])
    with pytest.raises(ConfigError, match=r"found their bytes; .*sources\.Parquet"):
        list_source(table)
    with pytest.raises(NotFoundError, match=r"none\.csv does not exist"):
        list_source(tmp_path / "none.csv")


def test_a_parquet_file_with_two_columns_of_one_name(tmp_path: Path) -> None:
    """Parquet can hold two columns of one name; neither is taken."""
    columns = [pyarrow.array(["a.jpg"]), pyarrow.array(["b.jpg"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["path", "path"]), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="two columns 'path'"):
        list_source(tmp_path / "t.parquet")


def test_a_mask_that_no_file_is_called(tmp_path: Path) -> None:
    """A mask whose name no file can have is quarantined like such an image."""
    write_tree(tmp_path, {"1.jpg": photo(1)})
    table = sf.sources.Table(_write(tmp_path / "t.jsonl", [{"path": "1.jpg", "mask": "\0.png"}]), mask="mask")
    with pytest.raises(PackIncompleteError, match=r"1: '\\x00.png'"):
        sf.pack(table, tmp_path / "dst", **SMALL)


def test_a_changed_row_is_done_again(tmp_path: Path) -> None:
    """A resume does the shards again whose rows or files were changed, and no others."""
    image_folder(tmp_path / "img", 20)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "img").rglob("*.jpg"))
    rows = [{"path": name, "note": "old"} for name in [*names, "img/gone.jpg"]]
    settings: dict[str, Any] = {**SMALL, "shard_samples": 5}
    with pytest.raises(PackIncompleteError):
        sf.pack(_write(tmp_path / "t.csv", rows), tmp_path / "dst", **settings)
    rows[7]["note"] = "new"
    time.sleep(0.02)  # the clock of the file system ticks every few milliseconds
    (tmp_path / names[12]).write_bytes((tmp_path / names[12]).read_bytes())
    report = sf.pack(_write(tmp_path / "t.csv", rows), tmp_path / "dst", **settings, max_errors=1)
    assert report.resumed == 11  # of five shards, two are done again, and not the one whose input cannot be read
    sf.pack(tmp_path / "t.csv", tmp_path / "fresh", **settings, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")


class _Meeting(http.server.SimpleHTTPRequestHandler):
    """Serves photos by number, and answers only when several requests have come."""

    gate = threading.Barrier(8)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        number = int(self.path[1:].partition(".")[0])
        if self.command == "GET" and number != 404:
            self.gate.wait(20)
        self.send_response(404 if number == 404 else 200)
        self.send_header("Content-Length", str(len(photo(number))))
        self.end_headers()
        self.wfile.write(photo(number) if self.command == "GET" else b"")

    do_HEAD = do_GET  # noqa: N815 - the name that the base class asks for


@pytest.fixture
def host() -> Iterator[str]:
    """A web server's URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Meeting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_urls_are_read_side_by_side(tmp_path: Path, host: str) -> None:
    """Images behind URLs are asked for many at a time, a missing one is quarantined, and no query is written down."""
    rows = [{"url": f"{host}/{n}.jpg?signature=hush{n}"} for n in [*range(8), 404]]
    report = sf.pack(_write(tmp_path / "t.csv", rows), tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.packed, report.quarantined) == (8, 1)
    files = b"".join(contents(tmp_path / "dst").values())
    assert f"{host}/404.jpg".encode() in files
    assert b"hush" not in files


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_paths_below_another_folder(tmp_path: Path, kind: str) -> None:
    """With `--image-folder` the paths of a table are below that folder, for packing and for comparing."""
    write_tree(tmp_path / "elsewhere", {f"{n}.jpg": photo(n) for n in range(3)})
    (tmp_path / "tables").mkdir()
    rows = [{"path": f"{n}.jpg", "label": "ab"[n % 2]} for n in range(3)]
    table, folder = _write(tmp_path / f"tables/t{kind}", rows), f"--image-folder={tmp_path}/elsewhere"
    assert exit_code("pack", str(table), str(tmp_path / "dst"), folder, "--workers", "1") == 0
    assert len(sf.open(tmp_path / "dst")["train"]) == 3
    assert exit_code("verify", str(tmp_path / "dst"), "--source", str(table), folder) == 0


def test_values_that_json_cannot_hold(tmp_path: Path) -> None:
    """A row is bad whose other values are nested too deeply, or hold bytes; the others are packed."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(2)})
    deep = "[" * 600 + "]" * 600
    (tmp_path / "t.jsonl").write_text(f'{{"image": "0.jpg", "a": {deep}}}\n{{"image": "1.jpg", "a": 1}}\n')
    assert sf.pack(tmp_path / "t.jsonl", tmp_path / "dst", max_errors=1, executor="serial").packed == 1
    table = pyarrow.table({"image": ["0.jpg", "1.jpg"], "thumb": [photo(0), None]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    source = sf.sources.Table(tmp_path / "t.parquet")
    assert sf.pack(source, tmp_path / "other", max_errors=1, executor="serial").packed == 1


def test_one_name_below_two_urls(tmp_path: Path) -> None:
    """Images of one name below different URLs are different inputs: `extend` compares them, and loses none."""
    for number, month in enumerate(("may", "june")):
        with fsspec.open(f"memory://{month}/1.jpg", "wb") as file:
            file.write(photo(number))
    table = _write(tmp_path / "t.csv", [{"image": "1.jpg"}])
    may, june = (sf.sources.Table(table, images=f"memory://{month}") for month in ("may", "june"))
    sf.pack(may, tmp_path / "dst", executor="serial")
    assert sf.extend(may, tmp_path / "dst", executor="serial").known == 1
    with pytest.raises(ConfigError, match="conflict"):
        sf.extend(june, tmp_path / "dst", executor="serial")


def test_a_remote_table_names_no_file_below_a_folder_of_this_machine(tmp_path: Path) -> None:
    """Paths of a table behind a URL stay below the folder that the user names."""
    write_tree(tmp_path, {"secret.jpg": photo(1), "img/1.jpg": photo(2)})
    rows = [{"path": "1.jpg"}, {"path": "../secret.jpg"}, {"path": str(tmp_path / "secret.jpg")}]
    rows.append({"path": (tmp_path / "secret.jpg").as_uri()})
    data = _write(tmp_path / "t.jsonl", rows).read_bytes()
    with fsspec.open("memory://tables/t.jsonl", "wb") as file:
        file.write(data)
    items = list_source(sf.sources.Table("memory://tables/t.jsonl", images=tmp_path / "img")).splits["train"]
    assert [b"bad" in item.more for item in items] == [False, True, True, True]


def test_wrong_folders_and_names_of_images(tmp_path: Path) -> None:
    """A folder of images that does not exist is refused; where no path has an extension, the message says so."""
    table = tmp_path / "t.csv"
    write_tree(tmp_path, {"images/1.jpg": photo(1), "t.csv": b"image\n1\n"})
    with pytest.raises(NotFoundError, match=r"nowhere.*--image-folder"):
        list_source(sf.sources.Table(table, images=tmp_path / "nowhere"))
    with pytest.raises(NotFoundError, match=r"images/1\.jpg, is a file; check --image-folder"):
        list_source(sf.sources.Table(table, images=tmp_path / "images/1.jpg"))
    with pytest.raises(PackIncompleteError, match=r"no extension: .*leading zeros"):
        sf.pack(table, tmp_path / "dst", executor="serial")


def test_names_that_are_combinations_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cells with several classes become a class for each combination: a warning shows the list to write.

    It also comes where no sample has one class alone. Class names of several words get none.
    """
    tags = ["clear", "haze", "road", "river"]
    for separator in ("|", ", ", " ", ";"):
        cells = [separator.join(some) for size in (2, 3) for some in itertools.combinations(tags, size)]
        _items(_write(tmp_path / "t.csv", [{"path": "a.jpg", "label": cell} for cell in cells]))
        assert "has the class 'clear" in caplog.text
        assert 'a JSON list, such as ["clear", "haze"], into each cell' in caplog.text
        caplog.clear()
    names = ["sea lion", "sea otter", "red fox", "red panda", "polar bear", "brown bear"]
    _items(_write(tmp_path / "t.csv", [{"path": "a.jpg", "label": name} for name in names]))
    assert not caplog.text


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("test.csv", "test"),
        ("Val.csv", "val"),
        ("my-validation_2.tsv", "validation"),
        ("train.jsonl", "train"),
        ("photos.csv", "train"),
        ("latest.csv", "train"),
        ("train_val.csv", "train"),
    ],
)
def test_the_name_of_a_table_says_its_split(name: str, split: str, tmp_path: Path) -> None:
    """A table without a column of splits is of the split that its file is named after, as a folder is."""
    assert [*list_source(_write(tmp_path / name, [{"path": "a.jpg"}])).splits] == [split]
    assert [*list_source(_write(tmp_path / name, [{"path": "a.jpg", "split": "val"}])).splits] == ["val"]
