from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import shardflow as sf
from shardflow.dataset.sample_table import select
from shardflow.errors import ConfigError, DatasetExistsError
from shardflow.storage.local import LocalStorage
from tests.helpers.command import run
from tests.helpers.examples import examples
from tests.helpers.folders import encoded, image_folder, photo, turned, write_tree
from tests.helpers.making import jpeg, make_dataset, write_dataset, write_tables
from tests.helpers.tars import write_tar

SPLITS = {"train": [4, 3], "val": [2]}
SCORES = [0.0, 0.25, 0.5, 0.75, 1.0, None, float("nan")]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Seven training samples with scores, of which one is missing and one NaN, and texts; two others without."""
    url = make_dataset(tmp_path / "set", SPLITS)
    keys = [f"train:{n:09}" for n in range(7)]
    vectors = {"vec": [[n, -n] for n in range(7)], "emb": [[float("nan") if n == 3 else n, 0.5] for n in range(7)]}
    table = pa.table({"id": keys, "score": SCORES, "text": [*"abcdef", None], **vectors})
    sf.columns.add(url, table, key="id")
    return url


def chosen(url: Path, where: str, split: str = "train") -> list[int]:
    """Return the numbers of the samples that a loader gives under a condition, in order."""
    loader = sf.Loader(
        url,
        split=split,
        batch_size=1,
        num_workers=0,
        shuffle=False,
        fields=("index",),
        sampler=sf.samplers.Subset(where),
    )
    return [int(index) for (index,) in loader]


CONDITIONS = [
    ("score > 0.4", [2, 3, 4]),  # neither null nor NaN
    ("not score > 0.4", [0, 1]),
    ("score is null", [5, 6]),
    ("class in ('class1', 'class5') or key = '000000003'", [1, 3, 5]),
    ("number between 2 and 3 and shard = 'train/000000.tar'", [2, 3]),
    ("width = 49 and height > 41", [4]),
    ("\"Text\" >= 'e' and split = 'train'", [4, 5]),
    ("vec[1] > 5 or list_contains(classes, 'class0')", [0, 6]),
    ("bytes > 0", list(range(7))),
    ("number / number > 0.5", list(range(1, 7))),  # 0 / 0 is not a number, and not the largest
    ("score / score > 0.5 or score % score > 0.5", [1, 2, 3, 4]),
    ("emb[1] > 1.5 or list_max(emb) > 1.5", [2, 4, 5, 6]),
]
NOT_CONDITIONS = [
    "",
    "score",
    "class",
    "scor > 1",
    "score > 0.5, width > 1",
    "true) union select 1 --",
    "score > 0.5; select 1",
    "avg(score) > 0.5",
    "row_number() over () < 3",
    "columns('.*') is not null",
    "exists(select 1 from read_csv('/etc/passwd'))",
    "exists(select 1 from glob('/*'))",
    "exists(from '/etc/passwd')",
    "exists(select 1 from dataset)",
    "key::int[1] = 3",
    "width > 'wide'",
    "exists(select 1)",
]
CHANGING = [
    "random() < 0.1",
    'number > 2 or Main."RANDOM"() < 0.1',
    "list_filter(vec, lambda x: x > random()) = []",
    "uuid() > 'b'",
    "now() > '2026-01-01'",
    "today() > '2026-01-01'",
    "current_date > '2026-01-01'",
    "localtimestamp > '2026-01-01'",
    "ago(interval 1 day) > '2026-01-01'",
    "age('2026-01-01'::timestamp) > interval 1 day",
    "text = current_user",
    "text = current_setting('TimeZone')",
]


def test_conditions_over_columns_and_indexes(dataset: Path) -> None:
    """A condition in SQL selects by columns and by all that the index knows; what a sample lacks selects nothing."""
    pytest.importorskip("duckdb")
    for number, (where, expected) in enumerate(CONDITIONS):
        assert chosen(dataset, where) == expected
        sf.subset(dataset, dataset.parent / f"view{number}", where=f"split = 'train' and ({where})")
        view = sf.open(dataset.parent / f"view{number}")
        assert [int(sample["__key__"]) for sample in view["train"]] == expected
    assert sf.verify(view.url) == []


def test_what_is_not_one_safe_condition_is_refused(dataset: Path) -> None:
    """Anything but one true-or-false expression over the table is refused, with the names that there are."""
    pytest.importorskip("duckdb")
    for where in NOT_CONDITIONS:
        with pytest.raises(ConfigError, match="condition"):
            sf.subset(dataset, dataset.parent / "view", where=where)
    with pytest.raises(ConfigError, match=r"number.*score"):
        chosen(dataset, "scor > 1")
    with pytest.raises(ConfigError, match="single quotes, 'cat'"):
        chosen(dataset, 'class = "cat"')
    assert not (dataset.parent / "view").exists()


def test_a_condition_that_may_choose_others_next_time_is_refused(dataset: Path) -> None:
    """Chance, the clock, the user and settings are refused wherever a condition is given; dates and lambdas are not."""
    pytest.importorskip("duckdb")
    before = sf.open(dataset).fingerprint
    for where in CHANGING:
        with pytest.raises(ConfigError, match=r"fraction|name ago does not exist"):  # which DuckDB 1.4 lacks
            select(sf.open(dataset)["train"], None, where)
    for attempt in (
        lambda: sf.subset(dataset, dataset.parent / "view", where=CHANGING[0]),
        lambda: sf.remove(make_packed(dataset.parent), where=CHANGING[0]),
        lambda: chosen(dataset, CHANGING[0]),
        lambda: sf.Loader(dataset, batch_size=1, sampler=sf.samplers.Weighted(2, where=CHANGING[0])),
    ):
        with pytest.raises(ConfigError, match="fraction"):
            attempt()
    assert sf.open(dataset).fingerprint == before
    dates = "year(('2020-01-0' || number + 1)::timestamptz) = 2020 and '2020-01-01'::date + number::int < '2020-01-03'"
    assert chosen(dataset, dates) == [0, 1]
    assert chosen(dataset, "len(list_filter(vec, lambda x: x > 4)) > 0 -- and more") == [5, 6]


def make_packed(root: Path) -> Path:
    """Pack some images; only what was packed has samples that can be removed."""
    sf.pack(image_folder(root / "src", 3), root / "packed", short_side=8, executor="serial")
    return root / "packed"


def test_a_condition_that_selects_nothing(dataset: Path) -> None:
    """A condition that no sample fulfils is refused by a subset and by a loader."""
    pytest.importorskip("duckdb")
    for attempt in (
        lambda: sf.subset(dataset, dataset.parent / "view", where="width > 1000"),
        lambda: chosen(dataset, "width > 1000"),
    ):
        with pytest.raises(ConfigError, match=r"select|fulfil"):
            attempt()


def test_a_class_that_does_not_exist(dataset: Path) -> None:
    """A misspelt class in a condition is refused; a text that is computed, or an order of texts, is not."""
    pytest.importorskip("duckdb")
    for where in (
        "class = 'clas0'",
        "number > 2 and not ('clas0' <> \"CLASS\")",
        "class in ('class1', 'clas0')",
        "class not in ('class1', 'clas0')",
        "class is distinct from 'clas0'",
        "list_contains(classes, 'clas0')",
    ):
        with pytest.raises(ConfigError, match=r"no class 'clas0' \(did you mean 'class0'\?\) among class0, class1"):
            chosen(dataset, where)
    for where in ("upper(class) = 'CLASS0'", "class > 'class'", "class like 'clas_0'", "class = 'cla' || 'ss0'"):
        assert chosen(dataset, where)
    assert chosen(dataset, "class in ('class0', text)") == chosen(dataset, "class = 'class0'")


def test_images_without_a_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A condition on width has that of a WebP; a warning counts images whose size the index leaves to their headers."""
    images = [("webp", "WEBP", {}), ("jpg", "JPEG", {}), ("jpg", "JPEG", {"exif": turned(6)})]
    samples = [
        (f"{number}", {part: encoded(Image.new("RGB", (30, 20)), kind, **options)})
        for number, (part, kind, options) in enumerate(images)
    ]
    write_tar(tmp_path / "a.tar", [(f"{key}.{part}", data) for key, parts in samples for part, data in parts.items()])
    sf.index(tmp_path)
    assert chosen(tmp_path, "width > 1") == [0, 1]
    assert "lacks the sizes of 1 of 3" in caplog.text
    caplog.clear()
    assert chosen(tmp_path, "bytes > 1") == [0, 1, 2]
    assert not caplog.text


def test_several_classes(tmp_path: Path) -> None:
    """Where samples have several classes, `class` is refused in a condition, and `classes` has all of them."""
    pytest.importorskip("duckdb")
    samples = [
        (f"{n:09}", {"jpg": jpeg(n), "labels.json": labels}) for n, labels in enumerate([b"[0, 1]", b"[1]", b"[]"])
    ]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("cat", "dog"))
    with pytest.raises(ConfigError, match="list_contains"):
        chosen(url, "class = 'cat'")
    assert chosen(url, "list_contains(classes, 'dog')") == [0, 1]
    sf.columns.to_parquet(url, tmp_path / "table.parquet", only=["classes", "class"])
    found = pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert [row["class"] for row in found] == [None, "dog", None]
    assert [row["classes"] for row in found] == [["cat", "dog"], ["dog"], []]


def test_a_subset_is_pinned(dataset: Path) -> None:
    """A subset keeps its samples when the column by which it was chosen changes; it has their values of that time."""
    pytest.importorskip("duckdb")
    sf.subset(dataset, dataset.parent / "view", where="score > 0.4")
    before = sf.open(dataset.parent / "view").fingerprint
    other = pa.table({"id": [f"train:{n:09}" for n in range(7)], "score": [0.0] * 7})
    sf.columns.add(dataset, other, key="id", replace=True)
    view = sf.open(dataset.parent / "view")
    assert view.fingerprint == before
    assert view["train"].column("score").values.tolist() == [0.5, 0.75, 1.0]
    loader = sf.Loader(dataset, batch_size=1, num_workers=0, sampler=sf.samplers.Subset("score = 0"), fields=("index",))
    state = loader.state_dict()
    changed = sf.Loader(
        dataset, batch_size=1, num_workers=0, sampler=sf.samplers.Subset("number < 3"), fields=("index",)
    )
    with pytest.raises(sf.errors.ResumeMismatchError):
        changed.load_state_dict(state)


def test_weights_with_a_condition(dataset: Path) -> None:
    """`Weighted` draws among the samples of a condition; by class, frequencies are counted among them."""
    pytest.importorskip("duckdb")

    def drawn(weights: Any, where: str) -> list[int]:
        sampler = sf.samplers.Weighted(weights, where=where)
        loader = sf.Loader(dataset, batch_size=1, num_workers=0, sampler=sampler, fields=("index",))
        return sorted(int(index) for (index,) in loader)

    assert drawn(2, "score >= 0.5") == [2, 2, 3, 3, 4, 4]
    assert drawn("balanced", "score >= 0.5") == [2, 3, 4]
    assert drawn({"class1": 3, "class2": 0}, "number < 4") == [0, 1, 1, 1, 3]


def test_a_million_samples_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition over a million samples reads the files that it needs once, and selects what numpy does.

    Tars, and the files of a column that it does not name, do not exist here.
    """
    pytest.importorskip("duckdb")
    facts = write_tables(tmp_path / "set", shards=20, samples=50_000)
    reads, read = Counter[str](), LocalStorage.read

    def counted(storage: LocalStorage, name: str, **options: Any) -> bytes:
        reads[name.partition(".")[2]] += 1
        return read(storage, name, **options)

    monkeypatch.setattr(LocalStorage, "read", counted)
    split = sf.open(tmp_path / "set")["train"]
    expected = (facts["score"] > 0.5) & (facts["width"] >= 512)
    assert np.array_equal(select(split, None, "score > 0.5 and width >= 512"), expected)
    assert (len(expected), reads) == (
        1_000_000,
        {"json": 1, "score.parquet": 20, "npy": 21},
    )  # one index is compared with the JSON
    reads.clear()
    assert np.array_equal(
        select(split, [f"c{n}" for n in range(10)], "class in ('c3', 'c7')"), np.isin(facts["class"], (3, 7))
    )
    assert reads == {"npy": 20}


def test_the_table_has_all_that_is_known(dataset: Path) -> None:
    """The exported table has a row per sample with what index and columns say; a file that exists is refused."""
    out = dataset.parent / "table.parquet"
    assert sf.columns.to_parquet(dataset, out) == 9
    rows = pq.read_table(out).to_pylist()
    opened = sf.open(dataset)
    samples = [(split, number, sample) for split in opened for number, sample in enumerate(opened[split])]
    sizes = np.concatenate([opened[split].image_sizes() for split in opened]).tolist()
    for row, (split, number, sample), (width, height) in zip(rows, samples, sizes, strict=True):
        assert (row["split"], row["number"], row["key"]) == (split, number, sample["__key__"])
        assert (row["width"], row["height"]) == (width, height)
        assert row["bytes"] == len(sample["jpg"]) + len(sample["cls"])
        assert row["class"] == f"class{int(sample['cls'])}"
        assert row["shard"] in sample["__url__"]
    assert [row["text"] for row in rows] == [*"abcdef", None, None, None]
    assert np.isnan(rows[6]["score"])
    assert rows[2]["vec"] == [2, -2]
    with pytest.raises(DatasetExistsError):
        sf.columns.to_parquet(dataset, out)
    with pytest.raises(ConfigError, match="parquet"):
        sf.columns.to_parquet(dataset, out.with_suffix(".csv"))


def test_keys_come_from_receipts_where_there_are_some(tmp_path: Path) -> None:
    """The keys of packed shards are those in their tars, also where inputs could not be packed and without receipts."""
    source = image_folder(tmp_path / "src", 6)
    (source / "a/0000.jpg").write_bytes(b"")
    sf.pack(source, tmp_path / "set", shard_samples=4, short_side=8, executor="serial", max_errors=1)
    expected = [sample["__key__"] for sample in sf.open(tmp_path / "set")["train"]]
    for number in range(2):
        sf.columns.to_parquet(tmp_path / "set", tmp_path / f"{number}.parquet", only=["key"])
        assert pq.read_table(tmp_path / f"{number}.parquet")["key"].to_pylist() == expected
        (tmp_path / "set/train/000000.json").unlink(missing_ok=True)


def test_conditions_by_source(tmp_path: Path) -> None:
    """A condition finds files by their paths; without receipts, it is refused."""
    pytest.importorskip("duckdb")
    packed = tmp_path / "packed"
    first = image_folder(tmp_path / "src", 6) / "a/0000.jpg"
    first.rename(os.fsdecode(os.fsencode(first.parent) + b"/\xff.jpg"))  # not UTF-8
    sf.pack(tmp_path / "src", packed, short_side=8, executor="serial")
    sources = sf.open(packed)["train"].sources()
    assert chosen(packed, "source in ('b/0001.jpg', 'b/0')") == [sources.index("b/0001.jpg")]
    for short, path in {"b/0001": "b/0001.jpg", "0001": "b/0001.jpg", "0001.jpg": "b/0001.jpg"}.items():
        for where in (f"source not in ('{short}', 'c/0002.jpg')", f"source = '{short}'"):
            with pytest.raises(ConfigError, match=f"no source is '{short}'; write the whole path, '{path}'"):
                chosen(packed, where)
    sf.subset(packed, tmp_path / "view", where="source like 'a/%'")
    assert chosen(tmp_path / "view", "source is not null") == [0, 1]
    sf.columns.to_parquet(packed, tmp_path / "table.parquet", only=["source"])
    written = pq.read_table(tmp_path / "table.parquet")["source"].to_pylist()
    assert written == [source.replace("\udcff", "\\udcff") for source in sources]
    assert chosen(packed, r"source = 'a/\udcff.jpg'") == [sources.index("a/\udcff.jpg")]
    sf.remove(packed, where="source = 'b/0001.jpg'", purge=True)
    assert sf.open(packed)["train"].sources() == [source for source in sources if source != "b/0001.jpg"]
    for receipt in (packed / "train").glob("*.json"):
        receipt.unlink()
    with pytest.raises(sf.errors.NotFoundError, match="names the files"):
        chosen(packed, "source is not null")


def test_a_size_with_another_meaning_in_the_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A condition on the size warns if a table or tar gave the samples a width in their `.json` that is another."""
    pytest.importorskip("duckdb")
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(3)})
    (tmp_path / "t.csv").write_text("path,width,height\n" + "".join(f"{number}.jpg,900,8\n" for number in range(3)))
    sf.pack(tmp_path / "t.csv", tmp_path / "set", short_side=8, executor="serial")
    caplog.clear()
    assert chosen(tmp_path / "set", "height >= 8") == [0, 1, 2]
    assert not caplog.messages
    with pytest.raises(ConfigError, match="no sample of split 'train' fulfils"):
        chosen(tmp_path / "set", "width > 500")
    (message,) = caplog.messages
    assert "width is that of the stored image, such as" in message
    assert ", not 900 as in its json; if 'width' is a field of the samples' part 'json', `shardflow.columns" in message


def test_names_of_the_table_are_no_columns(dataset: Path) -> None:
    """A column with a name that conditions give to something else is refused when it is added."""
    table = pa.table({"id": [f"train:{n:09}" for n in range(7)], "width": range(7)})
    with pytest.raises(ConfigError, match="--only"):
        sf.columns.add(dataset, table, key="id")


@examples(10)
@given(st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=7, max_size=7), st.integers(-3, 3))
def test_a_condition_and_its_opposite_are_all_that_have_a_value(
    tmp_path_factory: pytest.TempPathFactory, values: list[int | None], bound: int
) -> None:
    """Of samples with a value each is in a condition or in its opposite, and of the others none is in either."""
    pytest.importorskip("duckdb")
    url = make_dataset(tmp_path_factory.mktemp("law") / "set", [3, 4], labelled=False)
    sf.columns.add(url, pa.table({"id": [f"{n:09}" for n in range(7)], "a": pa.array(values, pa.int64())}), key="id")
    train = sf.open(url)["train"]
    one, other = select(train, None, f"a < {bound}"), select(train, None, f"not (a < {bound})")
    assert one.tolist() == [value is not None and value < bound for value in values]
    assert (one | other).tolist() == [value is not None for value in values]
    assert not (one & other).any()


def test_the_commands(dataset: Path, tmp_path: Path) -> None:
    """`subset --where` and `table` work from the command line; a wrong condition is one line that names the columns."""
    pytest.importorskip("duckdb")
    made = run("subset", dataset, tmp_path / "view", "--where", "score > 0.5 and width >= 48 and class in ('class3')")
    assert made.returncode == 0, made.stderr
    assert "1 sample in 1 shard" in made.stdout
    written = run("table", tmp_path / "view", tmp_path / "view.parquet", "--only", "key,score")
    assert written.returncode == 0, written.stderr
    assert pq.read_table(tmp_path / "view.parquet").to_pylist() == [{"key": "000000003", "score": 0.75}]
    refused = run("subset", dataset, tmp_path / "other", "--where", "scoer > 0.5")
    assert refused.returncode == 2
    assert "score" in refused.stderr.splitlines()[-1]
