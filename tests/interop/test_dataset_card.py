from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import shardflow
from shardflow.cli.export import export
from shardflow.errors import ConfigError
from shardflow.interop.dataset_card import card, write_card
from tests.helpers.folders import contents, image_folder, write_tree
from tests.helpers.making import jpeg, make_dataset, write_dataset


@pytest.mark.filterwarnings("ignore")  # of mlcroissant and its dependencies
def test_croissant_metadata_is_valid(tmp_path: Path) -> None:
    """mlcroissant finds no error in the metadata, and the splits, classes and files that the dataset has."""
    import mlcroissant

    root = make_dataset(tmp_path / "set", {"train": [5, 7], "val": [3]})
    done = CliRunner().invoke(export, ["card", str(root), "--license", "cc-by-4.0", "--name", "Five and seven"])
    assert done.exit_code == 0, done.output
    found = mlcroissant.Dataset(jsonld=root / "croissant.json")
    assert not found.metadata.ctx.issues.errors
    assert found.metadata.name == "Five and seven"
    assert {record.id for record in found.metadata.record_sets} >= {"train", "val"}
    files = {file.id: file.sha256 for file in found.metadata.distribution if file.id.endswith(".tar")}
    assert files == {shard.name: shard.sha256 for shard in shardflow.open(root).shards}
    assert not shardflow.verify(root)


@pytest.mark.filterwarnings("ignore")
def test_croissant_has_the_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlcroissant reads one record for each sample: neither masks nor further images are among the images."""
    import mlcroissant
    from mlcroissant._src.operation_graph.operations import extract

    monkeypatch.setattr(extract, "EXTRACT_PATH", type(extract.EXTRACT_PATH)(tmp_path / "extracted"))
    parts = {"jpg": jpeg(0), "mask.png": b"", "before.jpg": jpeg(1)}
    root = write_dataset(tmp_path / "set", {"train": [[(f"{number:09}", parts) for number in range(3)]]})
    list(write_card(shardflow.open(root)))
    found = mlcroissant.Dataset(jsonld=root / "croissant.json")
    assert not found.metadata.ctx.issues.errors
    assert [record["train/key"] for record in found.records("train")] == [b"%09d.jpg" % number for number in range(3)]


def test_card_says_what_the_manifest_does(tmp_path: Path) -> None:
    """The README begins with the Hub's metadata and has splits and classes; no licence is made up."""
    samples = [(f"{number:03}", {"jpg": jpeg(number), "cls": b"0"}) for number in range(3)]
    root = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("a|b\n<script>", "_c_"))
    done = CliRunner().invoke(export, ["card", str(root), str(tmp_path / "card")])
    assert done.exit_code == 0, done.output
    _, metadata, text = (tmp_path / "card/README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "pretty_name": "set",
        "size_categories": ["n<1K"],
        "task_categories": ["image-classification"],
        "tags": ["webdataset", "shardflow"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "train/*.tar"}]}],
    }
    assert "| train | 3 | 1 |" in text
    assert "| 0 | a&#124;b &#60;script&#62; |" in text
    assert "| 1 | &#95;c&#95; |" in text
    assert shardflow.open(root).fingerprint in text
    assert "license" not in json.loads((tmp_path / "card/croissant.json").read_text())


def test_the_hub_reads_the_samples_of_the_dataset_alone(tmp_path: Path) -> None:
    """Tars of earlier versions and unfinished work are not named, nor those of a virtual dataset, which are shared."""
    root = image_folder(tmp_path / "src", 6)
    shardflow.pack(root, tmp_path / "set", shard_samples=2, executor="serial")
    write_tree(tmp_path / "set", {"train/000003.tar": b"of an extension that was killed"})
    before = shardflow.open(tmp_path / "set")
    assert '"path": ["train/000000.tar", "train/000001.tar", "train/000002.tar"]' in card(before, "set", None)
    (tmp_path / "set/train/000003.tar").unlink()
    shardflow.remove(tmp_path / "set", keys=["000000002"])
    shardflow.subset(tmp_path / "set", tmp_path / "some", limit=1)

    def named(url: Path) -> Any:
        assert list(write_card(shardflow.open(url), tmp_path / "card"))
        return yaml.safe_load((tmp_path / "card/README.md").read_text().split("---\n", 2)[1]).get("configs")

    tars = ["train/000000.tar", "train/000003.tar", "train/000002.tar"]
    assert named(tmp_path / "set")[0]["data_files"] == [{"split": "train", "path": tars}]
    assert named(tmp_path / "some") is None
    list(write_card(shardflow.open(tmp_path / "some"), tmp_path / "other"))
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["README.md"]


@pytest.mark.parametrize("file", ["README.md", "croissant.json"])
@pytest.mark.parametrize(
    "change", [lambda _: b"mine", lambda old: old.replace(b"shards", b"tars", 1)], ids=["other", "edited"]
)
def test_only_its_own_files_are_replaced(tmp_path: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    """A second card replaces the first; a file that is another's, or was edited, stays, and so does the other one."""
    root = make_dataset(tmp_path / "set", {"train": [5]})
    for name in ("one", "two"):
        assert CliRunner().invoke(export, ["card", str(root), "--name", name]).exit_code == 0
    assert "# two" in (root / "README.md").read_text()
    (root / file).write_bytes(change((root / file).read_bytes()))
    before = contents(root)
    done = CliRunner().invoke(export, ["card", str(root), "--name", "three"])
    assert isinstance(done.exception, ConfigError)
    assert f"{root / file} " in str(done.exception)
    assert "another directory" in str(done.exception)
    assert contents(root) == before
