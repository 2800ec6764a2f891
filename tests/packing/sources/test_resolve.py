from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset as wds
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import contents, image_folder, photo, quarantined, write_tree
from tests.helpers.making import make_dataset


def _table(root: Path) -> Path:
    image_folder(root, 3)
    return write_tree(root, {"a table.csv": b"path,label\na/0000.jpg,a\nb/0001.jpg,b\nc/0002.jpg,c\n"}) / "a table.csv"


def _tars(root: Path) -> Path:
    root.mkdir()
    for number in range(3):
        with wds.TarWriter(str(root / f"{number}.tar")) as writer:
            writer.write({"__key__": f"{number}", "jpg": photo(number), "cls": number})
    return root


KINDS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda root: image_folder(root, 3),
    "table": _table,
    "tars": _tars,
    "one tar": lambda root: _tars(root) / "1.tar",
    "dataset": lambda root: make_dataset(root, [3]),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_file_urls_are_paths(tmp_path: Path, kind: str) -> None:
    """A `file:` URL, with escapes, is packed like its path, for every kind of source."""
    src = KINDS[kind](tmp_path / "a source")
    for name, url in (("path", str(src)), ("url", src.as_uri())):
        sf.pack(url, tmp_path / name, short_side=32, executor="serial")
        assert quarantined(tmp_path / name) == []
    assert contents(tmp_path / "path") == contents(tmp_path / "url")


@every_kind
def test_classes_for_every_kind(tmp_path: Path, kind: str) -> None:
    """`--classes` gives the labels of every kind of source, and does not change the detection of the kind."""
    src = KINDS[kind](tmp_path / "src")
    names = list_source(src).classes
    assert names is not None
    (tmp_path / "names.txt").write_text("\n".join(names))
    options = ["--short-side", "32", "--classes", str(tmp_path / "names.txt")]
    result = CliRunner().invoke(shardflow, ["pack", str(src), str(tmp_path / "named"), "--workers", "1", *options])
    assert result.exit_code == 0, result.output
    sf.pack(src, tmp_path / "plain", short_side=32, executor="serial")
    assert contents(tmp_path / "named") == contents(tmp_path / "plain")


def test_a_deep_tree_without_labels(tmp_path: Path) -> None:
    """The refusal of a mixed tree names `--classes none`; with it `pack`, `extend` and `verify --source` take the tree.

    Other kinds of sources refuse it.
    """
    src = write_tree(tmp_path / "src", {"1.jpg": photo(1), "a/2.jpg": photo(2), "a/b/3.jpg": photo(3)})
    dst, options = str(tmp_path / "dst"), ["--classes", "none", "--workers", "1"]

    def run(*words: str) -> str:
        result = CliRunner().invoke(shardflow, [words[0], str(src), dst, *words[1:]])
        return "" if result.exit_code == 0 else f"{result.output}{result.exception}"

    assert "or pack all of them without labels, --classes none" in run("pack")
    assert run("pack", *options, "--short-side", "32") == ""
    assert sf.verify(dst, sources=[src]) == sf.verify(dst, sources=[sf.sources.Folder(src)]) == []
    write_tree(src, {"c/4.jpg": photo(4)})
    assert run("extend", *options) == ""
    assert sorted(sf.open(dst)["train"].sources()) == ["1.jpg", "a/2.jpg", "a/b/3.jpg", "c/4.jpg"]
    labelled = image_folder(tmp_path / "labelled", 3)
    with pytest.raises(ConfigError, match=r"the dataset has none.*--classes none"):
        sf.extend(labelled, dst)
    with pytest.raises(ConfigError, match="only a folder of images is packed without labels"):
        list_source(sf.sources.Table(_table(tmp_path / "table"), classes=()))
