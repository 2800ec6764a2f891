"""Columns of datasets in a bucket: added, fetched ahead, cached and checked, whatever dies and whoever else writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardflow as sf
from shardflow.dataset.open_dataset import Split
from shardflow.dataset.write_lock import is_lock
from shardflow.errors import ConfigError, IntegrityError
from shardflow.formats import manifest
from shardflow.loading.shard_prefetcher import ShardPrefetcher
from tests.helpers.examples import stride
from tests.helpers.folders import contents, image_folder, photo, write_tree
from tests.helpers.interleaving import Command, MemoryPlace, scheduled
from tests.helpers.loading import until
from tests.helpers.making import flip, make_dataset
from tests.helpers.s3_server import Server

KEYS = [f"{n:09}" for n in range(9)]
TABLE = pa.table({"key": KEYS, "score": range(9), "text": [f"text {n}" for n in range(9)]})


@pytest.fixture
def url(server: Server, prefix: str, tmp_path: Path) -> str:
    """A dataset of three shards in a bucket."""
    return server.put(prefix, make_dataset(tmp_path / "made", [4, 3, 2]))


def test_columns_in_a_bucket(url: str, server: Server, tmp_path: Path) -> None:
    """Columns are added to a bucket from a table there, verified, copied out of it, replaced and dropped."""
    options = server.options()
    pq.write_table(TABLE, tmp_path / "table.parquet")
    table = server.put(url.rpartition("/")[2] + "-tables", tmp_path / "made")  # beside other files
    server.storage(url.rpartition("/")[2] + "-tables").put("table.parquet", (tmp_path / "table.parquet").read_bytes())
    sf.columns.add(url, f"{table}/table.parquet", key="key", storage_options=options)
    assert sf.verify(url, storage_options=options) == []
    sf.sync(url, tmp_path / "copy", src_options=options)
    assert sf.open(tmp_path / "copy")["train"].column("score").values.tolist() == [*range(9)]
    assert sf.verify(tmp_path / "copy") == []
    other = TABLE.set_column(1, "score", pa.array([-n for n in range(9)]))
    sf.columns.add(url, other, key="key", only=["score"], replace=True, storage_options=options)
    found = sf.open(url, storage_options=options, cache=tmp_path / "cache")["train"].column("score")
    assert found.values.tolist() == [-n for n in range(9)]
    sf.columns.drop(url, ["score", "text"], storage_options=options)
    assert not [name for name in server.contents(url.rpartition("/")[2]) if is_lock(name)]


def test_columns_are_cached_and_checked(url: str, server: Server, tmp_path: Path) -> None:
    """A loader reads columns through the cache: once from the bucket, and again where a copy is damaged."""
    options = server.options()
    sf.columns.add(url, TABLE, key="key", storage_options=options)

    def load() -> list[Any]:
        given = {"batch_size": 9, "shuffle": False, "num_workers": 1, "fields": ("key", "score", "text")}
        return list(sf.Loader(url, cache=tmp_path / "cache", storage_options=options, **given))

    first = load()
    assert first[0][1].tolist() == [*range(9)]
    files = sf.open(url, storage_options=options)["train"].columns.files()
    copies = [tmp_path / "cache/blobs" / file.sha256 for file in files]
    assert all(copy.is_file() for copy in copies)
    storage, name = server.storage(url.rpartition("/")[2]), "train/000001.score.parquet"
    data = storage.read(name)
    storage.put(name, bytes(len(data)))
    assert str(load()) == str(first)
    flip(copies[1], 40)
    with pytest.raises(IntegrityError, match=r"train/000001\.score\.parquet"):
        load()
    storage.put(name, data)
    assert str(load()) == str(first)


def test_columns_are_fetched_ahead(url: str, server: Server, tmp_path: Path) -> None:
    """What prefetches a shard prefetches the columns in use, and no others."""
    options = server.options()
    sf.columns.add(url, TABLE, key="key", storage_options=options)
    split: Split = sf.open(url, storage_options=options, cache=tmp_path / "cache")["train"]
    split.columns.used = ("score",)
    assert split.reader.cache is not None
    prefetcher = ShardPrefetcher(split, split.reader.cache, iter(()), 1, 9)
    with prefetcher._changed:
        prefetcher._queue.extend(range(3))
        prefetcher._changed.notify_all()
    names = {"score": True, "text": False}
    files = {name: [split.columns.file(name, shard) for shard in range(3)] for name in names}
    has = split.reader.cache.has
    assert until(lambda: all(file is not None and has(file.sha256) for file in files["score"]))
    assert until(lambda: all(has(shard.sha256) for shard in split.shards))
    prefetcher.stop()
    assert not any(file is not None and has(file.sha256) for file in files["text"])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The files of a packed dataset of two shards with one input in quarantine."""
    root = tmp_path_factory.mktemp("packed")
    source = write_tree(image_folder(root / "src", 4), {"a/bad.jpg": b"\xff\xd8"})
    sf.pack(source, root / "set", shard_samples=3, short_side=8, executor="serial", max_errors=1)
    write_tree(source, {"a/later.jpg": photo(99)})
    return contents(root / "set")


def table_of(files: Mapping[str, bytes]) -> pa.Table:
    """Return a table with a value for each sample of a packed dataset."""
    made = manifest.from_bytes(files["shardflow.json"])
    keys = [f"{n:09}" for n in range(made.inputs)]
    return pa.table({"key": keys, "a": range(len(keys))})


@pytest.mark.parametrize("what", ["add", "drop", "remove"])
def test_every_point_of_death(what: str, packed: Mapping[str, bytes]) -> None:
    """Killed before any request, a command leaves the old version or the new one whole, and the same call ends it."""
    table = table_of(packed)
    commands: dict[str, Command] = {
        "add": lambda url, options: sf.columns.add(url, table, key="key", allow=["unmatched"], storage_options=options),
        "drop": lambda url, options: sf.columns.drop(url, ["a"], storage_options=options),
        "remove": lambda url, options: sf.remove(url, keys=[KEYS[0]], purge=True, storage_options=options),
    }

    def after(files: Mapping[str, bytes], command: str) -> dict[str, bytes]:
        place = MemoryPlace(files)
        with scheduled(place, {"alone": commands[command]}) as schedule:
            schedule.run("alone")
        assert schedule.processes["alone"].error is None, schedule.processes["alone"].error
        return timeless(place)

    before = packed if what == "add" else after(packed, "add")
    whole, versions, requests, ended = after(before, what), set(), 0, False
    current = {manifest.from_bytes(files["shardflow.json"]).fingerprint for files in (before, whole)}
    while not ended:
        place = MemoryPlace(before)
        with scheduled(place, {"killed": commands[what], "again": commands[what]}) as schedule:
            for _ in range(requests + 1):
                if not ended:
                    schedule.step("killed")
                    ended = schedule.processes["killed"].has_ended
            schedule.kill("killed")
            found = manifest.from_bytes(place.blobs["shardflow.json"])
            versions.add(found.fingerprint)
            assert found.file_names() <= place.blobs.keys()
            schedule.run("again")
            assert schedule.processes["again"].error is None, schedule.processes["again"].error
        assert timeless(place) == whole
        requests += stride(1)
    assert versions == current
    assert requests > 10


def timeless(place: MemoryPlace) -> dict[str, bytes]:
    """Return the files of a place; of the record of a removal without the time."""
    return {name: b"" if name.startswith("removals/") else data for name, data in place.blobs.items()}


def test_other_work_is_kept_out(packed: Mapping[str, bytes]) -> None:
    """While one addition is under way, another with other values is refused, and one with the same completes it."""
    table = table_of(packed)
    other = table.set_column(1, "a", pa.array(["x"] * len(table)))

    def add(values: pa.Table) -> Any:
        return lambda url, options: sf.columns.add(url, values, key="key", allow=["unmatched"], storage_options=options)

    place = MemoryPlace(packed)
    with scheduled(place, {"one": add(table), "twin": add(table), "other": add(other)}) as schedule:
        schedule.run("one", until="create train/")
        assert schedule.processes["one"].request
        schedule.run("other")
        schedule.run("twin")
        schedule.run("one")
        processes = schedule.processes
    assert isinstance(processes["other"].error, ConfigError)
    assert processes["twin"].error is None
    found = manifest.from_bytes(place.blobs["shardflow.json"]).columns["a"]
    assert found.kind == "int64"
    assert not [name for name in place.blobs if is_lock(name)]
