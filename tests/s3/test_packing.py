"""Packing to a bucket: the same dataset as on a disk, whatever happens on the way."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow.dataset.write_lock import FILE_NAME as LOCK
from shardflow.errors import ConfigError, DatasetExistsError, PackIncompleteError, ShardflowError
from shardflow.storage.local_files import lock_directory
from tests.helpers.command import run
from tests.helpers.folders import contents, image_folder, write_tree
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import SECRET_KEY, Server
from tests.helpers.warm_python import python

WITH_WORKERS: dict[str, Any] = {"shard_samples": 20, "short_side": 32, "workers": 2}
SETTINGS: dict[str, Any] = {"shard_samples": 20, "short_side": 32, "executor": "serial"}


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 70 photos and an input that cannot be packed, older than whatever is packed from it."""
    folder = write_tree(image_folder(tmp_path_factory.mktemp("photos"), 70), {"a/bad.jpg": b"\xff\xd8"})
    for path in folder.rglob("*.*"):
        os.utime(path, (time.time() - 5,) * 2)
    return folder


@pytest.fixture(scope="module")
def packed(src: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a local pack."""
    dst = tmp_path_factory.mktemp("packed") / "dst"
    sf.pack(src, dst, **SETTINGS, max_errors=1)
    return contents(dst)


@pytest.fixture
def staging_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_bucket_holds_what_a_disk_would(
    src: Path, tmp_path: Path, server: Server, prefix: str, staging_root: Path
) -> None:
    """The blobs are the files of a local pack, byte for byte, and nothing else is left there or here."""
    url, options = server.url(prefix), server.options()
    local = sf.pack(src, tmp_path / "dst", **SETTINGS, max_errors=1)
    report = sf.pack(src, url, **WITH_WORKERS, max_errors=1, storage_options=options)
    assert server.contents(prefix) == contents(tmp_path / "dst")
    assert (report.fingerprint, report.packed, report.quarantined) == (local.fingerprint, 70, 1)
    assert sf.verify(url, storage_options=options) == []
    assert list(staging_root.iterdir()) == []
    assert SECRET_KEY.encode() not in b"".join(server.contents(prefix).values())
    with pytest.raises(DatasetExistsError, match="already holds a dataset"):
        sf.pack(src, url, **SETTINGS, max_errors=1, storage_options=options)


def test_the_command_needs_the_usual_environment_alone(src: Path, server: Server, prefix: str) -> None:
    """`shardflow pack`, `info` and `verify` take an s3:// URL in the place of a path, and say so when it is damaged."""
    command, url = functools.partial(run, env={**os.environ, **server.environment()}), server.url(prefix)
    packed = command("pack", src, url, "--short-side", 32, "--max-errors", 1, "--workers", 1)
    assert packed.returncode == 0, packed.stderr
    assert json.loads(command("info", url, "--json").stdout)["samples"] == 70
    assert command("verify", url).stdout.startswith("no damage: 1 shard, 70 samples")
    tar = bytearray(server.storage(prefix).read("train/000000.tar"))
    tar[1000] ^= 1
    server.storage(prefix).put("train/000000.tar", bytes(tar))
    damaged = command("verify", url)
    assert damaged.returncode == 1
    assert "train/000000.tar: its SHA-256 differs" in damaged.stdout
    again = command("pack", src, url)
    assert (again.returncode, again.stdout) == (3, "")


def test_packing_needs_no_cache(
    tmp_path: Path, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without a home directory, as in some containers, packs to a bucket, and copies are found there too."""
    monkeypatch.setattr("shardflow.storage.cache.default_directory", lambda: pytest.fail("asked for"))
    src = image_folder(tmp_path / "src", 4)
    shutil.copy(src / "a/0000.jpg", src / "b/copy.jpg")
    sf.pack(src, server.url(prefix), **SETTINGS, storage_options=server.options())
    assert "1 image packed with different labels, such as 'a/0000.jpg' (train:" in caplog.text


def test_requests_of_a_pack(src: Path, server: Server, proxy: Proxy, prefix: str) -> None:
    """A pack lists the destination twice, reads its receipts before the commit, twice on a resume, then its indexes."""
    settings = {**SETTINGS, "storage_options": server.options(proxy.endpoint)}

    def requests() -> tuple[int, list[str]]:
        paths = (target.partition("?")[0] for method, target, _ in proxy.log if method == "GET")
        reads = sorted(path.rpartition(f"/{prefix}/")[2] for path in paths if f"/{prefix}/" in path)
        return proxy.count("GET", "list-type=2"), [name for name in reads if "/" in name]

    with pytest.raises(PackIncompleteError):
        sf.pack(src, server.url(prefix), **settings)
    receipts, indexes = ([f"train/00000{number}.{kind}" for number in range(4)] for kind in ("json", "npy"))
    assert requests() == (2, receipts)
    proxy.clear()
    server.storage(prefix).remove("train/000001.npy")
    assert sf.pack(src, server.url(prefix), **settings, max_errors=1).resumed == 51
    assert requests() == (2, sorted(2 * receipts + indexes))


@pytest.mark.parametrize("moment", ["quarantine.jsonl", "train/000000.tar", "train/000001.json", "train/000003.npy"])
def test_a_killed_pack_goes_on(
    src: Path, packed: dict[str, bytes], server: Server, prefix: str, staging_root: Path, moment: str
) -> None:
    """After SIGKILL at any moment the same call ends with the same bytes, and removes what was left here."""
    arguments = {"max_errors": 1, "storage_options": server.options()}
    with_workers = {**WITH_WORKERS, **arguments}
    script = f"import shardflow as sf; sf.pack({str(src)!r}, {server.url(prefix)!r}, **{with_workers!r})"
    storage = server.storage(prefix)
    process = subprocess.Popen([python(), "-c", script])
    deadline = time.monotonic() + 30
    while storage.version(moment) is None and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for staging in staging_root.iterdir():
        with lock_directory(staging, timeout_s=30):  # the workers end with it, each when it has the time to
            pass
    done = [name for name in storage.listing() if name.endswith(".json") and "/" in name]
    try:
        report = sf.pack(src, server.url(prefix), **SETTINGS, **arguments)
        assert report.resumed >= 20 * len(done) - 9  # the last shard has eleven
    except DatasetExistsError:  # it was quicker than the signal
        pass
    assert server.contents(prefix) == packed
    assert list(staging_root.iterdir()) == []


def test_two_packers_of_the_same_make_one_dataset(src: Path, server: Server, prefix: str) -> None:
    """Of two equal packs one commits an intact dataset; the other fails with DatasetExistsError."""
    arguments = {**SETTINGS, "max_errors": 1, "storage_options": server.options()}
    script = f"""
import shardflow as sf
try:
    sf.pack({str(src)!r}, {server.url(prefix)!r}, **{arguments!r})
except sf.errors.DatasetExistsError:
    raise SystemExit(3)
"""
    packers = [subprocess.Popen([python(), "-c", "import shardflow.errors" + script]) for _ in range(2)]
    assert sorted(packer.wait(60) for packer in packers) == [0, 3]
    assert sf.verify(server.url(prefix), storage_options=server.options()) == []
    assert LOCK not in server.storage(prefix).listing()


def test_packers_of_different_things_do_not_mix(src: Path, server: Server, prefix: str) -> None:
    """A pack with other inputs or settings than the one that was begun there is refused before it writes a thing."""
    url, options = server.url(prefix), server.options()
    with pytest.raises(PackIncompleteError):
        sf.pack(src, url, **SETTINGS, storage_options=options)
    before = server.contents(prefix)
    assert LOCK in before
    for other in ({"short_side": 16}, {"seed": 1}, {"shard_samples": 10}):
        with pytest.raises(ConfigError, match="with other inputs or settings") as caught:
            sf.pack(src, url, **{**SETTINGS, **other}, max_errors=1, storage_options=options)
        assert caught.value.exit_code == 2
    assert server.contents(prefix) == before
    report = sf.pack(src, url, **SETTINGS, max_errors=1, storage_options=options)
    assert report.resumed == 71
    assert LOCK not in server.contents(prefix)


def test_what_is_not_a_packs_is_left_alone(src: Path, server: Server, prefix: str) -> None:
    """A prefix that holds something else is refused, and holds the same afterwards."""
    server.storage(prefix).put("mine.txt", b"mine")
    with pytest.raises(ConfigError, match=r"is not empty: it holds 'mine\.txt'"):
        sf.pack(src, server.url(prefix), **SETTINGS, storage_options=server.options())
    assert server.contents(prefix) == {"mine.txt": b"mine"}


def test_inputs_that_changed_are_packed_again(src: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """A resume packs a shard again when one of its inputs has been touched since."""
    url, options = server.url(prefix), server.options()
    own = shutil.copytree(src, tmp_path / "own")
    with pytest.raises(PackIncompleteError):
        sf.pack(own, url, **SETTINGS, storage_options=options)
    os.utime(own / "a/0000.jpg", (time.time() + 2,) * 2)  # the store counts seconds
    report = sf.pack(own, url, **SETTINGS, max_errors=1, storage_options=options)
    assert 71 - report.resumed in (11, 20)  # the one shard that it is in


@pytest.mark.parametrize(
    ("fault", "which"),
    [
        (Fault(status=503, code="SlowDown"), {"method": "PUT", "times": 3}),
        (Fault(reset=True, reaches_server=True), {"method": "PUT", "contains": "shardflow.json"}),
        (Fault(reset=True, reaches_server=True), {"method": "PUT", "contains": LOCK, "times": 1}),
        (Fault(flip_sent=100), {"method": "PUT", "contains": "000001.tar", "times": 1}),
        (Fault(hang=True), {"method": "PUT", "contains": "000002.npy", "times": 1}),
    ],
)
def test_faults_on_the_way(
    src: Path, packed: dict[str, bytes], server: Server, proxy: Proxy, prefix: str, fault: Fault, which: dict[str, Any]
) -> None:
    """Whatever happens to requests, a pack ends with the right bytes, or with a typed error and no dataset."""
    proxy.add(fault, **{"times": 2, **which})
    options = server.options(proxy.endpoint)
    try:
        sf.pack(src, server.url(prefix), **SETTINGS, max_errors=1, storage_options=options)
    except ShardflowError:
        assert server.storage(prefix).version("shardflow.json") is None
        proxy.clear()
        sf.pack(src, server.url(prefix), **SETTINGS, max_errors=1, storage_options=options)
    assert server.contents(prefix) == packed
    assert server.open_uploads(prefix) == []
