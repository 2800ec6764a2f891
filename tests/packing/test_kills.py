from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow import native
from shardflow._signals import FOR_THE_JOB
from shardflow.errors import DatasetExistsError, StoreError
from shardflow.packing.executors.worker_process import Worker
from shardflow.storage.local import LocalStorage
from tests.helpers.command import COMMAND, run
from tests.helpers.folders import contents, image_folder, workers_of

INPUTS = 180
SETTINGS: dict[str, Any] = {"shard_samples": 40, "short_side": 200, "executor": "serial"}
"""Settings of a pack in this process; those of the command are the same, with two workers."""
ORDER = ["--shard-samples", "40", "--short-side", "200", "--workers", "2"]


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that takes about a second to pack."""
    return image_folder(tmp_path_factory.mktemp("photos"), INPUTS, 640, 480)


@pytest.fixture(scope="module")
def undisturbed(src: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted pack."""
    dst = tmp_path_factory.mktemp("undisturbed")
    sf.pack(src, dst, **SETTINGS)
    return contents(dst)


def _start(src: Path, dst: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "pack", str(src), str(dst), *ORDER, *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)


def _message(process: subprocess.Popen[bytes]) -> str:
    """Return what a command said at last, below its progress bar."""
    assert process.stderr is not None
    return process.stderr.read().decode().replace("\r", "\n").splitlines()[-1]


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)


def _at_work(pid: int) -> bool:
    """Whether a worker has come as far as its first image: before that it is not told yet of its parent's end."""
    return not native.available() or "/_kernel" in Path(f"/proc/{pid}/maps").read_text()


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_killed_again_and_again(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Attempts killed at random times, each after one shard more, get there: what was finished is not done again."""
    rng = random.Random(0)
    attempts = 0
    while not (tmp_path / "shardflow.json").exists():
        attempts += 1
        assert attempts <= 2 + INPUTS // 40
        finished = set(tmp_path.glob("train/*.json"))
        with _start(src, tmp_path) as process:
            _wait(lambda: process.poll() is not None or {*tmp_path.glob("train/*.json")} - finished, "a shard")  # noqa: B023 - it is called here
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.2))
            process.kill()
    with pytest.raises(DatasetExistsError):  # it may have been killed right after the commit, before it had tidied up
        sf.pack(src, tmp_path, **SETTINGS)
    assert contents(tmp_path) == undisturbed


def test_workers_do_not_outlive_their_parent(src: Path, tmp_path: Path) -> None:
    """Workers of a killed parent end, even if they are stuck."""
    with _start(src, tmp_path) as process:
        _wait(lambda: len(workers_of(process.pid)) == 2, "two workers")
        workers = workers_of(process.pid)
        _wait(lambda: all(map(_at_work, workers)), "both to decode")
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        _wait(lambda: all(map(_gone, workers)), "the workers to end")


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
    """While a worker lives, no other process may write, even when the parent is gone."""
    storage = LocalStorage(tmp_path)
    with storage.exclusive_writer() as writer:
        worker = Worker([writer.lock])
    with pytest.raises(StoreError, match="another process is writing"), storage.exclusive_writer():
        pass
    worker.stop("no longer needed")
    with storage.exclusive_writer():
        pass


def test_second_packer(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Of two packers of one destination the second is told so in a line, and the first is not disturbed."""
    with _start(src, tmp_path) as first:
        _wait(lambda: any(tmp_path.glob("train/*.tar")), "the first shard")
        os.kill(first.pid, signal.SIGSTOP)
        try:
            second = run("pack", src, tmp_path, *ORDER)
            assert second.returncode == 4
            assert "another process is writing" in second.stderr.splitlines()[-1]
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert first.wait(30) == 0
    third = run("pack", src, tmp_path, *ORDER)
    assert third.returncode == 3
    assert "already holds a dataset" in third.stderr.splitlines()[-1]
    assert contents(tmp_path) == undisturbed


def test_interrupted_again_and_again(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """SIGINT and SIGTERM, to the command alone, to a terminal's job, or as Slurm sends SIGTERM, to each process of it,
    end it before its work is done, with a message and its code.

    No worker stays, and the next run goes on and says so.
    """
    for how in (signal.SIGINT, signal.SIGTERM):
        for send in (os.kill, os.killpg):
            _interrupt(src, tmp_path, how, send)
            assert not (tmp_path / "shardflow.json").exists()
            assert not list(tmp_path.rglob(".tmp-*"))
    _interrupt(src, tmp_path, signal.SIGTERM, _signal_each)
    said = re.search(r"resumed +(\d+) inputs", run("pack", src, tmp_path, *ORDER).stdout)
    assert said is not None
    assert int(said[1]) >= 40
    assert contents(tmp_path) == undisturbed


def test_a_serial_pack_is_terminated(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """SIGTERM ends a pack without workers, too, with its code; what is finished stays, and the next run goes on."""
    with _start(src, tmp_path, "--executor", "serial") as process:
        _wait(lambda: any(tmp_path.glob("train/*.json")), "a shard")
        process.terminate()
        assert process.wait(30) == 143
        assert "run the same command again to resume" in _message(process)
    assert not (tmp_path / "shardflow.json").exists()
    assert sf.pack(src, tmp_path, **SETTINGS).resumed >= 40
    assert contents(tmp_path) == undisturbed


def _signal_each(pid: int, how: int) -> None:
    for each in (*workers_of(pid), pid):
        os.kill(each, how)


def test_signals_to_the_job_leave_workers_alone(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Workers that get what Slurm sends to all processes of a job, from their first moment on, go on with it."""
    with _start(src, tmp_path) as process:
        _wait(lambda: len(workers_of(process.pid)) == 2, "two workers")
        workers = workers_of(process.pid)
        for number in (0, 1):
            _wait(lambda number=number: (tmp_path / f"train/{number:06}.tar").exists() or not number, "a shard")
            for worker, how in itertools.product(workers, FOR_THE_JOB):
                os.kill(worker, how)
        assert workers_of(process.pid) == workers
        assert process.wait(30) == 0
    assert contents(tmp_path) == undisturbed


def _interrupt(src: Path, dst: Path, how: signal.Signals, send: Callable[[int, int], None]) -> None:
    """Start a pack, interrupt it when it has packed something, and see how it ends."""
    with _start(src, dst) as process:
        _wait(lambda: len(workers_of(process.pid)) == 2, "two workers")
        workers = workers_of(process.pid)
        _wait(lambda: any(dst.glob("train/*.json")), "a shard")
        send(process.pid, how)
        assert process.wait(30) == 128 + how
        _wait(lambda: all(map(_gone, workers)), "the workers to end")  # one that has hardly begun takes a moment
        said = process.stderr.read().decode() if process.stderr else ""
    assert "run the same command again to resume" in said
    assert ("interrupted" if how == signal.SIGINT else "terminated") in said
    assert "Traceback" not in said


def test_destination_that_vanishes(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """When the destination is gone in the middle, a line says so, nothing takes its place, and once back it goes on."""
    dst = tmp_path / "dst"
    with _stopped_amid(src, dst) as process:
        dst.rename(tmp_path / "elsewhere")
        for worker in workers_of(process.pid):
            os.kill(worker, signal.SIGCONT)
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(30) == 4
        assert re.search(r"dst.*(does not exist|vanished)", _message(process))
    if dst.exists():  # a worker was amid the publication of a shard
        shutil.rmtree(dst)
    (tmp_path / "elsewhere").rename(dst)
    assert sf.pack(src, dst, **SETTINGS).resumed >= 40
    assert contents(dst) == undisturbed


def _stopped_amid(src: Path, dst: Path) -> subprocess.Popen[bytes]:
    """Return a pack that is stopped by SIGSTOP with some of its shards finished; on a busy machine not the first."""
    while True:
        process = _start(src, dst)
        _wait(lambda: (dst / "train/000000.json").exists(), "a shard")
        stopped = [process.pid, *workers_of(process.pid)]
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if len(list(dst.glob("train/*.json"))) < 5:
            return process
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        shutil.rmtree(dst)


def test_disk_that_is_full_or_read_only(src: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """A full or read-only disk ends the pack with one line that says so; once it is writable the pack goes on."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs a mount namespace of its own")
    (tmp_path / "disk").mkdir()
    script = """
        mount -t tmpfs -o size=$FIRST none disk && "$@"; echo $? >> codes
        mount -o remount,size=$SECOND disk && "$@"; echo $? >> codes
        mount -o remount,ro disk && "$@"; echo $? >> codes
        mount -o remount,rw,size=99m disk && "$@"; echo $? >> codes
        cp -r disk/dst dst"""
    megabytes = sum(map(len, undisturbed.values())) / 1e6
    room = {"FIRST": f"{int(150 * megabytes)}k", "SECOND": f"{int(700 * megabytes)}k"}
    done = subprocess.run(
        [*namespace, "sh", "-c", script, "sh", *COMMAND, "pack", str(src), "disk/dst", *ORDER],
        cwd=tmp_path,
        env={**os.environ, **room},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (tmp_path / "codes").read_text().split() == ["4", "4", "4", "0"], done.stderr
    said = [line for line in done.stderr.replace("\r", "\n").splitlines() if line.startswith("shardflow")]
    assert len(said) == 3
    assert all("No space left on device; free some space" in line for line in said[:2])
    assert "Read-only file system" in said[2]
    assert "Traceback" not in done.stderr
    assert contents(tmp_path / "dst") == undisturbed
