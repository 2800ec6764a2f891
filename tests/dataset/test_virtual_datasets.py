"""Every operation on a virtual dataset works, or refuses with a clear message."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.dataset.warming import warm
from shardflow.dataset.write_lock import FILE_NAME as LOCK
from shardflow.errors import ConfigError, IntegrityError, NotFoundError
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.energon import write_energon
from shardflow.storage.local import LocalStorage
from tests.helpers.folders import contents, image_folder, write_tree
from tests.helpers.making import flip, jpeg, make_dataset
from tests.helpers.tars import members_of, write_tar


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A virtual dataset of two splits over the same tars of a dataset in `set`."""
    dataset = make_dataset(tmp_path / "set", [12, 9])
    sf.split(dataset, tmp_path / "virtual", val=0.3)
    return tmp_path / "virtual"


def test_verify_reports_damage(virtual: Path, tmp_path: Path) -> None:
    """`verify` reports a damaged sample by key, in the split that has it; also a damaged index and a missing tar."""
    dataset = sf.open(virtual)
    tar = tmp_path / "set/train/000000.tar"
    sample = dataset["val"].reader.members(0, 0)[-1]
    flip(tar, sample.offset + 5)
    findings = sf.verify(virtual)
    key = sample.name.partition(".")[0]
    assert [(finding.file, finding.key) for finding in findings if finding.key] == [("val/0/train/000000.tar", key)]
    assert {finding.file for finding in findings} == {"train/0/train/000000.tar", "val/0/train/000000.tar"}
    with pytest.raises(IntegrityError, match="is damaged"):
        sf.open(virtual)["val"][0]
    flip(virtual / "val/0/train/000001.npy", 300)
    assert any(finding.file == "val/0/train/000001.npy" for finding in sf.verify(virtual))
    tar.unlink()
    assert any("does not exist" in finding.problem for finding in sf.verify(virtual))


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_lost_index_of_whole_tars(tmp_path: Path, damage: str) -> None:
    """Of an index of tars, `verify` names the lost file alone, and `repair` rebuilds it; a lost tar stays lost."""
    for name in ("0.tar", "1.tar"):
        write_tar(tmp_path / name, [*members_of(range(3)), ("é.jpg", jpeg(7)), ("é.cls", b"1")])
    sf.index(tmp_path)
    index = tmp_path / "train/0/1.npy"
    before = index.read_bytes()
    (index.unlink if damage == "missing" else lambda: flip(index, 300, 400))()
    (finding,) = sf.verify(tmp_path)
    assert re.fullmatch(r"train/0/1\.npy: .*; --repair rebuilds it if its tar has no other samples", str(finding))
    report = sf.repair(tmp_path)
    assert (report.repaired, report.left, index.read_bytes()) == (("train/0/1.npy",), (), before)
    with pytest.raises(ConfigError, match="was made by `shardflow index` from tars; without FROM, --repair rebuilds"):
        sf.repair(tmp_path, tmp_path)
    (tmp_path / "0.tar").unlink()
    assert "restore them, or index again" in sf.repair(tmp_path).failed["train/0/0.tar"]


def test_a_lost_index_of_some_samples(virtual: Path) -> None:
    """The lost index of a split is named with a remedy by readers, `verify` and `repair`; its tar is not accused."""
    index = virtual / "val/0/train/000001.npy"
    index.unlink()
    remedy = "make the dataset again in a new place"
    with pytest.raises(IntegrityError, match=rf"the tar is intact, but its index {index} is missing or .*{remedy}"):
        list(sf.open(virtual)["val"])
    (finding,) = sf.verify(virtual)
    assert finding.file == "val/0/train/000001.npy"
    assert remedy in sf.repair(virtual).failed["val/0/train/000001.tar"]
    shown = CliRunner().invoke(shardflow, ["verify", str(virtual)]).output
    assert "rebuilds indexes of whole tars\n" in shown
    shown = CliRunner().invoke(shardflow, ["verify", str(virtual), "--repair"]).output
    assert re.search(rf"damaged: 1 finding in 1 file, .*; restore it from a copy, or {remedy}", shown)


def test_missing_root(virtual: Path, tmp_path: Path) -> None:
    """If the tars have moved, opening the view says where they were; a missing tar alone is named when it is read."""
    tar = tmp_path / "set/train/000000.tar"
    tar.rename(tmp_path / "elsewhere.tar")
    with pytest.raises(NotFoundError, match=r"set/train/000000\.tar does not exist"):
        sf.open(virtual)["train"][0]
    (tmp_path / "set").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match=rf"{tmp_path}/set, .*moved.*`shardflow index`, `subset`"):
        sf.open(virtual)


def test_purged_root(tmp_path: Path) -> None:
    """Loader, `sources`, `verify` and `info` say of a tar that `remove --purge` deleted what happened, and a remedy."""
    image_folder(tmp_path / "src", 3)
    sf.pack(tmp_path / "src", tmp_path / "set", executor="serial", short_side=8)
    sf.split(tmp_path / "set", tmp_path / "sub", val=0.4)
    sf.remove(tmp_path / "set", keys=["000000000"], purge=True)
    reason = r"set/train/000000\.tar is gone: since .*/sub was .*`remove --purge` ran there; make it again \(`shardf"
    with pytest.raises(NotFoundError, match=reason):
        next(iter(sf.Loader(tmp_path / "sub", batch_size=2, num_workers=0)))
    with pytest.raises(NotFoundError, match=reason):
        sf.open(tmp_path / "sub")["train"].sources()
    assert all(re.search(reason, str(finding)) for finding in sf.verify(f"local://{tmp_path}/sub"))
    shown = CliRunner().invoke(shardflow, ["info", str(tmp_path / "sub")])
    assert re.search(rf"tars +[\d.]+ kB, not all of which are left, .*\nmissing +1 tar: .*{reason}", shown.output)
    shown = CliRunner().invoke(shardflow, ["verify", str(tmp_path / "sub")])
    assert shown.output.count("000000.tar") == shown.output.count("is gone") == 2, shown.output
    assert "2 findings in 1 file, of 1 tar, 3 samples" in shown.output


def test_tar_gone_from_its_index(tmp_path: Path) -> None:
    """A tar that is gone from an index next to its tars is not taken for a purged one: restore it, or index again."""
    for name in ("0.tar", "1.tar"):
        write_tar(tmp_path / name, members_of(range(3)))
    sf.index(tmp_path)
    (tmp_path / "1.tar").unlink()
    shown = CliRunner().invoke(shardflow, ["info", str(tmp_path)])
    assert "is gone" not in shown.output
    with pytest.raises(
        NotFoundError, match=r"1\.tar does not exist; restore it, or make the dataset .* again without it"
    ):
        sf.open(tmp_path)["train"][3]


def test_sync_copies_the_tars(virtual: Path, tmp_path: Path) -> None:
    """The copy of a virtual dataset has each tar once, the same fingerprint and samples, and needs no other dataset."""
    expected = [sample["jpg"] for split in sf.open(virtual).values() for sample in split]
    report = sf.sync(virtual, tmp_path / "copy")
    assert (report.copied, report.found) == (2, 0)
    assert sf.sync(virtual, tmp_path / "copy").found == 2
    assert report.fingerprint == sf.open(virtual).fingerprint
    (tmp_path / "set").rename(tmp_path / "gone")
    sf.sync(tmp_path / "copy", tmp_path / "again")
    for copy in (tmp_path / "copy", tmp_path / "again"):
        assert len(list(copy.rglob("*.tar"))) == 2
        assert [sample["jpg"] for split in sf.open(copy).values() for sample in split] == expected
        assert sf.verify(copy) == []
    assert contents(tmp_path / "copy") == contents(tmp_path / "again")


def test_killed_sync_continues(virtual: Path, tmp_path: Path) -> None:
    """A sync that was killed is continued: whole tars are used, half a tar is removed."""
    sf.sync(virtual, tmp_path / "copy")
    expected = contents(tmp_path / "copy")
    (tmp_path / "copy/shardflow.json").unlink()
    (tmp_path / "copy/bases/0/train/000001.tar").unlink()
    (tmp_path / "copy/.tmp-train-0-train-000001.tar.abcdef01").write_bytes(b"half")
    LocalStorage(tmp_path / "copy").put(LOCK, b'{\n "content": "%b"\n}\n' % sf.open(virtual).fingerprint.encode())
    report = sf.sync(virtual, tmp_path / "copy")
    assert (report.copied, report.found) == (1, 1)
    assert contents(tmp_path / "copy") == expected


def test_refusals(virtual: Path, tmp_path: Path) -> None:
    """Repair and extension are refused, and exports for readers that would see samples outside the dataset."""
    with pytest.raises(ConfigError, match=rf"no shards; repair {tmp_path}/set$"):
        sf.repair(virtual, tmp_path / "set")
    with pytest.raises(ConfigError, match=r"extend the dataset of these tars.*`split --keep "):
        sf.extend(image_folder(tmp_path / "src", 3), virtual)
    with pytest.raises(ConfigError, match="shardflow pack"):
        list(write_energon(sf.open(virtual)))
    with pytest.raises(ConfigError, match="nothing to cache"):
        warm(sf.open(virtual).values())


def test_pack_and_dali(virtual: Path, tmp_path: Path) -> None:
    """A virtual dataset can be packed, so that Energon reads tars of its samples alone, and exported for DALI."""
    sf.pack(sf.sources.Shards(virtual), tmp_path / "packed", short_side=32, executor="serial")
    assert {name: len(split) for name, split in sf.open(tmp_path / "packed").items()} == {"train": 15, "val": 6}
    assert list(write_energon(sf.open(tmp_path / "packed")))
    indexes = list(write_dali_indexes(sf.open(virtual), tmp_path / "dali"))
    assert [int(path.read_text().split()[1]) for path in indexes] == [
        shard.samples for split in sf.open(virtual).values() for shard in split.shards
    ]


def test_useless_options(virtual: Path, tmp_path: Path) -> None:
    """storage_options for directories are refused, with and without roots."""
    for url in (virtual, tmp_path / "set"):
        with pytest.raises(ConfigError, match=r"storage_options.*place"):
            sf.open(url, storage_options={"anon": True})


def test_sync_of_tars_with_like_names(tmp_path: Path) -> None:
    """Tars whose names differ in a slash alone are copied at the same time, each under its own name."""
    tars = tmp_path / "tars"
    for number, name in enumerate(("x-y.tar", "x/y.tar", "x-y-z.tar", "x/y-z.tar", "x/y/z.tar")):
        write_tar(tars / name, members_of(range(9 * number, 9 * number + 9)))
    sf.index(tars, tmp_path / "virtual")
    assert sf.sync(tmp_path / "virtual", tmp_path / "copy").copied == 5
    assert sf.verify(tmp_path / "copy") == []
    assert not [*(tmp_path / "copy").rglob(".tmp-*")]


def test_a_refused_sync_removes_nothing(virtual: Path, tmp_path: Path) -> None:
    """Where another copy is unfinished, its files stay, and so do those of the user that only look unfinished."""
    copy = tmp_path / "copy"
    mine = {".tmp-notes": b"mine", ".tmp-x.abcdef01": b"half", LOCK: b'{"content": "other"}\n'}
    write_tree(copy, mine)
    with pytest.raises(ConfigError, match=r"inputs.*settings"):
        sf.sync(virtual, copy)
    assert contents(copy) == mine
    (copy / LOCK).unlink()
    (copy / ".tmp-x.abcdef01").unlink()
    with pytest.raises(ConfigError, match="not empty"):
        sf.sync(virtual, copy)
    assert contents(copy) == {".tmp-notes": b"mine"}


def test_a_later_version_of_the_base_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A split of a dataset that was changed since keeps its samples, and says so once in a process."""
    for number in range(12):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / f"{number}.jpg").write_bytes(jpeg(number))
    sf.pack(tmp_path / "src", tmp_path / "set", short_side=16, executor="serial")
    sf.split(tmp_path / "set", tmp_path / "virtual", val=0.3)
    sf.open(tmp_path / "virtual")
    assert not caplog.messages
    sf.remove(tmp_path / "set", keys=["000000002"])
    for _ in range(2):
        sf.open(tmp_path / "virtual")
    (message,) = caplog.messages
    assert "has an earlier version of ../set, whose samples have changed since; to have them, make this" in message
    sf.split(tmp_path / "set", tmp_path / "second", val=0.3)
    keys = [sample["__key__"] for sample in sf.open(tmp_path / "set")["train"]]
    sf.columns.add(tmp_path / "set", pa.table({"key": keys, "score": [0.5] * 11}), key="key")
    sf.open(tmp_path / "second")
    assert "second has an earlier version of ../set, whose columns have changed since" in caplog.messages[1]


def test_sync_of_an_earlier_version(tmp_path: Path) -> None:
    """A copy has one version, the newest or a named one; the command says which stay behind, and `info` lists them."""
    for number in range(3):
        (tmp_path / f"{'ab'[number > 1]}").mkdir(exist_ok=True)
        (tmp_path / f"{'ab'[number > 1]}" / f"{number}.jpg").write_bytes(jpeg(number))
    dataset, options = tmp_path / "set", {"executor": "serial"}
    first = sf.pack(tmp_path / "a", dataset, short_side=16, **options).fingerprint  # type: ignore[arg-type]
    second = sf.extend(tmp_path / "b", dataset, **options).fingerprint  # type: ignore[arg-type]
    said = CliRunner().invoke(shardflow, ["sync", str(dataset), str(tmp_path / "newest")]).output
    assert f"not copied: 1 earlier version, such as {first}; --version copies one" in said
    third = sf.remove(dataset, keys=["train:000000000"]).fingerprint
    found = re.findall(
        "earlier .*(sha256:.*), replaced 2.*00:00", CliRunner().invoke(shardflow, ["info", str(dataset)]).output
    )
    assert found == [second, first]
    assert first not in CliRunner().invoke(shardflow, ["info", str(tmp_path / "newest")]).output
    for name, version in (("old", first), ("new", second), ("newest2", third)):
        said = CliRunner().invoke(shardflow, ["sync", str(dataset), str(tmp_path / name), "--version", version]).output
        assert "earlier" not in said
        assert sf.open(tmp_path / name).fingerprint == version
        assert sf.verify(tmp_path / name) == []
    assert len(sf.open(tmp_path / "old")["train"]) == 2
    with pytest.raises(NotFoundError, match="a copy by `shardflow sync` has only one version"):
        sf.open(tmp_path / "newest", version=first)
