"""Several processes write to one dataset in a bucket, in all kinds of interleavings, and some are killed.

The model is the serial one: whatever manifest is there at any moment, it and all of its files have the bytes that the
same commands would have written one after the other; no version that was there is lost; and of a command that says
that it succeeded, the inputs are in the dataset.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

import shardflow as sf
from shardflow.dataset.write_lock import is_lock
from shardflow.errors import ShardflowError
from shardflow.formats import manifest
from tests.helpers.folders import contents, encoded, write_tree
from tests.helpers.interleaving import Command, Killed, MemoryPlace, Place, Schedule, scheduled

SETTINGS: dict[str, Any] = {"short_side": 8, "shard_samples": 2, "executor": "serial", "max_errors": 1}
SOURCES = {"base": "a", "g": "g", "h": "h"}  # name → class of its pictures
DAMAGED = "train/000000.npy"  # until it is repaired


def _picture(number: int) -> bytes:
    return encoded(Image.new("RGB", (8, 8), (number * 37 % 256, number * 91 % 256, 7)), "PNG")


@dataclass(frozen=True)
class Version:
    """A dataset that commands make which run one after the other."""

    files: Mapping[str, bytes]
    sources: frozenset[str]


class Scenario:
    """Commands that write to the same place.

    Args:
        folder: A directory for the sources.
        name: "begins" in an empty place; "extends", or "columns", which are added and dropped, in one that holds a
            dataset, one of whose indexes is damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, begins = folder, name == "begins"
        for number, (source, label) in enumerate(SOURCES.items()):
            files = {f"{label}/{n}.png": _picture(3 * number + n) for n in range(2)}
            write_tree(folder / source, {**files, **({} if source == "h" else {f"{label}/bad.png": b""})})
        sf.pack(folder / "base", folder / "copy", **SETTINGS)
        copy = contents(folder / "copy")
        self._keys = [sample["__key__"] for sample in sf.open(folder / "copy")["train"]]
        self._removed = self._keys[-1]
        self.undamaged = {} if begins else copy
        self.initial = {} if begins else {**copy, DAMAGED: b"damaged"}
        sf.sync(folder / "copy", folder / "more")
        self._extend("g")(str(folder / "more"), {})
        self._last = sf.open(folder / "more")["train"][-1]["__key__"]
        self.versions: dict[str, Version] = {}
        self._steps: dict[str, Command] = {"g": self._extend("g"), "h": self._extend("h")}
        if not begins:
            self._steps["x"] = self.remove
        if name == "columns":
            del self._steps["h"]
            self._steps |= {"c": self.add_column, "d": self.drop_column}
        self._add_versions(copy, ["base"])
        if begins:
            self._add_versions(self._after({}, self._pack("h")), ["h"])
        self.commands: dict[str, Command] = {
            "extend g": self._extend("g"),
            "extend g, too": self._extend("g"),
            "extend h": self._extend("h"),
            "sync": lambda url, options: sf.sync(folder / "copy", url, dst_options=options),
            "pack base": self._pack("base"),
        }
        if begins:
            self.commands |= {"pack base, too": self._pack("base"), "pack h": self._pack("h")}
            del self.commands["extend g, too"]
        else:
            self.commands["remove x"] = self.remove
            self.commands["repair"] = lambda url, options: sf.repair(url, folder / "copy", storage_options=options)
        if name == "columns":
            del self.commands["extend h"], self.commands["pack base"]
            self.commands |= {"add c": self.add_column, "drop d": self.drop_column}

    def _pack(self, source: str) -> Command:
        return lambda url, options: sf.pack(self._folder / source, url, **SETTINGS, storage_options=options)

    def _extend(self, source: str) -> Command:
        arguments = {"max_errors": 1, "executor": "serial"}
        return lambda url, options: sf.extend(self._folder / source, url, **arguments, storage_options=options)

    def remove(self, url: str, options: dict[str, Any], *, purge: bool = False) -> Any:
        """Remove a sample; in the model, that is a source of its own."""
        return sf.remove(url, keys=[self._removed], purge=purge, storage_options=options)

    def remove_more(self, url: str, options: dict[str, Any], *, purge: bool = False) -> Any:
        """Remove a sample of base, and the last one of g."""
        return sf.remove(url, keys=[self._keys[0], self._last], purge=purge, storage_options=options)

    def add_column(self, url: str, options: dict[str, Any]) -> Any:
        """Add a column to the samples of base."""
        table = pa.table({"key": self._keys, "note": [f"note on {key}" for key in self._keys]})
        return sf.columns.add(url, table, key="key", allow=["unmatched"], storage_options=options)

    def drop_column(self, url: str, options: dict[str, Any]) -> Any:
        """Drop this column; in the model, that is a source of its own, which comes after it."""
        return sf.columns.drop(url, ["note"], storage_options=options)

    def _after(self, files: Mapping[str, bytes], command: Command) -> dict[str, bytes]:
        place = MemoryPlace(files)
        with scheduled(place, {"alone": command}) as schedule:
            schedule.run("alone")
        if (error := schedule.processes["alone"].error) is not None:
            raise error
        return place.blobs

    def _add_versions(self, files: Mapping[str, bytes], sources: Sequence[str]) -> None:
        """Add a dataset of these sources, and all that extending makes of it."""
        timeless = {name: data for name, data in files.items() if not name.startswith("removals/")}
        found = _fingerprint(files[manifest.FILE_NAME])
        if (same := self.versions.get(found)) is not None:  # it came from other versions, which stay as well
            timeless = {name: data for name, data in timeless.items() if name in same.files}
        self.versions[found] = Version(timeless, frozenset(sources))
        for source in sorted(self._steps.keys() - set(sources)):
            if source != "d" or "c" in sources:
                self._add_versions(self._after(files, self._steps[source]), [*sources, source])

    def source_of(self, name: str) -> str:
        """Return the source of a command, which its second word names."""
        return name.replace(",", "").split(" ")[1] if " " in name else "base"


@functools.cache
def _fingerprint(data: bytes) -> str:
    """Return the fingerprint of a manifest."""
    return manifest.from_bytes(data).fingerprint


class Watch:
    """Compares a place with the model, after each step."""

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        self._scenario, self.schedule = scenario, schedule
        self._seen: list[str] = []  # fingerprints

    def check(self) -> None:
        """Raise an AssertionError if a promise is broken."""
        blobs = self.schedule.place.contents()
        if manifest.FILE_NAME not in blobs:
            assert not self._seen, "the dataset is gone"
            return
        found = _fingerprint(blobs[manifest.FILE_NAME])
        versions = self._scenario.versions
        assert found in versions, f"no serial run makes {found}"
        for name, data in versions[found].files.items():
            allowed = [data]
            if name == DAMAGED and self._scenario.initial:
                allowed.append(self._scenario.initial[DAMAGED])
            assert blobs.get(name) in allowed, f"{name} is not what a serial run writes"
        if found not in self._seen:
            self._seen.append(found)
            sources = [versions[each].sources for each in self._seen]
            assert all(a < b for a, b in itertools.pairwise(sources)), "a version was not extended but replaced"
        for name, process in self.schedule.processes.items():
            if process.has_ended and process.error is None and not process.is_killed:
                source = self._scenario.source_of(name)
                assert source in versions[found].sources, f"{name} succeeded, and its inputs are not there"

    def check_end(self) -> None:
        """Raise an AssertionError if a process has failed in another way than it may, or left anything without need."""
        self.check()
        for name, process in self.schedule.processes.items():
            assert process.error is None or isinstance(process.error, ShardflowError | Killed), (name, process.error)
        if not any(process.is_killed for process in self.schedule.processes.values()):
            left = [name for name in self.schedule.place.contents() if is_lock(name)]
            assert not left, f"locks without a holder: {left}"


@contextlib.contextmanager
def watched(
    scenario: Scenario, place: Place, commands: Collection[str], of: str, *, every_step: bool
) -> Iterator[Watch]:
    """Run a schedule of some commands of a scenario, and compare each step with the model, or the end alone.

    Raises:
        AssertionError: A promise is broken. The message has `of`, the name of the schedule, and the steps.
    """
    with scheduled(place, {name: scenario.commands[name] for name in commands}) as schedule:
        watch = Watch(scenario, schedule)
        if every_step:
            schedule.on_step = watch.check
        try:
            yield watch
            watch.check_end()
        except AssertionError as error:
            steps = "\n  ".join(schedule.steps)
            raise AssertionError(f"{error}\n{of}:\n  {steps}") from error


def explore(scenario: Scenario, place: Place, seed: int, *, every_step: bool = True) -> None:
    """Run some of the commands of a scenario in the interleaving of a seed."""
    rng = random.Random(seed)
    names = rng.sample(sorted(scenario.commands), 4)
    stickiness, deadliness = rng.choice((0.5, 0.8, 0.95)), rng.choice((0.0, 0.0, 0.02, 0.1))
    with watched(scenario, place, names, f"seed {seed}", every_step=every_step) as watch:
        schedule, current = watch.schedule, rng.choice(names)
        while live := schedule.live():
            if current not in live or rng.random() > stickiness:
                current = rng.choice(live)
                if rng.random() < deadliness:
                    schedule.kill(current)
                    continue
            schedule.step(current)


BEFORE_COMMIT = "abort_uploads"  # when the shards are there
WAKES = ("amid g", "amid h", "after h")
SLEEPERS = {
    "begins": ("pack base, too", "sync"),
    "extends": ("extend g, too", "sync", "repair", "pack base"),
    "columns": (),
}


def sleep(scenario: Scenario, place: Place, sleeper: str, begun: int, wakes: str, *, every_step: bool = True) -> bool:
    """Let a command sleep before a request while g and then h are added; return False if it makes no such request.

    It wakes up when an extension is about to commit, or when both have.
    """
    of = f"{sleeper}, asleep after {begun} requests, wakes {wakes}"
    others = ["extend g", "extend h", *(() if scenario.initial else ("pack base",))]
    with watched(scenario, place, {sleeper, *others}, of, every_step=every_step) as watch:
        schedule = watch.schedule
        for _ in range(begun + 1):
            schedule.step(sleeper)
        if slept := not schedule.processes[sleeper].has_ended:
            if not scenario.initial:
                schedule.run("pack base")
            schedule.run("extend g", until=BEFORE_COMMIT if wakes == "amid g" else None)
            if wakes != "amid g":
                schedule.run("extend h", until=BEFORE_COMMIT if wakes == "amid h" else None)
            schedule.run(sleeper)
            schedule.run("extend h", until=BEFORE_COMMIT)
        for name in schedule.live():
            schedule.run(name)
    return slept
