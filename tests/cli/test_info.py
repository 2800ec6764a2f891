"""`shardflow info`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import shardflow
from making import make_dataset
from shardflow import native
from shardflow.cli.info import info
from shardflow.manifest import FILE_NAME, Manifest, from_bytes


def test_lists_what_the_manifest_says(tmp_path: Path) -> None:
    """Splits, counts, classes and fingerprint are printed in aligned lines."""
    dataset = make_dataset(tmp_path / "data", {"train": [5, 7], "val": [3]})
    result = CliRunner().invoke(info, [str(dataset)])
    assert result.exit_code == 0
    rows = [line[13:].split() for line in result.output.splitlines()]
    assert ["train", "12", "samples", "2", "shards"] in [row[:5] for row in rows]
    assert ["val", "3", "samples", "1", "shards"] in [row[:5] for row in rows]
    assert ["all", "15", "samples", "3", "shards"] in [row[:5] for row in rows]
    assert "12: class0, class1, class2, class3, class4, class5, class6, class7, ..." in result.output
    assert shardflow.open(dataset).fingerprint in result.output


def test_json_holds_the_same(tmp_path: Path) -> None:
    """`--json` prints one object with every figure."""
    dataset = make_dataset(tmp_path / "data", [5, 7])
    described = json.loads(CliRunner().invoke(info, [str(dataset), "--json"]).output)
    size = sum(path.stat().st_size for path in dataset.glob("train/*.tar"))
    assert described["splits"] == {"train": {"samples": 12, "shards": 2, "bytes": size}}
    assert (described["samples"], described["shards"], described["bytes"]) == (12, 2, size)
    assert described["bytes_per_image"] == round(size / 12)
    assert described["classes"] == [f"class{n}" for n in range(12)]
    assert (described["inputs"], described["quarantined"]) == (12, 0)
    assert described["fingerprint"] == shardflow.open(dataset).fingerprint


def test_shows_how_a_dataset_was_made(tmp_path: Path) -> None:
    """Recipe, channel means and deviations, quarantined inputs and tools are printed; absent labels are said to be."""
    dataset = make_dataset(tmp_path / "data", [4], labelled=False)
    splits = from_bytes((dataset / FILE_NAME).read_bytes()).splits
    made = Manifest(
        splits=splits,
        inputs=6,
        recipe={"short_side": 256, "enlarge": False},
        mean=(0.5, 0.25, 0.125),
        std=(0.1, 0.2, 0.3),
        tools={"shardflow": "0.1.0"},
    )
    (dataset / FILE_NAME).write_bytes(made.to_bytes())
    output = CliRunner().invoke(info, [str(dataset)]).output
    for expected in (
        "none: the samples have no labels",
        "short_side 256",
        "enlarge no",
        "0.5000  0.2500  0.1250",
        "0.1000  0.2000  0.3000",
        "6, of which 2 quarantined",
        "shardflow 0.1.0",
    ):
        assert expected in output


def test_reads_the_manifest_alone(tmp_path: Path) -> None:
    """A dataset whose shards are out of reach can still be described."""
    dataset = make_dataset(tmp_path / "data", [4])
    for path in dataset.glob("train/*"):
        path.unlink()
    assert CliRunner().invoke(info, [str(dataset)]).exit_code == 0


def test_system_says_whether_the_kernel_is_active() -> None:
    """`--system` needs no dataset and names the versions and the native kernel's state."""
    described = json.loads(CliRunner().invoke(info, ["--system", "--json"]).output)
    assert described["shardflow"] == shardflow.__version__
    assert described["native kernel"].startswith("libjpeg-turbo" if native.available() else "not active: ")
    assert described["torch"].split(".")[0].isdigit()


def test_dataset_and_system_exclude_each_other(tmp_path: Path) -> None:
    """Neither or both of URL and `--system` is wrong usage."""
    for arguments in ([], [str(tmp_path), "--system"]):
        assert CliRunner().invoke(info, arguments).exit_code == 2
