from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist

import shardflow
from shardflow.errors import ConfigError
from shardflow.loading.distributed import resolve_group
from shardflow.loading.worker_settings import usable_cores
from tests.helpers.making import make_dataset


@pytest.fixture
def distributed(tmp_path: Path) -> None:
    """torch.distributed initialised as the only rank of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_alone_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a launcher a process is rank 0 of 1."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert resolve_group(None) == (0, 1)


def test_environment_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and WORLD_SIZE count when nothing else is said; arguments come before them."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_group(None) == (2, 4)
    assert resolve_group((1, 3)) == (1, 3)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ConfigError, match=r"RANK .*'two'"):
        resolve_group(None)
    monkeypatch.delenv("RANK")
    with pytest.raises(ConfigError, match="set both"):  # one process would read a quarter
        resolve_group(None)


@pytest.mark.usefixtures("distributed")
def test_torch_distributed_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An initialised torch.distributed wins over the environment, and an argument over both."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_group(None) == (0, 1)
    assert resolve_group((1, 4)) == (1, 4)
    assert resolve_group(dist.group.WORLD) == (0, 1)


def test_a_loader_made_too_early_is_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A loader, mix or source of samples that was made before torch.distributed gave another rank does not begin."""
    url = make_dataset(tmp_path / "set", [8])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RANK", "1")
        environment.setenv("WORLD_SIZE", "2")
        made = shardflow.Loader(url, batch_size=2, num_workers=0), shardflow.samples(url)
        mix = shardflow.Mix([(url, 1)], batch_size=2, num_workers=0)
    alone = shardflow.Loader(url, batch_size=2, num_workers=0, group=(1, 2))
    request.getfixturevalue("distributed")
    for each in (*made, mix):
        with pytest.raises(ConfigError, match=r"for rank 1 of 2, .* rank 0 of 1; make it after"):
            next(iter(each))
    assert len(list(alone)) == 2


@pytest.mark.parametrize("group", [3, "dp", (1, 2, 3), (0.5, 2), object(), {"rank": 1}])
def test_a_group_is_checked(group: object) -> None:
    """Anything but a pair of integers, a process group or one dimension of a mesh is refused by what it is."""
    with pytest.raises(ConfigError, match=r"rank|group must be"):
        resolve_group(group)  # type: ignore[arg-type]


def test_cores_are_shared_by_the_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may use its share of the cores that the process may run on, and always at least one."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = usable_cores()
    assert 1 <= alone <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert usable_cores() == 1
