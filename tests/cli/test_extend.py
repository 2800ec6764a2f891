from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from tests.helpers.folders import image_folder, photo, write_tree


def test_extend(tmp_path: Path) -> None:
    """`shardflow extend` prints what it added, what was known, and both fingerprints; then that nothing is new."""
    src = image_folder(tmp_path / "src", 30)
    before = sf.pack(src, tmp_path / "dst", short_side=32, executor="serial").fingerprint
    write_tree(src, {"d/new.jpg": photo(1), "d/bad.jpg": b"x"})
    arguments = ["extend", str(src), str(tmp_path / "dst"), "--executor", "serial", "--max-bad", "1"]
    result = CliRunner().invoke(shardflow, arguments)
    assert result.exit_code == 0, result.output
    for line in (
        "added        1 of 2 new inputs in 1 shard",
        "known        30 inputs of the dataset",
        "quarantined  1 input, listed in quarantine.jsonl",
        "new classes  d",
        f"fingerprint  {sf.open(tmp_path / 'dst').fingerprint}",
        f"previous     {before}",
    ):
        assert line in result.output
    again = CliRunner().invoke(shardflow, arguments)
    assert again.exit_code == 0
    assert again.output == "nothing new: the dataset already has 32 inputs of this source\n"
