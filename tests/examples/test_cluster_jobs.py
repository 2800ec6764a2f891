from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.run import get_args_parser

from tests.helpers.loading import until
from tests.helpers.scripts import DEADLINE_S, FOLDER
from tests.helpers.warm_python import python

SRUN = """
[ "$1 $2 $3" = "--kill-on-bad-exit=0 --wait=60 --cpus-per-task=$SLURM_CPUS_PER_TASK" ] || exit 1
shift 3
for task in 0 1; do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
echo "${tasks[@]}" > tasks.new
mv tasks.new tasks
for task in "${tasks[@]}"; do
    wait "$task"
    code=$?
    [ "$code" -gt "${highest:-0}" ] && highest=$code
done
exit "${highest:-0}"
"""
"""What Slurm's `srun` does: it starts the tasks, waits for all of them, and ends with the highest exit code."""

SCONTROL = '[ "$1" = show ] && echo localhost || echo "$@" >> requeued\n'

TORCHRUN = "trap 'echo told; exit 1' TERM; echo ready; while true; do sleep 0.05; done\n"


def install(folder: Path, **commands: str) -> dict[str, str]:
    """Put commands into a folder, and return the environment that finds them."""
    folder.mkdir(exist_ok=True)
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o700)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@contextmanager
def started(command: list[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a session of its own, and kill what is left of it in the end."""
    arguments = list(map(str, command))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_job_of_slurm_is_queued_again_and_goes_on(dataset: Path, tmp_path: Path) -> None:
    """USR1 to one rank, as Slurm sends it before the time limit, saves on all and queues the job again.

    Started again it trains on the rest of the epoch, and ends.
    """
    environment = install(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL, python=f'exec {python()} "$@"\n')
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment["MASTER_PORT"] = str(server.getsockname()[1])
    environment |= {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "1"}
    environment |= {"EXAMPLES": str(FOLDER), "DATASET": str(dataset), "SLURM_JOB_NODELIST": "node[1-2]"}
    options = [FOLDER / "slurm.sh", "--size", 16, "--batch-size", 8, "--save-every", 1]
    checkpoint = tmp_path / "run.pt"
    with started([*options, "--epochs", 1000], env=environment, cwd=tmp_path) as job:
        assert until(checkpoint.exists, DEADLINE_S)
        os.kill(int((tmp_path / "tasks").read_text().split()[1]), signal.SIGUSR1)
        assert job.wait(DEADLINE_S) == 85
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"
    state = torch.load(checkpoint)["loader"]
    with started([*options, "--epochs", state["epoch"] + 1], env=environment, cwd=tmp_path) as job:
        assert job.stdout is not None
        said = job.stdout.read()
        assert job.wait(DEADLINE_S) == 0
    rest = re.search(rf"^epoch {state['epoch']}: (\d+) samples", said)
    assert state["position"] + (int(rest[1]) if rest else 0) == 64
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_the_options_of_slurm_are_what_they_seem() -> None:
    """The job is signalled before its limit, in its steps and not in the shell alone, and may be queued again."""
    text = (FOLDER / "slurm.sh").read_text()
    assert subprocess.run(["bash", "-n", FOLDER / "slurm.sh"], check=False).returncode == 0
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", text, re.MULTILINE))
    assert len(options) == text.count("#SBATCH")
    assert re.fullmatch(r"USR1@\d+", options["signal"])
    assert "requeue" in options


@pytest.fixture(scope="module")
def kubernetes() -> dict[str, Any]:
    """The objects of the manifest, by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())}


def test_the_job_of_kubernetes_is_consistent(kubernetes: dict[str, Any]) -> None:
    """Names that refer to each other do; a pod that is evicted, or ends with 85, is not a failure."""
    job, service = kubernetes["Job"], kubernetes["Service"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["apiVersion"], job["spec"]["completionMode"]) == ("batch/v1", "Indexed")
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod["restartPolicy"] == "Never"  # without which the policy is refused
    disrupted, ended = job["spec"]["podFailurePolicy"]["rules"]
    assert (disrupted["action"], disrupted["onPodConditions"]) == ("Ignore", [{"type": "DisruptionTarget"}])
    assert (ended["action"], ended["onExitCodes"]["values"]) == ("Ignore", [85])
    assert ended["onExitCodes"]["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    (script,) = container["args"]
    torchrun = shlex.split(script.partition("TERM\n")[2].partition("&\n")[0].replace("\\\n", " "))
    parsed = get_args_parser().parse_args(torchrun[1:])
    assert parsed.nnodes == str(job["spec"]["completions"])
    assert parsed.nproc_per_node == str(container["resources"]["limits"]["nvidia.com/gpu"])
    assert parsed.rdzv_endpoint.startswith(f"{job['metadata']['name']}-0.{service['metadata']['name']}:")
    assert parsed.shutdown_timeout < pod["terminationGracePeriodSeconds"]
    assert (FOLDER / parsed.training_script).exists()


def test_a_pod_that_is_told_to_end_waits_for_its_ranks(kubernetes: dict[str, Any], tmp_path: Path) -> None:
    """SIGTERM is passed on to torchrun; the pod ends after it, with the code that is not a failure."""
    (container,) = kubernetes["Job"]["spec"]["template"]["spec"]["containers"]
    environment = install(tmp_path / "bin", torchrun=TORCHRUN)
    with started([*container["command"], *container["args"]], env=environment) as pod:
        assert pod.stdout is not None
        assert pod.stdout.readline() == "ready\n"
        pod.send_signal(signal.SIGTERM)
        assert pod.stdout.read() == "told\n"
        assert pod.wait(DEADLINE_S) == 85
