"""The checks, each made to fail."""

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
from shardflow.diagnostics.checks import Check, failed_checks, on_rotating_disk
from shardflow.loading.worker_settings import usable_cores
from tests.helpers.folders import write_tree
from tests.helpers.kernel import without_kernel
from tests.helpers.loading import with_workers
from tests.helpers.making import make_dataset


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """A small dataset."""
    return make_dataset(tmp_path / "set", [8])


def failures(url: object, *, shared_bytes: int = 1000, **options: Any) -> dict[str, str]:
    """The failed checks of a loader, name → message."""
    settings = {"num_workers": 2, "multiprocessing_context": "fork", **options}
    loader = shardflow.Loader(str(url), batch_size=4, **with_workers(settings))
    checks = failed_checks(loader, shared_bytes=shared_bytes)
    assert all(isinstance(check, Check) and "\n" not in check.message for check in checks)
    return dict(checks)


def test_ordinary_settings_pass(url: Path) -> None:
    """With ordinary settings no check fails, except for what is true of this machine."""
    expected = set() if native.available() else {"native kernel"}
    assert set(failures(url, multiprocessing_context="spawn")) - {"rotating disk"} == expected


def test_no_native_kernel(url: Path) -> None:
    """Without the native kernel the check fails with the reason."""
    with without_kernel():
        assert "switched off by a test" in failures(url)["native kernel"]


def test_too_little_shared_memory(url: Path) -> None:
    """Batches that do not fit into /dev/shm fail the check; those that fit do not."""
    total = shutil.disk_usage("/dev/shm").total
    assert "--shm-size" in failures(url, shared_bytes=total + 1)["shared memory"]
    assert "shared memory" not in failures(url, shared_bytes=total)


def test_too_many_threads(url: Path) -> None:
    """More threads of torch than cores fail the check."""
    before = torch.get_num_threads()
    torch.set_num_threads(usable_cores() + 1)
    try:
        assert "torch.set_num_threads" in failures(url)["threads"]
    finally:
        torch.set_num_threads(before)


def test_forking_beside_threads(url: Path) -> None:
    """A thread that runs while workers are forked fails the check; with other start methods it does not."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="a client's")
    thread.start()
    try:
        assert "a client's" in failures(url)["fork"]
        assert "fork" not in failures(url, multiprocessing_context="spawn")
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU, and other tests need CUDA")
def test_pinning_without_a_gpu(url: Path) -> None:
    """Pinned memory without a GPU fails the check."""
    assert "GPU" in failures(url, pin_memory=True)["pin_memory"]


def test_a_cache_that_is_too_small(url: Path, tmp_path: Path) -> None:
    """A cache smaller than the split fails the check, a larger one does not."""
    far = f"local://{url}"
    assert "raise the limit" in failures(far, cache=shardflow.Cache(tmp_path / "cache", 9000))["cache"]
    assert "cache" not in failures(far, cache=tmp_path / "cache")


def test_shards_that_are_far_too_small(tmp_path: Path) -> None:
    """Many tiny shards fail the check."""
    assert "--shard-samples" in failures(make_dataset(tmp_path / "many", [1] * 65))["small shards"]


@pytest.mark.parametrize(("flag", "expected"), [("1\n", True), ("0\n", False), (None, False)])
def test_a_rotating_disk(tmp_path: Path, flag: str | None, expected: bool) -> None:
    """The kernel says whether a disk rotates, for its partitions too; where it does not say, the answer is no."""
    device = os.stat(tmp_path).st_dev
    disk = tmp_path / "sys/devices/disk"
    (disk / "partition").mkdir(parents=True)
    if flag is not None:
        (disk / "queue").mkdir()
        (disk / "queue/rotational").write_text(flag)
    link = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(disk / "partition")
    assert on_rotating_disk(tmp_path, tmp_path / "sys") == expected
    assert not on_rotating_disk(tmp_path / "missing", tmp_path / "sys")


@pytest.mark.parametrize(
    ("place", "vendor"),
    [("pci0000:00/virtio1/block/vda", ""), ("virtual/block/loop0", ""), ("pci0000:00/target0/block/sda", "Google")],
)
def test_a_virtual_disk_is_not_a_rotating_one(tmp_path: Path, place: str, vendor: str) -> None:
    """The disk of a virtual machine says that it rotates, whatever it is."""
    device = os.stat(tmp_path).st_dev
    files = {f"{place}/queue/rotational": b"1\n", f"{place}/device/vendor": f"{vendor:8}\n".encode()}
    write_tree(tmp_path / "sys/devices", files)
    link = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "sys/devices" / place)
    assert not on_rotating_disk(tmp_path, tmp_path / "sys")
