"""Processes that write to the same bucket at the same time: no order of their requests may make a wrong dataset."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardflow.dataset.write_lock import is_lock
from shardflow.errors import DatasetExistsError, ShardflowError, StoreError
from shardflow.formats import manifest
from tests.helpers.examples import stride
from tests.helpers.interleaving import MemoryPlace, Place, ServerPlace, scheduled
from tests.helpers.s3_server import Server
from tests.helpers.shared_dataset import BEFORE_COMMIT, Scenario, Watch, explore, sleep

SEEDS = {"begins": range(6), "extends": range(12), "columns": range(5)}
"""The interleavings that are tried here, of each scenario; `tools/fire interleavings` tries others and more."""

WRITES = ("put", "create", "replace", "upload", "complete", "remove")


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Scenario]:
    """The scenarios: in an empty place, and in one with a dataset."""
    folder = tmp_path_factory.mktemp("scenarios")
    return {name: Scenario(folder / name, name) for name in SEEDS}


@pytest.fixture(params=["memory", "S3"])
def place(request: pytest.FixtureRequest, prefix: str) -> Place:
    """An empty bucket in memory, or on a real server."""
    return MemoryPlace() if request.param == "memory" else ServerPlace(request.getfixturevalue("server"), prefix)


def filled(place: Place, scenario: Scenario) -> Place:
    """Put the dataset of a scenario into a place, and return the place."""
    for name, data in scenario.initial.items():
        place.put(name, data)
    return place


@pytest.mark.parametrize("name", SEEDS)
def test_commands_at_once_are_as_good_as_one_after_the_other(scenarios: Mapping[str, Scenario], name: str) -> None:
    """Whatever manifest is there, its files are those of commands that ran one after the other; no version is lost.

    A failure names its seed and all requests in their order.
    """
    for seed in SEEDS[name]:
        explore(scenarios[name], MemoryPlace(scenarios[name].initial), seed)


@pytest.mark.parametrize("name", SEEDS)
def test_a_real_server_is_no_different(
    scenarios: Mapping[str, Scenario], server: Server, prefix: str, name: str
) -> None:
    """Some of the interleavings, with the same outcome, on a server."""
    for seed in SEEDS[name][:1]:
        place = ServerPlace(server, f"{prefix}/{seed}")
        explore(scenarios[name], filled(place, scenarios[name]), seed, every_step=False)


def test_a_clean_up_that_wakes_up_spares_the_lock_of_another(scenarios: Mapping[str, Scenario], place: Place) -> None:
    """A sync that saw no lock, and goes on when an extension has one, lets no second extension in beside it."""
    scenario = scenarios["extends"]
    with scheduled(filled(place, scenario), scenario.commands) as schedule:
        schedule.run("sync")
        requests = len(schedule.processes["sync"].passed)
    assert sleep(scenario, place, "sync", requests - 1, "amid g", every_step=False)


@pytest.mark.parametrize(
    ("name", "sleeper", "wakes"),
    [
        ("extends", "sync", "amid g"),
        ("extends", "extend g, too", "amid h"),
        ("extends", "extend g, too", "after h"),
        ("extends", "remove x", "amid h"),
        ("begins", "pack base, too", "amid h"),
    ],
)
def test_a_command_that_wakes_up_does_no_harm(
    scenarios: Mapping[str, Scenario], name: str, sleeper: str, wakes: str
) -> None:
    """Before whichever of its requests a command sleeps, it harms neither the extension under way nor the next one."""
    scenario, begun = scenarios[name], 0
    while sleep(scenario, MemoryPlace(scenario.initial), sleeper, begun, wakes):
        begun += stride(1)
    assert begun > 4


@pytest.mark.parametrize(
    ("name", "sleeper", "until"),
    [
        ("extends", "repair", None),
        ("extends", "repair", "remove manifests/"),
        ("extends", "sync", None),
        ("extends", "extend g", None),
        ("extends", "remove x", None),
        ("extends", "columns add", None),
        ("begins", "pack base", None),
        ("begins", "sync", None),
    ],
)
def test_a_command_that_sleeps_through_a_purge_brings_nothing_back(
    scenarios: Mapping[str, Scenario],
    name: str,
    sleeper: str,
    until: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command sleeps before whichever request that writes while its twin, an extension, a removal and a purge run.

    When it wakes up, amid the purge or after it, no file of an earlier version comes back but its manifest, which holds
    no sample. That also holds for files that were lost before the purge.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of which a purge deletes what other tests read
    scenario, begun, ended = scenarios[name], 0, False
    commands = {**scenario.commands, "columns add": scenario.add_column, "remove": scenario.remove_more}
    commands = {key: commands[key] for key in (sleeper, "extend g", "remove")} | {"too": commands[sleeper]}
    commands["purge"] = functools.partial(scenario.remove_more, purge=True)
    kinds = {"repair": ".", "sync": ".tar"}.get(sleeper, "none")
    lost = {each for each in scenario.undamaged if each.startswith("train/") and kinds in each}
    left: set[frozenset[str]] = set()
    while not ended:
        place = MemoryPlace({each: data for each, data in scenario.undamaged.items() if each not in lost})
        with scheduled(place, commands) as schedule:
            for _ in range(begun + 1):
                schedule.step(sleeper)
            ended = schedule.processes[sleeper].has_ended
            begun += 1
            if not ended and (schedule.processes[sleeper].request or "").split()[0] not in WRITES:
                continue
            for each in ("too", "extend g", "remove"):
                if each != sleeper:
                    schedule.run(each)
            current = manifest.from_bytes(place.blobs[manifest.FILE_NAME]).file_names()
            place.blobs = {each: data for each, data in place.blobs.items() if each not in lost - current}
            schedule.run("purge", until=until)
            for each in (sleeper, "purge"):
                if each in schedule.live():
                    schedule.run(each)
            errors = {each: process.error for each, process in schedule.processes.items()}
            error = errors.pop(sleeper)
            assert error is None or isinstance(error, ShardflowError)
            twin = errors.pop("too")  # refused where the dataset is there already
            assert twin is None or isinstance(twin, DatasetExistsError)
            assert set(errors.values()) == {None}, errors
        if error is not None or sleeper != "extend g":  # which has begun after the purge, and adds g again
            left.add(frozenset(each for each in place.blobs if not each.startswith("manifests/")))
        assert manifest.from_bytes(place.blobs[manifest.FILE_NAME]).file_names() <= place.blobs.keys()
    assert len(left) == 1, [names ^ min(left, key=len) for names in left]
    assert begun > 8


@pytest.mark.parametrize("until", ["fetch unfinished", "listing"])
def test_a_lock_that_a_person_removes(scenarios: Mapping[str, Scenario], until: str) -> None:
    """An extension whose lock was taken away notices that another has written its shards since, and commits nothing."""
    scenario = scenarios["extends"]
    place = MemoryPlace(scenario.initial)
    with scheduled(place, scenario.commands) as schedule:
        schedule.run("extend g", until="put train/000003.json")
        schedule.run("extend g", until=until)
        (lock,) = filter(is_lock, place.blobs)
        del place.blobs[lock]
        schedule.run("extend h", until=BEFORE_COMMIT)
        schedule.run("extend g")
        assert isinstance(schedule.processes["extend g"].error, StoreError)
        assert "run the same command again" in str(schedule.processes["extend g"].error)
        schedule.run("extend h")
        watch = Watch(scenario, schedule)
        watch.check_end()
        assert schedule.processes["extend h"].result.new_classes == ("h",)
