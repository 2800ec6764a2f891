"""The commands for virtual datasets: `index`, `subset`, `split`, `merge`; and `diff`, and two of `export`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError
from shardflow.formats.manifest import FILE_NAME
from tests.helpers.command import exit_code
from tests.helpers.folders import write_tree
from tests.helpers.making import jpeg, make_dataset, write_dataset
from tests.helpers.tars import members_of, write_tar


def run(*arguments: Any) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(shardflow, words, standalone_mode=False, catch_exceptions=False)
    return result.return_value or 0, result.stdout


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of two shards and 21 samples."""
    return make_dataset(tmp_path / "set", [12, 9])


def test_subset(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`subset` prints the new dataset; it selects by classes and by keys from a file."""
    keys = tmp_path / "keys.txt"
    keys.write_text("000000004\n\n000000020\n")
    few = tmp_path / "few"
    _, printed = run("subset", dataset, few, "--keys", keys)
    assert printed == (
        f"dataset       {few} (the tars stay where they are)\n"
        "train         2 samples in 2 shards\n"
        f"fingerprint   {sf.open(few).fingerprint}\n"
    )
    _, printed = run("subset", dataset, tmp_path / "classes", "--classes", "class1", "--classes", "class2,")
    assert re.search(r"labels +class1 1, class2 2, .*--classes FILE", printed)
    assert "train         2 samples in 1 shard\n" in printed
    monkeypatch.setattr("shardflow.packing.progress.LOG_S", 0)
    result = CliRunner().invoke(
        shardflow, ["subset", str(dataset), str(tmp_path / "both"), "--classes", "class4", "--keys", str(keys)]
    )
    assert "reading: 100%" in result.stderr
    _, printed = run("info", few)
    whole = sum(path.stat().st_size for path in dataset.rglob("*.tar"))
    assert re.search(
        r"tars +[\d.]+ [kM]B with headers, of which the samples take \d+%, where they are: \.\./set\n", printed
    )
    assert "made by subset of sha256:" in printed
    _, printed = run("info", few, "--json")
    described = json.loads(printed)
    assert described["roots"]["0"]["url"] == "../set"
    assert described["tar_bytes"] == whole
    assert described["splits"]["train"]["bytes"] == sum(
        512 + -(-len(payload) // 512) * 512
        for sample in sf.open(few)["train"]
        for part, payload in sample.items()
        if not part.startswith("__")
    )


def test_verify_names_the_tars_of_a_subset_where_they_are(dataset: Path, tmp_path: Path) -> None:
    """Damage in a tar of another dataset has the path of that tar, not its name in the subset."""
    run("subset", dataset, tmp_path / "few", "--limit", 2)
    tar = dataset / "train/000000.tar"
    tar.write_bytes(tar.read_bytes()[:-1] + b"x")
    code, printed = run("verify", tmp_path / "few")
    assert code == 1
    assert printed.startswith(f"{tmp_path}/set/train/000000.tar: its SHA-256 differs from the manifest's\n")


def test_bytes_of_views(dataset: Path, tmp_path: Path) -> None:
    """Bytes of splits over the same tars add up to those of the tars; `sync` says what it copies besides samples."""
    run("split", dataset, tmp_path / "parted", "--val", "0.4")
    described = json.loads(run("info", tmp_path / "parted", "--json")[1])
    ends = 2 * 1024  # of the two tars
    assert described["bytes"] == described["tar_bytes"] - ends
    assert described["bytes"] == sum(split["bytes"] for split in described["splits"].values())
    run("subset", dataset, tmp_path / "few", "--limit", 2)
    copied = CliRunner().invoke(shardflow, ["sync", str(tmp_path / "few"), str(tmp_path / "copy")])
    assert "the tars are copied whole: 67 kB, of which the samples take 6 kB; `shardflow pack " in copied.stderr
    whole = CliRunner().invoke(shardflow, ["sync", str(tmp_path / "parted"), str(tmp_path / "again")])
    assert "copied whole" not in whole.stderr


def test_split_and_merge(dataset: Path, tmp_path: Path) -> None:
    """`split` prints the new dataset, and so does `merge`, which keeps what was held out apart from the rest."""
    _, printed = run("split", dataset, tmp_path / "parted", "--val", "0.2", "--seed", "3")
    assert "train         17 samples" in printed
    assert "val           4 samples" in printed
    run("subset", tmp_path / "parted", tmp_path / "few", "--limit", "3")
    _, printed = run("merge", tmp_path / "parted", tmp_path / "few", tmp_path / "merged")
    assert "train         17 samples in 2 shards\nval           4 samples" in printed
    assert exit_code("merge", str(tmp_path / "parted"), str(dataset), str(tmp_path / "refused")) == 2


def test_names_with_commas(tmp_path: Path) -> None:
    """A class whose name has a comma is given as the commands print it, in quotes; an apostrophe is just a letter."""
    samples = [(f"{n}", {"jpg": jpeg(n), "cls": b"%d" % n}) for n in range(3)]
    write_dataset(tmp_path / "named", {"train": [samples]}, classes=("bird's nest", "dog, wolf", "elk"))
    _, printed = run("subset", tmp_path / "named", tmp_path / "some", "--classes", "'dog, wolf', bird's nest")
    assert "'dog, wolf' 1, bird's nest 0" in printed
    assert "train         2 samples" in printed


def test_split_by_groups(tmp_path: Path) -> None:
    """`split --group` keeps the samples of a column of the packed table together, over folds too."""
    rows = [{"image": f"{n}.jpg", "camera": f"c{n // 4}"} for n in range(20)]
    table = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    photos = write_tree(tmp_path / "photos", {"table.jsonl": table, **{f"{n}.jpg": jpeg(n) for n in range(20)}})
    sf.pack(photos / "table.jsonl", tmp_path / "set", executor="serial")
    _, printed = run("split", tmp_path / "set", tmp_path / "parted", "--val", "0.2", "--group", "camera")
    assert "val           4 samples" in printed
    run("split", tmp_path / "set", tmp_path / "folds", "--folds", 5, "--group", "camera")
    cameras = [
        {json.loads(sample["json"])["camera"] for sample in sf.open(tmp_path / f"folds/fold{n}")["val"]}
        for n in range(5)
    ]
    assert sorted(map(len, cameras)) == [1] * 5
    assert len(set().union(*cameras)) == 5


def test_index(tmp_path: Path) -> None:
    """`index` prints the samples that it leaves out, and the new dataset."""
    write_tar(tmp_path / "00.tar", [*members_of(range(4)), ("bad.txt", b"x")])
    _, printed = run("index", tmp_path, "--max-errors", "1")
    assert printed == (
        f"left out: {tmp_path}/00.tar/bad: has no image among its parts: txt\n"
        f"dataset       {tmp_path} (the tars stay where they are)\n"
        "train         4 samples in 1 shard\n"
        f"fingerprint   {sf.open(tmp_path).fingerprint}\n"
    )
    assert run("verify", tmp_path)[0] == 0


def test_verify_says_that_images_of_an_index_are_not_decoded(tmp_path: Path) -> None:
    """`verify` of an index says that an image may be damaged since before it was indexed; a subset says it too."""
    members = members_of(range(4))
    name, image = next(member for member in members if member[0].endswith(".jpg"))
    write_tar(tmp_path / "00.tar", [(name, image[:200]) if each == name else (each, data) for each, data in members])
    run("index", tmp_path)
    run("subset", tmp_path, tmp_path / "few", "--limit", 2)
    for place in (tmp_path, tmp_path / "few"):
        code, printed = run("verify", place)
        assert code == 0
        assert "not checked: whether images can be decoded; a Loader with max_errors= replaces damaged ones" in printed


def test_index_without_labels(tmp_path: Path) -> None:
    """`index` says that tars have no labels, and the error of a loader where those of their json can go."""
    write_tar(tmp_path / "00.tar", members_of(range(4), label=False))
    assert run("index", tmp_path)[1].endswith("labels        none\n")
    with pytest.raises(ConfigError, match=r"'label': no part 'cls' .*; `columns\.compute` makes a label in the json"):
        sf.Loader(tmp_path, batch_size=2, fields=("image", "label"))


def test_tars_that_were_written_anew_are_named(tmp_path: Path) -> None:
    """`verify` of an index over tars that changed says that the index has to be made again."""
    index = tmp_path / "index"
    write_tar(tmp_path / "tars/0.tar", [("a.jpg", b"a"), ("a.cls", b"0")])
    run("index", tmp_path / "tars", "--to", index)
    write_tar(tmp_path / "tars/0.tar", [("b.jpg", b"b"), ("b.cls", b"0")])
    code, printed = run("verify", index)
    assert code == 1
    assert "if tars were rewritten, index them again (`shardflow index`)\n" in printed


def test_a_sync_that_is_stopped(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is stopped with Ctrl-C says that the same command resumes it."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sf, "sync", stop)
    result = CliRunner().invoke(shardflow, ["sync", str(dataset), str(tmp_path / "copy")])
    assert result.exit_code == 1
    assert "finished work is kept: run the same command again to resume\n" in result.stderr


def test_diff(dataset: Path, tmp_path: Path) -> None:
    """`diff` ends with 0 and one line if the datasets are the same, else with 1 and the differences; also as JSON."""
    run("subset", dataset, tmp_path / "few", "--limit", "5")
    assert run("diff", dataset, dataset) == (0, f"same          {sf.open(dataset).fingerprint}\n")
    code, printed = run("diff", dataset, tmp_path / "few")
    assert code == 1
    assert "train         samples 21 | 5, shards 2 | " in printed
    assert "by content: 5 samples in both, 16 only in A, 0 only in B" in printed
    code, printed = run("diff", dataset, tmp_path / "few", "--json")
    found = json.loads(printed)
    assert (code, found["same"], found["splits"]["train"]["both"], found["recipe"]) == (1, False, 5, {})


def test_exports(dataset: Path) -> None:
    """`export energon` prints the files that it wrote."""
    assert run("export", "energon", dataset)[1] == f"wrote .nv-meta and 2 index files to {dataset}\n"
    assert (dataset / ".nv-meta/split.yaml").exists()


@pytest.mark.usefixtures("dataset")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["subset", "SET", "NEW"], 2, "a subset needs a condition"),
        (["subset", "SET", "SET", "--limit", "1"], 3, "already holds a dataset"),
        (["subset", "NEW", "SET", "--limit", "1"], 4, "does not exist"),
        (["split", "SET", "NEW", "--val", "2"], 2, "above 0 and below 1"),
        (["merge", "SET", "NEW"], 2, "two or more datasets"),
        (["index", "NEW"], 4, "does not exist"),
        (["subset", "SET", "SET", "--classes", "class1, class2"], 3, "already holds a dataset"),
        (["index", "TARS"], 1, "--max-errors 1"),
        (["index", "PHOTO.JPG"], 2, "photo.jpg is not a tar by its name; give a folder, a .tar or a pattern"),
        (["index", "EMPTY.tar"], 2, "EMPTY.tar: no usable sample in 1 tar; a sample is files of one key"),
        (["pack", "EMPTY.tar", "NEW"], 2, "no sample in 1 tar, such as 'EMPTY.tar'; a sample is files of one key"),
        (["diff", "SET", "NEW"], 4, "does not exist"),
        (["export", "energon", "NEW"], 4, "does not exist"),
        (["info", "NEW"], 4, "does not exist"),
        (["verify", "NEW"], 4, "does not exist"),
        (["verify", "BROKEN"], 1, FILE_NAME),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Every error is one line with the reason, and the documented exit code."""
    write_tar(tmp_path / "tars/00.tar", [("bad.txt", b"x")])
    write_tree(tmp_path / "broken", {FILE_NAME: b"{}", "../photo.jpg": b"x"})
    write_tar(tmp_path / "EMPTY.tar", [])
    places = {name: str(tmp_path / name.lower()) for name in ("SET", "NEW", "TARS", "BROKEN", "PHOTO.JPG")}
    places["EMPTY.tar"] = str(tmp_path / "EMPTY.tar")
    assert exit_code(*(places.get(argument, argument) for argument in arguments)) == code
    printed, errors = capsys.readouterr()
    lines = errors.splitlines()
    messages = [line for line in lines if line.startswith("shardflow: ")]
    assert len(messages) == 1
    assert message in messages[0]
    assert code not in (1, 4) or not printed
    assert code != 4 or lines == messages
