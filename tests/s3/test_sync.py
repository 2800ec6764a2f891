"""Copying datasets between disks and buckets."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow.dataset.warming import warm
from shardflow.dataset.write_lock import FILE_NAME as LOCK
from shardflow.errors import ConfigError, DatasetExistsError, IntegrityError, ShardflowError, StoreError
from shardflow.storage.resolve import open_storage
from shardflow.storage.transfers import TransferPool
from tests.helpers.command import run
from tests.helpers.folders import contents, image_folder
from tests.helpers.making import flip
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import Server


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of four shards."""
    folder = tmp_path_factory.mktemp("data")
    sf.pack(image_folder(folder / "src", 70), folder / "set", shard_samples=20, short_side=32, workers=1)
    return folder / "set"


def test_there_and_back(dataset: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """A dataset copied into a bucket and out of it again has the same files, and no copy is damaged."""
    url, options = server.url(prefix), server.options()
    there = sf.sync(dataset, url, dst_options=options)
    assert (there.copied, there.found) == (4, 0)
    assert there.copied_bytes == sum(path.stat().st_size for path in dataset.rglob("*.tar"))
    assert sf.verify(url, storage_options=options) == []
    back = sf.sync(url, tmp_path / "back", src_options=options)
    assert contents(tmp_path / "back") == contents(dataset)
    assert there.fingerprint == back.fingerprint == sf.open(dataset).fingerprint
    assert sf.sync(url, tmp_path / "back", src_options=options).copied == 0


def test_between_directories(dataset: Path, tmp_path: Path) -> None:
    """Directories are synced in the same way; a copy that was begun goes on, and a damaged part is copied again."""
    sf.sync(dataset, tmp_path / "copy")
    expected = contents(dataset)
    assert contents(tmp_path / "copy") == expected
    (tmp_path / "copy/shardflow.json").unlink()
    (tmp_path / "copy" / LOCK).write_bytes(b'{\n "content": "%b"\n}\n' % sf.open(dataset).fingerprint.encode())
    (tmp_path / "copy/train/000003.tar").unlink()
    (tmp_path / "copy/train/.tmp-000003.tar.abcdef01").write_bytes(b"half")
    flip(tmp_path / "copy/train/000001.tar", 700)
    report = sf.sync(dataset, tmp_path / "copy")
    assert (report.copied, report.found) == (2, 2)
    assert contents(tmp_path / "copy") == expected


@pytest.fixture(params=["directory", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, server: Server, prefix: str
) -> tuple[str | Path, dict[str, Any] | None]:
    """A destination, and its storage_options."""
    return (tmp_path / "copy", None) if request.param == "directory" else (server.url(prefix), server.options())


def test_a_copy_that_lost_something_gets_it_back(dataset: Path, place: tuple[str, dict[str, Any]]) -> None:
    """What is missing of a finished copy, or has another size, is copied again; the rest is left alone."""
    url, options = place
    sf.sync(dataset, url, dst_options=options)
    storage = open_storage(url, options)
    storage.remove("train/000001.tar")
    storage.put("train/000002.tar", b"cut short")
    storage.remove("train/000003.npy")
    untouched = storage.listing()["train/000000.tar"].modified_ns
    report = sf.sync(dataset, url, dst_options=options)
    assert (report.copied, report.found) == (2, 2)
    assert sf.verify(url, storage_options=options) == []
    assert storage.listing()["train/000000.tar"].modified_ns == untouched
    assert sf.sync(dataset, url, dst_options=options).copied == 0


def test_a_copy_of_a_view_gets_its_tars_back(dataset: Path, tmp_path: Path, place: tuple[str, dict[str, Any]]) -> None:
    """The copy of a view has tars of its own, which are looked for where they are, and the names of the files."""
    sf.subset(dataset, tmp_path / "view", fraction=0.5)
    url, options = place
    first = sf.sync(tmp_path / "view", url, dst_options=options)
    assert sf.sync(tmp_path / "view", url, dst_options=options).copied == 0
    copied, view = sf.open(url, storage_options=options)["train"], sf.open(tmp_path / "view")["train"]
    assert copied.sources() == view.sources()
    storage = open_storage(url, options)
    gone = next(name for name in storage.listing() if name.endswith("000001.tar"))
    storage.remove(gone)
    report = sf.sync(tmp_path / "view", url, dst_options=options)
    assert (report.copied, report.found) == (1, first.copied - 1)
    assert sf.verify(url, storage_options=options) == []


@pytest.mark.parametrize("how", ["sync", "repair"])
def test_a_copy_can_be_read_by_whom_the_umask_lets(
    dataset: Path, tmp_path: Path, server: Server, prefix: str, how: str
) -> None:
    """Copied and repaired tars have the mode that any new file has."""
    sf.sync(dataset, server.url(prefix), dst_options=server.options())
    sf.sync(server.url(prefix), tmp_path / "copy", src_options=server.options())
    if how == "repair":
        (tmp_path / "copy/train/000001.tar").unlink()
        sf.repair(tmp_path / "copy", dataset)
    modes = {path.stat().st_mode for path in (tmp_path / "copy/train").iterdir()}
    (tmp_path / "new").touch()
    assert modes == {(tmp_path / "new").stat().st_mode}


@pytest.mark.parametrize("broken", ["train/000002.tar", "train/000001.npy", "shardflow.json"])
def test_a_copy_that_failed_goes_on(dataset: Path, server: Server, proxy: Proxy, prefix: str, broken: str) -> None:
    """After a permanent refusal of a request there is no dataset, and the next call copies what is missing."""
    proxy.add(Fault(status=403, code="AccessDenied"), method="PUT", contains=broken)
    options = server.options(proxy.endpoint)
    with pytest.raises(StoreError):
        sf.sync(dataset, server.url(prefix), dst_options=options)
    storage = server.storage(prefix)
    assert storage.version("shardflow.json") is None
    there = [name for name in storage.listing() if name.endswith(".tar")]
    proxy.clear()
    report = sf.sync(dataset, server.url(prefix), dst_options=options)
    assert report.found == len(there)
    assert server.contents(prefix) == contents(dataset)


@pytest.mark.parametrize("name", ["train/000002.tar", "train/000002.npy"])
def test_damage_is_not_copied(dataset: Path, tmp_path: Path, name: str) -> None:
    """A shard or an index that is not the one packed is an error, and nothing becomes a dataset."""
    sf.sync(dataset, tmp_path / "damaged")
    damaged = tmp_path / "damaged" / name
    flip(damaged, damaged.stat().st_size // 2)
    with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
        sf.sync(tmp_path / "damaged", tmp_path / "copy")
    with pytest.raises(ShardflowError):
        sf.open(tmp_path / "copy")


def test_destinations_that_are_taken(dataset: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """Another dataset, other files, and the beginnings of something else are refused and left as they are."""
    sf.pack(image_folder(tmp_path / "src", 5), tmp_path / "other", workers=1)
    before = contents(tmp_path / "other")
    with pytest.raises(DatasetExistsError, match="already holds another dataset"):
        sf.sync(dataset, tmp_path / "other")
    assert contents(tmp_path / "other") == before
    with pytest.raises(ConfigError, match="is not empty: it has"):
        sf.sync(dataset, tmp_path / "src")
    storage = server.storage(prefix)
    storage.put(LOCK, b"another's")
    with pytest.raises(ConfigError, match="with other inputs or settings"):
        sf.sync(dataset, server.url(prefix), dst_options=server.options())
    assert list(storage.listing()) == [LOCK]


def test_the_command(dataset: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """`shardflow sync` says what it copied, and what was there already."""
    sync = functools.partial(run, "sync", env={**os.environ, **server.environment()})
    there = sync(dataset, server.url(prefix))
    assert there.stdout.startswith("copied 4 shards, "), there.stderr
    again = sync(dataset, server.url(prefix))
    assert again.stdout.splitlines()[1].startswith("4 shards, ")
    assert (again.returncode, sync(tmp_path / "nowhere", tmp_path / "x").returncode) == (0, 4)


@pytest.mark.parametrize("what", ["sync", "upload", "warm", "index"])
@pytest.mark.parametrize("held", ["before", "in the body"])
def test_interrupted_transfers_are_given_up(
    dataset: Path, tmp_path: Path, server: Server, proxy: Proxy, prefix: str, what: str, held: str
) -> None:
    """An interrupt or an error does not wait for other shards under way; the next attempt has them all."""
    url, options = server.url(prefix), server.options(proxy.endpoint)
    if what != "upload":
        sf.sync(dataset, url, dst_options=server.options())
    begun = threading.Event()
    fault = Fault(before=begun.set, hang=True) if held == "before" else Fault(before=begun.set, hang_after=1000)
    method = "PUT" if what == "upload" else "GET"
    proxy.add(fault, contains="train/000003.tar", method=method)

    def interrupt(*_: object) -> None:
        if what == "index" and _[0] == 0:
            return
        assert begun.wait(30)
        raise KeyboardInterrupt

    if what == "index":
        server.storage(prefix).remove("shardflow.json")
    acts: dict[str, Callable[..., object]] = {
        "sync": lambda **progress: sf.sync(url, tmp_path / "copy", src_options=options, **progress),
        "upload": lambda **progress: sf.sync(dataset, url, dst_options=options, **progress),
        "warm": lambda **progress: warm(
            sf.open(url, storage_options=options, cache=tmp_path / "cache").values(), **progress
        ),
        "index": lambda **progress: sf.index(f"{url}/train/", tmp_path / "index", src_options=options, **progress),
    }
    with pytest.raises(KeyboardInterrupt):
        acts[what](progress=interrupt)
    requests = 2 if (what, held) == ("index", "in the body") else 1  # it asks for the size before
    assert len([asked for asked, path, _ in proxy.log if asked == method and "train/000003.tar" in path]) == requests
    assert list(tmp_path.glob("cache/partial/*")) == list(tmp_path.rglob(".tmp-*")) == []
    proxy.clear()
    acts[what]()


def test_transfers_that_are_given_up_take_no_others_along(dataset: Path, server: Server, prefix: str) -> None:
    """Only what the threads of one pool wait for is given up; what they begin later is given up as well."""
    sf.sync(dataset, server.url(prefix), dst_options=server.options())
    storage = server.storage(prefix)
    again = threading.Event()

    def late() -> bytes:
        assert again.wait(10)
        return storage.read("shardflow.json")

    with contextlib.suppress(KeyboardInterrupt), TransferPool(2) as pool:
        pending = pool.submit(late)
        threading.Timer(0.2, again.set).start()
        raise KeyboardInterrupt
    with pytest.raises(CancelledError):
        pending.result()
    assert storage.read("shardflow.json")


def test_a_machine_without_a_place_for_the_cache(dataset: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """Where no home can be written, as in some containers, a dataset can still be looked at, verified and copied."""
    url, copy = server.url(prefix), tmp_path / "copy"
    sf.sync(dataset, url, dst_options=server.options())
    environment = {**os.environ, **server.environment(), "XDG_CACHE_HOME": "/proc/1/none"}
    for command in (["info", url], ["verify", url], ["sync", url, copy]):
        done = run(*command, env=environment)
        assert (done.returncode, "none" in done.stderr) == (0, False), done.stderr
    assert contents(copy) == contents(dataset)
