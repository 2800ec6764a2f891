"""The usual suspects, each made to be there."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow import native
from shardflow.diagnostics.checks import Suspect, rotates, usual_suspects
from shardflow.loading.topology import usable_cores
from tests.helpers.making import make_dataset


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """A small dataset."""
    return make_dataset(tmp_path / "set", [8])


def found(url: object, *, shared_bytes: int = 1000, **options: Any) -> dict[str, str]:
    """The suspects of a loader, name → line."""
    options = {"num_workers": 2, "multiprocessing_context": "fork", **options}
    loader = shardflow.Loader(str(url), batch_size=4, **options)
    suspects = usual_suspects(loader, shared_bytes=shared_bytes)
    assert all(isinstance(suspect, Suspect) and "\n" not in suspect.line for suspect in suspects)
    return dict(suspects)


def test_a_sound_setting_has_none(url: Path) -> None:
    """With ordinary settings nothing is suspected, but what is true of this machine."""
    expected = set() if native.available() else {"native kernel"}
    assert set(found(url, multiprocessing_context="spawn")) - {"rotating disk"} == expected


def test_too_little_shared_memory(url: Path) -> None:
    """Batches that cannot all be in /dev/shm are a suspect; those that can are none."""
    total = shutil.disk_usage("/dev/shm").total
    assert "--shm-size" in found(url, shared_bytes=total + 1)["shared memory"]
    assert "shared memory" not in found(url, shared_bytes=total)


def test_too_many_threads(url: Path) -> None:
    """More threads of torch than there are cores are a suspect."""
    before = torch.get_num_threads()
    torch.set_num_threads(usable_cores() + 1)
    try:
        assert "torch.set_num_threads" in found(url)["threads"]
    finally:
        torch.set_num_threads(before)


def test_forking_beside_threads(url: Path) -> None:
    """A thread that runs while workers are forked is a suspect, and is not one for other ways to start them."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="a client's")
    thread.start()
    try:
        assert "a client's" in found(url)["fork"]
        assert "fork" not in found(url, multiprocessing_context="spawn")
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU, and other tests need CUDA")
def test_pinning_without_a_gpu(url: Path) -> None:
    """Pinned memory where nothing could use it is a suspect."""
    assert "GPU" in found(url, pin_memory=True)["pin_memory"]


def test_a_cache_that_is_too_small(url: Path, tmp_path: Path) -> None:
    """A cache below the size of the split is a suspect, a larger one is not."""
    far = f"local://{url}"
    assert "raise its limit" in found(far, cache=shardflow.Cache(tmp_path / "cache", 9000))["cache"]
    assert "cache" not in found(far, cache=tmp_path / "cache")


def test_shards_that_are_far_too_small(tmp_path: Path) -> None:
    """Many tiny shards are a suspect."""
    assert "--shard-samples" in found(make_dataset(tmp_path / "many", [1] * 65))["small shards"]


@pytest.mark.parametrize(("flag", "expected"), [("1\n", True), ("0\n", False), (None, False)])
def test_a_rotating_disk(tmp_path: Path, flag: str | None, expected: bool) -> None:
    """A disk says whether it rotates, for its partitions as well; where nothing is said, it does not."""
    device = os.stat(tmp_path).st_dev
    disk = tmp_path / "sys/devices/disk"
    (disk / "partition").mkdir(parents=True)
    if flag is not None:
        (disk / "queue").mkdir()
        (disk / "queue/rotational").write_text(flag)
    link = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(disk / "partition")
    assert rotates(tmp_path, tmp_path / "sys") == expected
    assert not rotates(tmp_path / "missing", tmp_path / "sys")
