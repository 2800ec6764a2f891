from __future__ import annotations

import json

import pytest

from shardflow.errors import ManifestError
from shardflow.formats import manifest
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import Shard
from shardflow.formats.virtual_roots import Root, split_shard_name

FINGERPRINT = "sha256:" + "a" * 64


def shard(name: str) -> Shard:
    """A shard's line."""
    return Shard(name=name, samples=3, bytes=10_240, sha256="0" * 64, index_sha256="1" * 64)


def virtual(**values: object) -> Manifest:
    """The manifest of a virtual dataset with two roots."""
    given: dict[str, object] = {
        "splits": {"train": (shard("train/0/train/000000.tar"), shard("train/1/00000.tar"))},
        "roots": {"0": Root(url="../photos256", fingerprint=FINGERPRINT), "1": Root(url="s3://bucket/tars")},
    }
    return Manifest(**{**given, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        ".",
        "..",
        "../..",
        "../photos256",
        "../../a b/ünï",
        "bases/0",
        "s3://bucket",
        "https://host:8000/a/b",
        "gs://b/c",
        "abfss://box@me.dfs.core.windows.net/a",
    ],
)
def test_places_that_may_be_named(url: str) -> None:
    """A root is a path relative to the manifest, or the URL of a store of objects or of a web server."""
    assert Root(url=url).url == url
    assert Root(url=url).is_relative == ("://" not in url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "/data/photos", "~/../x/", "a/../b", "../a/../..", "./a", "a/./b", "a//b", "a/", "../.", "a\nb"),
        *(
            "file:///etc",
            "file:etc",
            "local:///etc",
            "local:/etc",
            "memory://a/b",
            "zip://a::file:///etc/x.zip",
            "ssh://host/a",
            "s3:///a",
        ),
        *(
            "https://user:word@host/a",
            "abfss://box:word@me.dfs.core.windows.net/a",
            "abfss://box@me.dfs.core.windows.net/a?sig=1",
            "abfss://box@me.dfs.core.windows.net/a@b",
            "https://box@me.dfs.core.windows.net/a",
            "https://host/a?sig=1",
            "https://host/a#b",
            "s3://bucket/../other",
            "s3://a::b/c",
            "s3://a\\b/c",
        ),
        *(None, 3, ["a"]),
    ],
)
def test_places_that_may_not_be_named(url: object) -> None:
    """Absolute paths, detours, archives, other schemes and credentials are refused as soon as a manifest is read."""
    with pytest.raises(ManifestError, match="neither a relative path"):
        Root(url=url)  # type: ignore[arg-type]


def test_a_shard_names_its_root() -> None:
    """SPLIT/ROOT/PATH.tar is PATH.tar in the root; any other name is refused."""
    assert split_shard_name("train/0/a/b.tar") == ("0", "a/b.tar")
    with pytest.raises(ManifestError, match="SPLIT/ROOT/PATH"):
        split_shard_name("train/000000.tar")


def test_roots_round_trip_and_are_no_part_of_the_identity() -> None:
    """Roots are written and read again, and other roots leave the fingerprint what it is."""
    written = virtual()
    assert manifest.from_bytes(written.to_bytes()) == written
    moved = virtual(roots={"0": Root(url="bases/0"), "1": Root(url=".")})
    assert moved.fingerprint == written.fingerprint
    assert moved.to_bytes() != written.to_bytes()


def test_wrong_roots_are_refused() -> None:
    """A shard in no root, an unsafe URL written by hand, an unknown entry and an empty list are not read."""
    with pytest.raises(ManifestError, match="in none of the roots"):
        virtual(roots={"0": Root(url=".")})
    unsafe, unknown = {"0": {"url": "/etc"}, "1": {"url": "."}}, {"0": {"url": ".", "x": 1}, "1": {"url": "."}}
    for roots in (unsafe, unknown, {}, [1], "x"):
        content = {**json.loads(virtual().to_bytes()), "bases": roots}
        with pytest.raises(ManifestError):
            manifest.from_bytes(json.dumps(content).encode())
    with pytest.raises(ManifestError, match="not a fingerprint"):
        Root(url=".", fingerprint="abc")
