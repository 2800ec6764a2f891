"""CPU time and memory of process trees, and the machine they run on."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = os.cpu_count() or 1


def hardware() -> str:
    """Describe the machine in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    linux = ".".join(platform.release().split(".")[:2])
    return f"{_CORES} cores of {next(models, platform.machine())}, {memory:.0f} GB, Linux {linux}"


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    pids = [pid]
    for pid in pids:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return pids


def cpu_s(pids: Iterable[int]) -> float:
    """Return user and system seconds of processes, and of their children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def own_cpu_s() -> float:
    """Return user and system seconds of this process and all of its descendants, ended ones included."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + cpu_s(tree(os.getpid())[1:])


def machine_cpu_s() -> float:
    """Return the seconds that all cores have been busy since the machine started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def busy_share(seconds: float) -> float:
    """Return the share of the machine's CPU time that is used in the next seconds."""
    before = machine_cpu_s()
    time.sleep(seconds)
    return (machine_cpu_s() - before) / (seconds * _CORES)


class Used(NamedTuple):
    """CPU time over a period."""

    wall_s: float
    cpu_s: float  # of this process and its descendants
    server_cpu_s: float
    others: float  # share of the machine's CPU time that any other process used


class Stopwatch:
    """Measures CPU time from its creation on, also that of `servers`: processes that do not descend from this one."""

    def __init__(self, servers: Iterable[int] = ()) -> None:
        self._servers = list(servers)
        self._begin = self._now()

    def wall_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begin[0]

    def read(self) -> Used:
        """Return what was used since the start."""
        wall, cpu, servers, machine = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        others = max(0.0, machine - cpu - servers) / (wall * _CORES)
        return Used(wall, cpu, servers, others)

    def _now(self) -> tuple[float, float, float, float]:
        return time.perf_counter(), own_cpu_s(), cpu_s(self._servers), machine_cpu_s()


class PeakMemory:
    """Records the memory of this process tree from a thread: shared pages count once. It takes CPU time itself.

    `memory` returns the bytes of a process, by kind if that matters; `bytes_by_kind` are those of all at the peak.
    """

    def __init__(self, memory: Callable[[int], Mapping[str, int]] | None = None) -> None:
        self.bytes_by_kind: Mapping[str, int] = {}
        self._memory = memory or _memory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            now = Counter[str]()
            for pid in tree(os.getpid()):
                now.update(self._memory(pid))
            if now.total() > self.bytes:
                self.bytes_by_kind = now

    @property
    def bytes(self) -> int:
        """The memory at the peak."""
        return sum(self.bytes_by_kind.values())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    return {"all": sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))}


def medians(cases: Mapping[Hashable, Callable[[], float]], rounds: int) -> dict[Any, float]:
    """Run all cases in turn, once unmeasured and then in so many rounds; return the median of each."""
    found: dict[Any, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            found[name].append(case())
    return {name: median(values[1:]) for name, values in found.items()}


def epoch_us(batches: Iterable[Any]) -> float:
    """Return the CPU time per image of an epoch in µs, of this process and its workers; views count as one image."""
    begun, images = own_cpu_s(), 0
    for pixels, *_ in batches:
        images += len(pixels[0] if isinstance(pixels, tuple | list) else pixels)
    return 1e6 * (own_cpu_s() - begun) / images
