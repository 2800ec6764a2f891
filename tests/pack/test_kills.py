from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import shardflow as sf
from pack.folders import contents, image_folder, workers_of
from shardflow.errors import DatasetExistsError, StoreError
from shardflow.pack.worker import Worker
from shardflow.store import LocalStore

INPUTS = 180
SETTINGS = {"shard_samples": 40, "short_side": 200, "workers": 2}


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that takes about a second to pack."""
    return image_folder(tmp_path_factory.mktemp("photos"), INPUTS, 640, 480)


@pytest.fixture(scope="module")
def undisturbed(src: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a pack of it writes when nobody disturbs it."""
    dst = tmp_path_factory.mktemp("undisturbed")
    sf.pack(src, dst, **SETTINGS)
    return contents(dst)


def _start(src: Path, dst: Path) -> subprocess.Popen[bytes]:
    script = f"import shardflow as sf; sf.pack({str(src)!r}, {str(dst)!r}, **{SETTINGS!r})"
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


MOMENTS = ["quarantine.jsonl", "train/.tmp-*", "train/*.tar", "train/*.npy", "train/*.json", "train/000002.json"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at(moment: str, src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """A pack killed as soon as a certain file appears leaves no dataset; run again it gives the undisturbed bytes."""
    with _start(src, tmp_path) as process:
        _wait(lambda: any(tmp_path.glob(moment)) or process.poll() is not None, moment)
        process.kill()
    assert not (tmp_path / "shardflow.json").exists()
    sf.pack(src, tmp_path, **SETTINGS)
    assert contents(tmp_path) == undisturbed


def test_killed_again_and_again(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Attempts killed at random times get there in the end: what was finished is not done again."""
    rng = random.Random(0)
    attempts = 0
    while not (tmp_path / "shardflow.json").exists():
        attempts += 1
        with _start(src, tmp_path) as process:
            try:
                process.wait(rng.uniform(0.2, 0.8 + 0.1 * attempts))  # longer, so that it ends anywhere
            except subprocess.TimeoutExpired:
                process.kill()
        assert attempts < 40
    with pytest.raises(DatasetExistsError):  # it may have been killed right after the commit, before it had tidied up
        sf.pack(src, tmp_path, **SETTINGS)
    assert contents(tmp_path) == undisturbed


def test_workers_do_not_outlive_their_parent(src: Path, tmp_path: Path) -> None:
    """Workers of a killed parent end at once, whatever they do; here they are stuck."""
    with _start(src, tmp_path) as process:
        _wait(lambda: len(workers_of(process.pid)) == 2, "two workers")
        workers = workers_of(process.pid)
        _wait(lambda: any(tmp_path.glob("train/*.tar")), "the first shard")
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        killed = time.monotonic()
        _wait(lambda: all(map(_gone, workers)), "the workers to end")
        assert time.monotonic() - killed < 1


def test_resume_does_no_finished_job_again(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """A resume leaves the shards that are finished as they are, and reports how much it found."""
    with _start(src, tmp_path) as process:
        _wait(lambda: (tmp_path / "train" / "000001.json").exists(), "a receipt")
        process.kill()
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("train/*.json")}
    report = sf.pack(src, tmp_path, **SETTINGS)
    assert report.resumed >= 40
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert contents(tmp_path) == undisturbed


def test_worker_holds_the_lock(tmp_path: Path) -> None:
    """While a worker is left over, nobody else may write, though the process that started it is gone."""
    store = LocalStore(tmp_path)
    with store.sole_writer() as lock:
        worker = Worker([lock])
    with pytest.raises(StoreError, match="another process is writing"), store.sole_writer():
        pass
    worker.end("no longer needed")
    with store.sole_writer():
        pass


def test_second_packer(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Of two packers of one destination the second is told so, and the first is not disturbed."""
    with _start(src, tmp_path) as process:
        _wait(lambda: any(tmp_path.glob("train/*.tar")), "the first shard")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreError, match="another process is writing"):
                sf.pack(src, tmp_path, **SETTINGS)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert process.wait(30) == 0
    assert contents(tmp_path) == undisturbed
