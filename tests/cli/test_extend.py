from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from tests.helpers.folders import image_folder, photo, write_tree


def test_extend(tmp_path: Path) -> None:
    """`shardflow extend` says what it added, what was there, and both fingerprints; then that nothing is new."""
    src = image_folder(tmp_path / "src", 30)
    before = sf.pack(src, tmp_path / "dst", short_side=32, executor="serial").fingerprint
    write_tree(src, {"d/new.jpg": photo(1), "d/bad.jpg": b"x"})
    arguments = ["extend", str(src), str(tmp_path / "dst"), "--executor", "serial", "--max-bad", "1"]
    result = CliRunner().invoke(shardflow, arguments)
    assert result.exit_code == 0, result.output
    for line in (
        "added        1 of 2 new inputs in 1 shard",
        "known        30 inputs were in the dataset already",
        "quarantined  1, listed in quarantine.jsonl",
        "new classes  d",
        f"fingerprint  {sf.open(tmp_path / 'dst').fingerprint}",
        f"before       {before}",
    ):
        assert line in result.output
    again = CliRunner().invoke(shardflow, arguments)
    assert again.exit_code == 0
    assert again.output == "nothing new: the dataset was made from all 32 inputs\n"
