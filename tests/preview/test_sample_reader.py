"""The sample reader."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow
from shardflow.errors import ConfigError
from shardflow.preview.sample_reader import RawSample, SampleReader
from shardflow.storage.cache import Cache
from tests.helpers.folders import image_folder
from tests.helpers.making import flip, make_dataset
from tests.helpers.tars import members_of, write_tar


def raw(number: int, sample: dict[str, object]) -> RawSample:
    """A sample of a split, as the reader returns it."""
    parts = {part: payload for part, payload in sample.items() if not part.startswith("__")}
    return RawSample(number, str(sample["__key__"]), parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_samples_are_those_of_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Each sample by number equals that of the split, and of a remote dataset no shard is fetched for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    url = make_dataset(tmp_path / "set", [5, 1, 7])
    dataset = shardflow.open(f"{scheme}{url}")
    numbers = [12, 0, 4, 5, 6, 0]
    samples = list(SampleReader(dataset, "train").samples(numbers))
    if scheme:
        tars = {path.stat().st_size for path in url.glob("train/*.tar")}
        assert not tars & {blob.bytes for blob in Cache().blobs()}
    split = shardflow.open(url)["train"]
    assert samples == [raw(number, split[number]) for number in numbers]
    assert [sample.labels for sample in samples] == [[number] for number in numbers]
    with pytest.raises(IndexError):
        list(SampleReader(dataset, "train").samples([13]))


def test_samples_have_their_sources(tmp_path: Path) -> None:
    """A sample has the path of its input, by the receipts or the tar of other tools, also after a removal."""
    packed, index = tmp_path / "packed", tmp_path / "index"
    shardflow.pack(image_folder(tmp_path / "src", 9), packed, short_side=16, shard_samples=4, executor="serial")
    write_tar(tmp_path / "tars/a.tar", members_of(range(3)))
    shardflow.index(tmp_path / "tars", index)
    shardflow.remove(packed, keys=[shardflow.open(packed)["train"][0]["__key__"]])
    for url in (packed, index):
        split = shardflow.open(url)["train"]
        found = SampleReader(shardflow.open(url), "train").samples(range(len(split)))
        assert [sample.source for sample in found] == split.sources()
    for receipt in packed.glob("train/*.json"):
        receipt.unlink()
    assert [sample.source for sample in SampleReader(shardflow.open(packed), "train").samples([0])] == [""]


@pytest.mark.parametrize(
    ("parts", "labels"),
    [
        ({"cls": b"7"}, [7]),
        ({"labels.json": b"[2, 5]"}, [2, 5]),
        ({"labels.json": b"[]"}, []),
        ({}, []),
        ({"cls": b"cat"}, []),
        ({"cls": b"-1"}, []),
        ({"labels.json": b'["x", 3]'}, []),
        ({"cls": b"007\n"}, [7]),
    ],
)
def test_labels_are_read_or_left_out(parts: dict[str, bytes], labels: list[int]) -> None:
    """One class, several, or none; a label that is not a class number counts as none."""
    assert RawSample(0, "a", parts).labels == labels


@pytest.mark.parametrize(
    ("parts", "caption"),
    [
        ({"txt": b"a \xff", "json": b'{"caption": "b"}'}, "a \ufffd"),
        ({"json": b'{"caption": "b", "captions": ["c"]}'}, "b"),
        ({"json": b'{"captions": ["c", 1, "d"]}'}, "c\nd"),
        ({"json": b'{"caption": 7}'}, ""),
        *(({"json": text}, "") for text in (b"[1]", b"{", b"\xff", b"[" * 100_000)),
        ({}, ""),
    ],
)
def test_captions_are_read_or_left_out(parts: dict[str, bytes], caption: str) -> None:
    """The caption is the part txt, or a text or a list of texts in json; any other value counts as none."""
    assert RawSample(0, "a", parts).caption == caption


def test_damaged_samples_have_a_problem(tmp_path: Path) -> None:
    """A sample with a flipped byte has a problem and no parts, others are complete; a missing index does no harm."""
    url = make_dataset(tmp_path / "set", [4, 4])
    tar = url / "train/000000.tar"
    payload = shardflow.open(url)["train"][2]["jpg"]
    flip(tar, tar.read_bytes().index(payload) + 50)
    (url / "train/000001.npy").unlink()
    samples = list(SampleReader(shardflow.open(url), "train").samples(range(8)))
    assert [bool(sample.problem) for sample in samples] == [False, False, True] + [False] * 5
    assert "000000.tar" in samples[2].problem
    assert [len(sample.parts) for sample in samples] == [2, 2, 0, 2, 2, 2, 2, 2]
    tar.unlink()
    assert "000000.tar" in next(SampleReader(shardflow.open(url), "train").samples([0])).problem


@pytest.mark.parametrize("count", [1, 3, 7, 24, 100])
def test_samples_are_spread_over_few_shards(tmp_path: Path, count: int) -> None:
    """As many as requested, or all, each once, from the beginning of the split to its end, of at most four shards."""
    reader = SampleReader(shardflow.open(make_dataset(tmp_path / "set", [8, 1, 8, 8, 3, 8, 8, 8])), "train")
    split, numbers = reader.split, reader.spread_samples(count)
    assert len(numbers) == len(set(numbers)) == min(count, len(split))
    assert len({split.locate(number)[0] for number in numbers}) <= (8 if count == 100 else 4)
    if count > 3:
        assert min(numbers) < len(split) // 3
        assert max(numbers) > 2 * len(split) // 3


@pytest.mark.parametrize(("sizes", "small"), [([40, 4, 4], 2), ([40, 4, 4, 1, 1, 1], 2), ([1] * 9 + [40], 4)])
def test_small_shards_have_few_samples_in_a_preview(tmp_path: Path, sizes: list[int], small: int) -> None:
    """Small shards, as `extend` adds them, have their share of the samples, and the requested number is reached."""
    reader = SampleReader(shardflow.open(make_dataset(tmp_path / "set", sizes)), "train")
    numbers = reader.spread_samples(12)
    assert len(set(numbers)) == 12
    assert sum(sizes[reader.split.locate(number)[0]] < 40 for number in numbers) <= small


def test_samples_of_a_class(tmp_path: Path) -> None:
    """The samples of a class are found in any shard; for an unknown class the error names the known ones."""
    reader = SampleReader(shardflow.open(make_dataset(tmp_path / "set", [3, 3])), "train")
    assert reader.samples_of_class("class4", 10) == [4]
    with pytest.raises(ConfigError, match="class0, class1"):
        reader.samples_of_class("dog", 10)
    bare = SampleReader(shardflow.open(make_dataset(tmp_path / "bare", [3], labelled=False)), "train")
    with pytest.raises(ConfigError, match="no labels"):
        bare.samples_of_class("dog", 10)
