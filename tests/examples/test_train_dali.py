from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

import shardflow
from shardflow.cli.export import export
from tests.helpers.scripts import run


def test_dali_reads_every_sample_once_by_the_exported_index(dataset: Path, tmp_path: Path) -> None:
    """DALI's reader takes the shards with the index files that were exported, and an epoch has every sample."""
    indexes = tmp_path / "indexes"
    assert CliRunner().invoke(export, ["dali", str(dataset), str(indexes)]).exit_code == 0
    printed = run("train_dali.py", dataset, "--indexes", indexes, "--batch-size", 16, "--size", 16)
    assert re.match(r"67 samples, loss \d+\.\d+", printed)


def test_dali_goes_by_the_index(dataset: Path, tmp_path: Path) -> None:
    """An index that names another place is what DALI reads, so that the example tries what was exported."""
    indexes = tmp_path / "indexes"
    assert CliRunner().invoke(export, ["dali", str(dataset), str(indexes)]).exit_code == 0
    index = indexes / "train" / "000000.idx"
    lines = index.read_text().splitlines()
    index.write_text("\n".join([lines[0].replace("20", "19", 1), *lines[1:-1]]) + "\n")
    printed = run("train_dali.py", dataset, "--indexes", indexes, "--batch-size", 16, "--size", 16)
    assert printed.startswith("66 samples")


def test_dali_reads_a_subset_whose_tars_lie_elsewhere(dataset: Path, tmp_path: Path) -> None:
    """A subset trains without the rest, from the tars of the whole."""
    shardflow.subset(dataset, tmp_path / "some", limit=30)
    assert CliRunner().invoke(export, ["dali", str(tmp_path / "some")]).exit_code == 0
    printed = run("train_dali.py", tmp_path / "some", "--batch-size", 16, "--size", 16)
    assert printed.startswith("30 samples")
