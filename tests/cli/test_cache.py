"""`shardflow cache`."""

from __future__ import annotations

import json
import pwd
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardflow
from shardflow.cli.cache import cache
from shardflow.storage.cache import Cache
from tests.helpers.command import exit_code
from tests.helpers.making import make_dataset


@pytest.fixture
def far(tmp_path: Path) -> str:
    """The URL of a dataset with two splits that is read through the cache."""
    return f"local://{make_dataset(tmp_path / 'set', {'train': [5, 7], 'val': [3]})}"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home/shardflow"


def run(*arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(cache, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_shows_what_it_holds(far: str, directory: Path) -> None:
    """Directory, files, bytes and limit are printed, or one JSON object with all of it."""
    assert json.loads(run("--json"))["files"] == 0
    list(shardflow.open(far)["train"])
    described = json.loads(run("--json"))
    held = sum(path.stat().st_size for path in directory.glob("blobs/*"))
    known = {"directory": str(directory), "files": 4, "bytes": held, "default_limit_bytes": 10**11}
    assert described.items() >= known.items()
    assert described["disk_free_bytes"] > 0
    printed = run()
    assert str(directory) in printed
    assert re.search(r"shards +4 files, [\d.]+ [kM]B", printed)
    assert re.search(r"limit +100\.0 GB, unless a loader sets another limit", printed)


def test_warm_fetches_what_is_missing(far: str, directory: Path, tmp_path: Path) -> None:
    """Warming fetches the shards of one split, or of all; afterwards they can be read without the source."""
    assert f"in {directory}: 2 shards" in run("warm", far, "--split", "train")
    assert len(list(directory.glob("blobs/*"))) == 4
    assert "3 shards" in run("warm", far)
    dataset = shardflow.open(far)
    for path in tmp_path.glob("set/*/*"):
        path.unlink()
    assert [len(list(dataset[split])) for split in ("train", "val")] == [12, 3]


def test_warm_refuses_what_cannot_be(far: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A local dataset, one larger than the limit, and an unknown split are wrong usage."""
    for arguments, message in (
        ([str(tmp_path / "set")], "read in place"),
        ([far, "--limit", "1kB"], "raise its limit"),
        ([far, "--limit", "much"], "'64GiB'"),
        ([far, "--split", "test"], "no split 'test'"),
    ):
        assert exit_code("cache", "warm", *arguments) == 2
        assert message in capsys.readouterr().err


def test_prune(far: str, directory: Path) -> None:
    """Pruning removes only damaged files, or keeps at most the limit, or nothing, and prints what it removed."""
    run("warm", far)
    one = next(directory.glob("blobs/*"))
    one.write_bytes(b"other")
    assert "removed 1 file" in run("prune", "--damaged")
    assert len(list(directory.glob("blobs/*"))) == 5
    assert not one.exists()
    run("warm", far)
    held = [blob.bytes for blob in Cache().blobs()]
    assert "removed 1 file" in run("prune", "--limit", str(sum(held) - 1))
    assert len(list(directory.glob("blobs/*"))) == 5
    assert "removed 5 files" in run("prune", "--limit", "0")
    assert not list(directory.glob("blobs/*"))


def test_pruning_a_dataset_says_what_stays(far: str, tmp_path: Path) -> None:
    """After a dataset was packed again, the files of the earlier one cannot be told from others: they are counted."""
    run("warm", far)
    shutil.rmtree(tmp_path / "set")
    make_dataset(tmp_path / "set", [4])
    run("warm", far)
    printed = run("prune", "--dataset", far)
    assert "removed 2 files" in printed
    assert re.search(r"kept 6 files, [\d.]+ [kM]B, of other datasets or earlier versions .* --limit 0", printed)
    assert "kept" not in run("prune", "--limit", "0")


def test_decoded_images_are_shown_and_pruned(far: str, directory: Path) -> None:
    """Decoded images are counted separately, and pruned with the rest."""
    loader = shardflow.Loader(far, batch_size=4, num_workers=0, cache=shardflow.Cache(pixels="1GB"))
    list(loader)
    described = json.loads(run("--json"))
    assert (described["files"], described["decoded_files"]) == (4, 2)
    assert described["decoded_bytes"] >= 8 * 48 * 40 * 3
    assert re.search(r"decoded +2 files, [\d.]+ [kM]B", run())
    assert "removed 6 files" in run("prune", "--limit", "0")
    assert not list(directory.glob("decoded/*"))


def test_prune_requires_one_option(directory: Path) -> None:
    """Pruning without an option or with two is wrong usage, as are options before a subcommand."""
    for arguments in (["prune"], ["prune", "--limit", "0", "--damaged"], ["--json", "prune", "--limit", "0"]):
        assert CliRunner().invoke(cache, arguments).exit_code == 2
    assert not directory.exists()


def test_directory_can_be_named(far: str, directory: Path, tmp_path: Path) -> None:
    """`--cache-dir` chooses another directory, everywhere."""
    elsewhere = str(tmp_path / "elsewhere")
    run("warm", far, "--cache-dir", elsewhere)
    assert json.loads(run("--json", "--cache-dir", elsewhere))["files"] == 6
    assert "removed 6 files" in run("prune", "--limit", "0", "--cache-dir", elsewhere)
    assert not directory.exists()


@pytest.mark.parametrize("command", [[], ["prune", "--limit", "0"]])
def test_a_directory_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A mistyped directory is an error, not an empty cache."""
    assert exit_code("cache", *command, "--cache-dir", str(tmp_path / "typo")) == 4
    assert capsys.readouterr().err == f"shardflow: {tmp_path}/typo does not exist; check --cache-dir\n"
    assert not (tmp_path / "typo").exists()


def test_a_user_without_a_home_is_told_to_choose(
    far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the user has no home directory, commands that need the cache end in one line that names the ways out."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for command in (["info", far], ["cache"], ["cache", "warm", far]):
        assert exit_code(*command) == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert re.search("`cache=` .*`--cache-dir`.*XDG_CACHE_HOME", message)
    assert exit_code("cache", "warm", far, "--cache-dir", str(tmp_path / "cache")) == 0
