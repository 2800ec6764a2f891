from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from PIL import Image

import shardflow as sf
from shardflow import native
from shardflow.errors import ConfigError, DatasetExistsError, FormatError, PackIncompleteError, StoreError
from shardflow.formats.manifest import Manifest, from_bytes
from shardflow.packing.executors import Serial
from shardflow.packing.ledger import Ledger
from shardflow.packing.progress import Progress
from shardflow.packing.recipe import Recipe, settings
from shardflow.reports import PackReport
from tests.helpers.folders import contents, encoded, image_folder, photo, quarantined, write_tree
from tests.helpers.jobs import jobs_of, run_jobs
from tests.helpers.kernel import without_kernel

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial"}
BROKEN = {"a/html.jpg": b"<html></html>", "b/cut.jpg": photo(1)[:700], "b/empty.png": b""}


def _manifest(dst: Path) -> Manifest:
    return from_bytes((dst / "shardflow.json").read_bytes())


def _receipts(dst: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(dst.glob("*/*.json"))]


def test_layout_on_disk(tmp_path: Path) -> None:
    """A dataset is its manifest, the list of the quarantined, and tar, index and receipt per shard: nothing else."""
    report = sf.pack(image_folder(tmp_path / "src", 25), tmp_path / "dst", shard_samples=10, **SMALL)
    shards = {f"train/{n:06}.{extension}" for n in range(3) for extension in ("tar", "npy", "json")}
    assert set(contents(tmp_path / "dst")) == shards | {"shardflow.json", "quarantine.jsonl"}
    manifest = _manifest(tmp_path / "dst")
    assert [shard.samples for shard in manifest.splits["train"]] == [10, 10, 5]
    assert manifest.classes == ("a", "b", "c")
    assert manifest.fingerprint == report.fingerprint
    assert manifest.recipe["short_side"] == 32
    assert not sf.verify(tmp_path / "dst")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_tar_and_webdataset_read_every_sample(tmp_path: Path) -> None:
    """Plain `tar` lists the members and plain `webdataset` reads every sample, with the label of its folder."""
    src = image_folder(tmp_path / "src", 25)
    sf.pack(src, tmp_path / "dst", **SMALL)
    tar = tmp_path / "dst" / "train" / "000000.tar"
    listed = subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True).stdout.split()
    assert listed == [f"{n:09}.{part}" for n in range(25) for part in ("cls", "jpg")]
    sources = _receipts(tmp_path / "dst")[0]["sources"]
    samples = list(wds.WebDataset(str(tar), shardshuffle=False, empty_check=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [f"{n:09}" for n in range(25)]
    assert ["abc"[sample["cls"]] for sample in samples] == [source[0] for source in sources]
    assert {sample["jpg"].size for sample in samples} == {(48, 32)}
    assert sorted(sources) == sorted(path.relative_to(src).as_posix() for path in src.rglob("*.jpg"))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_splits_and_unlabelled(tmp_path: Path) -> None:
    """Each split has its own shards and keys, and samples without a label have no `.cls`."""
    names = [f"train/{n}.jpg" for n in range(3)] + [f"val/{n}.jpg" for n in range(2)]
    write_tree(tmp_path / "src", {name: photo(n) for n, name in enumerate(names)})
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL)
    manifest = _manifest(tmp_path / "dst")
    assert {split: [s.samples for s in shards] for split, shards in manifest.splits.items()} == {
        "train": [3],
        "val": [2],
    }
    assert manifest.classes is None
    samples = wds.WebDataset(str(tmp_path / "dst" / "val" / "000000.tar"), shardshuffle=False, empty_check=False)
    assert [sorted(sample) for sample in samples] == [["__key__", "__local_path__", "__url__", "jpg"]] * 2


def test_receipt_has_what_was_read(tmp_path: Path) -> None:
    """A receipt has size and digest of each input as the format says: of the image, its label and its other parts."""
    src = write_tree(tmp_path / "src", {"a/1.jpg": photo(1), "a/1.txt": b"one", "b/2.jpg": b"bad", "b/2.txt": b""})
    sf.pack(sf.sources.Folder(src, parts=("txt",)), tmp_path / "dst", **SMALL, shuffle=False, max_errors=1)
    sf.pack(write_tree(tmp_path / "flat", {"1.jpg": photo(1)}), tmp_path / "flat dst", **SMALL)
    (receipt,), (flat,) = _receipts(tmp_path / "dst"), _receipts(tmp_path / "flat dst")
    read = photo(1) + b"\x000" + b"\0txt\x003\0one", b"bad" + b"\x001" + b"\0txt\x000\0"
    assert (receipt["version"], receipt["sizes"]) == (2, [len(photo(1)), 3])
    assert receipt["contents"] == "".join(hashlib.sha256(data).hexdigest()[:16] for data in read)
    assert flat["contents"] == hashlib.sha256(photo(1)).hexdigest()[:16]
    assert len(receipt["identities"]) == 32


def test_shuffle(tmp_path: Path) -> None:
    """The seed decides the order of the inputs, and without a shuffle they are sorted by path."""
    src = image_folder(tmp_path / "src", 30)

    def order(name: str, **settings: Any) -> list[str]:
        sf.pack(src, tmp_path / name, **SMALL, **settings)
        sources: list[str] = _receipts(tmp_path / name)[0]["sources"]
        return sources

    first, other, plain = order("0"), order("1", seed=1), order("plain", shuffle=False)
    assert plain == sorted(plain)
    assert sorted(first) == sorted(other) == plain
    assert len({tuple(first), tuple(other), tuple(plain)}) == 3


def test_only_training_inputs_are_shuffled(tmp_path: Path) -> None:
    """Other splits have the order of the source, so that predictions in order are those of its files or rows."""
    folder = image_folder(tmp_path / "test", 30)
    sf.pack(folder, tmp_path / "one", **SMALL)
    sources = sf.open(tmp_path / "one")["test"].sources()
    assert sources == sorted(sources)
    rows = [{"path": path, "split": split} for split in ("train", "val") for path in reversed(sources)]
    table = tmp_path / "t.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    sf.pack(sf.sources.Table(table, images=folder), tmp_path / "two", **SMALL)
    made = sf.open(tmp_path / "two")
    assert made["val"].sources() == sources[::-1] != made["train"].sources()
    assert sorted(made["train"].sources()) == sorted(sources)


def test_key_is_the_slot(tmp_path: Path) -> None:
    """A sample's key does not depend on what became of the inputs before it."""
    src = image_folder(tmp_path / "src", 12)
    sf.pack(src, tmp_path / "whole", **SMALL)
    (src / "b" / "0004.jpg").write_bytes(b"x" * (src / "b" / "0004.jpg").stat().st_size)
    sf.pack(src, tmp_path / "lacking", **SMALL, max_errors=1)
    whole, lacking = sf.open(tmp_path / "whole")["train"], sf.open(tmp_path / "lacking")["train"]
    images = {sample["__key__"]: sample["jpg"] for sample in whole}
    rest = {sample["__key__"]: sample["jpg"] for sample in lacking}
    assert len(rest) == 11
    assert rest.items() <= images.items()


def test_accounting(tmp_path: Path) -> None:
    """Every input is either packed or quarantined by name, stage and reason; inputs are their sum."""
    src = write_tree(image_folder(tmp_path / "src", 20), BROKEN)
    (src / "c" / "gone.jpg").symlink_to("nothing")
    report = sf.pack(src, tmp_path / "dst", **SMALL, max_errors=4, shard_samples=7)
    assert (report.inputs, report.packed, report.quarantined) == (24, 20, 4)
    assert sum(report.reasons.values()) == 4
    stages = {row["path"]: row["stage"] for row in quarantined(tmp_path / "dst")}
    assert list(stages.items()) == [*dict.fromkeys(BROKEN, "decode").items(), ("c/gone.jpg", "read")]
    assert all(row["reason"] for row in quarantined(tmp_path / "dst"))
    ledger = [path for receipt in _receipts(tmp_path / "dst") for path in receipt["sources"]]
    ledger += [bad["path"] for receipt in _receipts(tmp_path / "dst") for bad in receipt["quarantined"]]
    assert sorted(ledger) == sorted(path.relative_to(src).as_posix() for path in src.glob("*/*"))
    assert _manifest(tmp_path / "dst").inputs == 24


def test_too_many_bad_inputs(tmp_path: Path) -> None:
    """Beyond `max_errors` nothing is committed, the message names the inputs and the way on; a second run takes it."""
    src = write_tree(image_folder(tmp_path / "src", 20), BROKEN)
    with pytest.raises(PackIncompleteError, match=r"3.*23.*'a/html\.jpg'.*--max-errors 3"):
        sf.pack(src, tmp_path / "dst", **SMALL, max_errors=2)
    assert not (tmp_path / "dst" / "shardflow.json").exists()
    assert len(quarantined(tmp_path / "dst")) == 3
    report = sf.pack(src, tmp_path / "dst", **SMALL, max_errors=3)
    assert (report.resumed, report.packed, report.quarantined) == (23, 20, 3)


def test_mended_inputs(tmp_path: Path) -> None:
    """The next run packs what was repaired and drops what was removed; its bytes are those of a first run."""
    src = write_tree(image_folder(tmp_path / "src", 20), BROKEN)
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **SMALL)
    write_tree(src, {"a/html.jpg": photo(3), "b/cut.jpg": photo(4)})
    (src / "b" / "empty.png").unlink()
    report = sf.pack(src, tmp_path / "dst", **SMALL)
    assert (report.inputs, report.packed) == (22, 22)
    sf.pack(src, tmp_path / "fresh", **SMALL)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")


def test_shard_without_a_sample(tmp_path: Path) -> None:
    """A shard of which no input could be packed has a receipt and no tar, and the dataset goes on without it."""
    files = {"0.jpg": b"bad", "1.jpg": b"bad", "2.jpg": photo(1), "3.jpg": photo(2)}
    write_tree(tmp_path / "src", files)
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, shuffle=False, shard_samples=2, max_errors=2)
    assert [shard.name for shard in _manifest(tmp_path / "dst").splits["train"]] == ["train/000001.tar"]
    assert {name for name in contents(tmp_path / "dst") if "000000" in name} == {"train/000000.json"}
    assert not sf.verify(tmp_path / "dst")


def test_nothing_packed(tmp_path: Path) -> None:
    """A dataset without a single sample is not committed, even if `max_errors` allows it."""
    write_tree(tmp_path / "src", {"1.jpg": b"no image"})
    with pytest.raises(PackIncompleteError, match=r"input.*packed"):
        sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL, max_errors=5)


def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    """A pack whose manifest readers would refuse fails, and makes no dataset."""

    class Wrong(sf.sources.Folder):
        def list(self) -> sf.sources.Source:
            listed = sf.sources.Folder.list(self)
            splits = {split: items.relabelled(lambda label: label == 0) for split, items in listed.splits.items()}
            return replace(listed, splits=splits)

    with pytest.raises(FormatError, match="statistics"):
        sf.pack(Wrong(image_folder(tmp_path / "src", 3)), tmp_path / "dst", executor="serial")
    assert not (tmp_path / "dst" / "shardflow.json").exists()


def test_dataset_is_never_overwritten(tmp_path: Path) -> None:
    """A destination that holds a dataset is refused and left as it is, but for a killed commit's leftover."""
    src = image_folder(tmp_path / "src", 5)
    sf.pack(src, tmp_path / "dst", **SMALL)
    before = contents(tmp_path / "dst")
    write_tree(tmp_path / "dst", {".tmp-shardflow.json.12345678": b"left by a kill at the commit"})
    with pytest.raises(DatasetExistsError, match=r"dataset; .*`shardflow extend"):
        sf.pack(src, tmp_path / "dst", **SMALL, seed=1)
    assert contents(tmp_path / "dst") == before


@pytest.mark.parametrize("name", ["notes.txt", "train/000000.tar", ".tmp-mine", "train/.tmp-mine"])
def test_foreign_files_are_left_alone(tmp_path: Path, name: str) -> None:
    """A directory with other files is refused, even where they are named like a pack's."""
    src = image_folder(tmp_path / "src", 5)
    write_tree(tmp_path / "dst", {name: b"precious"})
    with pytest.raises(ConfigError, match="which no pack wrote"):
        sf.pack(src, tmp_path / "dst", **SMALL)
    assert contents(tmp_path / "dst") == {name: b"precious"}


def test_leftovers_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    """A resume removes what earlier attempts left half done or planned otherwise, and nothing else."""
    src = write_tree(image_folder(tmp_path / "src", 20), BROKEN)
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **SMALL, shard_samples=4)
    write_tree(tmp_path / "dst", {"train/.tmp-000000.tar.12345678": b"half", "notes.txt": b"mine"})
    sf.pack(src, tmp_path / "dst", **SMALL, shard_samples=50, max_errors=3)
    shard = {"train/000000.tar", "train/000000.npy", "train/000000.json"}
    assert set(contents(tmp_path / "dst")) == shard | {"shardflow.json", "quarantine.jsonl", "notes.txt"}


def _stopped(src: Path, dst: Path, **settings: Any) -> PackReport:
    """Pack all shards but commit nothing, then pack again and return what the second run says."""
    (src / "zzz.jpg").write_bytes(b"bad")
    with pytest.raises(PackIncompleteError):
        sf.pack(src, dst, **SMALL, shard_samples=10, shuffle=False)
    return sf.pack(src, dst, **{**SMALL, "shard_samples": 10, "shuffle": False, "max_errors": 9, **settings})


def test_classes_that_training_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class with images in `val` alone is named, whether a pack or an extension brings it; one in `train` is not."""
    names = ("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "val/c/4.jpg")
    src = write_tree(tmp_path / "src", {name: photo(number) for number, name in enumerate(names)})
    sf.pack(src, tmp_path / "dst", **SMALL)
    assert caplog.messages == ["1 class has images in other splits, but none in train: c"]
    caplog.clear()
    write_tree(src, {"train/c/5.jpg": photo(5), "val/d/6.jpg": photo(6), "val/e/7.jpg": photo(7)})
    sf.extend(src, tmp_path / "dst", executor="serial")
    assert caplog.messages == ["2 classes have images in other splits, but none in train: d, e"]


def test_classes_that_a_test_set_numbers_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dataset without `train` may number its classes otherwise than a model: a warning, unless they are given.

    An extension takes the numbers of its dataset, so nothing is said.
    """
    src = write_tree(tmp_path / "src", {f"test/{name}/{name}.jpg": photo(3) for name in "bc"})
    sf.pack(src, tmp_path / "dst", **SMALL)
    assert "only the split test is packed, so classes are numbered by its labels, from 'b' as 0" in caplog.text
    caplog.clear()
    sf.pack(sf.sources.Folder(src, classes=("a", "b", "c")), tmp_path / "given", **SMALL)
    write_tree(tmp_path / "more", {"test/c/4.jpg": photo(4)})
    sf.extend(tmp_path / "more", tmp_path / "given", executor="serial")
    rows = write_tree(tmp_path / "rows", {"1.jpg": photo(1), "test.csv": b"path,label\n1.jpg,3\n"})
    sf.pack(rows / "test.csv", tmp_path / "numbers", **SMALL)
    assert "numbered by" not in caplog.text


def _flat(root: Path) -> Path:
    return write_tree(root, {f"{n:02}.jpg": photo(n) for n in range(29)})


def test_resume_with_other_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another recipe, size of shards or order is no resume: all is done again, as in an empty directory, and said."""
    src = _flat(tmp_path / "src")
    changes: list[dict[str, Any]] = [{"quality": 80}, {"shuffle": True}, {"shard_samples": 11}]
    assert _stopped(src, tmp_path / "same").resumed == 30
    assert not caplog.records
    for number, change in enumerate(changes):
        report = _stopped(src, tmp_path / str(number), **change)
        assert report.resumed == 0
        assert caplog.records[-1].message.startswith(f"3 finished shards of {tmp_path / str(number)} packed again")
        fresh = {**SMALL, "shard_samples": 10, "shuffle": False, "max_errors": 9, **change}
        sf.pack(src, tmp_path / f"fresh{number}", **fresh)
        assert contents(tmp_path / str(number)) == contents(tmp_path / f"fresh{number}")


@pytest.mark.skipif(not native.available(), reason=native.describe())
def test_resume_with_another_decoder(tmp_path: Path) -> None:
    """A pack that was begun with the kernel and goes on without it starts anew: no dataset mixes the two."""
    src = _flat(tmp_path / "src")
    (src / "zzz.jpg").write_bytes(b"bad")
    settings: dict[str, Any] = {**SMALL, "shard_samples": 10}
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **settings)
    with without_kernel():
        assert sf.pack(src, tmp_path / "dst", **settings, max_errors=1).resumed == 0
        sf.pack(src, tmp_path / "fresh", **settings, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")
    assert _manifest(tmp_path / "dst").tools["kernel"] == "none"


def _touch_with_clock_behind(src: Path, dst: Path) -> None:
    """Touch an input after the clock was set back: all that was written before seems to be younger."""
    for path in dst.rglob("*"):
        os.utime(path, (time.time() + 3600,) * 2)
    (src / "04.jpg").write_bytes((src / "04.jpg").read_bytes())


def _swap(one: Path, other: Path) -> None:
    """Swap the names of two inputs."""
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


DISTURBANCES: dict[str, Callable[[Path, Path], object]] = {
    "touched": lambda src, _: (src / "04.jpg").write_bytes((src / "04.jpg").read_bytes()),
    "clock that was ahead": lambda src, dst: _touch_with_clock_behind(src, dst),
    "names swapped": lambda src, _: _swap(src / "03.jpg", src / "04.jpg"),
    "old copy": lambda src, _: os.utime(src / "04.jpg", (1, 1)),
    "cut tar": lambda _, dst: os.truncate(dst / "train/000000.tar", 5000),
    "lost index": lambda _, dst: (dst / "train/000000.npy").unlink(),
    "broken receipt": lambda _, dst: (dst / "train/000000.json").write_text('{"version": 1}'),
}


@pytest.mark.parametrize("case", DISTURBANCES)
def test_jobs_that_are_done_again(tmp_path: Path, case: str) -> None:
    """A job whose inputs were touched or whose files are not whole is done again, alone."""
    src = write_tree(_flat(tmp_path / "src"), {"zzz.jpg": b"bad"})
    settings: dict[str, Any] = {**SMALL, "shard_samples": 10, "shuffle": False}
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **settings)
    time.sleep(0.02)  # the clock of the file system ticks every few milliseconds
    DISTURBANCES[case](src, tmp_path / "dst")
    assert sf.pack(src, tmp_path / "dst", **settings, max_errors=1).resumed == 20
    sf.pack(src, tmp_path / "fresh", **settings, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")


def test_link_that_leads_to_an_older_tree(tmp_path: Path) -> None:
    """A resume packs nothing of the tree that a link led to before, though the other is older and as large."""
    for number, version in enumerate(("v2", "v1")):
        pictures = {f"{n:02}.bmp": encoded(Image.new("RGB", (9, 9), (n, number, 0)), "BMP") for n in range(20)}
        write_tree(tmp_path / version, {**pictures, "zzz.jpg": b"bad"})
    link = tmp_path / "src"
    link.symlink_to("v1")
    settings: dict[str, Any] = {**SMALL, "shard_samples": 10, "shuffle": False}
    with pytest.raises(PackIncompleteError):
        sf.pack(link, tmp_path / "dst", **settings)
    link.unlink()
    link.symlink_to("v2")
    assert sf.pack(link, tmp_path / "dst", **settings, max_errors=1).resumed == 0
    sf.pack(tmp_path / "v2", tmp_path / "fresh", **settings, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "fresh")


def test_receipt_never_vouches_for_another_tar(tmp_path: Path) -> None:
    """A pack that stopped between a tar and its receipt does not spoil the resume of one with older settings."""
    src = write_tree(tmp_path / "src", {"1.jpg": photo(1, 8, 8), "zzz.jpg": b"bad"})
    dst, index = tmp_path / "dst", tmp_path / "dst" / "train" / "000000.npy"
    with pytest.raises(PackIncompleteError):
        sf.pack(src, dst, **SMALL)
    first, rows = contents(dst)["train/000000.tar"], index.read_bytes()
    index.unlink()
    (index / "in the way").mkdir(parents=True)
    with pytest.raises(StoreError):
        sf.pack(src, dst, **SMALL, quality=89)
    (index / "in the way").rmdir()
    index.rmdir()
    index.write_bytes(rows)
    other = contents(dst)["train/000000.tar"]
    assert other != first
    assert len(other) == len(first)
    sf.pack(src, dst, **SMALL, max_errors=1)
    assert contents(dst)["train/000000.tar"] == first


def test_unreadable_inputs_are_tried_again(tmp_path: Path) -> None:
    """A job with an input that could not be read is done again when it can, though it looks the same, or fails
    otherwise: a disk came back. Until then it stays."""
    src = write_tree(tmp_path / "src", {"a/1.jpg": photo(1), "b/2.jpg": photo(2)})
    ledger = Ledger(tmp_path / "dst")
    jobs = jobs_of(src, tmp_path / "dst", Recipe(), 1)
    (src / "b").rename(tmp_path / "away")
    run_jobs(Serial(), jobs)

    def finished() -> list[str]:
        return sorted(job.items[0].path for job in jobs if ledger.finished(job) is not None)

    assert finished() == ["a/1.jpg", "b/2.jpg"]
    (src / "b").write_bytes(b"a file")
    assert finished() == ["a/1.jpg"]
    (src / "b").unlink()
    (tmp_path / "away").rename(src / "b")
    assert jobs_of(src, tmp_path / "dst", Recipe(), 1) == jobs
    assert finished() == ["a/1.jpg"]


def test_odd_names(tmp_path: Path) -> None:
    """Names of any kind are packed, leave no trace in the shard, and are named exactly in the receipt."""
    names = ["dots.in.the.name.jpg", "two  spaces .jpg", "ünï☃.JPG", "line\nbreak.jpg", "quote'\"`$(x).jpg"]
    names += ["n" * 251 + ".jpg", "Case.jpg", "case.jpg", os.fsdecode(b"not\xffutf8.jpg")]
    src = write_tree(tmp_path / "src", {f"класс .1/{name}": photo(n) for n, name in enumerate(names)})
    assert sf.pack(src, tmp_path / "dst", **SMALL).packed == len(names)
    assert sorted(_receipts(tmp_path / "dst")[0]["sources"]) == sorted(f"класс .1/{name}" for name in names)
    assert _manifest(tmp_path / "dst").classes == ("класс .1",)
    keys = [sample["__key__"] for sample in sf.open(tmp_path / "dst")["train"]]
    assert keys == [f"{n:09}" for n in range(len(names))]


NO_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_are_the_same_in_any_locale(tmp_path: Path) -> None:
    """Where Python would decode names by an ASCII locale, every file of a dataset is what it is under UTF-8."""
    files = {f"{name}/{n} ☃.jpg": photo(n) for n, name in enumerate(("é", "ü", "é", "z"))}
    src = write_tree(tmp_path / "src é", {**files, "é/bäd.jpg": b"bad", "é/" + os.fsdecode(b"\xff.jpg"): photo(4)})
    rows = "".join(f"src é/{name},{name[0]}\n" for name in files)
    write_tree(tmp_path, {"té.csv": f"path,größe\n{rows}".encode(), "klé.txt": "ü\né\nz\n".encode()})
    with tarfile.open(tmp_path / "7é.tar", "w") as tar:
        tar.add(src / "z", "ö")
    (tmp_path / "script.py").write_text(
        "import sys, shardflow as s\n"
        "from shardflow.sources import Shards, Table\n"
        "sources = sys.argv[2], Table('té.csv', label='größe', classes='klé.txt'), Shards('7é.tar'),"
        " [(sys.argv[2] + '/z/3 ☃.jpg', 'é')]\n"
        "for number, src in enumerate(sources):\n"
        "    s.pack(src, f'{sys.argv[1]}/{number}é', short_side=32, max_errors=1,"
        " executor='serial' if number else 'processes', workers=1)\n"
    )
    for dst, locale in (("here", {}), ("there", NO_LOCALE)):
        command = [sys.executable, "script.py", dst, "src é"]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, **locale}, check=True, timeout=60)
    found = contents(tmp_path / "here")
    assert sum(name.endswith("shardflow.json") for name in found) == 4
    assert contents(tmp_path / "there") == found


def test_progress(tmp_path: Path) -> None:
    """Progress begins with what was done before, ends with everything, and never goes back."""
    src = image_folder(tmp_path / "src", 100)
    seen: list[Progress] = []
    report = sf.pack(src, tmp_path / "dst", short_side=32, workers=2, shard_samples=40, progress=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[0].done, seen[-1].done, seen[-1].inputs) == (0, 100, 100)
    assert seen[-1].bytes_in == report.bytes_in == sum(path.stat().st_size for path in src.rglob("*.jpg"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_interrupt_says_how_to_resume(tmp_path: Path) -> None:
    """The traceback of Ctrl-C, as a notebook shows it, ends with a note that the same call resumes."""

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        sf.pack(image_folder(tmp_path / "src", 2), tmp_path / "dst", executor="serial", progress=stop)
    assert vars(stopped.value).get("__notes__") == [
        "shardflow: stopped; finished work is kept: run the same call again to resume"
    ]


def test_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With `progress=True` a bar shows how many images are done; without, nothing is printed."""
    monkeypatch.setattr("shardflow.packing.progress.LOG_S", 0)
    src = image_folder(tmp_path / "src", 30)
    for number, shown in enumerate((True, False, None)):
        sf.pack(src, tmp_path / f"{number}", executor="serial", progress=shown)
        assert ("packing: 100%" in (said := capsys.readouterr().err) and "30/30" in said) is bool(shown)
        assert shown or not said


def test_statistics(tmp_path: Path) -> None:
    """The manifest's mean and deviation are those of all pixels of all packed images."""
    grey = io.BytesIO()
    Image.new("RGB", (30, 10), (51, 102, 255)).save(grey, "PNG")
    write_tree(tmp_path / "src", {"1.png": grey.getvalue(), "2.png": grey.getvalue()})
    sf.pack(tmp_path / "src", tmp_path / "dst", **SMALL)
    manifest = _manifest(tmp_path / "dst")
    assert manifest.mean == (0.2, 0.4, 1.0)
    assert manifest.std == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"workers": 0}, {"shard_samples": 0}, {"max_errors": -1}, {"executor": "threads"}, {"quality": 0}),
        *({"workers": "2"}, {"shard_samples": "64"}, {"max_errors": "3"}, {"seed": None}, {"short_side": "256"}),
    ],
)
def test_arguments_are_checked_first(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A wrong argument is named before anything is read or written."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} (is|must be) "):
        sf.pack(tmp_path / "src", tmp_path / "dst", **wrong)
    assert not (tmp_path / "dst").exists()


def test_an_unknown_argument(tmp_path: Path) -> None:
    """A mistyped setting is refused with the one that was meant."""
    with pytest.raises(ConfigError, match=r"'shortside'.*'short_side'\?\)"):
        sf.pack(tmp_path / "src", tmp_path / "dst", shortside=3)  # type: ignore[call-arg]


def test_settings_are_those_of_the_recipe() -> None:
    """Each setting of a recipe is an argument of `pack`, which the preset decides on unless it is given."""
    arguments = inspect.signature(sf.pack).parameters
    assert {name for name in arguments if arguments[name].default == "preset"} == {*settings()}


def test_a_file_in_place_of_the_destination(tmp_path: Path) -> None:
    """A destination that is a file is named as such, and the disk is not blamed."""
    src = write_tree(tmp_path, {"src/1.jpg": photo(1), "notes.txt": b""}) / "src"
    with pytest.raises(StoreError, match=r"notes\.txt.*directory"):
        sf.pack(src, tmp_path / "notes.txt", **SMALL)


def test_arrays_of_several_kinds_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Arrays that differ in bits or channels bring a warning, from `extend` too, until one kind is left."""
    src, dst = tmp_path / "src", tmp_path / "dst"
    shapes: dict[str, Any] = {"a": (np.uint8, (40, 50)), "b": (np.uint8, (50, 40)), "c": (np.uint16, (40, 50))}
    for name, (dtype, shape) in shapes.items():
        write_tree(src, {f"{name}.png": encoded(Image.fromarray(np.full(shape, 77, dtype)), "PNG")})
    sf.pack(src, dst, format="npy", executor="serial")
    assert "images differ in bits or channels: 1 of 16 bits in 1 channel, 2 of 8 bits in 1 channel;" in caplog.text
    sf.remove(dst, where="source = 'c.png'")
    caplog.clear()
    more = write_tree(tmp_path / "more", {"d.png": encoded(Image.fromarray(np.zeros((9, 9), np.uint8)), "PNG")})
    sf.extend(more, dst, executor="serial")
    assert "differ" not in caplog.text
    rgb = write_tree(tmp_path / "rgb", {"e.png": encoded(Image.fromarray(np.zeros((9, 9, 3), np.uint8)), "PNG")})
    sf.extend(rgb, dst, executor="serial")
    assert "3 of 8 bits in 1 channel, 1 of 8 bits in 3 channels" in caplog.text


@pytest.mark.parametrize("kind", ["TIFF", "PNG"])
def test_images_of_12_bits_in_16_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Values below a quarter of the range of 16 bits bring a warning with their number; black ones do not."""
    for number, highest in enumerate((4095, 16383, 16384, 65535, 0)):
        ramp = np.linspace(0, highest, 64 * 48).reshape(48, 64).astype(np.uint16)
        write_tree(tmp_path / "src", {f"{number}.{kind.lower()}": encoded(Image.fromarray(ramp), kind)})
    report = sf.pack(tmp_path / "src", tmp_path / "dst", short_side=32, executor="serial")
    assert report.counts["dark_16_bits"] == 2
    assert "2 images of 16 bits with values below a quarter of their range" in caplog.text
    caplog.clear()
    sf.pack(tmp_path / "src", tmp_path / "exact", format="npy", executor="serial")
    assert "16 bits" not in caplog.text
