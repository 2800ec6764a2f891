from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardflow
from shardflow.dataset.warming import warm
from shardflow.errors import DeadlineError
from shardflow.storage import cache_directory
from tests.helpers.making import make_dataset

FETCHER = """
import os, signal, sys, time
from shardflow.storage.cache import Cache

def fill(target):
    target.write_bytes(b"half")
    print("begun", flush=True)
    if sys.argv[3] == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)

Cache(sys.argv[1]).fetch(sys.argv[2], 1000, fill)
"""


@contextlib.contextmanager
def fetcher(cache: Path, sha256: str, manner: str) -> Iterator[None]:
    """A process that downloads a file, and makes no progress."""
    command = [sys.executable, "-c", FETCHER, str(cache), sha256, manner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            yield
        finally:
            child.kill()


def test_stalled_download_is_an_error(tmp_path: Path) -> None:
    """If the download of another process makes no progress, warming ends with an error that names the shard.

    It is waited for as long as `deadline_s` allows, but for a quarter of it.
    """
    url = f"local://{make_dataset(tmp_path / 'set', [3, 2])}"
    dataset = shardflow.open(url, cache=tmp_path / "cache", storage_options={"deadline_s": 0.4})
    message = r"000001\.tar: .* not grown for 0\.3 s"
    with fetcher(tmp_path / "cache", dataset.shards[1].sha256, "hangs"), pytest.raises(DeadlineError, match=message):
        warm(dataset.values())
    warm(dataset.values())


def test_the_download_of_a_stopped_process_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped during a download does not keep others from warming the cache."""
    monkeypatch.setattr(cache_directory, "STUCK_AFTER_S", 0.5)
    url = f"local://{make_dataset(tmp_path / 'set', [3, 2])}"
    dataset = shardflow.open(url, cache=tmp_path / "cache")
    with fetcher(tmp_path / "cache", dataset.shards[1].sha256, "stops"):
        warm(dataset.values())
    assert all(dataset["train"].reader.is_local(shard) for shard in range(2))


def test_downloads_are_counted_once(tmp_path: Path) -> None:
    """The bytes of a downloaded shard are counted when it arrives, and none are while it is read from the cache."""
    url = f"memory://downloads/{tmp_path.name}"
    shardflow.sync(make_dataset(tmp_path / "set", [5]), url)
    reader = shardflow.open(url, cache=tmp_path / "cache")["train"].reader
    for record in range(5):
        reader.read(0, record)
    assert [reader.take_downloaded_bytes() for _ in range(2)] == [reader.shards[0].bytes, 0]
