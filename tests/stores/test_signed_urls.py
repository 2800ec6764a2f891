"""Sources behind signed web URLs: each request has the signature, which is in nothing that is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, StoreError
from tests.helpers.folders import contents, photo, write_tree
from tests.helpers.store import Store
from tests.helpers.tars import plain_tar
from tests.helpers.web_server import Folder

QUERY = "sig=a/b%2Fc?d*e[f]{0..1}&x=1"
SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial"}
COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
    "annotations": [],
    "categories": [{"id": 1, "name": "x"}],
}
FILES = {
    "t.csv": b"path\nimages/1.jpg\nimages/2.jpg\n",
    "t.jsonl": b'{"path": "images/1.jpg"}\n{"path": "images/2.jpg"}\n',
    "c.json": json.dumps(COCO).encode(),
    "images/1.jpg": photo(1),
    "images/2.jpg": photo(2),
    "0.tar": plain_tar([("1.jpg", photo(1))]),
    "1.tar": plain_tar([("2.jpg", photo(2))]),
}


@pytest.fixture
def signed(web: tuple[Store, Folder], prefix: str) -> Callable[[str], str]:
    """Returns the signed URL of a name below a folder with two images, in every form."""
    store, folder = web
    write_tree(folder.root / prefix, FILES)
    sf.pack(folder.root / prefix / "t.csv", folder.root / prefix / "set", **SMALL)
    sf.split(folder.root / prefix / "set", folder.root / prefix / "view", val=0.5)
    folder.seen.clear()
    return lambda name: f"{store.url(prefix)}/{name}?{QUERY}".replace("/?", "?")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "c.json", "{0..1}.tar", "set", "view"])
def test_every_request_has_the_signature(
    name: str, signed: Callable[[str], str], web: tuple[Store, Folder], tmp_path: Path
) -> None:
    """A signed source is packed by requests with its query alone, and the query is not a pattern."""
    _, folder = web
    report = sf.pack(signed(name), tmp_path / "dst", **SMALL)
    assert report.packed == 2
    assert all(path.partition("?")[2].startswith("sig=a") for _, path, _ in folder.seen)
    assert not [data for data in contents(tmp_path / "dst").values() if b"sig=" in data]


@pytest.mark.parametrize("name", ["[01].tar", "*.tar", "images", ""])
def test_a_signed_url_has_no_listing(
    name: str, signed: Callable[[str], str], web: tuple[Store, Folder], tmp_path: Path
) -> None:
    """What would need a list of files is refused with what to name: the links of a web page have no signature."""
    with pytest.raises(StoreError, match="cannot be listed; name the files"):
        sf.pack(signed(name), tmp_path / "dst", **SMALL)
    assert all(path.partition("?")[2].startswith("sig=a") for _, path, _ in web[1].seen)


def test_no_index_of_a_signed_url(signed: Callable[[str], str], web: tuple[Store, Folder], tmp_path: Path) -> None:
    """An index of tars that only a signature opens is refused before a request: its manifest could not keep it."""
    with pytest.raises(ConfigError, match=r"\{0\.\.1\}\.tar: .*a manifest cannot keep"):
        sf.index(signed("{0..1}.tar"), tmp_path / "dst")
    assert not web[1].seen
    assert not (tmp_path / "dst").exists()
