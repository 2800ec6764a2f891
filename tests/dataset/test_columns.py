from __future__ import annotations

import hashlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.dataset import column_files, columns
from shardflow.errors import ConfigError, DatasetExistsError, IntegrityError, ManifestError, NotFoundError
from shardflow.formats import manifest
from shardflow.formats.annotations import Annotations
from shardflow.storage.local import LocalStorage
from tests.helpers.command import run
from tests.helpers.examples import examples
from tests.helpers.folders import contents, image_folder, photo, write_tree
from tests.helpers.making import flip, jpeg, make_dataset, write_dataset

SPLITS = {"train": [4, 3], "val": [2]}
KEYS = [f"train:{n:09}" for n in range(7)] + [f"val:{n:09}" for n in range(2)]


def frame(keys: list[str] = KEYS, **more: Any) -> pa.Table:
    """Return a table with a score, a caption and an embedding for each key."""
    numbers = range(len(keys))
    embeddings = pa.array([[n, n / 2, -n] for n in numbers], pa.list_(pa.float32()))
    return pa.table(
        {"id": keys, "score": [n / 4 for n in numbers], "text": [f"№ {n}" for n in numbers], "vec": embeddings, **more}
    )


def values(url: Path, name: str, split: str = "train") -> list[Any]:
    """Return the values of a column, None where there is none."""
    found, present = sf.open(url)[split].column(name)
    return [value if has else None for value, has in zip(found.tolist(), present.tolist(), strict=True)]


def by_key(url: Path, name: str) -> dict[str, Any]:
    """Return split and key of each sample, and its value in a column."""
    dataset = sf.open(url)
    keys = [f"{split}:{sample['__key__']}" for split in dataset for sample in dataset[split]]
    return dict(zip(keys, [value for split in dataset for value in values(url, name, split)], strict=True))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of two splits in three shards, whose keys are numbers from 0 in each split."""
    return make_dataset(tmp_path / "set", SPLITS)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([True, None, False]), "bool"),
        (pa.array([1, None, -5], pa.int8()), "int64"),
        (pa.array([1.5, None, float("inf")], pa.float16()), "float32"),
        (pa.array([1.5, None, -0.1], pa.float32()), "float32"),
        (pa.array([1.5, None, 0.1]), "float64"),
        (pa.array(["", None, "ü\0\n"]), "string"),
        (pa.array(["a", None, "a"]).dictionary_encode(), "string"),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), "int64[2]"),
        (pa.array([[1.5], [2.5], None], pa.large_list(pa.float32())), "float32[1]"),
        (pa.array([None, None, [True]]), "bool[1]"),
    ],
)
def test_values_come_back(tmp_path: Path, column: pa.Array, kind: str) -> None:
    """Numbers, texts and lists of one length come back as they were, and null where a row has none."""
    dataset = make_dataset(tmp_path / "set", [2, 1])
    table = pa.table({"key": [f"{n:09}" for n in range(3)], "new": column})
    assert sf.columns.add(dataset, table, key="key").columns == {"new": kind}
    assert values(dataset, "new") == column.to_pylist()
    assert sf.verify(dataset) == []


def test_columns_that_differ_in_case_have_other_files(dataset: Path, tmp_path: Path) -> None:
    """`a`, `A` and an earlier `A` keep their values where case does not tell files apart, also in a virtual dataset."""
    sf.columns.add(dataset, pa.table({"key": ["train:000000000"], "a": [1], "A": [2]}), key="key")
    sf.columns.drop(dataset, ["A"])
    sf.columns.add(dataset, pa.table({"key": ["train:000000000"], "A": [3]}), key="key")
    sf.subset(dataset, tmp_path / "view", keys=["train:000000000"])
    for url, count in ((dataset, 3), (tmp_path / "view", 2)):
        assert (values(url, "a")[0], values(url, "A")[0]) == (1, 3)
        names = [path.relative_to(url).as_posix().lower() for path in url.rglob("*.parquet")]
        assert len(names) == len(set(names)) >= count


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl", "pandas", "capsule"])
def test_tables_of_any_kind(tmp_path: Path, suffix: str) -> None:
    """A table is a file of each kind, or of what speaks Arrow's interface; keys stay text."""
    dataset, rows = (
        make_dataset(tmp_path / "set", [3]),
        {"key": [f"{n:09}" for n in range(3)], "a": [1, 2, 3], "b": ["x", "a, b", 'c "d"\ne']},
    )
    table: Any = tmp_path / f"table{suffix}"
    if suffix == "pandas":
        table = pd.DataFrame(rows, index=[4, 5, 6])
    elif suffix == "capsule":
        table = type(
            "Frame", (), {"__arrow_c_stream__": lambda _, schema=None: pa.table(rows).__arrow_c_stream__(schema)}
        )()
    elif suffix == ".parquet":
        pq.write_table(pa.table(rows), table)
    elif suffix == ".jsonl":
        pd.DataFrame(rows).to_json(table, orient="records", lines=True)
    else:
        pd.DataFrame(rows).to_csv(table, sep="\t" if suffix == ".tsv" else ",", index=False)
    report = sf.columns.add(dataset, table, key="key")
    assert report.columns == {"a": "int64", "b": "string"}
    assert (values(dataset, "a"), values(dataset, "b")) == (rows["a"], rows["b"])


def test_codes_in_text_files_are_not_numbers(tmp_path: Path, dataset: Path) -> None:
    """A column of a CSV in which a number is written as 007, or 0x1, or with 20 digits, stays text; others do not."""
    columns = {
        "patient": ["007", "7", "0010", "10"],
        "hex": ["1", "0x1", "", "2"],
        "id": ["12345678901234567890", "2", "", "-3"],
        "n": ["0", "-1", "", "1234567890123456789"],
        "x": ["0", "0.5", "12345678901234567.5", "1e9"],
    }
    lines = [",".join(["key", *columns]), *map(",".join, zip(KEYS, *columns.values(), strict=False))]
    table = tmp_path / "codes.csv"
    table.write_text("\n".join(lines))
    kinds = {"patient": "string", "hex": "string", "id": "string", "n": "int64", "x": "float64"}
    assert sf.columns.add(dataset, table, key="key").columns == kinds
    for name, kind in kinds.items():
        read: Any = {"string": str, "int64": int, "float64": float}[kind]
        assert values(dataset, name)[:4] == [read(text) if text else None for text in columns[name]]


def test_empty_cells_are_missing(tmp_path: Path) -> None:
    """An empty cell of a CSV has no value, quoted or not, in columns of texts as of numbers."""
    dataset = make_dataset(tmp_path / "set", [3])
    (tmp_path / "t.csv").write_text('key,text,n\n000000000,,\n000000001,"",2\n000000002,a,3\n')
    sf.columns.add(dataset, tmp_path / "t.csv", key="key")
    assert (values(dataset, "text"), values(dataset, "n")) == ([None, None, "a"], [None, 2, 3])


def test_digits_of_a_text_are_kept(tmp_path: Path) -> None:
    """Numbers of CSV that would lose digits, such as 007 or those of an id, stay text; JSON is refused, like dates."""
    dataset, long = make_dataset(tmp_path / "set", [2]), "18446744073709551617"
    rows = f"key,zip,id,mixed,n,f,none\n000000000,007,{long},1.5,1,1.5,\n"
    rows += "000000001,12,2,9007199254740993,-20,1e300,0\n"
    (tmp_path / "t.csv").write_text(rows)
    found = sf.columns.add(dataset, tmp_path / "t.csv", key="key").columns
    kept = {"n": "int64", "f": "float64", "none": "int64"}
    assert found == {**dict.fromkeys(("zip", "id", "mixed"), "string"), **kept}
    assert values(dataset, "zip") == ["007", "12"]
    assert values(dataset, "id") == [long, "2"]
    assert values(dataset, "none") == [None, 0]
    for written in (long, f"[1, {long}]", f"{long}{long}", f"[[{long}{long}]]"):
        (tmp_path / "t.jsonl").write_text(f'{{"key": "000000000", "id": {written}}}\n')
        with pytest.raises(ConfigError, match="text"):
            sf.columns.add(dataset, tmp_path / "t.jsonl", key="key", replace=True)
    for name, written in (("t.jsonl", '{"key": "000000000", "day": "2024-01-31"}'), ("t.csv", "key,day\n0,2024-01-31")):
        (tmp_path / name).write_text(f"{written}\n")
        with pytest.raises(ConfigError, match=r"'day' has values of type .* text in a Parquet table"):
            sf.columns.add(dataset, tmp_path / name, key="key")
    (tmp_path / "t.jsonl").write_text('{"key": "000000000", "big": 1e300, "whole": 2.0}\n')
    assert sf.columns.add(dataset, tmp_path / "t.jsonl", key="key").matched == {"train": 1}


def test_the_old_version_stays(dataset: Path) -> None:
    """No file is changed but the manifest; the version before is opened without the column, and each with its own."""
    before, old = contents(dataset), sf.open(dataset).fingerprint
    first = sf.columns.add(dataset, frame(), key="id", only=["score"]).fingerprint
    after = contents(dataset)
    assert {name for name in after if after[name] != before.get(name)} == {
        "shardflow.json",
        manifest.kept_name(old),
        *(f"{name}.score.parquet" for name in ("train/000000", "train/000001", "val/000000")),
    }
    assert pq.read_table(io.BytesIO(after["train/000001.score.parquet"])).to_pydict() == {"score": [1.0, 1.25, 1.5]}
    assert (
        sf.columns.add(dataset, frame(), key="id", only=["score"]).fingerprint == sf.open(dataset).fingerprint == first
    )
    with pytest.raises(ConfigError, match="--replace"):
        sf.columns.add(dataset, frame(), key="id")
    other = frame().set_column(1, "score", pa.array([-n for n in range(9)]))
    with pytest.raises(ConfigError, match="--replace"):
        sf.columns.add(dataset, other, key="id", only=["score"])
    sf.columns.add(dataset, other, key="id", only=["score"], replace=True)
    assert values(dataset, "score") == [0, -1, -2, -3, -4, -5, -6]
    assert sf.open(dataset, version=first)["train"].column("score").values.tolist() == [n / 4 for n in range(7)]
    with pytest.raises(ConfigError, match="no column 'score'"):
        sf.open(dataset, version=old)["train"].column("score")
    dropped = sf.columns.drop(dataset, ["score"])
    assert dropped not in (old, first)  # a version never comes back
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    assert values(dataset, "score") == [n / 4 for n in range(7)]
    assert sf.verify(dataset) == []
    assert {name: data for name, data in contents(dataset).items() if name in before and name != "shardflow.json"} == {
        name: data for name, data in before.items() if name != "shardflow.json"
    }


def test_a_misspelt_column_of_a_parquet_file_is_named_with_those_it_has(dataset: Path, tmp_path: Path) -> None:
    """The message names all columns of the file, also those that were not asked for."""
    pq.write_table(frame(), tmp_path / "t.parquet")
    for options in ({"key": "di"}, {"key": "di", "only": ["text"]}, {"key": "id", "only": ["text", "scor"]}):
        with pytest.raises(ConfigError, match=r"no column '.*it has id, score, text, vec"):
            sf.columns.add(dataset, tmp_path / "t.parquet", **options)


def test_keys_of_several_splits(dataset: Path) -> None:
    """A key that two splits have is refused; the splits in the message, or --split, say which is meant."""
    table = pa.table({"key": ["000000000", "000000001"], "a": [1, 2]})
    with pytest.raises(ConfigError, match=r"'train:000000000'.*--split train"):
        sf.columns.add(dataset, table, key="key")
    report = sf.columns.add(dataset, table, key="key", split="val")
    assert (report.matched, values(dataset, "a", "val")) == ({"train": 0, "val": 2}, [1, 2])
    assert values(dataset, "a") == [None] * 7


def test_replacing_keeps_the_values_of_other_samples(dataset: Path) -> None:
    """`replace` changes the samples that have a row, as the scores of a delivery; all others keep their values."""
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    before = values(dataset, "score")
    some = pa.table({"id": [KEYS[1]], "score": [7.5]})
    sf.columns.add(dataset, some, key="id", replace=True)
    assert values(dataset, "score") == [before[0], 7.5, *before[2:]]
    texts = pa.table({"id": [KEYS[1]], "score": ["high"]})
    with pytest.raises(ConfigError, match=r"has values of type float64 .* add values of all samples, or of one type"):
        sf.columns.add(dataset, texts, key="id", replace=True)


def test_whole_numbers_are_ids(tmp_path: Path) -> None:
    """Ids that pandas reads as integers are paths without extension."""
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    sf.pack(tmp_path, tmp_path / "set", short_side=16, executor="serial")
    sf.columns.add(tmp_path / "set", pa.table({"id": [2, 0, 1], "score": [2.0, 0, 1]}), path="id")
    train = sf.open(tmp_path / "set")["train"]
    assert [f"{score:.0f}.jpg" for score in train.column("score").values] == train.sources()
    sf.columns.to_parquet(tmp_path / "set", tmp_path / "table.parquet", only=["source", "score"])
    assert pq.read_table(tmp_path / "table.parquet")["source"].to_pylist() == train.sources()


def test_ids_without_extension_are_paths(tmp_path: Path) -> None:
    """A row belongs to the image of its path, or of its path without extension; one that has two images is refused."""
    write_tree(tmp_path / "src", {"a.jpg": photo(1), "b.jpg": photo(2), "b.jpeg": photo(3), "c.d.jpg": photo(4)})
    sf.pack(tmp_path / "src", tmp_path / "dst", executor="serial", short_side=16)
    ids = pa.table({"id": ["a", "b.jpg", "b.jpeg", "c.d"], "n": [1, 2, 3, 4]})
    sf.columns.add(tmp_path / "dst", ids, path="id")
    assert values(tmp_path / "dst", "n") == [
        {"a.jpg": 1, "b.jpg": 2, "b.jpeg": 3, "c.d.jpg": 4}[path]
        for path in sf.open(tmp_path / "dst")["train"].sources()
    ]
    with pytest.raises(ConfigError, match="different images were packed from 'b'"):
        sf.columns.add(tmp_path / "dst", pa.table({"id": ["a", "b", "c.d"], "m": [1, 2, 3]}), path="id")


def test_ids_of_the_json_name_the_remedy(tmp_path: Path) -> None:
    """A table of ids in the samples' `.json` is refused with the call that joins by them, also if some are keys."""
    samples = [(f"{n:09}", {"jpg": jpeg(n), "json": b'{"id": "p%d"}' % n}) for n in range(2)]
    write_dataset(tmp_path / "set", {"train": [samples]})
    for ids in (["p0", "p1"], ["000000000", "p1"]):
        table = pa.table({"id": ids, "score": [1, 2]})
        with pytest.raises(ConfigError, match=r"ids in the samples' json are joined by columns\.compute\(.*'json'\)"):
            sf.columns.add(tmp_path / "set", table, key="id")


def test_rows_are_counted(dataset: Path) -> None:
    """Rows that belong to no sample, and repeated keys, are refused with the option that allows them, and counted."""
    keys = [*KEYS[:3], KEYS[1], "train:lost", None]
    table = pa.table({"id": keys, "a": range(6)})
    with pytest.raises(ConfigError, match=r"2 rows of 6 .*'train:lost'.*allow= or --allow unmatched"):
        sf.columns.add(dataset, table, key="id")
    with pytest.raises(ConfigError, match=rf"1 row of 6 .*{KEYS[1]}.*--allow repeated"):
        sf.columns.add(dataset, table, key="id", allow=["unmatched"])
    report = sf.columns.add(dataset, table, key="id", allow=["unmatched", "repeated"])
    assert (report.rows, report.unmatched, report.repeated, report.matched["train"]) == (6, 2, 1, 3)
    assert values(dataset, "a") == [0, 1, 2, None, None, None, None]


@pytest.mark.parametrize(
    ("table", "options", "named"),
    [
        ({"id": ["7"], "a": [1]}, {}, "000000000"),
        ({"id": [7], "a": [1]}, {}, "[values.get(row['id']) for row in rows], field='json')"),
        ({"id": KEYS[:1], "a": [None]}, {}, "'a'"),
        ({"id": KEYS[:1], "a": [{"b": 1}]}, {}, "'a'"),
        ({"id": KEYS[:2], "a": [[1], [1, 2]]}, {}, "1, 2 numbers"),
        ({"id": KEYS[:2], "a": [[1, 2], [1, None]]}, {}, "missing values"),
        ({"id": KEYS[:1], "a": pa.array([2**63], pa.uint64())}, {}, "'a'"),
        ({"id": KEYS[:1], "label": [1]}, {}, "'label'"),
        ({"id": KEYS[:1], "cls": [1]}, {}, "'cls'"),
        ({"id": KEYS[:1], "images": [1]}, {}, "'images'"),
        ({"id": KEYS[:1], "has_a": [1]}, {}, "'has_a'"),
        ({"id": KEYS[:1], "../a": [1]}, {}, "'../a'"),
        ({"id": KEYS[:1], "a": [1]}, {"only": ["b"]}, "'b'"),
        ({"id": KEYS[:1], "a": [1]}, {"split": "test"}, "'test'"),
        ({"id": KEYS[:1], "a": [1]}, {"allow": ["all"]}, "'all'"),
        ({"id": KEYS[:1], "a": [1]}, {"allow": "all", "only": "a"}, "'all'"),
        ({"id": KEYS[:1], "a": [1]}, {"only": "score"}, "'score'"),
        ({"id": KEYS[:1], "a": [1]}, {"path": "id"}, "path="),
        ({"id": KEYS[:1], "a": [1]}, {"key": None}, "key="),
        ({"id": KEYS[:1]}, {}, "'id'"),
        (pd.DataFrame([[KEYS[0], 1, 2]], columns=["id", "a", "a"]), {}, "DataFrame"),
        (pd.DataFrame({"id": KEYS[:2], "a": [1, "x"]}), {}, "DataFrame"),
        ([(KEYS[0], 1)], {}, "__arrow_c_stream__"),
        ("tables/*.parquet", {}, "pyarrow.dataset.dataset(folder).to_table()"),
        (Path(__file__).parent, {}, "names several files"),
    ],
)
def test_what_does_not_fit_is_refused(dataset: Path, table: Any, options: dict[str, Any], named: str) -> None:
    """A table that does not fit is refused with what is wrong, and the dataset stays as it was."""
    before = contents(dataset)
    with pytest.raises(ConfigError) as refused:
        sf.columns.add(dataset, pa.table(table) if isinstance(table, dict) else table, **{"key": "id", **options})
    assert named in str(refused.value)
    assert contents(dataset) == before


def test_a_name_has_one_meaning(tmp_path: Path) -> None:
    """A column cannot take the name of the field of a mask; a name that is also a part is refused in loading."""
    png = {"depth.png": b"", "jpg": b""}
    shards = [[("a", png)], [("b", {**png, "txt": b"a text"})]]
    url = write_dataset(tmp_path / "set", {"train": shards}, annotations=Annotations(masks=("depth.png",)))
    with pytest.raises(ConfigError, match="'depth'"):
        sf.columns.add(url, pa.table({"key": ["a"], "depth": [1]}), key="key")
    sf.columns.add(url, pa.table({"key": ["a", "b"], "txt": ["one", "two"]}), key="key")
    loader = sf.Loader(url, batch_size=1, num_workers=0, fields=("txt",), shuffle=False)
    batches = iter(loader)
    assert next(batches) == (["one"],)
    with pytest.raises(ConfigError, match="'txt'"):
        next(batches)


@pytest.mark.parametrize("name", ["no.parquet", "no.csv", "no.txt", "empty.csv", "wrong.parquet", "wrong.jsonl"])
def test_files_that_are_not_tables(dataset: Path, tmp_path: Path, name: str) -> None:
    """A missing or damaged table is an error of its type."""
    if not name.startswith("no"):
        (tmp_path / name).write_bytes(b"" if "empty" in name else b"{nothing")
    with pytest.raises(ConfigError if "no." not in name else (NotFoundError, ConfigError)):
        sf.columns.add(dataset, tmp_path / name, key="id")


def test_paths_join_what_was_packed(tmp_path: Path) -> None:
    """Rows are joined by the paths of the images when they were packed, and by keys without reading a tar."""
    source = image_folder(tmp_path / "src", 9)
    sf.pack(source, tmp_path / "set", shard_samples=4, short_side=8, executor="serial")
    paths = [
        path
        for receipt in sorted((tmp_path / "set/train").glob("*.json"))
        for path in json.loads(receipt.read_bytes())["sources"]
    ]
    sf.columns.add(tmp_path / "set", pa.table({"file": paths, "name": paths}), path="file")
    assert values(tmp_path / "set", "name") == paths
    keys = [sample["__key__"] for sample in sf.open(tmp_path / "set")["train"]]
    for tar in (tmp_path / "set").rglob("*.tar"):
        tar.rename(tar.with_suffix(".gone"))
    sf.columns.add(tmp_path / "set", pa.table({"key": keys, "again": keys}), key="key")
    assert values(tmp_path / "set", "again") == keys
    for receipt in (tmp_path / "set").rglob("*.json"):
        if receipt.parent.name == "train":
            receipt.unlink()
    with pytest.raises(NotFoundError, match="--key"):
        sf.columns.add(tmp_path / "set", pa.table({"file": paths, "b": paths}), path="file")


def test_a_path_of_different_images(tmp_path: Path) -> None:
    """A path joins all copies of one image, and none where it has been the path of several; its bytes may be any."""
    source = write_tree(tmp_path / "in", {"cat/1.jpg": photo(1), "cat/2.jpg": photo(2), "cat/\udce9.jpg": photo(3)})
    sf.pack(source, tmp_path / "set", executor="serial")
    write_tree(tmp_path / "other", {"cat/1.jpg": photo(4)})
    sf.extend(tmp_path / "other", tmp_path / "set", on_conflict="add", executor="serial")
    sf.columns.add(tmp_path / "set", pa.table({"file": ["cat/2.jpg"], "a": [2]}), path="file")
    assert sorted(values(tmp_path / "set", "a"), key=str) == [2, None, None, None]
    with pytest.raises(ConfigError, match=r"cat/1\.jpg.*--key"):
        sf.columns.add(tmp_path / "set", pa.table({"file": ["cat/1.jpg"], "b": [2]}), path="file")
    (tmp_path / "t.csv").write_text("image\nin/cat/1.jpg\nin/cat/1.jpg\n")
    sf.pack(tmp_path / "t.csv", tmp_path / "twice", executor="serial")
    sf.columns.add(tmp_path / "twice", pa.table({"file": ["in/cat/1.jpg"], "b": [2]}), path="file")
    assert values(tmp_path / "twice", "b") == [2, 2]


class Stopped(BaseException):
    """The process ends here."""


def test_a_process_that_is_killed_leaves_the_old_version(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after any write, an addition leaves the old version whole, and the same call completes it."""
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    old, fingerprint = contents(dataset), sf.open(dataset).fingerprint
    monkeypatch.setattr(columns, "_FILES_AT_A_TIME", 1)
    put, writes = LocalStorage.put, 0
    sf.sync(dataset, tmp_path / "whole")
    sf.columns.add(tmp_path / "whole", frame(), key="id", only=["text", "vec"])
    expected = contents(tmp_path / "whole")
    for number in range(2 * 8):  # six files, the old manifest, the new one

        def stop(storage: LocalStorage, *given: Any, limit: int = number, **options: Any) -> None:
            nonlocal writes
            writes += 1
            if writes == limit // 2 + 1 and limit % 2 == 0:
                raise Stopped
            put(storage, *given, **options)
            if writes == limit // 2 + 1:
                raise Stopped

        copy, writes = tmp_path / f"copy{number}", 0
        sf.sync(dataset, copy)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "put", stop)
            with pytest.raises(Stopped):
                sf.columns.add(copy, frame(), key="id", only=["text", "vec"])
        is_new = sf.open(copy).fingerprint != fingerprint
        assert is_new == (number == 15)
        found = contents(copy)
        assert all(found[name] == old[name] for name in old if is_new <= (name != "shardflow.json") and name in found)
        assert sf.verify(copy) == []
        sf.columns.add(copy, frame(), key="id", only=["text", "vec"], replace=is_new)
        if not is_new:
            assert contents(copy) == expected


def test_other_splits_keep_their_values(tmp_path: Path) -> None:
    """Values for one split replace no value of another, in a version and in a virtual dataset, or are refused."""
    dataset = make_dataset(tmp_path / "set", {"train": [2, 1], "val": [2]})
    keys = {split: [sample["__key__"] for sample in samples] for split, samples in sf.open(dataset).items()}

    def add(split: str, values: list[Any], **options: Any) -> None:
        sf.columns.add(dataset, pa.table({"k": keys[split], "s": values}), key="k", split=split, **options)

    def found(url: Path) -> list[list[Any]]:
        return [
            [value if is_there else None for value, is_there in zip(*column, strict=True)]
            for column in (split.column("s") for split in sf.open(url).values())
        ]

    add("train", [1, 2, 3])
    add("val", [4, 5], to=tmp_path / "view", replace=True)
    assert found(tmp_path / "view") == [[1, 2, 3], [4, 5]]
    before = contents(dataset)
    with pytest.raises(ConfigError, match=r"'s' has values of type int64 in split 'train', the new ones have float64"):
        add("val", [4.5, 5.5], replace=True)
    assert contents(dataset) == before
    add("val", [4, 5], replace=True)
    assert found(dataset) == [[1, 2, 3], [4, 5]]
    sf.columns.compute(dataset, "s", lambda values: [-value for value in values], field="s", split="val", replace=True)
    assert found(dataset) == [[1, 2, 3], [-4, -5]]
    assert sf.verify(dataset) == []


def test_only_files_of_its_own_are_replaced(dataset: Path) -> None:
    """A file of another content is replaced if an unfinished attempt left it, and refused if someone else wrote it."""
    sf.columns.add(dataset, frame(), key="id", only=["text"])
    left = (dataset / "train/000000.text.parquet").read_bytes()
    (dataset / "train/000001.score.parquet").write_bytes(left)
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    assert sf.verify(dataset) == []
    pq.write_table(pa.table({"vec": [1]}), dataset / "train/000001.vec.parquet")
    theirs = (dataset / "train/000001.vec.parquet").read_bytes()
    with pytest.raises(ConfigError, match=r"train/000001\.vec\.parquet"):
        sf.columns.add(dataset, frame(), key="id", only=["vec"])
    assert (dataset / "train/000001.vec.parquet").read_bytes() == theirs
    assert sf.verify(dataset) == []


def test_two_at_once(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An addition that finds another version when it begins to write is refused."""
    opened = sf.open(dataset)
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    monkeypatch.setattr(columns, "open_dataset", lambda *_, **__: opened)
    with pytest.raises(DatasetExistsError):
        sf.columns.add(dataset, frame(), key="id", only=["text"])
    assert not list(dataset.rglob("*.text.parquet"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_is_found(dataset: Path, damage: str) -> None:
    """Verifying names a file that is damaged or gone, and a reader raises an error of its type that names it."""
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    file = dataset / "train/000001.score.parquet"
    data = file.read_bytes()
    if damage == "flipped":
        flip(file, 30)
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        file.unlink()
    assert [finding.file for finding in sf.verify(dataset)] == ["train/000001.score.parquet"]
    with pytest.raises(NotFoundError if damage == "gone" else IntegrityError, match=r"train/000001\.score\.parquet"):
        sf.open(dataset)["train"].column("score")
    sf.sync(make_dataset(dataset.parent / "other", SPLITS), dataset.parent / "copy")
    file.write_bytes(data)
    assert sf.verify(dataset) == []


def test_columns_are_repaired_from_a_copy(dataset: Path, tmp_path: Path) -> None:
    """A repair brings the damaged files of columns from a copy, and says which are left without one."""
    sf.columns.add(dataset, frame(), key="id", only=["score", "text"])
    expected = contents(dataset)
    sf.sync(dataset, tmp_path / "copy")
    flip(dataset / "train/000001.score.parquet", 30)
    (dataset / "val/000000.text.parquet").unlink()
    names = {"train/000001.score.parquet", "val/000000.text.parquet"}
    assert {finding.file for finding in sf.repair(dataset).left} == names
    report = sf.repair(dataset, tmp_path / "copy")
    assert ({*report.repaired}, report.failed, report.left) == (names, {}, ())
    assert contents(dataset) == expected


@pytest.mark.parametrize("how", ["compressed", "dictionary", "rows", "kind"])
def test_hostile_files_are_refused(dataset: Path, how: str) -> None:
    """A file that a manifest seals, and that would grow in memory or holds something else, is refused."""
    sf.columns.add(dataset, frame(), key="id", only=["text"])
    table = pa.table({"text": ["x" * 100] * (3 if how == "rows" else 4) if how != "kind" else [1, 2, 3, 4]})
    compression = "ZSTD" if how == "compressed" else "NONE"
    pq.write_table(
        table,
        file := dataset / "train/000000.text.parquet",
        compression=compression,
        use_dictionary=how == "dictionary",
    )
    made = manifest.from_bytes((dataset / manifest.FILE_NAME).read_bytes())
    column, data = made.columns["text"], file.read_bytes()
    files = column.splits["train"]
    sealed = replace(
        files, bytes=(len(data), *files.bytes[1:]), sha256=hashlib.sha256(data).hexdigest() + files.sha256[64:]
    )
    changed = replace(column, splits={**column.splits, "train": sealed})
    (dataset / manifest.FILE_NAME).write_bytes(replace(made, columns={"text": changed}).to_bytes())
    assert sf.verify(dataset) == []
    with pytest.raises(IntegrityError, match=r"train/000000\.text\.parquet"):
        sf.open(dataset)["train"].column("text")


def test_manifests_are_checked(dataset: Path) -> None:
    """A manifest whose columns do not add up is refused; one with columns is read as it was written."""
    sf.columns.add(dataset, frame(), key="id")
    data = (dataset / manifest.FILE_NAME).read_bytes()
    made = manifest.from_bytes(data)
    assert made.to_bytes() == data
    assert manifest.from_bytes(json.dumps(json.loads(data)).encode()) == made  # not as it was written
    column = made.columns["score"]
    for changed in (
        {"a/b": column},
        {"a": column, "b": column},
        {"a": replace(column, splits={"test": column.splits["val"]})},
    ):
        with pytest.raises(ManifestError):
            replace(made, columns=changed)
    for wrong in (
        {"kind": "object"},
        {"kind": f"int64[{2**21}]"},
        {"stem": "../a"},
        {"stem": "a-/../../b"},
        {"stem": "a-"},
    ):
        with pytest.raises(ManifestError):
            replace(column, **wrong)
    with pytest.raises(ManifestError):
        replace(column.splits["train"], bytes=(1,))
    with pytest.raises(ManifestError):
        replace(column.splits["train"], bytes=(1, 2**40))
    with pytest.raises(ManifestError):
        replace(made, past_columns=(5,))
    with pytest.raises(IntegrityError):  # 4 TB of memory, for a file without a value
        column_files.no_values(f"float32[{2**20}]", 10**6)


def test_a_split_whose_inputs_were_all_damaged(tmp_path: Path) -> None:
    """A dataset with a split that has no sample takes columns, and is extended."""
    source = image_folder(tmp_path / "photos/train", 4)
    write_tree(tmp_path / "photos/val/cat", {"x.jpg": b"damaged"})
    sf.pack(source.parent, tmp_path / "set", max_errors=1, executor="serial")
    keys = [f"train:{n:09}" for n in range(4)]
    sf.columns.add(tmp_path / "set", pa.table({"key": keys, "a": range(4)}), key="key")
    assert values(tmp_path / "set", "a") == [0, 1, 2, 3]
    assert values(tmp_path / "set", "a", "val") == []
    image_folder(source, 6)
    assert sf.extend(source.parent, tmp_path / "set", max_errors=1, executor="serial").packed == 2


CHOICES = st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=9, max_size=9)


@examples(12)
@given(given_values=CHOICES, seed=st.integers(0, 99), share=st.sampled_from([0.3, 0.5, 0.7]))
def test_views_have_the_values_of_their_samples(
    tmp_path_factory: pytest.TempPathFactory, given_values: list[int | None], seed: int, share: float
) -> None:
    """In a subset, a split, a merge of views and a copy, each sample has the value that it has in the dataset."""
    root = tmp_path_factory.mktemp("views")
    url = make_dataset(root / "set", {"train": [4, 5]})
    keys = [f"{n:09}" for n in range(9)]
    sf.columns.add(
        url,
        pa.table({"id": keys, "a": pa.array(given_values, pa.int64()), "t": [str(v) for v in given_values]}),
        key="id",
    )
    expected = dict(zip(keys, given_values, strict=True))
    sf.subset(url, root / "one", fraction=share, seed=seed)
    sf.subset(url, root / "two", fraction=share, seed=seed + 1)
    sf.split(url, root / "split", val=share, seed=seed)
    sf.merge([root / "one", root / "two"], root / "merged")
    sf.subset(root / "split", root / "again", fraction=0.6, seed=seed)
    sf.sync(root / "again", root / "copy")
    for view in ("one", "two", "split", "merged", "again", "copy"):
        found = by_key(root / view, "a")
        assert found == {key: expected[key.partition(":")[2]] for key in found}
        assert by_key(root / view, "t") == {key: str(value) for key, value in found.items()}
        assert sf.verify(root / view) == []


@given(given_values=CHOICES, seed=st.integers(0, 99), share=st.sampled_from([0.5, 0.7]))
@examples(100)
def test_columns_commute(
    tmp_path_factory: pytest.TempPathFactory, given_values: list[int | None], seed: int, share: float
) -> None:
    """Added before or after an extension, a subset, a split and a merge, columns have the same values."""
    root = tmp_path_factory.mktemp("law")
    source = image_folder(root / "src", 6)
    sf.pack(source, root / "first", shard_samples=4, short_side=8, executor="serial")
    sf.sync(root / "first", root / "last")
    keys = [sample["__key__"] for sample in sf.open(root / "first")["train"]]
    table = pa.table({"id": keys, "a": pa.array(given_values[:6], pa.int64()), "t": [f"{key}!" for key in keys]})

    def add(url: Path) -> None:
        sf.columns.add(url, table, key="id", allow=["unmatched"])

    add(root / "first")
    write_tree(source, {f"b/more{number}.jpg": photo(number + 50) for number in range(3)})
    for name in ("first", "last"):
        sf.extend(source, root / name, executor="serial")
        sf.subset(root / name, root / f"{name}-subset", fraction=share, seed=seed)
        sf.split(root / name, root / f"{name}-split", val=share, seed=seed)
        sf.subset(root / name, root / f"{name}-other", fraction=share, seed=seed + 1)
        sf.merge([root / f"{name}-subset", root / f"{name}-other"], root / f"{name}-merge")
    for view in ("", "-subset", "-split", "-merge"):
        add(root / f"last{view}")
        for column in ("a", "t"):
            assert by_key(root / f"first{view}", column) == by_key(root / f"last{view}", column)


def test_a_merge_refuses_values_that_differ(tmp_path: Path) -> None:
    """Datasets with other types in a column, or other values for one sample, do not merge; one that lacks it does."""
    one, two = make_dataset(tmp_path / "one", [3]), make_dataset(tmp_path / "two", [4])
    keys = [f"{n:09}" for n in range(4)]
    sf.columns.add(one, pa.table({"id": keys[:3], "a": [0.5, float("nan"), 2.5]}), key="id")
    sf.merge([one, two], tmp_path / "both")
    found = values(tmp_path / "both", "a")
    assert found[0] == 0.5
    assert np.isnan(found[1])
    assert found[2:] == [2.5, None, None, None, None]
    sf.subset(one, tmp_path / "same", limit=2)
    sf.merge([one, tmp_path / "same"], tmp_path / "fine")
    sf.columns.add(
        tmp_path / "same", pa.table({"id": keys[:3], "a": [7.5] * 3}), key="id", replace=True, allow=["unmatched"]
    )
    with pytest.raises(ConfigError, match="columns drop"):
        sf.merge([one, tmp_path / "same"], tmp_path / "wrong")
    sf.columns.add(two, pa.table({"id": keys, "a": ["x"] * 4}), key="id")
    with pytest.raises(ConfigError, match=r"string.*float64.*columns drop"):
        sf.merge([one, two], tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_new_samples_have_no_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An extension keeps the columns, says that the new samples have no values, and a later addition gives them."""
    source = image_folder(tmp_path / "src", 6)
    sf.pack(source, tmp_path / "set", shard_samples=4, short_side=8, executor="serial")
    keys = [sample["__key__"] for sample in sf.open(tmp_path / "set")["train"]]
    sf.columns.add(tmp_path / "set", pa.table({"id": keys, "a": keys}), key="id")
    sf.extend(write_tree(source, {f"a/new{n}.jpg": photo(n) for n in range(3)}), tmp_path / "set", executor="serial")
    assert "columns a" in caplog.text
    assert values(tmp_path / "set", "a") == [*keys, *[None] * (len(sf.open(tmp_path / "set")["train"]) - 6)]
    assert sf.verify(tmp_path / "set") == []
    sf.subset(tmp_path / "set", tmp_path / "view", fraction=0.999, seed=1)
    found = by_key(tmp_path / "view", "a")
    assert sum(value is not None for value in found.values()) in (5, 6)
    everything = [sample["__key__"] for sample in sf.open(tmp_path / "set")["train"]]
    sf.columns.add(tmp_path / "set", pa.table({"id": everything, "a": everything}), key="id", replace=True)
    assert values(tmp_path / "set", "a") == everything
    sf.pack(tmp_path / "set", tmp_path / "again", preset="original", executor="serial")
    assert "columns a are not packed" in caplog.text


def test_columns_in_a_place_of_ones_own(dataset: Path, tmp_path: Path) -> None:
    """With `to`, the dataset stays as it is, and a virtual one has its columns and the new ones; both ways agree."""
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    before = contents(dataset)
    report = sf.columns.add(dataset, frame(), key="id", only=["text", "vec"], to=tmp_path / "mine")
    assert contents(dataset) == before
    assert sf.open(tmp_path / "mine").fingerprint == report.fingerprint
    assert sf.verify(tmp_path / "mine") == []
    sf.columns.add(tmp_path / "mine", frame(), key="id", only=["score"], replace=True)
    sf.columns.add(dataset, frame(), key="id", only=["text", "vec"])
    for name in ("score", "text", "vec"):
        assert by_key(tmp_path / "mine", name) == by_key(dataset, name)
    with pytest.raises(DatasetExistsError):
        sf.columns.add(dataset, frame().rename_columns(["id", "a", "b", "c"]), key="id", to=tmp_path / "mine")
    with pytest.raises(NotFoundError, match="or join by key"):
        sf.columns.add(tmp_path / "mine", frame().rename_columns(["id", "a", "b", "c"]), path="id")


def test_a_copy_has_the_columns(dataset: Path, tmp_path: Path) -> None:
    """A copy has the columns and the fingerprint; a lost file of one is copied again by the same call."""
    sf.columns.add(dataset, frame(), key="id")
    sf.sync(dataset, tmp_path / "copy")
    assert by_key(tmp_path / "copy", "vec") == by_key(dataset, "vec")
    (tmp_path / "copy/val/000000.vec.parquet").unlink()
    sf.sync(dataset, tmp_path / "copy")
    assert sf.verify(tmp_path / "copy") == []
    assert sf.diff(dataset, tmp_path / "copy").same
    sf.columns.drop(tmp_path / "copy", ["vec"])
    differing = sf.diff(dataset, tmp_path / "copy")
    assert not differing.same
    assert differing.columns.keys() == {"vec"}
    assert differing.columns["vec"][1] is None


def test_without_pyarrow(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the errors name the extra to install; what needs no column works."""
    sf.columns.add(dataset, frame(), key="id")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for attempt in (
        lambda: sf.columns.add(dataset, "table.parquet", key="id"),
        lambda: sf.open(dataset)["train"].column("score"),
        lambda: sf.Loader(dataset, batch_size=2, fields=("image", "score")),
        lambda: sf.subset(dataset, tmp_path / "view", fraction=0.5),
    ):
        with pytest.raises(ConfigError, match=r"shardflow\[parquet\]"):
            attempt()
    assert sf.verify(dataset) == []
    sf.sync(dataset, tmp_path / "copy")
    sf.columns.drop(dataset, ["score", "text", "vec"])
    sf.subset(dataset, tmp_path / "view", fraction=0.5)


def test_the_command(dataset: Path, tmp_path: Path) -> None:
    """Columns are added, listed, shown by `info` and dropped from the command line; an error is one line."""
    pq.write_table(frame().slice(0, 8), tmp_path / "table.parquet")
    added = run("columns", "add", dataset, tmp_path / "table.parquet", "--key", "id", "--only", "score,vec")
    assert added.returncode == 0, added.stderr
    assert "score float64, vec float32[3]" in added.stdout
    assert "1 of 2 samples have a row" in added.stdout
    listed = run("columns", "list", dataset)
    assert "vec: float32[3], no value: 1 of val" in listed.stdout
    found = json.loads(run("columns", "list", dataset, "--json").stdout)
    assert found["score"] == {"type": "float64", "missing": {"train": 0, "val": 1}}
    assert json.loads(run("info", dataset, "--json").stdout)["columns"] == found
    assert run("columns", "drop", dataset, "score", "vec").returncode == 0
    assert run("columns", "list", dataset).stdout.strip() == "no columns"
    assert run("columns", "drop", dataset, "score").returncode == 0  # as after a kill whose end was not seen
    refused = run("columns", "drop", dataset, "scores")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1) or refused.returncode == 2
    assert "score" in refused.stderr


def test_values_are_kept_within_a_limit(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps the values of few shards in memory, and reads the others again."""
    sf.columns.add(dataset, frame(), key="id", only=["score"])
    monkeypatch.setattr(column_files, "_KEPT_BYTES", 1)
    reader = sf.open(dataset)["train"].columns
    for shard in (0, 1, 0):
        assert len(reader.read_often("score", shard).values) == SPLITS["train"][shard]
        assert len(reader._kept) == 1
