from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import shardflow as sf
from shardflow.cli.options import joined_files
from shardflow.errors import ConfigError, PackIncompleteError, SampleError
from shardflow.packing.sources import parquet_file
from shardflow.packing.sources.parquet import Parquet
from shardflow.packing.sources.reader import Input
from shardflow.packing.sources.resolve import list_source
from tests.helpers.command import COMMAND, exit_code
from tests.helpers.folders import contents, photo, quarantined, write_tree
from tests.helpers.jobs import preview
from tests.helpers.s3_server import Server
from tests.helpers.store import Store
from tests.helpers.web_server import Folder

SMALL: dict[str, Any] = {"short_side": 8, "executor": "serial"}
CLASSES = ["cat", "dog"]


def _hugging_face(path: Path, numbers: Sequence[int], *, rows_per_group: int = 4, **columns: Sequence[Any]) -> Path:
    """Write photos as Hugging Face does: a struct of bytes and path, and the names of classes in the metadata."""
    import datasets

    columns = {
        "image": [{"bytes": photo(number), "path": f"{number}.jpg"} for number in numbers],
        "label": [number % 2 for number in numbers],
        **columns,
    }
    rows = datasets.Dataset.from_dict(columns)
    rows = rows.cast_column("image", datasets.Image()).cast_column("label", datasets.ClassLabel(names=CLASSES))
    path.parent.mkdir(parents=True, exist_ok=True)
    table = rows.with_format("arrow")[:]
    pyarrow.parquet.write_table(
        table.replace_schema_metadata(rows.features.arrow_schema.metadata), path, row_group_size=rows_per_group
    )
    return path


def _plain(path: Path, rows_per_group: int = 4, **columns: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_per_group)
    return path


def _inputs(src: Any) -> dict[str, list[tuple[str, Any, Input]]]:
    """Return path, label and content of all inputs, by split."""
    with list_source(src) as source:
        return {
            split: [(item.path, item.label, source.reader.read(item)) for item in items]
            for split, items in source.splits.items()
        }


@pytest.mark.parametrize("other", ["b.PARQUET", "b.parquet.gz"])
def test_files_that_are_not_read_are_not_left_out(tmp_path: Path, other: str) -> None:
    """A folder with a compressed file, or an extension of another case, is refused; a pattern without it is not."""
    _hugging_face(tmp_path / "a.parquet", range(3))
    (tmp_path / other).write_bytes(b"")
    with pytest.raises(ConfigError, match="which would be left out"):
        list_source(Parquet(str(tmp_path)))
    assert len(list_source(Parquet(f"{tmp_path}/*.parquet")).splits["train"]) == 3


def test_hugging_faces_layout(tmp_path: Path) -> None:
    """Splits follow from the files' names, class names from the schema, and every other column is in a part."""
    others = {"caption": [f"no {number}" for number in range(6)], "boxes": [[[0.0, 0.0, 4.0, 4.0]]] * 6}
    for name, numbers in (("train-00000-of-00002", (0, 1)), ("train-00001-of-00002", (2, 3)), ("test-0-of-1", (4, 5))):
        own: Mapping[str, Any] = {column: [values[n] for n in numbers] for column, values in others.items()}
        _hugging_face(tmp_path / "in" / "data" / f"{name}.parquet", numbers, **own)
    (tmp_path / "in" / "README.md").write_text("A card.")
    found = _inputs(tmp_path / "in")
    assert list_source(tmp_path / "in").classes == ("cat", "dog")
    assert [path for path, _, _ in found["train"]] == [
        *(f"data/train-00000-of-00002.parquet#{row}" for row in (0, 1)),
        *(f"data/train-00001-of-00002.parquet#{row}" for row in (0, 1)),
    ]
    rows = [*found["train"], *found["test"]]
    for number, (_, label, content) in enumerate(rows):
        assert (label, content.image) == (number % 2, photo(number))
        assert content.parts["txt"].decode() == f"no {number}"
        assert json.loads(content.parts["json"]) == {"boxes": [[0, 0, 4, 4]]}
    report = sf.pack(tmp_path / "in", tmp_path / "out", **SMALL)
    assert report.samples == {"test": 2, "train": 4}
    assert sf.open(tmp_path / "out").classes == ["cat", "dog"]


def test_bare_bytes(tmp_path: Path) -> None:
    """A column of bytes, as img2dataset writes it, is the image; other bytes are parts; a column names splits."""
    columns = {"key": ["a", "b"], "jpg": [photo(1), photo(2)], "npy": [b"12", b"34"], "split": ["train", "val"]}
    _plain(tmp_path / "00000.parquet", cls=["x", "y"], caption=["one", None], **columns)
    found = _inputs(tmp_path / "00000.parquet")
    (_, label, first), (_, other, second) = found["train"][0], found["val"][0]
    assert (label, other) == (0, 1)
    assert (first.image, second.image) == (photo(1), photo(2))
    assert first.parts == {"txt": b"one", "npy": b"12", "json": b'{"key": "a"}'}
    assert second.parts == {"npy": b"34", "json": b'{"key": "b"}'}


def test_lists_of_captions_stay_in_json(tmp_path: Path) -> None:
    """A column `caption` of lists goes to `.json`, with a warning; named as the caption, it is refused at once."""
    table = _plain(tmp_path / "t.parquet", jpg=[photo(1)], caption=[["one", "two"]], number=[3])
    (_, _, content) = _inputs(table)["train"][0]
    assert content.parts == {"json": b'{"caption": ["one", "two"], "number": 3}'}
    for name in ("caption", "number"):
        with pytest.raises(ConfigError, match=rf"'{name}' has values of type .*; a caption is one text.*'json'"):
            list_source(Parquet(table, caption=name))


def test_rows_without_a_required_caption(tmp_path: Path) -> None:
    """Rows without a text in the named column are bad inputs of the dry run and of the pack, in any kind of table."""
    texts = ["one", None, "", "one"]
    bytes_of: dict[str, Any] = {"jpg": [photo(n) for n in range(4)], "text": texts}
    _plain(tmp_path / "images.parquet", **bytes_of)
    rows = [{"path": f"{n}.jpg", "text": text} for n, text in enumerate(texts)]
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(4)})
    write_tree(tmp_path, {"t.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    write_tree(tmp_path, {"t.csv": b"path,text\n0.jpg,one\n1.jpg,\n2.jpg,\n3.jpg,one\n"})
    _plain(tmp_path / "paths.parquet", image=[row["path"] for row in rows], text=texts)
    for name in ("images.parquet", "paths.parquet", "t.jsonl", "t.csv"):
        kind = Parquet if name == "images.parquet" else sf.sources.Table
        source = kind(tmp_path / name, caption="text")
        foretold = preview(source, tmp_path / f"{name}.out").bad
        assert [int(re.findall(r"[12]", each.path)[0]) for each in foretold] == [1, 2], name
        sf.pack(source, tmp_path / f"{name}.out", max_errors=2, **SMALL)
        assert sf.open(tmp_path / f"{name}.out").quarantine() == foretold
    _plain(tmp_path / "none.parquet", jpg=[photo(1)], text=pyarrow.nulls(1))
    (bad,) = preview(Parquet(tmp_path / "none.parquet", caption="text"), tmp_path / "out").bad
    assert bad.reason == "has no text in column 'text'"


def test_a_star_stays_within_a_folder(tmp_path: Path) -> None:
    """`*` in a pattern matches files of that folder alone, as in a shell; `**` matches those of any folder below."""
    for name in ("a", "old/a", "old/older/b"):
        _plain(tmp_path / f"{name}.parquet", jpg=[photo(1)])
    for pattern, expected in {
        "*.parquet": ["a"],
        "*/*.parquet": ["old/a"],
        "old/**/*.parquet": ["a", "older/b"],
        "**/a.parquet": ["a", "old/a"],
        "**/*.parquet": ["a", "old/a", "old/older/b"],
    }.items():
        found = [path for path, *_ in _inputs(f"{tmp_path}/{pattern}")["train"]]
        assert [path.removesuffix(".parquet#0") for path in found] == expected, pattern


def test_patterns_and_named_columns(tmp_path: Path) -> None:
    """A pattern chooses files, and the command line's options name columns; a mask is declared as one."""
    mask = io.BytesIO()
    Image.new("L", (96, 64), 1).save(mask, "PNG")
    for name in ("a", "b", "c"):
        kept = {"left": [photo(1)], "right": [photo(2)], "kind": [name], "mask": [mask.getvalue()]}
        _plain(tmp_path / "in" / f"{name}.parquet", **kept)
    pattern, columns = str(tmp_path / "in" / "{a,c}.parquet"), ["--image-column", "left", "--mask-column", "mask"]
    assert (
        exit_code("pack", pattern, str(tmp_path / "out"), *columns, "--label-column", "kind", "--short-side", "8") == 0
    )
    dataset = sf.open(tmp_path / "out")
    assert dataset.classes == ["a", "c"]
    assert dataset.manifest.annotations.masks == ("mask.png",)
    assert dataset["train"][0]["right"] == photo(2)
    with pytest.raises(ConfigError, match=r"left.*right.*image="):
        list_source(Parquet(pattern))


@pytest.mark.parametrize("shuffle", [True, False])
def test_bytes_do_not_depend_on_workers_or_resuming(tmp_path: Path, shuffle: bool) -> None:
    """Packed bytes are equal for one process, several, and a pack that stopped and went on."""
    for file in range(3):
        _hugging_face(
            tmp_path / "in" / f"train-{file}-of-3.parquet", range(file * 50, file * 50 + 50), rows_per_group=7
        )
    more: dict[str, Any] = {"short_side": 8, "shard_samples": 40, "shuffle": shuffle}
    sf.pack(tmp_path / "in", tmp_path / "serial", executor="serial", **more)
    sf.pack(tmp_path / "in", tmp_path / "several", workers=2, **more)

    class StopError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done > 60:
            raise StopError

    with pytest.raises(StopError):
        sf.pack(tmp_path / "in", tmp_path / "resumed", executor="serial", progress=stop, **more)
    assert sf.pack(tmp_path / "in", tmp_path / "resumed", executor="serial", **more).resumed > 0
    assert contents(tmp_path / "serial") == contents(tmp_path / "several") == contents(tmp_path / "resumed")
    with list_source(tmp_path / "in") as source:
        assert source.reader.chunk_items == 7
    labels = [sample["cls"] for sample in sf.open(tmp_path / "serial")["train"]]
    assert len(labels) == 150


def test_other_columns_are_other_inputs(tmp_path: Path) -> None:
    """A pack that goes on with another caption, or with image and mask exchanged, keeps nothing of the first."""
    texts = {lang: [f"{lang} {number}" for number in range(8)] for lang in ("en", "fr")}
    table = _plain(tmp_path / "t.parquet", image=[photo(number) for number in range(8)], **texts)

    def stop(progress: Any) -> None:
        if progress.done >= 4:
            raise KeyboardInterrupt

    settings = {**SMALL, "shard_samples": 2, "shuffle": False}
    with pytest.raises(KeyboardInterrupt):
        sf.pack(Parquet(table, caption="en"), tmp_path / "out", progress=stop, **settings)
    assert len([*tmp_path.glob("out/train/*.json")])
    sf.pack(Parquet(table, caption="fr"), tmp_path / "out", **settings)
    assert [sample["txt"].decode() for sample in sf.open(tmp_path / "out")["train"]] == texts["fr"]
    with pytest.raises(ConfigError, match="conflict"):
        sf.extend(Parquet(table, caption="en"), tmp_path / "out", executor="serial")
    assert sf.extend(Parquet(table, caption="fr"), tmp_path / "out", executor="serial").known == 8


def test_extending_knows_the_rows_of_a_file_that_was_copied(tmp_path: Path) -> None:
    """Rows of another file are added; those of a file with another identity and the same content are known."""
    _hugging_face(tmp_path / "in" / "train-a.parquet", range(4))
    sf.pack(tmp_path / "in", tmp_path / "out", **SMALL)
    data = (tmp_path / "in" / "train-a.parquet").read_bytes()
    (tmp_path / "in" / "train-a.parquet").unlink()
    (tmp_path / "in" / "train-a.parquet").write_bytes(data)
    _hugging_face(tmp_path / "in" / "train-b.parquet", range(4, 6))
    report = sf.extend(tmp_path / "in", tmp_path / "out", executor="serial")
    assert (report.known, report.packed) == (4, 2)


def test_a_path_in_place_of_bytes_is_not_opened(tmp_path: Path) -> None:
    """A row without bytes is a bad sample, though its path is that of a file on this machine."""
    (tmp_path / "secret.jpg").write_bytes(photo(9))
    images = [{"bytes": photo(1), "path": None}, {"bytes": None, "path": str(tmp_path / "secret.jpg")}]
    table = _plain(tmp_path / "t.parquet", image=[*images, None])
    with pytest.raises(PackIncompleteError):
        sf.pack(table, tmp_path / "no", **SMALL)
    sf.pack(table, tmp_path / "out", max_errors=2, **SMALL)
    reasons = {entry["path"]: entry["reason"] for entry in quarantined(tmp_path / "out")}
    assert reasons.keys() == {"t.parquet#1", "t.parquet#2"}
    assert "secret.jpg" in reasons["t.parquet#1"]


def test_a_file_that_is_replaced_after_the_listing(tmp_path: Path) -> None:
    """Rows are read from the file that was listed, or not at all."""
    table = _hugging_face(tmp_path / "t.parquet", range(4), rows_per_group=1)
    with list_source(table) as source:
        items = source.splits["train"]
        assert source.reader.read(items[0]).image == photo(0)
        table.unlink()
        _hugging_face(table, range(4, 8), rows_per_group=1)
        with pytest.raises(SampleError, match="replaced while it was read"):  # it is open
            source.reader.read(items[1])
        with list_source(table) as other:
            assert other.reader.read(other.splits["train"][0]).image == photo(4)
            with pytest.raises(SampleError, match="changed since it was listed"):
                other.reader.read(items[0]._replace(identity=items[0].identity + 1))


def test_damage_is_a_bad_sample(tmp_path: Path) -> None:
    """A damaged row group loses its rows from the damage on, and no others."""
    table = _plain(tmp_path / "t.parquet", 2, image=[photo(number) for number in range(6)])
    group = pyarrow.parquet.ParquetFile(table).metadata.row_group(1).column(0)
    data = bytearray(table.read_bytes())
    data[group.data_page_offset : group.data_page_offset + 40] = bytes(40)
    table.write_bytes(data)
    sf.pack(table, tmp_path / "out", max_errors=2, **SMALL)
    assert [entry["path"] for entry in quarantined(tmp_path / "out")] == ["t.parquet#2", "t.parquet#3"]
    table.write_bytes(data[:-20])
    with pytest.raises(ConfigError, match=r"t\.parquet"):
        list_source(tmp_path / "*.parquet")


def test_row_groups_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group that is too large is refused by its footer, with the file's name and its number."""
    table = _hugging_face(tmp_path / "t.parquet", range(4), rows_per_group=2)
    largest = pyarrow.parquet.ParquetFile(table).metadata.row_group(1).total_byte_size
    monkeypatch.setattr(parquet_file, "MAX_GROUP_BYTES", largest - 1)
    with pytest.raises(ConfigError, match=r"t\.parquet: row group \d has 2 rows"):
        Parquet(table).list()


@pytest.mark.parametrize("column", ["label", "split", "more"])
def test_what_rows_share_does_not_grow_without_limit(tmp_path: Path, column: str) -> None:
    """Values that a small file writes once and 100,000 rows share are refused by their size, before they are copied."""
    rows = 100_000
    shared = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), ["x" * (8 << 20)])
    plain = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), [photo(1)])
    offsets = pyarrow.array([0, rows, *[rows] * (rows - 1)], pyarrow.int32())
    table = pyarrow.table(
        {"image": plain, column: pyarrow.ListArray.from_arrays(offsets, shared) if column == "more" else shared}
    )
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table, path, store_schema=False, dictionary_pagesize_limit=1 << 30)
    assert path.stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ConfigError, SampleError), match=f"'{column}'"), list_source(path) as source:
        source.reader.read(source.splits["train"][0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (200 << 10)


def test_only_the_row_of_a_large_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that share a dictionary with one value that is too large, that of the value alone is quarantined."""
    monkeypatch.setattr(parquet_file, "MAX_SMALL_BYTES", 1 << 20)
    more = pyarrow.DictionaryArray.from_arrays(pyarrow.array([1, 0, None, 1], pyarrow.int32()), ["x" * (2 << 20), "y"])
    path = tmp_path / "t.parquet"
    columns = {"image": [photo(number) for number in range(4)], "more": more}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, dictionary_pagesize_limit=1 << 30)
    sf.pack(path, tmp_path / "out", max_errors=4, **SMALL)
    (bad,) = quarantined(tmp_path / "out")
    assert (bad["path"], "2,097,1" in bad["reason"]) == ("t.parquet#1", True)


def test_a_page_whose_header_lies_is_a_bad_sample(tmp_path: Path) -> None:
    """A page of 4 KB that says it has 2 GB takes below 300 MB, and is a bad sample also where 1 GB is all there is."""
    path = tmp_path / "t.parquet"
    options: Any = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    pyarrow.parquet.write_table(pyarrow.table({"image": [bytes(140_000_000)]}), path, **options)
    said = re.compile(rb"\x15[\x80-\xff]{4}\x01\x15")  # a number of 28 bits: twice the size, as Thrift writes it
    data = path.read_bytes()
    assert len(said.findall(data)) == 1
    path.write_bytes(said.sub(b"\x15\xfe\xff\xff\xff\x0f\x15", data))
    code = (
        "import resource, sys, shardflow as sf, pyarrow.parquet\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "most = int(sys.argv[3]); most and resource.setrlimit(resource.RLIMIT_AS, (used + most,) * 2)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: sf.pack(sys.argv[1], sys.argv[2], short_side=8, executor='serial')\n"
        "except sf.errors.PackIncompleteError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    for most in (0, 1 << 30):
        asked = [sys.executable, "-c", code, str(path), str(tmp_path / f"out{most}"), str(most)]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        *_, message, grown = done.stdout.splitlines()
        assert "t.parquet#0' (read:" in message
        assert "is not a readable Parquet file: row group 0" in message
        assert int(grown) < 300 << 10


@pytest.mark.parametrize("objects", ["lists", "structs"])
def test_classes_of_objects(tmp_path: Path, objects: str) -> None:
    """The names of classes of Hugging Face's objects become the dataset's, and an image has those of its objects."""
    import datasets

    box = datasets.Sequence(datasets.Value("float32"), length=4)
    fields = {"bbox": box, "category": datasets.ClassLabel(names=["cat", "dog", "owl"])}
    if objects == "lists":
        kind: Any = {name: datasets.Sequence(each) for name, each in fields.items()}
    else:
        kind = datasets.List(fields)
    found: list[Any] = [([[1, 2, 30, 40]] * 3, [2, 0, 2]), ([], []), ([[1, 2, 3, 4]], [1])]
    rows = [{"bbox": boxes, "category": numbers} for boxes, numbers in found]
    if objects == "structs":
        rows = [[{"bbox": b, "category": c} for b, c in zip(boxes, numbers, strict=True)] for boxes, numbers in found]
    features = datasets.Features({"image": datasets.Image(), "objects": kind})
    columns = {"image": [{"bytes": photo(n), "path": None} for n in range(3)], "objects": rows}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "t.parquet")
    sf.pack(tmp_path / "t.parquet", tmp_path / "out", shuffle=False, **SMALL)
    opened = sf.open(tmp_path / "out")
    assert opened.classes == ["cat", "dog", "owl"]
    assert [json.loads(sample["labels.json"]) for sample in opened["train"]] == [[0, 2], [], [1]]
    assert json.loads(opened["train"][2]["json"])["objects"] == rows[2]


def test_an_image_that_rows_share_is_read_for_one_at_a_time(tmp_path: Path) -> None:
    """A picture of 4 MB that a file writes once for 500 rows takes the memory of one, in plain and in dictionaries."""
    data = os.urandom(4 << 20)
    image = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, pyarrow.int32()), pyarrow.array([data]))
    table, path = pyarrow.table({"image": image, "label": [0] * 500}), tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table, path, store_schema=False, dictionary_pagesize_limit=1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with list_source(path) as source:
        items = source.splits["train"]
        assert all(source.reader.read(item).image == data for item in items[:100])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)


def test_files_have_a_limit_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with more rows than a list of their labels may have is refused by its footer."""
    monkeypatch.setattr(parquet_file, "MAX_ROWS", 3)
    with pytest.raises(ConfigError, match=r"t\.parquet has 4 rows"):
        Parquet(_hugging_face(tmp_path / "t.parquet", range(4))).list()


def test_what_img2dataset_writes(tmp_path: Path) -> None:
    """Its columns are kept in `.txt` and `.json`, and rows whose download failed are bad samples with their names."""
    _plain(
        tmp_path / "00000.parquet",
        url=["http://a/1.jpg", "http://a/2.jpg", "http://a/3.jpg"],
        caption=["one", "two", None],
        key=["000000000", "000000001", "000000002"],
        status=["success", "failed_to_download", "success"],
        error_message=[None, "HTTP Error 404", None],
        width=pyarrow.array([96, None, 96], pyarrow.int32()),
        exif=["{}", None, "{}"],
        jpg=[photo(1), None, photo(3)],
    )
    sf.pack(tmp_path / "*.parquet", tmp_path / "out", max_errors=1, shuffle=False, **SMALL)
    first, second = sf.open(tmp_path / "out")["train"]
    assert first["txt"] == b"one"
    assert "txt" not in second
    assert json.loads(second["json"]) == {
        "url": "http://a/3.jpg",
        "key": "000000002",
        "status": "success",
        "error_message": None,
        "width": 96,
        "exif": "{}",
    }
    assert [entry["path"] for entry in quarantined(tmp_path / "out")] == ["00000.parquet#1"]


def test_columns_of_the_rows_by_choice(tmp_path: Path) -> None:
    """After packing, columns of the files join by file and row, which the receipts have as the path of each sample."""
    scores = [number / 2 for number in range(8)]
    for file in range(2):
        own = scores[4 * file : 4 * file + 4]
        _hugging_face(tmp_path / "in/data" / f"train-{file}-of-2.parquet", range(4 * file, 4 * file + 4), score=own)
    sf.pack(tmp_path / "in", tmp_path / "out", **SMALL)
    tables = []
    for path in sorted((tmp_path / "in").rglob("*.parquet")):
        table = pyarrow.parquet.read_table(path, columns=["score"])
        rows = [f"{path.relative_to(tmp_path / 'in').as_posix()}#{row}" for row in range(len(table))]
        tables.append(table.append_column("row", pyarrow.array(rows)))
    sf.columns.add(tmp_path / "out", pyarrow.concat_tables(tables), path="row")
    train = sf.open(tmp_path / "out")["train"]
    assert train.column("score").values.tolist() == [json.loads(sample["json"])["score"] for sample in train]
    assert sorted(train.column("score").values.tolist()) == scores


def test_nothing_goes_through_tmpdir(
    tmp_path: Path, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come from a bucket into a dataset on a disk where there is no temporary directory."""
    _hugging_face(tmp_path / "in/train-0-of-1.parquet", range(9))
    url, options = server.put(prefix, tmp_path / "in"), server.options()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    sf.pack(Parquet(url, storage_options=options), tmp_path / "out", **SMALL)
    assert not (tmp_path / "none").exists()
    assert len(sf.open(tmp_path / "out")["train"]) == 9


def test_a_killed_pack_goes_on(tmp_path: Path) -> None:
    """Killed when a shard is there, the same command keeps it, and the dataset has the bytes of a pack in one go."""
    _hugging_face(tmp_path / "in/train-0-of-1.parquet", range(60), rows_per_group=10)
    order = ["pack", str(tmp_path / "in"), str(tmp_path / "out"), "--short-side", "8", "--shard-samples", "5"]
    with subprocess.Popen([*COMMAND, *order, "--workers", "1"], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not [*tmp_path.glob("out/train/*.json")]:
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    more: dict[str, Any] = {"shard_samples": 5, **SMALL}
    assert sf.pack(tmp_path / "in", tmp_path / "out", **more).resumed > 0
    sf.pack(tmp_path / "in", tmp_path / "whole", **more)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_names_that_are_not_clear(tmp_path: Path) -> None:
    """Two configurations side by side, sets that lack a file, and files of other columns are refused by name."""
    _hugging_face(tmp_path / "two" / "en" / "train-0.parquet", [1])
    _hugging_face(tmp_path / "two" / "de" / "train-0.parquet", [1])
    _hugging_face(tmp_path / "few" / "train-00000-of-00003.parquet", [1])
    for commit in "ab":
        _hugging_face(tmp_path / "twice" / f"train-00000-of-00002-{commit}.parquet", [1])
    _hugging_face(tmp_path / "some" / "train-0.parquet", [1])
    _hugging_face(tmp_path / "some" / "x.parquet", [1])
    _hugging_face(tmp_path / "other" / "a.parquet", [1])
    _plain(tmp_path / "other" / "b.parquet", image=[photo(1)], label=[1])
    _plain(tmp_path / "parts" / "a.parquet", image=[photo(1)], Depth=[b"1"], depth=[b"2"])
    for folder, facts in (
        ("parts", "'Depth' and 'depth'"),
        ("two", "'de' and 'en'"),
        ("few", "1 of 3 files"),
        ("twice", "two files"),
        ("some", "x.parquet"),
        ("other", "b.parquet"),
    ):
        with pytest.raises(ConfigError, match=facts):
            list_source(tmp_path / folder)
    assert set(_inputs(f"{tmp_path}/two/en/*.parquet")) == {"train"}


def test_lists_of_bytes_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column that neither a part nor JSON can hold is named."""
    _plain(tmp_path / "t.parquet", image=[photo(1)], more=[[b"x"]], binary=[{"binary": 1}])
    (_, _, content) = _inputs(tmp_path / "t.parquet")["train"][0]
    assert content.parts == {"json": b'{"binary": {"binary": 1}}'}
    assert "more" in caplog.text


def test_from_s3(tmp_path: Path, server: Server, prefix: str) -> None:
    """A folder in a bucket is packed as one on a disk is."""
    _hugging_face(tmp_path / "in" / "train-0-of-1.parquet", range(9))
    url, options = server.put(prefix, tmp_path / "in"), server.options()
    sf.pack(tmp_path / "in", tmp_path / "local", **SMALL)
    sf.pack(sf.sources.Parquet(url, storage_options=options), tmp_path / "remote", **SMALL)
    assert (tmp_path / "local/train/000000.tar").read_bytes() == (tmp_path / "remote/train/000000.tar").read_bytes()
    assert list_source(url, options).inputs == list_source(f"{url}/train-0-of-1.parquet", options).inputs == 9


def test_from_the_hub(the_hub: tuple[Store, Folder], prefix: str) -> None:
    """A repository of the Hub with Parquet files is recognized, though its card has a picture."""
    store, hub = the_hub
    _hugging_face(hub.root / prefix / "data" / "validation-0-of-1.parquet", range(3))
    (hub.root / prefix / "card.jpg").write_bytes(photo(1))
    url, options = store.url(prefix), store.options()
    with list_source(url, options) as source:
        assert list(source.splits) == ["validation"]
        assert [source.reader.read(item).image for item in source.splits["validation"]] == [photo(n) for n in range(3)]
    (hub.root / prefix / "data" / "0.tar").write_bytes(b"")
    assert not sf.sources.Parquet.recognizes(url, options)  # it holds what the tars' writer says of them


def test_rows_in_any_order(tmp_path: Path) -> None:
    """Rows are read in any order, and by several threads, though memory holds one of a row group."""
    _hugging_face(tmp_path / "a.parquet", range(12), rows_per_group=6)
    with list_source(tmp_path / "a.parquet") as source, ThreadPoolExecutor(3) as threads:
        items = source.splits["train"]
        found = threads.map(lambda number: source.reader.read(items[number]).image, [*range(11, -1, -1), *range(12)])
        assert list(found) == [photo(number) for number in [*range(11, -1, -1), *range(12)]]


def test_files_that_a_shell_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, as an unquoted pattern becomes, are packed together; several of another kind are refused."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("train-{a}.parquet", "train-b,c.parquet", "d/test.parquet")):
        _hugging_face(tmp_path / name, [number])
    files = ["train-{a}.parquet", "train-b,c.parquet", "d/test.parquet"]
    assert exit_code("pack", *files, "out", "--short-side", "8", "--executor", "serial") == 0
    assert {split: len(samples) for split, samples in sf.open(tmp_path / "out").items()} == {"test": 1, "train": 2}
    with pytest.raises(click.UsageError, match=r"\.parquet"):
        joined_files(["a.tar", "b.tar"])


def test_a_bucket_without_a_path_is_not_a_file() -> None:
    """A whole bucket is a source: nothing above it is looked at, with a slash at its end or without."""
    assert not any(sf.sources.Parquet.recognizes(url, None) for url in ("s3://bucket", "s3://bucket/", "gs://bucket"))
