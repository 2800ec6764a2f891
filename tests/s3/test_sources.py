"""Sources in a bucket: read as they would be from a disk, many requests at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import shardflow as sf
from shardflow.errors import PackIncompleteError
from tests.helpers.folders import contents, image_folder, photo, quarantined, write_tree
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import Server

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shard_samples": 20}


def _shards(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Everything but the receipts, which say how the inputs were listed."""
    return {name: data for name, data in files.items() if "/" not in name or name[-5:] != ".json"}


def test_a_folder_in_a_bucket(tmp_path: Path, server: Server, prefix: str) -> None:
    """A folder gives the same shards from a bucket, odd names, companions and hidden files included."""
    files = {f"b/ün☃ #{n} %41+?.jpg": photo(n) for n in range(3)} | {".hidden/x.jpg": b"", "a/readme.md": b"x"}
    src = write_tree(image_folder(tmp_path / "src", 30), files)
    for image in src.rglob("[!.]*/*.jpg"):
        image.with_suffix(".txt").write_text(image.name)
    url, options = server.put(prefix, src), server.options()
    report = sf.pack(sf.sources.Folder(url, parts=("txt",), storage_options=options), tmp_path / "far", **SMALL)
    sf.pack(sf.sources.Folder(src, parts=("txt",)), tmp_path / "near", **SMALL)
    assert (report.packed, report.skipped) == (33, 0)
    assert _shards(contents(tmp_path / "far")) == _shards(contents(tmp_path / "near"))


def test_options_are_for_both_ends(tmp_path: Path, server: Server, prefix: str) -> None:
    """storage_options serve a source and a destination in buckets alike, in worker processes as well."""
    url = server.put(f"{prefix}/src", image_folder(tmp_path / "src", 40))
    settings = {**SMALL, "executor": "processes", "workers": 2}
    sf.pack(url, server.url(f"{prefix}/dst"), **settings, storage_options=server.options())
    sf.pack(tmp_path / "src", tmp_path / "near", **SMALL)
    assert _shards(server.contents(f"{prefix}/dst")) == _shards(contents(tmp_path / "near"))


def test_the_environment_may_change(
    tmp_path: Path, server: Server, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pack in one process reads images from the endpoint that the environment names by then."""
    url = server.put(prefix, image_folder(tmp_path / "src", 4))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    for number, endpoint in enumerate((proxy.endpoint, server.endpoint)):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        sf.pack(url, tmp_path / str(number), executor="serial")
        proxy.add(Fault(status=403))


def test_an_object_that_changes_or_vanishes(tmp_path: Path, server: Server, prefix: str) -> None:
    """A resume packs again what has another content, and an object that has gone since is no input."""
    url, options = server.put(prefix, image_folder(tmp_path / "src", 60)), server.options()
    server.storage(prefix).put("a/bad.jpg", b"no image")
    source = sf.sources.Folder(url, storage_options=options)
    settings = {**SMALL, "shuffle": False}
    with pytest.raises(PackIncompleteError):
        sf.pack(source, tmp_path / "dst", **settings)
    server.storage(prefix).put("c/0002.jpg", photo(3))
    assert sf.pack(source, tmp_path / "dst", **settings, max_errors=1).resumed == 40 + 1
    assert sf.open(tmp_path / "dst").classes == ["a", "b", "c"]


def test_reading_takes_several_requests_at_a_time(tmp_path: Path, server: Server, proxy: Proxy, prefix: str) -> None:
    """Where every answer takes its time, an input takes a fraction of that."""
    url = server.put(prefix, image_folder(tmp_path / "src", 60))
    proxy.add(Fault(latency_s=0.3), method="GET", contains=".jpg", times=60)
    began = time.monotonic()
    sf.pack(sf.sources.Folder(url, storage_options=server.options(proxy.endpoint)), tmp_path / "dst", **SMALL)
    assert time.monotonic() - began < 60 * 0.3 / 2


def test_a_table_in_a_bucket(tmp_path: Path, server: Server, prefix: str) -> None:
    """Paths in a table are relative to it, wherever it is; URLs may lead elsewhere in the same store."""
    image_folder(tmp_path / "src/img", 3)
    here = server.url(prefix)
    (tmp_path / "src" / "t.csv").write_text(f"path\nimg/a/0000.jpg\n{here}/img/b/0001.jpg\nimg/none.jpg\n")
    server.put(prefix, tmp_path / "src")
    table = sf.sources.Table(f"{here}/t.csv", storage_options=server.options())
    report = sf.pack(table, tmp_path / "dst", **SMALL, max_errors=1)
    assert (report.packed, report.quarantined) == (2, 1)
    assert [row["path"] for row in quarantined(tmp_path / "dst")] == ["img/none.jpg"]


def test_shards_in_a_bucket(tmp_path: Path, server: Server, prefix: str) -> None:
    """Shards of others and datasets of ours are packed anew from a bucket as from a disk."""
    make_dataset(tmp_path / "ours", {"train": [5, 3], "val": [4]})
    (tmp_path / "theirs").mkdir()
    with wds.TarWriter(str(tmp_path / "theirs" / "7.tar")) as writer:
        for n in range(5):
            writer.write({"__key__": f"{n}", "jpg": photo(n), "txt": f"no {n}"})
    for kind, pattern in (("ours", ""), ("theirs", "/{7..7}.tar")):
        url = server.put(f"{prefix}/{kind}", tmp_path / kind)
        far = sf.sources.Shards(f"{url}{pattern}", storage_options=server.options())
        sf.pack(far, tmp_path / f"{kind}-far", **SMALL)
        sf.pack(tmp_path / kind, tmp_path / f"{kind}-near", **SMALL)
        far_files, near_files = (contents(tmp_path / f"{kind}-{end}") for end in ("far", "near"))
        assert _shards(far_files) == _shards(near_files)
