from __future__ import annotations

import functools
import http.server
import io
import json
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError, IntegrityError, NotFoundError
from shardflow.packing.extending import preview_extension
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import contents, image_folder, photo, quarantined
from tests.helpers.making import flip, make_dataset

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}
BLOCK = 512


def _foreign(path: Path, samples: list[dict[str, Any]]) -> Path:
    """Write a tar as img2dataset does: by webdataset's own writer, which adds extended headers with times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def _samples(count: int, first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"__key__": f"{n:05}", "jpg": photo(n), "txt": f"no {n}", "json": {"url": f"u{n}"}} for n in numbers]


def test_foreign_shards(tmp_path: Path) -> None:
    """Shards of another writer are packed anew in their order: images resized, texts and JSON as they were."""
    for shard in range(3):
        _foreign(tmp_path / "src" / f"{shard:05}.tar", _samples(4, 4 * shard))
    report = sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, shard_samples=5)
    assert (report.packed, report.shards) == (12, 3)
    samples = list(sf.open(tmp_path / "dst")["train"])
    assert [sample["txt"] for sample in samples] == [f"no {n}".encode() for n in range(12)]
    assert [json.loads(sample["json"]) for sample in samples] == [{"url": f"u{n}"} for n in range(12)]
    assert {Image.open(io.BytesIO(sample["jpg"])).size for sample in samples} == {(48, 32)}
    assert "00001.tar/00004" in (tmp_path / "dst" / "train" / "000000.json").read_text()


def test_patterns(tmp_path: Path) -> None:
    """Braces and wildcards choose shards, also below folders that are named like splits."""
    for name in ("train/00.tar", "train/01.tar", "train/02.tar", "val/00.tar"):
        _foreign(tmp_path / name, _samples(1))

    def names(pattern: str) -> dict[str, list[str]]:
        return {
            split: [item.path for item in items] for split, items in list_source(f"{tmp_path}/{pattern}").splits.items()
        }

    assert names("train/{00..01}.tar") == {"train": ["00.tar/00000", "01.tar/00000"]}
    assert names("train/0[12].tar") == {"train": ["01.tar/00000", "02.tar/00000"]}
    assert names("{train,val}/00.tar") == {"train": ["train/00.tar/00000"], "val": ["val/00.tar/00000"]}
    assert names("*/*.tar")["val"] == ["val/00.tar/00000"]
    assert {split: len(items) for split, items in names("").items()} == {"train": 3, "val": 1}
    with pytest.raises(ConfigError, match=r"'03\.tar': it has 3 tars"):
        names("train/{02..03}.tar")
    with pytest.raises(NotFoundError, match=r"nowhere.*exist"):
        names("nowhere/{02..03}.tar")
    with pytest.raises(ConfigError, match=r"not a pattern: .*expected such as \{00000\.\.00099\}\.tar"):
        names("train/{00..01.tar")


def test_labels_of_foreign_shards(tmp_path: Path) -> None:
    """Numbers in `.cls` keep their meaning, names get numbers in sorted order, and a file can name the numbers."""
    numbers = _foreign(tmp_path / "n.tar", [{"__key__": str(n), "jpg": photo(n), "cls": 2 - n} for n in range(3)])
    texts = _foreign(
        tmp_path / "t.tar", [{"__key__": str(n), "jpg": photo(n), "cls": b"ba"[n : n + 1]} for n in (0, 1)]
    )
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    assert [item.label for item in list_source(numbers).splits["train"]] == [2, 1, 0]
    assert list_source(sf.sources.Shards(numbers, classes=tmp_path / "names.txt")).classes == ("x", "y", "z")
    source = list_source(texts)
    assert (source.classes, [item.label for item in source.splits["train"]]) == (("a", "b"), [1, 0])


def test_labels_in_a_json_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tars without `.cls` whose `.json` has a class are packed without labels, and a warning says so."""
    for name, more in {"plain": {}, "json": {"json": {"label": 3}}, "cls": {"cls": 1, "json": {"label": 3}}}.items():
        _foreign(tmp_path / name / "00.tar", [{**sample, **more} for sample in _samples(2)])
        sf.pack(tmp_path / name, tmp_path / f"{name}-dst", **SMALL)
    (message,) = caplog.messages
    assert "no .cls, so there are no labels; to make classes of 'label' in the .json, pack samples" in message
    assert "json" in message.partition(" has ")[0]


def test_own_dataset(tmp_path: Path) -> None:
    """A dataset of ours keeps splits, classes, labels and order, whether it is there whole or has lost its indexes."""
    make_dataset(tmp_path / "src", {"train": [5, 3], "val": [4]})
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, shard_samples=6)
    old, new = sf.open(tmp_path / "src"), sf.open(tmp_path / "dst")
    assert new.classes == old.classes
    for split in ("train", "val"):
        assert [sample["cls"] for sample in new[split]] == [sample["cls"] for sample in old[split]]
    for index in tmp_path.glob("src/*/*.npy"):
        index.unlink()
    sf.pack(tmp_path / "src", tmp_path / "again", **SMALL, shard_samples=6)
    assert contents(tmp_path / "again") == contents(tmp_path / "dst")


def test_own_dataset_with_other_numbers(tmp_path: Path) -> None:
    """The labels of a dataset of ours, one or several, get the numbers that their names have in a list of classes."""
    images = [{"image": Image.open(io.BytesIO(photo(n))), "label": label} for n, label in enumerate("ab")]
    images += [{"image": Image.open(io.BytesIO(photo(2))), "label": ["b", "a"]}]
    sf.pack(images, tmp_path / "old", **SMALL)
    source = sf.sources.Shards(tmp_path / "old", classes=["b", "c", "a"])
    sf.pack(source, tmp_path / "new", executor="serial", preset="original", shuffle=False)
    old, new = (list(sf.open(tmp_path / name)["train"]) for name in ("old", "new"))
    assert sf.open(tmp_path / "new").classes == ["b", "c", "a"]
    before, after = ([sample.get("cls", sample.get("labels.json")) for sample in samples] for samples in (old, new))
    assert after == [{b"0": b"2", b"1": b"0", b"[0, 1]": b"[0, 2]"}[label] for label in before]
    assert [sample["jpg"] for sample in new] == [sample["jpg"] for sample in old]
    with pytest.raises(ConfigError, match=r"'b',.*1"):
        list_source(sf.sources.Shards(tmp_path / "old", classes=["a"]))


def test_repacking_scales_what_was_scaled(tmp_path: Path) -> None:
    """Annotations of a dataset of ours follow its images a second time, and several labels stay several."""
    image = Image.open(io.BytesIO(photo(1)))
    sample = {"image": image, "label": ["b", "a"], "boxes": [[0, 0, 96, 64]]}
    declared = sf.annotations.Annotations(boxes=sf.annotations.Boxes("json", "boxes", "xyxy"))
    sf.pack([sample], tmp_path / "one", annotations=declared, **SMALL)
    sf.pack(tmp_path / "one", tmp_path / "two", **{**SMALL, "short_side": 16})
    (packed,) = sf.open(tmp_path / "two")["train"]
    assert json.loads(packed["json"])["boxes"] == [[0, 0, 24, 16]]
    assert json.loads(packed["labels.json"]) == [0, 1]
    assert sf.open(tmp_path / "two").classes == ["a", "b"]


def test_damaged_samples_of_our_own(tmp_path: Path) -> None:
    """A payload whose CRC-32 is wrong is quarantined by shard and record; everything else is packed."""
    make_dataset(tmp_path / "src", [6])
    tar = tmp_path / "src" / "train" / "000000.tar"
    flip(tar, *(tar.read_bytes().index(name) + BLOCK for name in (b"000000002.jpg", b"000000004.cls")))
    report = sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, max_errors=2)
    assert (report.inputs, report.packed) == (6, 4)
    assert [row["path"] for row in quarantined(tmp_path / "dst")] == ["train/000000.tar#2", "train/000000.tar#4"]
    assert all("CRC-32" in row["reason"] and row["stage"] == "read" for row in quarantined(tmp_path / "dst"))


def test_incomplete_samples(tmp_path: Path) -> None:
    """A sample without an image is quarantined by its key, and the rest of the shard is packed."""
    tar = _foreign(tmp_path / "src" / "0.tar", [*_samples(2), {"__key__": "none", "txt": "alone"}, *_samples(2, 7)])
    report = sf.pack(tar, tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.inputs, report.packed) == (5, 4)
    (row,) = quarantined(tmp_path / "dst")
    assert (row["path"], row["stage"]) == ("0.tar/none", "read")
    assert row["reason"] == "has no image among its parts: txt"


def test_a_damaged_tar_loses_nothing_silently(tmp_path: Path) -> None:
    """Behind a damaged header nothing can be found, which the quarantine says; the other shards are packed."""
    for shard in range(2):
        tar = _foreign(tmp_path / "src" / f"{shard}.tar", _samples(4, 4 * shard))
    flip(tar, tar.read_bytes().index(b"00006.jpg"))
    report = sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, max_errors=2)
    assert (report.packed, report.quarantined) == (5, 2)
    assert [row["path"] for row in quarantined(tmp_path / "dst")] == ["1.tar", "1.tar/00005"]
    assert "after sample '00005' the tar cannot be read" in quarantined(tmp_path / "dst")[0]["reason"]


def test_images_before_tars(tmp_path: Path) -> None:
    """In a folder with images, tars are other files."""
    _foreign(image_folder(tmp_path / "src", 3) / "a" / "x.tar", _samples(1))
    source = list_source(tmp_path / "src")
    assert (source.inputs, source.skipped, source.ignored) == (3, [], {".tar": 1})


def test_an_index_that_cannot_be_rebuilt(tmp_path: Path) -> None:
    """Where an index is lost and what a tar gives is another, as of a view or of a damaged tar, nothing is packed."""
    src = make_dataset(tmp_path / "src", [6])
    sf.subset(src, tmp_path / "half", limit=3)
    (index,) = (tmp_path / "half").rglob("*.npy")
    index.unlink()
    with pytest.raises(IntegrityError, match=r"000000\.tar: neither"):
        sf.pack(tmp_path / "half", tmp_path / "dst", **SMALL)
    (src / "train/000000.npy").unlink()
    tar = src / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    data[data.index(b"000000002.jpg") + BLOCK] ^= 1
    tar.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"000000\.tar: neither"):
        sf.pack(src, tmp_path / "dst", **SMALL)
    assert not (tmp_path / "dst").exists()


def test_tars_without_labels_are_not_looked_at(tmp_path: Path) -> None:
    """A dataset of ours that has its indexes and no labels is listed without any of its tars."""
    src = make_dataset(tmp_path / "src", [3], labelled=False)
    (src / "train/000000.tar").unlink()
    assert list_source(src).inputs == 3


class _Unlisted(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder by their names alone."""

    def list_directory(self, path: object) -> None:  # noqa: ARG002 - the interface's
        self.send_error(HTTPStatus.FORBIDDEN)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_without_listings(tmp_path: Path) -> None:
    """Braces name the tars of a server that lists none; a name that it does not have is an error."""
    for number in range(3):
        _foreign(tmp_path / f"{number}.tar", _samples(2, 2 * number))
    handler = functools.partial(_Unlisted, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert list_source(f"{url}/{{0..2}}.tar").inputs == 6
        assert list_source(f"{url}/1.tar").inputs == 2
        with pytest.raises(NotFoundError, match=r"3\.tar"):
            list_source(f"{url}/{{2..3}}.tar")
        server.shutdown()


def test_wildcards_mean_tars(tmp_path: Path) -> None:
    """What others leave beside tars is not taken for one, and one tar beside a manifest is that tar alone."""
    for number in range(2):
        _foreign(tmp_path / f"{number}.tar", _samples(2, 2 * number))
    for name in ("0.parquet", "0_stats.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert list_source(f"{tmp_path}/[01]*").inputs == 4
    sf.index(tmp_path)
    assert [item.path for item in list_source(tmp_path / "1.tar").splits["train"]] == ["1.tar/00002", "1.tar/00003"]


@pytest.mark.parametrize("by_index_first", [False, True], ids=["tars first", "index first"])
def test_the_same_tars_by_another_way(tmp_path: Path, by_index_first: bool) -> None:
    """Samples of tars have the same names by a pattern and by an index, so they are packed once, and new ones added."""
    tars, pattern, dst = tmp_path / "tars", str(tmp_path / "tars/*.tar"), tmp_path / "dst"
    _foreign(tars / "00000.tar", [*_samples(3), {**_samples(1, 3)[0], "__key__": "long" * 60}])
    if by_index_first:
        sf.index(tars)
    sf.pack(tars if by_index_first else pattern, dst, **SMALL)
    names = ["00000", "00001", "00002", "long" * 60]
    assert sorted(sf.open(dst)["train"].sources()) == [f"00000.tar/{name}" for name in names]
    if not by_index_first:
        sf.index(tars)
    before = contents(dst)
    report = sf.extend(pattern if by_index_first else tars, dst, executor="serial")
    assert (report.packed, report.known, report.conflicting) == (0, 4, 0)
    assert contents(dst) == before
    _foreign(tars / "00001.tar", _samples(2, 5))
    sf.index(tars, tmp_path / "all")
    report = sf.extend(pattern if by_index_first else tmp_path / "all", dst, executor="serial")
    assert (report.packed, report.known, report.conflicting) == (2, 4, 0)


def test_tars_beside_an_index_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tars that were added after the index was made are not in it: listing the index says so."""
    _foreign(tmp_path / "00000.tar", _samples(3))
    sf.index(tmp_path)
    assert list_source(tmp_path).inputs == 3
    assert not caplog.messages
    _foreign(tmp_path / "00001.tar", _samples(3, 3))
    assert list_source(tmp_path).inputs == 3
    assert "1 tar outside its index: 00001.tar" in caplog.text


def test_an_extension_under_other_names(tmp_path: Path) -> None:
    """Tars that are named from another directory are refused, as are their dry run; "add" packs them all."""
    for number, name in enumerate(("train/0", "train/1", "val/0", "train/2")):
        _foreign(tmp_path / f"team/{name}.tar", _samples(5, 5 * number))
    dst, again = tmp_path / "dst", f"{tmp_path}/team/train/{{0..2}}.tar"
    sf.pack(f"{tmp_path}/team/{{train/{{0..1}},val/0}}.tar", dst, **SMALL)
    before = contents(dst)
    for run in (sf.extend, preview_extension):
        with pytest.raises(
            ConfigError, match=r"10 of 15 .*: '0\.tar/00000' is 'train/0\.tar/00000'.*--on-conflict add"
        ):
            run(again, dst)
    assert contents(dst) == before
    assert sf.extend(again, dst, on_conflict="add", executor="serial").packed == 15


def test_a_key_that_comes_twice_in_a_tar(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both samples are packed, with keys that differ, and a warning says so."""
    first, second = _samples(2)
    _foreign(tmp_path / "a.tar", [first, second, first])
    assert sf.pack(tmp_path / "a.tar", tmp_path / "dst", **SMALL).packed == 3
    assert "1 sample with a repeated key in their tar, such as 'a.tar/00000'" in caplog.text
