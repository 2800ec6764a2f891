"""`shardflow export`."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardflow
from shardflow.cli.export import export
from shardflow.errors import ConfigError
from shardflow.interop.dali import write_dali_indexes
from tests.helpers.making import jpeg, make_dataset, write_dataset


def expected_index(tar: Path) -> str:
    """The index that DALI's own script would write, computed with tarfile."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            directory, slash, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            parts = samples.setdefault(directory + slash + stem, [])
            parts.append(f"{extension} {member.offset_data} {member.size} {member.name}")
    return "\n".join([f"v1.2 {len(samples)}", *map(" ".join, samples.values())]) + "\n"


def test_dali_indexes_say_where_every_member_lies(tmp_path: Path) -> None:
    """One index per shard of every split, with the offsets that tarfile finds, beside the shards; twice is the same."""
    dataset = make_dataset(tmp_path / "set", {"train": [5, 7], "val": [3]})
    for _ in range(2):
        answer = CliRunner().invoke(export, ["dali", str(dataset)])
        assert (answer.exit_code, answer.stdout) == (0, f"wrote 3 index files to {dataset}\n")
    for name in ("train/000000", "train/000001", "val/000000"):
        assert (dataset / f"{name}.idx").read_text() == expected_index(dataset / f"{name}.tar")
    assert not shardflow.verify(dataset)


def test_dali_indexes_may_go_elsewhere(tmp_path: Path) -> None:
    """With a directory, the files go there and the dataset does not change."""
    dataset = make_dataset(tmp_path / "set", [5])
    before = sorted(dataset.rglob("*"))
    assert CliRunner().invoke(export, ["dali", str(dataset), str(tmp_path / "indexes")]).exit_code == 0
    assert (tmp_path / "indexes/train/000000.idx").read_text() == expected_index(dataset / "train/000000.tar")
    assert sorted(dataset.rglob("*")) == before


def test_names_that_dali_cannot_read_are_refused(tmp_path: Path) -> None:
    """A member whose name has a blank would shift the columns; the error names it."""
    dataset = write_dataset(tmp_path / "set", {"train": [[("a b", {"jpg": jpeg(1)})]]})
    with pytest.raises(ConfigError, match=r"'a b\.jpg'"):
        [*write_dali_indexes(shardflow.open(dataset))]
