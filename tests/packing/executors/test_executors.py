from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import AccessDeniedError, PackIncompleteError, StoreError
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import from_bytes
from shardflow.packing.executors import Processes, Serial, processes
from shardflow.packing.jobs import PieceResult
from shardflow.packing.recipe import Recipe
from tests.helpers.folders import Deadly, Doomed, contents, image_folder, photo, without_root, workers_of, write_tree
from tests.helpers.jobs import jobs_of, run_jobs


def _quarantined(dst: Path) -> list[Quarantined]:
    return [bad for path in sorted(dst.rglob("*.json")) for bad in from_bytes(path.read_bytes()).quarantined]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_same_bytes_for_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    """Shards, indexes and receipts are the same for one process, several, and none at all."""
    src = image_folder(tmp_path / "src", 110)
    for name, executor in {"serial": Serial(), "processes": Processes(workers)}.items():
        results = run_jobs(executor, jobs_of(src, tmp_path / name, Recipe(short_side=32)))
        assert sum(result.partial.samples for result in results) == 110
    assert contents(tmp_path / "serial") == contents(tmp_path / "processes")
    assert len(contents(tmp_path / "serial")) == 3 * 3


def test_one_shard_keeps_several_processes_busy(tmp_path: Path) -> None:
    """Inputs that all go into one shard are still shared between the workers."""
    src = image_folder(tmp_path / "src", 130)
    seen: set[int] = set()
    executor = Processes(3)
    run_jobs(executor, jobs_of(src, tmp_path / "dst", Recipe(), 2048), lambda _: seen.update(workers_of(os.getpid())))
    assert len(seen) == 3


def test_deadly_inputs_are_quarantined(tmp_path: Path) -> None:
    """An input that ends the process that decodes it is quarantined by name, and everything else is packed."""
    src = image_folder(tmp_path / "src", 70)
    write_tree(src, {"a/bad.jpg": b"segfault", "c/worse.jpg": b"segfault"})
    run_jobs(Processes(2), jobs_of(src, tmp_path / "dst", Deadly(image=Recipe(short_side=32))))
    reason = "its process ended with SIGSEGV, twice"
    expected = [Quarantined("a/bad.jpg", "decode", reason), Quarantined("c/worse.jpg", "decode", reason)]
    assert sorted(_quarantined(tmp_path / "dst")) == expected
    assert not workers_of(os.getpid())


def test_hanging_input_is_quarantined(tmp_path: Path) -> None:
    """An input that its decoder never lets go of is given up after two deadlines, and the rest is packed."""
    src = write_tree(tmp_path / "src", {f"{n}.jpg": photo(n) for n in range(5)} | {"stuck.jpg": b"hang"})
    started = time.monotonic()
    run_jobs(Processes(2, item_deadline_s=1), jobs_of(src, tmp_path / "dst", Deadly(image=Recipe(short_side=32))))
    assert _quarantined(tmp_path / "dst") == [Quarantined("stuck.jpg", "decode", "it did not end in time, twice")]
    assert time.monotonic() - started < 20


def test_deaths_that_no_input_explains_end_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When every worker dies at any input, the pack gives up instead of quarantining everything."""
    monkeypatch.setattr(processes, "_SPARE_DEATHS", 4)
    src = image_folder(tmp_path / "src", 60, 16, 16)
    message = r"workers died while 0 inputs were done, .*'[abc]/\d+\.jpg'.*SIGKILL"
    with pytest.raises(PackIncompleteError, match=message):
        run_jobs(Processes(2), jobs_of(src, tmp_path / "dst", Doomed(image=Recipe(short_side=8))))
    assert not workers_of(os.getpid())


def test_killed_worker_is_replaced(tmp_path: Path) -> None:
    """Killing workers from outside costs time only: nothing is quarantined, and the bytes are the same."""
    src = image_folder(tmp_path / "src", 160, 320, 240)
    run_jobs(Serial(), jobs_of(src, tmp_path / "serial", Recipe(short_side=32)))
    killed: set[int] = set()

    def kill_all(_: PieceResult) -> None:
        """Kill both, once: one has just finished a piece, the other is at an input. Twice might be at the same one."""
        if not killed:
            for worker in workers_of(os.getpid()):
                os.kill(worker, signal.SIGKILL)
                killed.add(worker)

    run_jobs(Processes(2), jobs_of(src, tmp_path / "processes", Recipe(short_side=32)), kill_all)
    assert killed
    assert contents(tmp_path / "serial") == contents(tmp_path / "processes")


def test_failing_store_ends_the_run(tmp_path: Path) -> None:
    """A destination that cannot be written ends the run with the store's own error, not with quarantined inputs."""
    src = image_folder(tmp_path / "src", 10)
    (tmp_path / "dst").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="dst"):
        run_jobs(Processes(2), jobs_of(src, tmp_path / "dst", Recipe(short_side=32)))
    assert not workers_of(os.getpid())


def test_forbidden_store(tmp_path: Path) -> None:
    """A destination without permission is said to be one."""
    src = image_folder(tmp_path / "src", 4)
    (tmp_path / "dst").mkdir(mode=0o500)
    jobs = jobs_of(src, tmp_path / "dst", Recipe(short_side=32))
    with without_root(), pytest.raises(AccessDeniedError, match="permission"):
        run_jobs(Serial(), jobs)


def test_script_without_main_guard(tmp_path: Path) -> None:
    """A plain script may pack: the workers do not run it again."""
    image_folder(tmp_path / "src", 40)
    script = tmp_path / "script.py"
    script.write_text(
        "print('started', flush=True)\n"
        "from shardflow.packing.creating import pack\n"
        f"print(pack({str(tmp_path / 'src')!r}, {str(tmp_path / 'dst')!r}, workers=2).packed)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "started\n40\n"
    assert done.stderr == ""


def test_packing_beside_threads(tmp_path: Path) -> None:
    """A pack may run in any thread, beside others that hold locks."""
    src = image_folder(tmp_path / "src", 40)
    with threading.Lock(), ThreadPoolExecutor(2) as threads:
        packs = [threads.submit(sf.pack, src, tmp_path / name, workers=2) for name in ("0", "1")]
        assert [pack.result(60).packed for pack in packs] == [40, 40]
    assert contents(tmp_path / "0") == contents(tmp_path / "1")
