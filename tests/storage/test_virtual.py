from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from shardflow.errors import ConfigError
from shardflow.formats.virtual_roots import Root
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from shardflow.storage.virtual import VirtualStorage, relative_root, root_url, virtual_storage

BUCKET = "s3://bucket/data/view"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("../photos", "s3://bucket/data/photos"),
        (".", "s3://bucket/data/view"),
        ("bases/0", "s3://bucket/data/view/bases/0"),
        ("../..", "s3://bucket"),
    ],
)
def test_places_in_a_bucket(url: str, expected: str) -> None:
    """A relative path leads to a place in the same bucket, up to its root."""
    assert root_url(BUCKET, Root(url=url)) == expected


def test_a_url_without_a_host() -> None:
    """A URL whose host is empty keeps its two slashes: without them it would be a relative path."""
    assert root_url("local:///data/view", Root(url="../photos")) == "local:///data/photos"
    assert str(open_storage("local:///data/view/")) == "local:///data/view"
    assert relative_root(LocalStorage(Path("/data/view")), open_storage("local:///data/photos")) == "../photos"


AZURE = "abfss://box@me.dfs.core.windows.net"
WEB = "https://user:word@host"


def test_roots_are_below_the_same_container_and_signature() -> None:
    """The root of a URL keeps what a message leaves out: Azure's container, the password, and the query at the end."""
    assert root_url(f"{AZURE}/data/view", Root(url="../photos")) == f"{AZURE}/data/photos"
    assert root_url(f"{WEB}/data/view?sig=a/b", Root(url="../photos")) == f"{WEB}/data/photos?sig=a/b"
    view, photos = (open_storage(f"{AZURE}/{name}") for name in ("view", "photos"))
    assert str(photos) == f"{AZURE}/photos"
    assert relative_root(view, photos) == "../photos"
    with pytest.raises(ConfigError, match="another bucket or host"):
        relative_root(view, open_storage("abfss://other@me.dfs.core.windows.net/photos"))
    for url in ("%2e%2e/%2E%2e/x", "..\\..\\x", "%252e%252e/x"):
        with pytest.raises(ConfigError, match="may only name its own bucket or host"):
            root_url(f"{AZURE}/view", Root(url=url))


@pytest.mark.parametrize("url", ["../../..", "../../../other", "s3://other/x", "s3://bucket/x", "https://host/x"])
def test_places_out_of_a_bucket(url: str) -> None:
    """A dataset behind a URL leads nowhere else: not above the root of its bucket, and to no absolute URL."""
    with pytest.raises(ConfigError, match="may only name its own bucket or host"):
        root_url(BUCKET, Root(url=url))


def test_places_from_a_disk(tmp_path: Path) -> None:
    """A manifest on a disk leads to directories relative to it, by short paths if no link is skipped, and to URLs."""
    root = str(tmp_path / "view")
    assert root_url(root, Root(url="../set")) == str(tmp_path / "set")
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    assert root_url(str(tmp_path / "link"), Root(url="../set")) == str(tmp_path / "link/../set")
    assert root_url(root, Root(url="s3://bucket/set")) == "s3://bucket/set"


@pytest.mark.parametrize("url", ["../a/b", "..", ".", "deep/er"])
def test_names_lead_back_to_the_place(tmp_path: Path, url: str) -> None:
    """The relative root of a place leads back to it, on disks and in buckets."""
    local, remote = LocalStorage(tmp_path / "x/view"), open_storage(BUCKET)
    there = LocalStorage(root_url(str(local), Root(url=url)))
    assert relative_root(local, there) == url
    assert relative_root(remote, open_storage(root_url(BUCKET, Root(url=url)))) == url


def test_names_that_no_reader_would_follow(tmp_path: Path) -> None:
    """A bucket names neither this machine nor another bucket; a disk names both."""
    bucket, disk = open_storage(BUCKET), LocalStorage(tmp_path)
    with pytest.raises(ConfigError, match=r"`shardflow sync`.*there"):
        relative_root(bucket, disk)
    with pytest.raises(ConfigError, match="another bucket or host"):
        relative_root(bucket, open_storage("s3://other/set"))
    assert relative_root(disk, bucket) == BUCKET


def test_options_go_to_one_place_alone(tmp_path: Path) -> None:
    """Options, which may be credentials, are not sent to several hosts that a manifest names."""
    bases = {"0": Root(url="s3://bucket/a"), "1": Root(url="https://host/b")}
    with pytest.raises(ConfigError, match="2 places"):
        virtual_storage(LocalStorage(tmp_path), tmp_path, bases, {"key": "k"})
    virtual_storage(LocalStorage(tmp_path), tmp_path, bases)
    virtual_storage(LocalStorage(tmp_path), tmp_path, {"0": bases["0"], "1": Root(url="..")}, {"key": "k"})


class RecordingStorage(LocalStorage):
    """A storage that records the uploads that it has to abort."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.aborted: list[set[str]] = []

    def abort_uploads(self, names: Collection[str]) -> None:
        """Record the names."""
        self.aborted.append({*names})


def test_uploads_are_aborted_with_one_call_per_storage(tmp_path: Path) -> None:
    """Each storage of a virtual dataset gets one call for all of its uploads, and none if it has none of them."""
    own, *bases = (RecordingStorage(tmp_path / name) for name in ("view", "a", "b", "c"))
    view = VirtualStorage(own, dict(zip("012", bases, strict=True)))
    view.abort_uploads({"train/0/x.tar", "train/0/y.tar", "val/0/x.tar", "val/2/x.tar"})
    assert [storage.aborted for storage in (own, *bases)] == [[], [{"x.tar", "y.tar"}], [], [{"x.tar"}]]
