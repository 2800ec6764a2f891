from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError, PackIncompleteError
from shardflow.packing.estimate import SAMPLE, estimate
from tests.helpers.folders import contents, image_folder, write_tree
from tests.helpers.making import jpeg


def test_small_sources_are_known_exactly(tmp_path: Path) -> None:
    """Where all inputs are tried, the size is that of the shards, and every count is that of the pack."""
    src = write_tree(image_folder(tmp_path / "src", 70), {"a/bad.jpg": b"x", "a/notes.txt": b""})
    told = estimate(src, tmp_path / "dst", shard_samples=20, short_side=32, workers=1)
    assert not (tmp_path / "dst").exists()
    assert (told.destination, told.inputs, told.shards, told.sampled) == ("free", {"train": 71}, 4, 71)
    assert told.classes == {"train": {"a": 25, "b": 23, "c": 23}}
    assert (told.ignored, told.plus_minus) == ({".txt": 1}, 0)
    assert [bad.path for bad in told.quarantined] == ["a/bad.jpg"]
    report = sf.pack(src, tmp_path / "dst", shard_samples=20, short_side=32, workers=1, max_bad=1)
    assert (told.bytes, told.shards) == (report.bytes_out, report.shards)


def test_large_sources_are_estimated(tmp_path: Path) -> None:
    """Of many inputs a few are tried; the size of the pack is within what the estimate allows for."""
    files = {f"{n:04}.jpg": jpeg(n % 50, 32 + n % 40, 32 + n % 30) for n in range(1000)}
    src = write_tree(tmp_path / "src", files)
    told = estimate(src, tmp_path / "dst", workers=1)
    report = sf.pack(src, tmp_path / "dst", workers=1)
    assert told.sampled == SAMPLE < 1000
    assert told.classes == {}
    assert abs(told.bytes - report.bytes_out) < told.plus_minus < told.bytes / 10


def test_destination_is_told(tmp_path: Path) -> None:
    """A dry run says whether a pack would go on, with how much, or be refused; and touches nothing."""
    src = write_tree(image_folder(tmp_path / "src", 50), {"a/bad.jpg": b"x"})
    settings = {"shard_samples": 20, "short_side": 32, "workers": 1}
    with pytest.raises(PackIncompleteError):
        sf.pack(src, tmp_path / "dst", **settings)
    before = contents(tmp_path / "dst")
    told = estimate(src, tmp_path / "dst", **settings)
    assert (told.destination, told.finished, told.shards) == ("unfinished", 3, 3)
    assert estimate(src, tmp_path / "dst", **{**settings, "short_side": 16}).finished == 0
    assert contents(tmp_path / "dst") == before
    sf.pack(src, tmp_path / "dst", **settings, max_bad=1)
    assert estimate(src, tmp_path / "dst", **settings).destination == "dataset"
    assert estimate(src, tmp_path / "src", **settings).destination == "occupied"
    for wrong in ({"quality": 0}, {"workers": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            estimate(src, tmp_path / "dst", **wrong)  # type: ignore[arg-type]


def test_command(tmp_path: Path) -> None:
    """`shardflow pack --dry-run` prints inputs, shards and bytes, and writes nothing."""
    src = write_tree(image_folder(tmp_path / "src", 30), {"a/bad.jpg": b"x"})
    arguments = ["pack", str(src), str(tmp_path / "dst"), "--short-side", "32", "--shard-samples", "20", "--dry-run"]
    result = CliRunner().invoke(shardflow, [*arguments, "--workers", "1"])
    assert result.exit_code == 0, result.output
    for line in (
        "train        31 inputs in 3 classes of 10 to 11",
        "would write  2 shards, about 0.1 MB ± 0.0 MB, judged by 31 inputs",
        "quarantined  1 of these 31: 'a/bad.jpg' (decode: not an image",
        f"destination  {tmp_path / 'dst'} is free",
    ):
        assert line in result.output, result.output
    assert not (tmp_path / "dst").exists()
