from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset as wds
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow
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
