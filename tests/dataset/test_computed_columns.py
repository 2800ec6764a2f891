"""Columns that a function computes from the samples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import shardflow
from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError
from shardflow.samplers import TokenBudget
from tests.helpers.counting import CountingStorage
from tests.helpers.making import jpeg, write_dataset

CAPTIONS = [" ".join(["tree"] * (n % 5 + 1)) for n in range(12)]


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Twelve captioned images in three shards and two splits, and one without a caption; keys repeat."""
    samples: list[Any] = [(f"{n % 6}", {"jpg": jpeg(n), "txt": caption.encode()}) for n, caption in enumerate(CAPTIONS)]
    samples.append(("bare", {"jpg": jpeg(12)}))
    return write_dataset(
        tmp_path / "set", {"train": [samples[:5], samples[5:6] + samples[12:]], "val": [samples[6:12]]}
    )


def lengths(texts: list[Any]) -> list[int]:
    """The number of words of each text."""
    return [len(text.split()) for text in texts]


def test_a_function_over_texts_becomes_a_column(captioned: Path) -> None:
    """The function is called once per shard with its texts; samples without one get no value, and are not passed."""
    calls: list[int] = []

    def count(texts: list[Any]) -> list[int]:
        calls.append(len(texts))
        return lengths(texts)

    report = shardflow.columns.compute(captioned, "words", count, field="txt")
    assert (report.columns, report.matched) == ({"words": "int64"}, {"train": 6, "val": 6})
    assert calls == [5, 1, 6]
    columns = shardflow.open(captioned)["train"].columns
    found = [columns.read("words", shard) for shard in range(2)]
    assert np.concatenate([each.values for each in found]).tolist() == [1, 2, 3, 4, 5, 1, 0]
    assert np.concatenate([each.present for each in found]).tolist() == [True] * 6 + [False]
    shardflow.columns.compute(
        captioned, "twice", lambda words: [2 * each for each in words], field="words", split="val"
    )
    twice = shardflow.open(captioned)["val"].columns.read("twice", 0)
    assert twice.values.tolist() == [2 * (n % 5 + 1) for n in range(6, 12)]


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="notes need Python 3.11")
def test_an_error_of_the_function_names_shard_and_sample(captioned: Path) -> None:
    """An error of the function is re-raised unchanged; a note has the shard, and the sample if one alone raises it."""
    got = "the function for column 'words', which got a list of 5 values of 'txt', from train/000000.tar"

    def of_one(texts: list[Any]) -> list[int]:
        return [1 // (number - 4) for number in lengths(texts)]  # the fourth caption has four words

    def of_all(texts: list[Any]) -> list[int]:
        return [1 // (len(texts) - 5)]

    for function, ending in ((of_one, f"{got}; it also raises for sample 3 alone"), (of_all, got)):
        with pytest.raises(ZeroDivisionError) as caught:
            shardflow.columns.compute(captioned, "words", function, field="txt")
        (note,) = vars(caught.value)["__notes__"]
        assert note.endswith(ending)


def test_ids_that_look_like_keys_of_pack(tmp_path: Path) -> None:
    """A join by ids that match keys by accident is refused with the remedy, where the samples' json has the ids."""
    keys = [f"{n:09}" for n in range(4)]
    ids = [json.dumps({"key": key}).encode() for key in keys[::-1]]
    samples = [(key, {"jpg": jpeg(0), "json": own}) for key, own in zip(keys, ids, strict=True)]
    url = write_dataset(tmp_path / "set", {"train": [samples]})
    with pytest.raises(
        ConfigError, match=r"'000000003' has 'key' '000000000' in its json; .*compute.*'train:000000003'"
    ):
        shardflow.columns.add(url, pa.table({"key": keys, "score": [0, 1, 2, 3]}), key="key")
    for name, given in (("key", [f"train:{key}" for key in keys]), ("number", keys)):
        added = shardflow.columns.add(url, pa.table({name: given, "score": [0, 1, 2, 3]}), key=name)
        assert added.matched == {"train": 4}


def test_what_cannot_be_a_column_is_refused(captioned: Path) -> None:
    """Another number of values, a dict of them, values of several types, and a taken name are errors."""
    before = shardflow.open(captioned).fingerprint
    for name, function, field in (
        ("words", lambda texts: texts[1:], "txt"),
        ("words", lengths, "nothing"),
        ("txt", lengths, "txt"),
        ("words", lambda texts: [{"a": 1}] * len(texts), "txt"),
        ("words", lambda texts: dict.fromkeys(texts, 1), "txt"),
        ("words", lambda texts: "x" * len(texts), "txt"),
        ("words", lambda texts: torch.ones(len(texts)), "txt"),
        ("words", lambda texts: [1, *texts[1:]], "txt"),
        ("words", lambda texts: [1 << 70] * len(texts), "txt"),
        ("words", lambda texts: ["\ud800"] * len(texts), "txt"),
    ):
        with pytest.raises(ConfigError, match=r"function.* must|returned .* values|no sample has|taken|has values of"):
            shardflow.columns.compute(captioned, name, function, field=field)
    assert shardflow.open(captioned).fingerprint == before


def test_broken_text_gets_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text or JSON that cannot be read has no value, as one that is not there; a warning names a sample."""
    texts = (b"one two", b"\xff", b"three")
    samples = [(f"{number}", {"jpg": jpeg(number), "txt": text}) for number, text in enumerate(texts)]
    broken = write_dataset(tmp_path / "broken", {"train": [samples]})
    report = shardflow.columns.compute(broken, "words", lengths, field="txt")
    assert report.matched == {"train": 2}
    values, present = shardflow.open(broken)["train"].column("words")
    assert (values[present].tolist(), present.tolist()) == ([2, 1], [True, False, True])
    assert "no value for 1 sample of train/000000.tar" in caplog.text
    assert "sample 1: part 'txt' cannot be read" in caplog.text


def test_a_tokenizer_gives_the_lengths_of_a_token_budget(captioned: Path) -> None:
    """Captions are counted by a tokenizer, once; bins then hold images and captions of at most the budget."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CAPTIONS, trainers.WordLevelTrainer(special_tokens=["[UNK]"]))

    def count(texts: list[str]) -> list[int]:
        return [len(each.ids) for each in tokenizer.encode_batch(texts)]

    shardflow.columns.compute(captioned, "caption_tokens", count, field="txt", split="val")
    sampler = TokenBudget(25, patch=16, text="caption_tokens")
    fields = ("cu_seqlens", "bin", "caption_tokens", "image")
    loader = shardflow.Loader(captioned, split="val", batch_size=2, sampler=sampler, fields=fields, num_workers=0)
    for ends, bins, tokens, _ in loader:
        used = torch.zeros(2, dtype=torch.int64).index_add(0, bins, ends.diff().long() + tokens)
        assert int(used.max()) <= 25


def test_a_field_of_the_json_is_not_a_column_yet(tmp_path: Path) -> None:
    """Errors about a column that is not there give the call that makes one of the samples' `.json`; it does."""
    samples = [(f"{n}", {"jpg": jpeg(n), "json": f'{{"fold": {n % 2}}}'.encode()}) for n in range(4)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]})
    call = rf"`(shardflow\.columns\.compute\('{dataset}', 'fold', .*field='json'\))` makes it a column"
    for settings in (
        {"sampler": shardflow.samplers.Subset("fold != 0")},
        {"sampler": shardflow.samplers.Weighted("fold")},
        {"fields": ("image", "fold")},
    ):
        with pytest.raises(ConfigError, match=call):
            shardflow.Loader(dataset, batch_size=1, num_workers=0, **settings)
    with pytest.raises(ConfigError, match=call) as caught:
        shardflow.open(dataset)["train"].column("fold")
    eval(re.search(call, str(caught.value))[1])  # type: ignore[index]
    subset = shardflow.samplers.Subset("fold != 0")
    assert len(shardflow.Loader(dataset, batch_size=1, num_workers=0, sampler=subset)) == 2
    bare = write_dataset(tmp_path / "bare", {"train": [[("0", {"jpg": jpeg(0)})]]})
    with pytest.raises(ConfigError) as plain:
        shardflow.Loader(bare, batch_size=1, fields=("fold",))
    assert "compute" not in str(plain.value)


def test_numbers_of_a_csv_become_a_column_of_numbers(tmp_path: Path) -> None:
    """The cells of a CSV are texts in `.json`: the call that makes a column of them converts numbers, gaps included.

    A remote dataset says the same, and its shard is not fetched for that.
    """
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    cells = [("", "cat"), ("2.5", "1 cat"), ("40", ""), ("-1e3", "cat")]
    rows = [f"{number}.jpg,{score},{note}\n" for number, (score, note) in enumerate(cells)]
    (tmp_path / "t.csv").write_text("path,score,note\n" + "".join(rows))
    dataset = tmp_path / "set"
    shardflow.pack(tmp_path / "t.csv", dataset, short_side=32, shuffle=False, executor="serial")
    for name in ("score", "note"):
        with pytest.raises(ConfigError) as caught:
            shardflow.Loader(dataset, batch_size=1, num_workers=0, fields=("image", name))
        eval(re.search(r"`(shardflow\.columns\.compute\(.*\))` makes", str(caught.value))[1])  # type: ignore[index]
    train = shardflow.open(dataset)["train"]
    assert train.column("score").values.tolist() == [0, 2.5, 40, -1000]
    assert train.column("score").present.tolist() == [False, True, True, True]
    assert train.column("note").values.tolist() == ["cat", "1 cat", "", "cat"]
    content = shardflow.open(dataset).manifest
    far = Dataset(CountingStorage(dataset, tmp_path / "log"), content, tmp_path / "cache")["train"]
    assert "row['score'] and float(row['score'])" in far.json_remedy("score")
    assert "float" not in far.json_remedy("note")
    assert not far.reader.is_local(0)
