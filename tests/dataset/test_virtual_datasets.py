"""What everything else does with a view: it works, or refuses in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from shardflow.dataset.warming import warm
from shardflow.errors import ConfigError, IntegrityError, NotFoundError
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.energon import write_energon
from shardflow.interop.wids import write_wids
from shardflow.storage.local import LocalStorage
from shardflow.storage.write_lock import FILE_NAME as LOCK
from tests.helpers.folders import contents, image_folder
from tests.helpers.making import flip, make_dataset


@pytest.fixture
def view(tmp_path: Path) -> Path:
    """A view of two splits over the same tars of a dataset in `set`."""
    dataset = make_dataset(tmp_path / "set", [12, 9])
    sf.split(dataset, tmp_path / "view", val=0.3)
    return tmp_path / "view"


def test_verify_names_what_is_damaged(view: Path, tmp_path: Path) -> None:
    """A damaged sample is named in the split that has it, by its key; a damaged index and a missing tar as well."""
    dataset = sf.open(view)
    tar = tmp_path / "set/train/000000.tar"
    sample = dataset["val"].shard(0).members(0)[-1]
    flip(tar, sample.offset + 5)
    findings = sf.verify(view)
    key = sample.name.partition(".")[0]
    assert [(finding.file, finding.key) for finding in findings if finding.key] == [("val/0/train/000000.tar", key)]
    assert {finding.file for finding in findings} == {"train/0/train/000000.tar", "val/0/train/000000.tar"}
    with pytest.raises(IntegrityError, match="is damaged"):
        sf.open(view)["val"][0]
    flip(view / "val/0/train/000001.npy", 300)
    assert any(finding.file == "val/0/train/000001.npy" for finding in sf.verify(view))
    tar.unlink()
    assert any("does not exist" in finding.problem for finding in sf.verify(view))


def test_a_base_that_is_gone(view: Path, tmp_path: Path) -> None:
    """Where the tars are no longer, reading says which file was looked for."""
    (tmp_path / "set").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match=r"set/train/000000\.tar does not exist"):
        sf.open(view)["train"][0]


def test_sync_copies_the_tars_along(view: Path, tmp_path: Path) -> None:
    """The copy of a view has each tar once, needs nothing else, has the same fingerprint and samples; so its copy."""
    expected = [sample["jpg"] for split in sf.open(view).values() for sample in split]
    report = sf.sync(view, tmp_path / "copy")
    assert (report.copied, report.found) == (2, 0)
    assert sf.sync(view, tmp_path / "copy").found == 2
    assert report.fingerprint == sf.open(view).fingerprint
    (tmp_path / "set").rename(tmp_path / "gone")
    sf.sync(tmp_path / "copy", tmp_path / "again")
    for copy in (tmp_path / "copy", tmp_path / "again"):
        assert len(list(copy.rglob("*.tar"))) == 2
        assert [sample["jpg"] for split in sf.open(copy).values() for sample in split] == expected
        assert sf.verify(copy) == []
    assert contents(tmp_path / "copy") == contents(tmp_path / "again")


def test_a_copy_that_was_killed_goes_on(view: Path, tmp_path: Path) -> None:
    """What a killed sync of a view has left, half a tar among it, is cleared away or used."""
    sf.sync(view, tmp_path / "copy")
    expected = contents(tmp_path / "copy")
    (tmp_path / "copy/shardflow.json").unlink()
    (tmp_path / "copy/bases/0/train/000001.tar").unlink()
    (tmp_path / "copy/.tmp-train-0-train-000001.tar").write_bytes(b"half")
    LocalStorage(tmp_path / "copy").put(LOCK, b'{\n "content": "%b"\n}\n' % sf.open(view).fingerprint.encode())
    report = sf.sync(view, tmp_path / "copy")
    assert (report.copied, report.found) == (1, 1)
    assert contents(tmp_path / "copy") == expected


def test_what_a_view_refuses(view: Path, tmp_path: Path) -> None:
    """Repairing and extending belong to the base; readers that take whole tars would see what is not in the view."""
    with pytest.raises(ConfigError, match=r"has no shards of its own; repair \.\./set"):
        sf.repair(view, tmp_path / "set")
    with pytest.raises(ConfigError, match="does not say how its inputs were cut"):
        sf.extend(image_folder(tmp_path / "src", 3), view)
    for write in (write_energon, write_wids):
        with pytest.raises(ConfigError, match="no shards of its own"):
            list(write(sf.open(view)))
    with pytest.raises(ConfigError, match="nothing to be cached"):
        warm(sf.open(view).values())


def test_packing_and_dali_take_a_view(view: Path, tmp_path: Path) -> None:
    """A view is a source for packing, for when its samples are to have tars of their own, and DALI has its indexes."""
    sf.pack(sf.Shards(view), tmp_path / "packed", short_side=32, executor="serial")
    assert {name: len(split) for name, split in sf.open(tmp_path / "packed").items()} == {"train": 15, "val": 6}
    indexes = list(write_dali_indexes(sf.open(view), tmp_path / "dali"))
    assert [int(path.read_text().split()[1]) for path in indexes] == [
        shard.samples for split in sf.open(view).values() for shard in split.shards
    ]


def test_options_without_a_use(view: Path, tmp_path: Path) -> None:
    """storage_options for directories are refused, with and without bases."""
    for url in (view, tmp_path / "set"):
        with pytest.raises(ConfigError, match="storage_options are for one place"):
            sf.open(url, storage_options={"anon": True})
