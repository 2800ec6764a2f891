"""A kernel that is turned off: all is right, and slower."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import shardflow
from shardflow import native
from shardflow.formats import seek_table
from tests.helpers import command, jpegs
from tests.helpers.making import write_dataset
from tests.helpers.seek_tables import deceiving, table_of

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

SAID = "SHARDFLOW_KERNEL=off"


@pytest.fixture(scope="module")
def turned_off() -> Mapping[str, str]:
    """The environment of a process without the kernel."""
    return {**os.environ, "SHARDFLOW_KERNEL": "off"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with right seek tables."""
    images = [jpegs.make(number, 300, 200, quality=95) for number in range(8)]
    images = [seek_table.insert(image, table_of(image)) for image in images]
    samples = [(f"{number:09}", {"cls": b"0", "jpg": image}) for number, image in enumerate(images)]
    recipe = {"seek_tables": "encoded"}
    root = write_dataset(tmp_path_factory.mktemp("limits") / "set", {"train": [samples]}, classes=("a",), recipe=recipe)
    assert shardflow.verify(root) == []
    return root


def test_a_dataset_is_not_called_damaged(packed: Path, turned_off: Mapping[str, str]) -> None:
    """Where no seek table can be made, `verify` says so, finds no damage, and repairs nothing."""
    before = contents(packed)
    for arguments in ([packed], [packed, "--repair", packed]):
        done = command.run("verify", *arguments, env=turned_off)
        assert done.returncode == 0, done.stdout
        assert "no damage" in done.stdout
        assert "repaired" not in done.stdout
        assert "seek tables are not compared" in done.stderr
        assert SAID in done.stderr
    assert contents(packed) == before


def test_a_pack_says_that_it_makes_no_tables(tmp_path: Path, turned_off: Mapping[str, str]) -> None:
    """Copied files get no table where none can be made, nor keep one from elsewhere; `pack` says so."""
    plain = jpegs.make(2, 300, 200, quality=95)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(deceiving(plain))
    arguments = [tmp_path / "photos", tmp_path / "set", "--preset", "original", "--seek-tables", "all", "--workers", 1]
    done = command.run("pack", *arguments, env=turned_off)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no seek tables") == 1
    assert SAID in done.stderr
    assert shardflow.open(tmp_path / "set")["train"][0]["jpg"] == plain


def test_the_system_report_says_it(turned_off: Mapping[str, str]) -> None:
    """`info --system` says what is found, and what is missing."""
    done = command.run("info", "--system", env=turned_off)
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("native kernel")]
    assert SAID in line


def test_a_switch_that_is_not_known() -> None:
    """A value of the variable other than off is refused, by its name."""
    done = command.run("info", "--system", env={**os.environ, "SHARDFLOW_KERNEL": "0"})
    assert done.returncode == 2
    assert "SHARDFLOW_KERNEL" in done.stderr
    assert "Traceback" not in done.stderr


def contents(root: Path) -> dict[str, str]:
    """Return the digest of each file of a dataset."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
