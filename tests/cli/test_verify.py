"""`shardflow verify`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from shardflow.cli.verify import verify
from shardflow.formats import shard_index
from tests.helpers.command import run
from tests.helpers.making import flip, make_dataset


def damage(dataset: Path, shard: str, record: int) -> None:
    """Flip one bit in the middle of a member of a sample."""
    path = dataset / shard
    index, _ = shard_index.build(memoryview(path.read_bytes()))
    row = index[index["record"] == record][-1]
    flip(path, int(row["offset"]) + int(row["size"]) // 2)


def test_an_undamaged_dataset_exits_0(tmp_path: Path) -> None:
    """One line says that there is no damage, and how much was read."""
    answer = CliRunner().invoke(verify, [str(make_dataset(tmp_path / "data", [5, 7]))])
    assert answer.exit_code == 0
    assert "no damage: 2 shards, 12 samples, " in answer.output


def test_every_flipped_bit_is_named(tmp_path: Path) -> None:
    """Damage in two shards is reported with shard and sample, one finding per line, and the exit code is 1."""
    dataset = make_dataset(tmp_path / "data", [5, 7])
    damage(dataset, "train/000000.tar", 3)
    damage(dataset, "train/000001.tar", 0)
    answer = run("verify", dataset)
    assert answer.returncode == 1
    lines = answer.stdout.splitlines()
    for place in ("train/000000.tar, sample 000000003: ", "train/000001.tar, sample 000000005: "):
        assert [line for line in lines if line.startswith(place) and "crc32" in line]
    assert lines[-1].startswith("damaged: 4 findings in 2 files")
    assert len(lines) == 5


def test_json_lists_the_findings(tmp_path: Path) -> None:
    """`--json` prints one object and nothing else, with the same exit code."""
    dataset = make_dataset(tmp_path / "data", [5])
    damage(dataset, "train/000000.tar", 3)
    answer = run("verify", dataset, "--json")
    assert answer.returncode == 1
    assert not answer.stderr
    checked = json.loads(answer.stdout)
    assert (checked["shards"], checked["samples"], checked["sound"]) == (1, 5, False)
    assert {finding["file"] for finding in checked["findings"]} == {"train/000000.tar"}
    assert {finding["key"] for finding in checked["findings"]} == {None, "000000003"}
