"""`shardflow verify`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

import shardflow
from shardflow.cli import main
from shardflow.cli.verify import verify
from shardflow.formats import shard_index
from tests.helpers.command import run
from tests.helpers.folders import image_folder, photo, write_tree
from tests.helpers.making import flip, make_dataset
from tests.helpers.tars import TarInMemory


def damage(dataset: Path, shard: str, record: int) -> None:
    """Flip one bit in the middle of a member of a sample."""
    path = dataset / shard
    index, _ = shard_index.build(TarInMemory(path.read_bytes()))
    row = index[index["record"] == record][-1]
    flip(path, int(row["offset"]) + int(row["size"]) // 2)


def test_an_undamaged_dataset_exits_0(tmp_path: Path) -> None:
    """One line says that there is no damage, and how much was read."""
    answer = CliRunner().invoke(verify, [str(make_dataset(tmp_path / "data", [5, 7]))])
    assert answer.exit_code == 0
    assert "no damage: 2 shards, 12 samples, " in answer.output


def test_repair_before_the_dataset(tmp_path: Path) -> None:
    """Where `--repair` takes the dataset for FROM, the message has the command in its right order."""
    dataset = str(make_dataset(tmp_path / "data", [5]))
    for arguments in (["verify", "--repair", dataset], ["verify", f"--repair={dataset}"]):
        answer = run(*arguments)
        assert answer.returncode == 2
        assert f"--repair took '{dataset}' as FROM; write `shardflow verify {dataset} --repair`" in answer.stderr
    assert "give the URL of a dataset" in run("verify", "--repair").stderr


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


def test_much_damage_in_one_file(tmp_path: Path) -> None:
    """Of a file with many findings, the first are shown and the others counted; the JSON has all."""
    dataset = make_dataset(tmp_path / "data", [20])
    for record in range(20):
        damage(dataset, "train/000000.tar", record)
    answer = CliRunner().invoke(verify, [str(dataset)])
    assert answer.output.count("train/000000.tar, sample ") == 2
    assert "train/000000.tar: 18 more findings" in answer.output
    assert len(json.loads(CliRunner().invoke(verify, [str(dataset), "--json"]).output)["findings"]) == 21


def test_what_repair_refuses_is_not_advised(tmp_path: Path) -> None:
    """A subset is repaired where its tars are; an index of tars of others is made again."""
    dataset = make_dataset(tmp_path / "data", [5])
    shardflow.subset(dataset, tmp_path / "some", limit=3)
    shutil.copytree(dataset, tmp_path / "tars", ignore=shutil.ignore_patterns("*.json", "*.npy"))
    shardflow.index(tmp_path / "tars", tmp_path / "index")
    for tar in (dataset / "train/000000.tar", tmp_path / "tars/train/000000.tar"):
        flip(tar, 2000)
    some, index = (CliRunner().invoke(verify, [str(tmp_path / name)]).output for name in ("some", "index"))
    assert "--repair" not in some + index
    assert f"repair {dataset}" in some
    assert "`shardflow index`" in index


def test_a_comparison_with_the_source(tmp_path: Path) -> None:
    """--source says how many images were compared, names those that differ, and then exits with 1."""
    src, dst = image_folder(tmp_path / "src", 6), tmp_path / "dst"
    shardflow.pack(src, dst, short_side=32, executor="serial")
    answer = CliRunner().invoke(main.shardflow, ["verify", str(dst)], standalone_mode=False)
    assert "not checked: whether images and labels are the intended ones; --source SRC" in answer.stdout
    answer = run("verify", dst, "--source", src, "--images", 4)
    assert (answer.returncode, answer.stdout.splitlines()[0]) == (
        0,
        f"as its source: 6 labels and 4 of 6 images compared with {src}",
    )
    assert answer.stdout.splitlines()[1].endswith(" s")
    assert "not checked" not in answer.stdout
    write_tree(src, {"a/0003.jpg": photo(9)})
    answer = CliRunner().invoke(main.shardflow, ["verify", str(dst), "--source", str(src)], standalone_mode=False)
    assert answer.return_value == 1
    lines = answer.stdout.splitlines()
    assert "part 'jpg' differs from the part that is packed from 'a/0003.jpg'" in lines[0]
    assert lines[1] == f"not as its source: 1 finding in 6 labels and 6 of 6 images compared with {src}"
    assert lines[2].startswith("no damage: ")
    assert lines[2].endswith(" s; but not as its source")
    elsewhere = image_folder(tmp_path / "elsewhere/src", 6).parent
    answer = CliRunner().invoke(main.shardflow, ["verify", str(dst), "--source", str(elsewhere)], standalone_mode=False)
    hint = f"none of them is in {elsewhere}: --source takes the same SRC as `pack`, not a folder in or above it"
    assert answer.stdout.splitlines()[-2] == hint
    arguments = ["verify", "--json", str(dst), "--source", str(src)]
    told = json.loads(CliRunner().invoke(main.shardflow, arguments, standalone_mode=False).stdout)
    assert (told["ok"], told["labels"], told["compared"], len(told["findings"])) == (False, 6, 6, 1)
    damage(dst, "train/000000.tar", 2)
    answer = CliRunner().invoke(main.shardflow, ["verify", str(dst), "--source", str(src)], standalone_mode=False)
    assert f"0 of 6 images compared with {src}; damaged shards are left out" in answer.stdout


def test_inputs_that_the_dataset_lacks(tmp_path: Path) -> None:
    """Removed and new inputs of the source are counted; quarantined ones are not, nor is a finding made of them."""
    src, dst = write_tree(image_folder(tmp_path / "src", 6), {"a/bad.jpg": b"\xff\xd8"}), tmp_path / "dst"
    shardflow.pack(src, dst, short_side=32, executor="serial", max_errors=1)
    first = run("verify", dst, "--source", src, "--json")
    assert json.loads(first.stdout)["inputs_without_sample"] == []
    shardflow.remove(dst, keys=["000000001"])
    write_tree(src, {"a/zz.jpg": photo(9)})
    answer = run("verify", dst, "--source", src)
    assert answer.returncode == 0
    assert "\nnot in the dataset: 2 inputs of its source, such as 'a/" in answer.stdout
    damage(dst, shardflow.open(dst).shards[0].name, 2)
    damaged = run("verify", dst, "--source", src, "--json")
    assert (damaged.returncode, json.loads(damaged.stdout)["inputs_without_sample"]) == (1, [])


def test_images_without_a_source(tmp_path: Path) -> None:
    """--images is refused where there is no --source to compare with."""
    answer = run("verify", make_dataset(tmp_path / "data", [1]), "--images", 5)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--images needs --source" in answer.stderr


def test_json_lists_the_findings(tmp_path: Path) -> None:
    """`--json` prints one object and nothing else, with the same exit code."""
    dataset = make_dataset(tmp_path / "data", [5])
    damage(dataset, "train/000000.tar", 3)
    answer = run("verify", dataset, "--json")
    assert answer.returncode == 1
    assert not answer.stderr
    checked = json.loads(answer.stdout)
    assert (checked["shards"], checked["samples"], checked["ok"]) == (1, 5, False)
    assert {finding["file"] for finding in checked["findings"]} == {"train/000000.tar"}
    assert {finding["key"] for finding in checked["findings"]} == {None, "000000003"}


def test_the_columns_of_a_table(tmp_path: Path) -> None:
    """A table whose columns have other names is compared and repaired from by the options of the pack."""
    image_folder(tmp_path / "img", 4)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "img").rglob("*.jpg"))
    rows = [f"{name},{kind}\n" for name, kind in zip(names, "abab", strict=True)]
    table, dst = tmp_path / "t.csv", tmp_path / "dst"
    table.write_text("".join(["place,species\n", *rows]))
    columns = ["--image-column", "place", "--label-column", "species"]
    assert run("pack", table, dst, *columns, "--short-side", 32).returncode == 0
    answer = run("verify", dst, "--source", table, *columns)
    assert (answer.returncode, answer.stdout.splitlines()[0]) == (
        0,
        f"as its source: 4 labels and 4 of 4 images compared with {table}",
    )
    answer = run("verify", dst, "--source", table, *columns[:2])
    assert (
        "the source has none; both must have them, or neither. For a table, name the column of the classes"
        in answer.stderr
    )
    damage(dst, "train/000000.tar", 2)
    answer = run("verify", dst, "--repair", table, *columns)
    assert (answer.returncode, answer.stdout.splitlines()[0]) == (0, "repaired: train/000000.tar")
    answer = run("verify", dst, "--source", tmp_path / "img", *columns)
    assert answer.returncode == 2
    assert "--image-column needs a table as source" in answer.stderr
