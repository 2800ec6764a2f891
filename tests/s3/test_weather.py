"""Faults at random, at one request in twenty."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import shardflow
from shardflow.storage.s3_transport import LEAST_PART_BYTES
from tests.helpers.folders import contents, image_folder
from tests.helpers.s3_matrix import PERSISTENT
from tests.helpers.s3_proxy import Proxy
from tests.helpers.s3_server import PIECE_BYTES, Server
from tests.helpers.weather import PROMPT, SLOW, Weather

SHARE = 0.05


def test_blobs_come_and_go_whole(server: Server, proxy: Proxy, prefix: str, tmp_path: Path) -> None:
    """Blobs of one and of many requests are written and read through faults of every kind, and are the right ones."""
    storage = server.storage(prefix, proxy.endpoint, PERSISTENT)
    weather = Weather(PROMPT + SLOW, SHARE, seed=1)
    proxy.rules.append(weather)
    blobs = {}
    for number, size in enumerate([1000, 3 * PIECE_BYTES + 1, LEAST_PART_BYTES + 5] * 4):
        data = blobs[f"{number}"] = random.Random(number).randbytes(size)
        source, target = tmp_path / f"source{number}", tmp_path / f"target{number}"
        source.write_bytes(data)
        storage.put(f"{number}", source)
        storage.get(f"{number}", target, size=size, sha256=hashlib.sha256(data).hexdigest())
        assert target.read_bytes() == data
        storage.put(f"new{number}", data[:5000], new=True)
    assert {name: storage.read(name) for name in blobs} == blobs
    assert list(storage.listing()) == sorted([*blobs, *(f"new{name}" for name in blobs)])
    assert server.open_uploads(prefix) == []
    assert weather.met.total() > 5


def test_packing_and_reading_get_through(server: Server, proxy: Proxy, prefix: str, tmp_path: Path) -> None:
    """A dataset packed and read through faults is the one that a disk would hold, byte for byte."""
    src = image_folder(tmp_path / "src", 60)
    local = shardflow.pack(src, tmp_path / "dst", shard_samples=5, short_side=32, workers=2)
    writing, reading = Weather(PROMPT, SHARE, seed=1), Weather(PROMPT, SHARE, seed=3)
    proxy.rules.append(writing)
    options, url = server.options(proxy.endpoint), server.url(prefix)
    report = shardflow.pack(src, url, shard_samples=5, short_side=32, workers=2, storage_options=options)
    assert report.fingerprint == local.fingerprint
    proxy.rules[:] = [reading]
    there = shardflow.open(url, storage_options=options, cache=tmp_path / "cache")["train"]
    here = shardflow.open(tmp_path / "dst")["train"]
    assert [sample["jpg"] for sample in there] == [sample["jpg"] for sample in here]
    assert min(writing.met.total(), reading.met.total()) > 1
    proxy.clear()
    assert server.contents(prefix) == contents(tmp_path / "dst")
