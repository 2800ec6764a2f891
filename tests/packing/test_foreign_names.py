"""Names that come from a server: none of them leads to a file of this machine, in any source or operation."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFile
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError, NotFoundError, PackIncompleteError
from shardflow.packing.sources.reader import public_name
from tests.helpers.folders import contents, encoded, photo, quarantined, write_tree
from tests.helpers.jobs import preview
from tests.helpers.tars import plain_tar

EXACT: dict[str, Any] = {"preset": "original", "executor": "serial", "shuffle": False}
TEXT = b"the canary's text"
MANY = 100

_opened: list[str] = []
_watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in ("open", "os.scandir", "os.listdir") and isinstance(arguments[0], str | bytes):
        _opened.append(arguments[0].decode(errors="replace") if isinstance(arguments[0], bytes) else arguments[0])


sys.addaudithook(_watch)


@contextlib.contextmanager
def watching() -> Iterator[list[str]]:
    """Provide the paths that are opened while the body runs."""
    global _watching
    _opened.clear()
    _watching = True
    try:
        yield _opened
    finally:
        _watching = False


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image of this machine that no server may name, with a text and a mask beside it, in the home directory."""
    home = tmp_path / "home"
    write_tree(home, {"canary.jpg": photo(77), "canary.txt": TEXT, "canary.tar": plain_tar([("1.jpg", photo(77))])})
    monkeypatch.setenv("HOME", str(home))
    return home / "canary.jpg"


@pytest.fixture
def bucket() -> Iterator[Callable[[dict[str, bytes]], str]]:
    """Makes a bucket of these keys, also of such as no file has; returns its URL."""
    fs = fsspec.filesystem("memory")
    numbers = itertools.count()
    fs.store.clear()

    def put(files: dict[str, bytes], name: str = "") -> str:
        name = name or f"bucket{next(numbers)}"
        for key, data in files.items():
            fs.store[f"/{name}/{key}"] = MemoryFile(fs, f"/{name}/{key}", data)
        return f"memory://{name}"

    yield put
    fs.store.clear()


NAMES: dict[str, Callable[[str], str]] = {
    "absolute": lambda path: path,
    "two slashes": lambda path: f"/{path}",
    "file URL": lambda path: f"file://{path}",
    "file URL in capitals": lambda path: f"FILE://{path}",
    "file URL with a host": lambda path: f"file://localhost{path}",
    "file without slashes": lambda path: f"file:{path}",
    "local URL": lambda path: f"local://{path}",
    "chained": lambda path: f"simplecache::file://{path}",
    "chained behind a store": lambda path: f"s3://bucket::file://{path}",
    "archive": lambda path: f"zip://x.jpg::file://{path}",
    "dots": lambda path: "../" * 20 + path[1:],
    "dots within": lambda path: "a/b" + "/.." * 20 + path,
    "quoted dots": lambda path: "%2e%2E/" * 20 + path[1:],
    "dots quoted twice": lambda path: "%252e%252e/" * 20 + path[1:],
    "quoted slash": lambda path: "%2F" + path[1:],
    "backslashes": lambda path: "..\\" * 20 + path[1:],
    "home": lambda path: f"~/{path.rpartition('/')[2]}",
    "of a store": lambda path: f"memory://bucket0{path}",
}


def _csv(names: list[str]) -> dict[str, bytes]:
    return {"t.csv": "\n".join(["path", *names]).encode()}


def _json_lines(names: list[str]) -> dict[str, bytes]:
    return {"t.jsonl": "".join(json.dumps({"path": name}) + "\n" for name in names).encode()}


def _parquet(names: list[str]) -> dict[str, bytes]:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"path": names}), file)
    return {"t.parquet": file.getvalue()}


def _masks(names: list[str]) -> dict[str, bytes]:
    return {"m.csv": "\n".join(["path,mask", *(f"a/ok.jpg,{name}" for name in ["mask.png", *names])]).encode()}


def _coco(names: list[str]) -> dict[str, bytes]:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    return {
        "c.json": json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "x"}]}).encode()
    }


GOOD = {"a/ok.jpg": photo(1), "b/ok.jpg": photo(2)}
MASK = {"mask.png": encoded(Image.new("L", (96, 64)), "PNG")}
TABLES = {"t.csv": _csv, "t.jsonl": _json_lines, "t.parquet": _parquet, "m.csv": _masks, "c.json": _coco}


def _source(kind: str, bucket: Callable[..., str], names: list[str], images: Path) -> Any:
    """Return a source in a bucket that holds two images, and these names."""
    good = [] if kind == "m.csv" else [*GOOD]
    if kind == "folder":
        return bucket(GOOD | dict.fromkeys(names, photo(3)))
    if kind == "folder with texts":
        files = {key: data for name in [*GOOD, *names] for key, data in ((name, photo(3)), (f"{name[:-3]}txt", b"x"))}
        return sf.sources.Folder(bucket(files), parts=("txt",))
    if kind == "c.json, images here":
        write_tree(images, GOOD)
        return sf.sources.Coco(f"{bucket(_coco([*GOOD, *names]))}/c.json", images=images)
    url = bucket(GOOD | TABLES[kind]([*good, *names]) | (MASK if kind == "m.csv" else {}))
    return sf.sources.Table(f"{url}/m.csv", mask="mask") if kind == "m.csv" else f"{url}/{kind}"


SOURCES = ["folder", "folder with texts", *TABLES, "c.json, images here"]


def _check(canary: Path, opened: list[str], *folders: Path) -> None:
    """Check that nothing of the canary was opened, or is in a folder."""
    assert not [path for path in opened if "canary" in path]
    for folder in folders:
        if folder.exists():
            for data in contents(folder).values():
                assert canary.read_bytes() not in data
                assert TEXT not in data


@pytest.mark.parametrize("kind", SOURCES)
def test_no_name_leads_to_a_file_of_this_machine(
    kind: str, canary: Path, bucket: Callable[..., str], tmp_path: Path
) -> None:
    """Each name of a server that could be a local file is refused by name or read there; the local file never is."""
    names = [make(str(canary)) for make in NAMES.values()]
    dst = tmp_path / "dst"
    with watching() as opened:
        with pytest.raises((ConfigError, PackIncompleteError), match="canary"):
            sf.pack(_source(kind, bucket, names, tmp_path / "images"), dst, **EXACT)
        preview(_source(kind, bucket, names, tmp_path / "images"), tmp_path / "dry", preset="original")
        sf.pack(_source(kind, bucket, names, tmp_path / "images"), dst, **EXACT, max_errors=MANY)
    _check(canary, opened, dst)
    left_out = " ".join(f"{row['path']} {row['reason']}" for row in quarantined(dst))
    for name, place in zip(NAMES, names, strict=True):
        is_key = kind.startswith("folder") and name in ("file without slashes", "home")
        assert (public_name(place) in left_out or ascii(public_name(place))[1:-1] in left_out) != is_key, name


def test_tars_are_listed_below_their_folder(canary: Path, bucket: Callable[..., str], tmp_path: Path) -> None:
    """A listing with a tar whose name could be a local file is refused by that name."""
    tar = plain_tar([("1.jpg", photo(1))])
    for name, make in NAMES.items():
        ok = "test.tar" if name == "file without slashes" else "ok.tar"  # folders of the canary name a split: test
        source = sf.sources.Shards(bucket({ok: tar, f"{make(str(canary))[:-3]}tar": tar}))
        with watching() as opened, contextlib.suppress(NotFoundError):
            if name in ("file without slashes", "home"):  # keys like any other
                sf.pack(source, tmp_path / "dst" / name, **EXACT)
            else:
                with pytest.raises(ConfigError, match=r"canary\.tar"):
                    sf.pack(source, tmp_path / "dst" / name, **EXACT)
        _check(canary, opened, tmp_path / "dst" / name)


@pytest.mark.parametrize("kind", ["folder", "folder with texts", "t.csv", "t.jsonl", "m.csv", "c.json"])
def test_nor_do_names_in_a_source_of_a_dataset(
    kind: str, canary: Path, bucket: Callable[..., str], tmp_path: Path
) -> None:
    """Extending, comparing and repairing list a source as packing does, and read no local file for it either."""
    dst = tmp_path / "dst"
    first = _source(kind, bucket, [], tmp_path / "images")
    sf.pack(first, dst, **EXACT)
    source = _source(kind, bucket, [make(str(canary)) for make in NAMES.values()], tmp_path / "images")
    tar = next((dst / "train").glob("*.tar"))
    with watching() as opened:
        sf.verify(dst, sources=[source])
        with pytest.raises((ConfigError, PackIncompleteError), match=r"canary|a/ok\.jpg"):
            sf.extend(source, dst, executor="serial")
        sf.extend(source, dst, executor="serial", max_errors=MANY, on_conflict="skip")
        tar.write_bytes(tar.read_bytes()[:-2000])
        sf.repair(dst, source, workers=1)
    _check(canary, opened, dst)
