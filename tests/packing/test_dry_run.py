from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError, PackIncompleteError
from tests.helpers.command import exit_code
from tests.helpers.folders import contents, image_folder, photo, write_tree
from tests.helpers.jobs import preview


def test_counts_are_those_of_the_pack(tmp_path: Path) -> None:
    """A dry run counts inputs, classes, shards and what is left out as the pack does, and writes nothing."""
    files = {"a/bad.jpg": b"x", "a/notes.txt": b"", "b/old.psd": b""}
    src = write_tree(image_folder(tmp_path / "src", 70), files)
    counts = preview(src, tmp_path / "dst", shard_samples=20, short_side=32)
    assert not (tmp_path / "dst").exists()
    assert (counts.destination, counts.inputs, len(counts.jobs)) == ("free", {"train": 71}, 4)
    assert counts.classes == {"train": {"a": 25, "b": 23, "c": 23}}
    report = sf.pack(src, tmp_path / "dst", shard_samples=20, short_side=32, executor="serial", max_errors=2)
    assert (report.inputs, report.shards, report.ignored) == (72, len(counts.jobs), {".txt": 1})
    left_out = counts.source.skipped
    assert (report.skipped, left_out[0].path, counts.source.ignored) == (len(left_out), "b/old.psd", {".txt": 1})
    flat = write_tree(tmp_path / "flat", {"1.jpg": b""})
    assert preview(flat, tmp_path / "free").classes == {}
    result = CliRunner().invoke(shardflow, ["pack", str(flat), str(tmp_path / "free"), "--dry-run"])
    assert result.output.splitlines()[:2] == ["train        1 input", "labels       none"]


def test_rows_that_could_not_be_packed(tmp_path: Path) -> None:
    """Rows without a file or a label are named before the pack; a file of no bytes is found by reading alone."""
    src = write_tree(
        tmp_path, {"1.jpg": b"x", "2.jpg": b"", "t.csv": b"image,label\n1.jpg,a\n2.jpg,a\n3.jpg,a\n1.jpg,\n"}
    )
    bad = preview(src / "t.csv", tmp_path / "dst").bad
    assert [(each.path, each.reason) for each in bad] == [
        ("1.jpg", "has no label, but others of its split have"),
        ("3.jpg", "No such file or directory"),
    ]
    result = CliRunner().invoke(shardflow, ["pack", str(src / "t.csv"), str(tmp_path / "dst"), "--dry-run"])
    assert (
        "bad          2 inputs cannot be packed, such as '1.jpg' (has no label, but others of its split have); "
        "'3.jpg' (No such file or directory); repair them, or leave them out with --max-errors 2"
    ) in result.output.splitlines()


def test_a_split_without_labels(tmp_path: Path) -> None:
    """The line of a split without labels, next to one with labels, counts inputs alone."""
    rows = b"image,label,split\n1.jpg,a,train\n2.jpg,,test\n"
    src = write_tree(tmp_path, {"1.jpg": photo(1), "2.jpg": photo(2), "t.csv": rows})
    result = CliRunner().invoke(shardflow, ["pack", str(src / "t.csv"), str(tmp_path / "dst"), "--dry-run"])
    assert result.output.splitlines()[:2] == ["test         1 input", "train        1 input in 1 class of 1"]


def test_state_of_the_destination(tmp_path: Path) -> None:
    """A dry run says whether a pack would be resumed, at which shard and with which bad inputs, or refused; and touches
    nothing."""
    src = write_tree(image_folder(tmp_path / "src", 50), {"a/bad.jpg": b"x"})
    settings: dict[str, Any] = {"shard_samples": 20, "short_side": 32}
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **settings, executor="serial")
    before = contents(tmp_path / "dst")
    counts = preview(src, tmp_path / "dst", **settings)
    assert (counts.destination, counts.finished, len(counts.jobs)) == ("unfinished", 3, 3)
    assert [(each.path, each.stage) for each in counts.bad] == [("a/bad.jpg", "decode")]
    assert preview(src, tmp_path / "dst", **{**settings, "short_side": 16}).finished == 0
    assert contents(tmp_path / "dst") == before
    sf.pack(src, tmp_path / "dst", **settings, executor="serial", max_errors=1)
    assert preview(src, tmp_path / "dst", **settings).destination == "dataset"
    assert preview(src, tmp_path / "src", **settings).destination == "occupied"
    for wrong in ({"quality": 0}, {"shard_samples": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            preview(src, tmp_path / "dst", **wrong)


def test_command(tmp_path: Path) -> None:
    """`shardflow pack --dry-run` prints inputs, shards and what is left out, and writes nothing."""
    src = write_tree(image_folder(tmp_path / "src", 30), {"a/notes.txt": b"x", "b/old.psd": b""})
    arguments = ["pack", str(src), str(tmp_path / "dst"), "--short-side", "32", "--shard-samples", "20", "--dry-run"]
    result = CliRunner().invoke(shardflow, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "train        30 inputs in 3 classes of 10",
        "would write  2 shards",
        "skipped      1 .psd, such as 'b/old.psd' (convert them to JPEG or PNG); to leave them out, use --max-errors 1",
        "left out     files that are not images: 1 .txt",
        f"destination  {tmp_path / 'dst'} is free",
    ]
    assert not (tmp_path / "dst").exists()
    assert exit_code(*arguments) == 1
    assert exit_code(*arguments, "--max-errors", "1") == 0
    assert exit_code(*arguments[:2], str(tmp_path / "src"), *arguments[3:], "--max-errors", "1") == 3


def test_classes_of_few_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dry run and pack count the same classes, and name those without images and those with one."""
    labels = ["1", "1", "2", "3", "3"]
    rows = "".join(f"{number}.jpg,{label}\n" for number, label in enumerate(labels))
    files = {f"{number}.jpg": photo(number, 32, 24) for number in range(len(labels))}
    src = write_tree(tmp_path, {**files, "t.csv": f"image,label\n{rows}".encode()})
    assert preview(src / "t.csv", tmp_path / "dst").classes == {"train": {"0": 0, "1": 2, "2": 1, "3": 2}}
    arguments = ["pack", str(src / "t.csv"), str(tmp_path / "dst"), "--executor", "serial"]
    assert exit_code(*arguments, "--dry-run") == 0
    planned = capsys.readouterr().out.splitlines()
    assert exit_code(*arguments) == 0
    packed = capsys.readouterr().out.splitlines()
    lines = [
        "classes      1 class has no image: 0",
        "classes      1 class has one image, so the label may be misspelt: 2",
    ]
    assert planned[:3] == ["train        5 inputs in 4 classes of 0 to 2", *lines]
    assert packed[1:4] == ["splits       train 5; 4 classes", *lines]
    (src / "t.csv").write_text(f"image,label\n{rows}".replace(",3", ",30"))
    assert exit_code("pack", str(src / "t.csv"), str(tmp_path / "ids"), "--dry-run") == 0
    assert "28 classes have no image: 0, 3, 4" in (said := capsys.readouterr().out)
    assert "if labels are ids, list these in a file for --classes" in said
