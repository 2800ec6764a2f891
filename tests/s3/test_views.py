"""Views in buckets, and on a disk over tars in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from shardflow.dataset.warming import warm
from shardflow.errors import BucketNotFoundError, ConfigError, NotFoundError
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Proxy
from tests.helpers.s3_server import Server
from tests.helpers.tars import members_of, write_tar


def labels(url: str | Path, tmp_path: Path, server: Server) -> list[int]:
    """What a loader with two workers hands out."""
    loader = sf.Loader(
        url,
        batch_size=4,
        tail="short",
        num_workers=2,
        fields=("label",),
        cache=tmp_path / "cache",
        storage_options=server.options(),
    )
    return sorted(label for (batch,) in loader for label in batch.tolist())


def test_a_subset_of_a_bucket(tmp_path: Path, server: Server, prefix: str) -> None:
    """A subset beside its dataset in the bucket, and one on this disk, are the same, and are read through the cache."""
    url = server.put(f"{prefix}/set", make_dataset(tmp_path / "set", [12, 9]))
    options = server.options()
    there = server.url(f"{prefix}/few")
    settings = {"fraction": 0.4, "src_options": options}
    sf.subset(url, there, **settings, dst_options=options)
    sf.subset(url, tmp_path / "few", **settings)
    near, far = sf.open(tmp_path / "few", storage_options=options), sf.open(there, storage_options=options)
    assert (near.manifest.roots["0"].url, far.manifest.roots["0"].url) == (url, "../set")
    assert near.fingerprint == far.fingerprint
    assert labels(there, tmp_path, server) == labels(tmp_path / "few", tmp_path, server)
    assert len(labels(there, tmp_path, server)) == 8
    for view in (there, tmp_path / "few"):
        assert sf.verify(view, storage_options=options) == []
    warm(sf.open(there, storage_options=options, cache=tmp_path / "warm").values())
    sf.sync(there, tmp_path / "copy", src_options=options)
    assert len(sf.open(tmp_path / "copy")["train"]) == 8
    sf.sync(tmp_path / "few", there + "-copy", src_options=options, dst_options=options)
    assert sf.verify(there + "-copy", storage_options=options) == []
    with pytest.raises(ConfigError, match="cannot name"):
        sf.subset(tmp_path / "set", there + "2", limit=1, dst_options=options)


def test_tars_in_a_bucket_are_indexed(tmp_path: Path, server: Server, prefix: str) -> None:
    """Tars that others have put into a bucket are indexed there and from here, with equal results."""
    for number in range(2):
        write_tar(tmp_path / f"tars/{number:05}.tar", members_of(range(4 * number, 4 * number + 4)))
    url, options = server.put(prefix, tmp_path / "tars"), server.options()
    sf.index(f"{url}/{{00000..00001}}.tar", tmp_path / "view", src_options=options)
    report = sf.index(url, src_options=options)
    assert report.fingerprint == sf.open(tmp_path / "view", storage_options=options).fingerprint
    assert (
        labels(url, tmp_path, server) == labels(tmp_path / "view", tmp_path, server) == sorted(n % 3 for n in range(8))
    )
    with pytest.raises(NotFoundError, match="restore it, or leave it out of the pattern"):
        sf.index(f"{url}/{{00001..00002}}.tar", tmp_path / "more", src_options=options)
    with pytest.raises(BucketNotFoundError, match="bucket does not exist"):
        sf.index("s3://misspelt/{00000..00001}.tar", tmp_path / "more", src_options=options)


def test_files_are_fetched_once(
    tmp_path: Path, server: Server, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a view looks at a shard's index, one request brings it; verify asks for a tar's size and bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    url = server.put(f"{prefix}/set", make_dataset(tmp_path / "set", [6, 5]))
    options = server.options(proxy.endpoint)
    sf.split(url, tmp_path / "parts", val=0.3, src_options=options)
    assert proxy.count("GET", ".npy") == 2
    sf.subset(url, tmp_path / "few", classes=["class1", "class9"], fraction=0.5, src_options=options)
    sf.diff(url, url, a_options=options, b_options=options)
    assert proxy.count("GET", ".npy") == 2
    proxy.clear()
    assert sf.verify(tmp_path / "parts", storage_options=options) == []
    asked = [(target.rpartition("/")[2], place) for _, target, place in proxy.log if target.endswith(".tar")]
    assert asked == [
        ("000000.tar", "bytes=0-0"),
        ("000000.tar", "bytes=0-19455"),
        ("000001.tar", "bytes=0-0"),
        ("000001.tar", "bytes=0-16383"),
    ]
