from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError, StoreError
from shardflow.storage.local import LocalStorage
from tests.helpers.folders import contents, encoded, image_folder, photo, write_tree
from tests.helpers.making import flip
from tests.helpers.s3_server import Server


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `src` with two bad inputs and `dst`, packed from it in three shards and extended by a fourth."""
    root = tmp_path_factory.mktemp("packed")
    src = write_tree(image_folder(root / "src", 50), {"a/bad.jpg": b"x", "b/worse.jpg": b""})
    sf.pack(src, root / "dst", short_side=32, shard_samples=20, executor="serial", max_errors=2)
    write_tree(src, {f"0/{n}.jpg": photo(n) for n in range(9)})
    sf.extend(src, root / "dst", executor="serial")
    return root


@pytest.fixture
def damaged(packed: Path, tmp_path: Path) -> Path:
    """The dataset with a flipped bit in one tar, without another, a third one cut, and an index that is garbage."""
    dst = shutil.copytree(packed / "dst", tmp_path / "dst")
    flip(dst / "train/000000.tar", 2000)
    (dst / "train/000001.tar").unlink()
    (dst / "train/000001.npy").unlink()
    (dst / "train/000002.npy").write_bytes(b"garbage")
    (dst / "train/000003.tar").write_bytes((dst / "train/000003.tar").read_bytes()[:1000])
    return dst


BROKEN = ("train/000000.tar", "train/000001.tar", "train/000001.npy", "train/000002.npy", "train/000003.tar")


@pytest.mark.parametrize("donor", ["dst", "src"])
def test_repaired(packed: Path, damaged: Path, donor: str) -> None:
    """From a copy, or from the source, which has grown since, exactly the broken files come back, byte for byte."""
    untouched = {path: path.stat().st_mtime_ns for path in damaged.rglob("*") if path.is_file()}
    write_tree(packed / "src", {"c/later.jpg": photo(5)})
    report = sf.repair(damaged, packed / donor, workers=1)
    assert sorted(report.repaired) == sorted(BROKEN)
    assert (report.failed, report.left) == ({}, ())
    assert {finding.file for finding in report.found} == set(BROKEN)
    assert contents(damaged) == contents(packed / "dst")
    kept = [path for path in untouched if path.relative_to(damaged).as_posix() not in BROKEN]
    assert all(path.stat().st_mtime_ns == untouched[path] for path in kept)


def test_index_alone(damaged: Path) -> None:
    """Without anything to repair from, indexes are made anew from their shards, and the rest is still reported."""
    report = sf.repair(damaged)
    assert report.repaired == ("train/000002.npy",)
    assert set(report.failed) == {"train/000000.tar", "train/000001.tar", "train/000003.tar"}
    assert "name a copy of the dataset" in report.failed["train/000000.tar"]
    assert {finding.file for finding in report.left} == set(BROKEN) - {"train/000002.npy"}


def test_what_is_not_what_was_packed_is_not_accepted(packed: Path, damaged: Path, tmp_path: Path) -> None:
    """A damaged copy, changed or missing inputs and a lost receipt repair nothing, and each is said."""
    copy = shutil.copytree(packed / "dst", tmp_path / "copy")
    (copy / "train/000000.tar").write_bytes((damaged / "train/000000.tar").read_bytes())
    report = sf.repair(damaged, copy)
    assert list(report.failed) == ["train/000000.tar"]
    assert "expected SHA-256" in report.failed["train/000000.tar"]
    first, second = (json.loads((damaged / f"train/00000{n}.json").read_bytes())["sources"] for n in (0, 1))
    src = shutil.copytree(packed / "src", tmp_path / "src")
    (damaged / "train/000001.tar").unlink()
    (src / first[0]).unlink()
    (src / second[0]).write_bytes((src / second[1]).read_bytes().ljust((src / second[0]).stat().st_size, b"\0")[:-1])
    report = sf.repair(damaged, src)
    assert f"the source has no {first[0]!r}" in report.failed["train/000000.tar"]
    assert f"{second[0]!r} is not the input from which" in report.failed["train/000001.tar"]
    shutil.copytree(packed / "src", src, dirs_exist_ok=True)
    same_size = photo(7).ljust((src / first[0]).stat().st_size, b"\0")[: (src / first[0]).stat().st_size]
    (src / first[0]).write_bytes(same_size)
    (damaged / "train/000001.json").unlink()
    report = sf.repair(damaged, src)
    assert f"{first[0]!r} is not the input from which train/000000.tar was packed" in report.failed["train/000000.tar"]
    assert "000001.json does not exist" in report.failed["train/000001.tar"]
    assert report.repaired == ()


def test_a_source_with_files_that_look_like_masks(tmp_path: Path) -> None:
    """A dataset that was packed with each file as an image is repaired from its folder by name."""
    src = write_tree(tmp_path / "src", {"a/1.jpg": photo(1), "a/1.png": encoded(Image.new("RGB", (40, 40)), "PNG")})
    sf.pack(sf.sources.Folder(src, parts=()), tmp_path / "dst", executor="serial")
    (tmp_path / "dst/train/000000.tar").unlink()
    report = sf.repair(tmp_path / "dst", src, workers=1)
    assert (report.repaired, report.left) == (("train/000000.tar",), ())


def test_receipts_and_quarantine(packed: Path, tmp_path: Path) -> None:
    """Lost receipts and a lost quarantine come back from a copy, and then damaged shards from their source."""
    dst = shutil.copytree(packed / "dst", tmp_path / "dst")
    before = contents(dst)
    (dst / "train/000000.json").unlink()
    (dst / "train/000001.json").write_bytes(b"garbage")
    flip(dst / "train/000002.tar", 2000)
    (listed,) = dst.glob("quarantine-*.jsonl")
    listed.write_bytes(b"garbage")
    assert sf.repair(dst, packed / "src", workers=1).repaired == ("train/000002.tar",)
    report = sf.repair(dst, packed / "dst")
    assert sorted(report.repaired) == sorted([listed.name, "train/000000.json", "train/000001.json"])
    assert (report.left, contents(dst)) == ((), before)


def test_a_quarantine_of_receipts(packed: Path, tmp_path: Path) -> None:
    """Without a copy, a lost quarantine is made of the receipts, which have the same entries."""
    dst = shutil.copytree(packed / "dst", tmp_path / "dst")
    (listed,) = dst.glob("quarantine-*.jsonl")
    before = listed.read_bytes()
    listed.write_bytes(b"garbage")
    report = sf.repair(dst)
    assert (report.repaired, report.left) == ((listed.name,), ())
    assert listed.read_bytes() == before


def test_sound_dataset(packed: Path) -> None:
    """Repairing an intact dataset does nothing, and does not even open the source."""
    before = contents(packed / "dst")
    report = sf.repair(packed / "dst", packed / "nowhere")
    assert (report.found, report.repaired) == ((), ())
    assert contents(packed / "dst") == before


def test_wrong_number_of_workers(packed: Path, damaged: Path) -> None:
    """A number of workers that cannot be is refused before anything is read."""
    with pytest.raises(ConfigError, match="workers must be 1 or more, found -1"):
        sf.repair(damaged, packed / "src", workers=-1)


def test_several_captions_of_an_image(tmp_path: Path) -> None:
    """Of several rows with one path, those that were packed are found by what the receipt says of their content."""
    src = image_folder(tmp_path, 3)
    rows = "".join(f"{path},{text}\n" for path in ("a/0000.jpg", "b/0001.jpg") for text in ("one", "two"))
    (src / "t.csv").write_text(f"path,text\n{rows}")
    sf.pack(sf.sources.Table(src / "t.csv", caption="text"), tmp_path / "dst", short_side=32, executor="serial")
    (tmp_path / "dst/train/000000.tar").unlink()
    whole = shutil.copytree(tmp_path / "dst", tmp_path / "whole")
    copies = shutil.copytree(src, tmp_path / "copies", ignore=shutil.ignore_patterns("dst", "whole"))
    assert sf.repair(tmp_path / "dst", sf.sources.Table(src / "t.csv", caption="text"), workers=1).left == ()
    assert sf.repair(whole, sf.sources.Table(copies / "t.csv", caption="text"), workers=1).left == ()
    (copies / "t.csv").write_text((src / "t.csv").read_text().replace("one", "two").replace("two", "three", 1))
    (whole / "train/000000.tar").unlink()
    report = sf.repair(whole, sf.sources.Table(copies / "t.csv", caption="text"), workers=1)
    assert "has 2 inputs" in report.failed["train/000000.tar"]
    assert "train/000000.tar was packed from none of them" in report.failed["train/000000.tar"]


def test_one_writer_at_a_time(damaged: Path, packed: Path) -> None:
    """A dataset that is being written to is not repaired meanwhile."""
    with LocalStorage(damaged).exclusive_writer(), pytest.raises(StoreError, match="another process is writing"):
        sf.repair(damaged, packed / "dst")


def test_bucket(packed: Path, damaged: Path, server: Server, prefix: str) -> None:
    """A dataset in a bucket is repaired from a directory, and a directory from a bucket."""
    url, options, storage = server.url(prefix), server.options(), server.storage(prefix)
    sf.sync(packed / "dst", url, dst_options=options)
    assert len(sf.repair(damaged, url, source_options=options).repaired) == 5
    storage.put("train/000000.tar", b"not a tar")
    report = sf.repair(url, packed / "dst", storage_options=options)
    assert report.repaired == ("train/000000.tar",)
    assert sf.verify(url, storage_options=options) == []


def test_command(packed: Path, damaged: Path) -> None:
    """`verify --repair FROM` names the files that it repaired and those that it could not; 0: all are intact."""
    alone = CliRunner().invoke(shardflow, ["verify", str(damaged), "--repair"], standalone_mode=False)
    assert alone.return_value == 1
    assert "repaired: train/000002.npy\n" in alone.output
    assert "not repaired: train/000000.tar: train/000000.tar is lost" in alone.output
    arguments = ["verify", "--json", "--repair", str(packed / "dst"), str(damaged)]
    whole = CliRunner().invoke(shardflow, arguments, standalone_mode=False)
    assert whole.return_value == 0
    told = json.loads(whole.stdout)
    assert told["ok"] is True
    assert set(told["repaired"]) == set(BROKEN) - {"train/000002.npy"}
