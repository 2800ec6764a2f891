"""`shardflow info`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

import shardflow
from shardflow import native
from shardflow.cli.info import info
from shardflow.formats.manifest import FILE_NAME, from_bytes
from tests.helpers.command import COMMAND
from tests.helpers.folders import encoded, photo, turned, write_tree
from tests.helpers.making import make_dataset, write_dataset


def test_lists_the_manifest(tmp_path: Path) -> None:
    """Splits, counts, classes and fingerprint are printed in aligned lines; the shards may be missing."""
    dataset = make_dataset(tmp_path / "data", {"train": [15, 7], "val": [3]})
    for path in dataset.glob("*/*"):
        path.unlink()
    result = CliRunner().invoke(info, [str(dataset)])
    assert result.exit_code == 0
    rows = [line[13:].split() for line in result.output.splitlines()]
    for expected in ("train 22 samples 2 shards", "val 3 samples 1 shard", "all 25 samples 3 shards"):
        assert expected.split() in [row[:5] for row in rows]
    assert f"22: {', '.join(f'class{number}' for number in range(20))}, ..." in result.output
    assert shardflow.open(dataset).fingerprint in result.output


def test_json_holds_the_same(tmp_path: Path) -> None:
    """`--json` prints one object with every figure."""
    dataset = make_dataset(tmp_path / "data", [5, 7])
    described = json.loads(CliRunner().invoke(info, [str(dataset), "--json"]).output)
    size = sum(path.stat().st_size for path in dataset.glob("train/*.tar"))
    assert described["splits"] == {"train": {"samples": 12, "shards": 2, "bytes": size}}
    assert (described["samples"], described["shards"], described["bytes"]) == (12, 2, size)
    assert described["bytes_per_image"] == round(size / 12)
    assert described["classes"] == [f"class{n}" for n in range(12)]
    assert (described["inputs"], described["quarantined"]) == (12, 0)
    assert described["fingerprint"] == shardflow.open(dataset).fingerprint


def test_lists_the_parts(tmp_path: Path) -> None:
    """The parts of the samples, which can be fields of a loader, are listed, by split where they differ."""
    shards = {"train": [[("0", {"jpg": photo(1), "cls": b"0", "txt": b"x"})]], "val": [[("0", {"jpg": photo(1)})]]}
    write_dataset(tmp_path / "data", shards)
    assert "\nparts         train: cls, jpg, txt\nparts         val: jpg\n" in _printed(tmp_path / "data")
    described = json.loads(_printed(tmp_path / "data", "--json"))
    assert described["parts"] == {"train": ["cls", "jpg", "txt"], "val": ["jpg"]}
    assert "\nparts         cls, jpg\n" in _printed(make_dataset(tmp_path / "same", {"train": [2], "val": [3]}))
    (tmp_path / "data/val/000000.npy").unlink()
    assert "\nparts         val: not known: an index is missing\n" in _printed(tmp_path / "data")


def test_counts_the_samples_that_lack_a_part(tmp_path: Path) -> None:
    """Samples of the first shard without a part that others have are counted, whatever the types of their images."""
    parts = [{"jpg": b"x", "txt": b"x"}, {"png": b"x", "txt": b"x", "json": b"{}"}, {"jpg": b"x"}]
    whole, bare = ([(f"{number}", each) for number, each in enumerate(some)] for some in (parts, parts[2:]))
    write_dataset(tmp_path / "data", {"train": [whole, bare], "val": [bare]})
    expected = "lacking       2 samples without json, 1 sample without txt in the first shard of train\nclasses"
    assert expected in _printed(tmp_path / "data")
    assert json.loads(_printed(tmp_path / "data", "--json"))["lacking"] == {"train": {"json": 2, "txt": 1}, "val": {}}


def test_says_where_the_columns_of_a_table_are(tmp_path: Path) -> None:
    """Without labels, the part with the columns of a table is named, if there is one."""
    for name, more in (("table", {"json": b'{"score": "1"}'}), ("folder", {})):
        write_dataset(tmp_path / name, {"train": [[("0", {"jpg": photo(1), **more})]]})
        said = (
            "classes       none: the samples have no labels"
            + "; a table's other columns are in the part json" * bool(more)
        )
        assert f"\n{said}\n" in _printed(tmp_path / name)


def _printed(*arguments: object) -> str:
    result = CliRunner().invoke(info, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_shows_how_a_dataset_was_packed(tmp_path: Path) -> None:
    """Recipe, channel means and deviations, quarantined inputs, tools and the lack of labels are printed."""
    dataset = make_dataset(tmp_path / "data", [4], labelled=False)
    manifest = replace(
        from_bytes((dataset / FILE_NAME).read_bytes()),
        inputs=6,
        recipe={"short_side": 256, "enlarge": False},
        mean=(0.5, 0.25, 0.125),
        std=(0.1, 0.2, 0.3),
        tools={"shardflow": "0.1.0"},
    )
    (dataset / FILE_NAME).write_bytes(manifest.to_bytes())
    output = CliRunner().invoke(info, [str(dataset)]).output
    for expected in (
        *(
            "none: the samples have no labels",
            "short_side 256",
            "enlarge no",
            "6 = 4 packed + 2 quarantined + 0 skipped",
        ),
        *("0.5000  0.2500  0.1250", "0.1000  0.2000  0.3000", "shardflow 0.1.0"),
    ):
        assert expected in output


def test_shows_statistics(tmp_path: Path) -> None:
    """Sizes before and after packing, operations and the balance of the classes are shown."""
    write_tree(tmp_path / "src", {"train/a/1.jpg": encoded(Image.new("RGB", (900, 600)), "JPEG", exif=turned(6))})
    write_tree(tmp_path / "src", {f"train/b/{number}.jpg": photo(number, 500, 400) for number in range(2)})
    write_tree(tmp_path / "src", {"val/a/1.jpg": photo(3, 96, 64), "val/b/1.jpg": photo(4, 96, 64)})
    shardflow.pack(tmp_path / "src", tmp_path / "data", executor="serial", shard_samples=2)
    output = CliRunner().invoke(info, [str(tmp_path / "data")]).output
    for expected in (
        "before        median about 496 x 400 pixels, 96 to 576 wide, 64 to 896 high",
        "after         median about 256 x 256 pixels, 96 to 320 wide, 64 to 384 high",
        "operations    1 rotated upright",
        "balance       train: 1 to 2 images in each of 2 classes",
        "balance       val: 1 image in each of 2 classes",
        "long_side any",
    ):
        assert expected in output
    described = json.loads(CliRunner().invoke(info, [str(tmp_path / "data"), "--json"]).output)
    train = described["statistics"]["train"]
    assert (train["counts"]["images"], train["counts"]["turned"], train["classes"]) == (3, 1, {"0": 1, "1": 2})
    sizes = [path.stat().st_size for path in (tmp_path / "src" / "train").rglob("*.jpg")]
    assert train["counts"]["bytes_before"] == sum(sizes)
    images = [sample["jpg"] for sample in shardflow.open(tmp_path / "data")["train"]]
    assert train["counts"]["bytes_after"] == sum(map(len, images))


def test_shows_how_much_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a URL, the share of the shards in the user's cache is shown, and no shard is fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    dataset = make_dataset(tmp_path / "data", {"train": [5, 7], "val": [3]})
    sizes = [path.stat().st_size for path in sorted(dataset.glob("*/*.tar"))]
    for held, split in ((0, "train"), (sum(sizes[:2]), "val"), (sum(sizes), "val")):
        described = json.loads(CliRunner().invoke(info, [f"local://{dataset}", "--json"]).output)
        assert (described["in_cache_bytes"], described["cache"]) == (held, str(tmp_path / "home/shardflow"))
        assert f"in cache      {held / sum(sizes):.0%} of" in CliRunner().invoke(info, [f"local://{dataset}"]).output
        list(shardflow.open(f"local://{dataset}")[split])


def test_system_says_whether_the_kernel_is_active() -> None:
    """`--system` needs no dataset and names the versions and the native kernel's state."""
    described = json.loads(CliRunner().invoke(info, ["--system", "--json"]).output)
    assert described["shardflow"] == shardflow.__version__
    assert described["native kernel"].startswith("libjpeg-turbo" if native.available() else "not active: ")
    assert described["torch"].split(".")[0].isdigit()


def test_dataset_and_system_exclude_each_other(tmp_path: Path) -> None:
    """Neither or both of URL and `--system` is wrong usage."""
    for arguments in ([], [str(tmp_path), "--system"]):
        assert CliRunner().invoke(info, arguments).exit_code == 2


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A closed pipe has its own exit code; a full disk is a storage error, in one line."""
    dataset = make_dataset(tmp_path / "data", [5])
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run([*COMMAND, "info", str(dataset)], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (141, b"")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "info", str(dataset)], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (4, b"shardflow: the output: No space left on device\n")


def test_the_package_runs_as_a_module() -> None:
    """`python -m shardflow` is the command line."""
    done = subprocess.run([sys.executable, "-m", "shardflow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("shardflow ")
