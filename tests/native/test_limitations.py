"""A libjpeg-turbo that is newer than the kernel, and a kernel that is turned off: all is right, and slower."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import PIL
import pytest

import shardflow
from shardflow import native
from shardflow.formats import seek_table
from shardflow.native import binding
from tests.helpers import command, jpegs
from tests.helpers.making import write_dataset
from tests.helpers.seek_tables import deceiving, table_of

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

LOAD = """
import hashlib, logging, sys
import shardflow
logging.basicConfig(format="%(levelname)s %(message)s")
digest = hashlib.sha256()
for _ in range(2):
    decoder = shardflow.decoders.RandomResizedCrop(24)
    for batch, in shardflow.Loader(sys.argv[1], batch_size=4, fields=("image",), decoder=decoder, num_workers=0):
        digest.update(batch.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process whose Pillow came with the same libjpeg-turbo, but for a version of 9."""
    kernel = binding.load()
    assert isinstance(kernel, binding.Kernel)
    folder = tmp_path_factory.mktemp("newer")
    (folder / "PIL").symlink_to(Path(PIL.__file__).parent)
    (folder / "pillow.libs").mkdir()
    real, version = Path(kernel.libjpeg), kernel.version.removeprefix("libjpeg-turbo ").encode()
    changed = real.read_bytes().replace(b"version " + version, b"version 9" + version[1:])
    (folder / "pillow.libs" / real.name).write_bytes(changed)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


@pytest.fixture(scope="module")
def turned_off() -> Mapping[str, str]:
    """The environment of a process without the kernel."""
    return {**os.environ, "SHARDFLOW_KERNEL": "off"}


@pytest.fixture(params=["newer", "turned_off"])
def limited(request: pytest.FixtureRequest) -> tuple[str, Mapping[str, str]]:
    """What a warning says, and the environment in which it has to."""
    said = {"newer": "libjpeg-turbo 9.", "turned_off": "SHARDFLOW_KERNEL=off"}
    return said[request.param], request.getfixturevalue(request.param)


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


def test_batches_are_the_same(packed: Path, newer: Mapping[str, str]) -> None:
    """With a libjpeg-turbo that is not known batches have the same pixels, and one warning names it and the remedy."""
    command_line = [sys.executable, "-c", LOAD, packed]
    runs = [
        subprocess.run(command_line, env=environment, capture_output=True, text=True, check=True, timeout=100)
        for environment in ({**os.environ}, newer)
    ]
    assert runs[0].stdout == runs[1].stdout
    warnings = [[line for line in run.stderr.splitlines() if line.startswith("WARNING")] for run in runs]
    assert warnings[0] == []
    (warning,) = warnings[1]
    assert "half the speed" in warning
    assert "libjpeg-turbo 9." in warning
    assert "update shardflow" in warning


def test_a_dataset_is_not_called_damaged(packed: Path, limited: tuple[str, Mapping[str, str]]) -> None:
    """Where no seek table can be made, `verify` says so, finds no damage, and repairs nothing."""
    said, environment = limited
    before = contents(packed)
    for arguments in ([packed], [packed, "--repair", packed]):
        done = command.run("verify", *arguments, env=environment)
        assert done.returncode == 0, done.stdout
        assert "no damage" in done.stdout
        assert "repaired" not in done.stdout
        assert "seek tables are not compared" in done.stderr
        assert said in done.stderr
    assert contents(packed) == before


def test_a_pack_says_that_it_makes_no_tables(tmp_path: Path, limited: tuple[str, Mapping[str, str]]) -> None:
    """Copied files get no table where none can be made, nor keep one from elsewhere; `pack` says so."""
    said, environment = limited
    plain = jpegs.make(2, 300, 200, quality=95)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(deceiving(plain))
    arguments = [tmp_path / "photos", tmp_path / "set", "--preset", "original", "--seek-tables", "all", "--workers", 1]
    done = command.run("pack", *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no seek tables") == 1
    assert said in done.stderr
    assert shardflow.open(tmp_path / "set")["train"][0]["jpg"] == plain


def test_the_system_report_says_it(limited: tuple[str, Mapping[str, str]]) -> None:
    """`info --system` says what is found, and what is missing."""
    said, environment = limited
    done = command.run("info", "--system", env=environment)
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("native kernel")]
    assert said in line


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
