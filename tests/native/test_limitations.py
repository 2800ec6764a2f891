"""A kernel that is turned off: all is right, and slower."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import shardflow
from shardflow import decoders, native
from shardflow.formats import seek_table
from shardflow.native import binding
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


def test_the_pixels_are_the_same(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned off by its switch, every decoder gives the pixels that it gives with the kernel, seek tables included."""
    crop, views = decoders.RandomResizedCrop(96), [decoders.RandomResizedCrop(48, scale=(0.05, 0.3))] * 2
    chosen = crop, decoders.CenterCrop(64), decoders.Image(stack=False), decoders.MultiView([crop, *views])

    def pixels() -> list[torch.Tensor]:
        loaders = [shardflow.Loader(packed, batch_size=4, num_workers=0, decoder=each, seed=1) for each in chosen]
        return [image for loader in loaders for images, _ in loader for image in images]

    expected = pixels()
    monkeypatch.setenv("SHARDFLOW_KERNEL", "off")
    monkeypatch.setattr(binding, "load", functools.cache(binding.load.__wrapped__))
    assert SAID in native.describe()
    found = pixels()
    assert len(found) == len(expected) == 2 * (4 + 4 + 4 + 3)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_where_processors_differ_is_said() -> None:
    """The pixels that x86 and aarch64 decode differently are named on the page of guarantees and beside the version."""
    page = Path(__file__).parents[2] / "docs/guarantees.md"
    for text in (page.read_text(encoding="utf-8"), native.version.__doc__ or ""):
        assert all(word in text for word in ("x86", "aarch64", "coefficients"))


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
