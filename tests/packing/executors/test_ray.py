from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, StoreError
from shardflow.formats.labels import Label
from shardflow.packing.executors import Processes, Ray, Serial
from shardflow.packing.executors.ray import preflight
from shardflow.packing.recipe import Recipe
from shardflow.packing.sample_recipe import PackedSample, SampleRecipe
from shardflow.packing.sources.reader import Input
from tests.helpers.command import COMMAND
from tests.helpers.folders import Deadly, contents, image_folder, photo, write_tree
from tests.helpers.jobs import jobs_of, run_jobs

PROJECT = Path(__file__).parents[3]


class Fatal(SampleRecipe):
    """A recipe under which the input b"kill PATH" ends Ray's process on the node, unless there is a file at PATH."""

    __slots__ = ()

    def pack(self, found: Input, label: Label) -> PackedSample:
        """Leave the file and kill the first time; pack a photo afterwards."""
        if found.image.startswith(b"kill "):
            flag = Path(found.image[5:].decode())
            if not flag.exists():
                flag.write_text(str(os.getppid()))
                os.kill(os.getppid(), signal.SIGKILL)
            found = found._replace(image=photo(1))
        return super().pack(found, label)


class Elsewhere(SampleRecipe):
    """A recipe whose codecs are others in every process."""

    __slots__ = ()

    @property
    def digest(self) -> str:
        """The process."""
        return str(os.getpid())


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster on this machine with three cores, to which this process is connected."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", str(PROJECT))  # for the recipes above
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray 2.40 does not wait for the processes it ends
        ray.shutdown()
        gc.collect()
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("cluster")
def test_same_bytes_as_in_one_process(tmp_path: Path) -> None:
    """A pack on a cluster has the bytes of a serial one, counts its progress, and leaves nothing else behind."""
    src = image_folder(tmp_path / "src", 70)
    settings = {"shard_samples": 20, "short_side": 32}
    seen = []
    sf.pack(src, tmp_path / "ray", **settings, executor="ray", progress=seen.append)
    sf.pack(src, tmp_path / "serial", **settings, executor="serial")
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")
    assert [progress.done for progress in seen][-1] == 70
    assert len(seen) > 3


@pytest.mark.usefixtures("cluster")
def test_killed_worker_of_the_cluster(tmp_path: Path) -> None:
    """When a process of the cluster is killed, its job is done again: nothing is lost, and the bytes are the same."""
    src = image_folder(tmp_path / "src", 70)
    write_tree(src, {"b/killer.jpg": b"kill %b" % os.fsencode(tmp_path / "killed")})
    results = run_jobs(Ray(), jobs_of(src, tmp_path / "ray", Fatal(image=Recipe(short_side=32)), 20))
    assert (tmp_path / "killed").exists()
    assert sum(result.partial.samples for result in results) == 71
    run_jobs(Serial(), jobs_of(src, tmp_path / "serial", Fatal(image=Recipe(short_side=32)), 20))
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")


@pytest.mark.usefixtures("cluster")
def test_deadly_input_on_the_cluster(tmp_path: Path) -> None:
    """An input that ends its decoder is quarantined alone, with the receipts that a pack by processes writes."""
    src = write_tree(image_folder(tmp_path / "src", 30), {"a/bad.jpg": b"segfault"})
    for name, executor in {"ray": Ray(), "processes": Processes(1)}.items():
        results = run_jobs(executor, jobs_of(src, tmp_path / name, Deadly(image=Recipe(short_side=32)), 20))
        bad = [each.quarantined for result in results for each in result.inputs if each.quarantined is not None]
        assert [(entry.path, entry.reason) for entry in bad] == [("a/bad.jpg", "its process ended with SIGSEGV, twice")]
    assert contents(tmp_path / "ray") == contents(tmp_path / "processes")


@pytest.mark.usefixtures("cluster")
def test_node_with_other_codecs(tmp_path: Path) -> None:
    """A node whose codecs are others is refused, with both named, before it packs anything."""
    jobs = jobs_of(image_folder(tmp_path / "src", 30), tmp_path / "dst", Elsewhere(image=Recipe(short_side=32)), 20)
    with pytest.raises(ConfigError, match=r"\{'pillow.*\{'pillow.*same"):
        run_jobs(Ray(), jobs)
    assert contents(tmp_path / "dst") == {}


@pytest.mark.usefixtures("cluster")
def test_failing_store_on_the_cluster(tmp_path: Path) -> None:
    """A destination that fails on a node ends the run with the store's own error."""
    jobs = jobs_of(image_folder(tmp_path / "src", 30), tmp_path / "dst", Recipe(short_side=32), 20)
    (tmp_path / "dst/train").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="dst/train"):
        run_jobs(Ray(), jobs)


def test_node_with_another_disk(tmp_path: Path) -> None:
    """A node that finds something else under the name of the source or of the destination says so, and which."""
    src = image_folder(tmp_path / "src", 3)
    job = jobs_of(src, tmp_path / "dst", Recipe(short_side=32))[0]
    with preflight(job) as checks:
        checks.check(job)
        first = src / job.items[0].path
        data = first.read_bytes()
        first.write_bytes(data[:-1] + b"?")
        with pytest.raises(ConfigError, match=f"'{job.items[0].path}' has other bytes there; .*shared disk"):
            checks.check(job)
        first.unlink()
        with pytest.raises(ConfigError, match="cannot be read there"):
            checks.check(job)
        first.write_bytes(data)
        (tmp_path / "dst").rename(tmp_path / "elsewhere")
        (tmp_path / "dst").mkdir()
        with pytest.raises(ConfigError, match=r"does not see the same .*dst as .*shared disk"):
            checks.check(job)
    assert len(contents(tmp_path / "elsewhere")) == 1


def test_missing_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray the error names the extra to install."""
    src = image_folder(tmp_path / "src", 3)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'shardflow\[ray\]'"):
        sf.pack(src, tmp_path / "dst", executor="ray")


TERMINATED_IN_GET = """
import os, ray, signal, threading, time

def endless(ref, get=ray.get):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    get(ray.remote(lambda: time.sleep(100)).remote())

ray.get = endless
"""


def _command(src: Path, dst: Path, address: str, before: str = "") -> list[str]:
    python, option, program = COMMAND
    settings = ["--short-side", "32", "--shard-samples", "4", "--executor", "ray", "--ray-address", address]
    return [python, "-W", "error", option, before + program, "pack", str(src), str(dst), *settings]


def test_command_on_the_cluster(tmp_path: Path, cluster: str) -> None:
    """`--ray-address` names a running cluster; SIGTERM ends the command as always, and it goes on, without noise."""
    src = image_folder(tmp_path / "src", 48)
    with subprocess.Popen(_command(src, tmp_path / "dst", cluster), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any((tmp_path / "dst").glob("train/*.json")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 143, said
    assert "shardflow: terminated" in said
    done = subprocess.run(_command(src, tmp_path / "dst", cluster), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(r"resumed +\d+ inputs done by an earlier run", done.stdout)
    assert all(line.startswith("packing: ") for line in done.stderr.replace("\r", "\n").split("\n") if line)
    assert sf.verify(tmp_path / "dst") == []


def test_terminated_while_results_come(tmp_path: Path, cluster: str) -> None:
    """`ray.get` always exits with 1 after a signal; the command still has the code of its signal."""
    command = _command(image_folder(tmp_path / "src", 8), tmp_path / "dst", cluster, TERMINATED_IN_GET)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    assert done.stderr.count("shardflow: terminated") == 1


def test_no_cluster_there(tmp_path: Path) -> None:
    """An address without a cluster is a usage error within seconds."""
    src = image_folder(tmp_path / "src", 3)
    done = subprocess.run(_command(src, tmp_path / "dst", "127.0.0.1:1"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
