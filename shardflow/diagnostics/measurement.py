"""A measurement: the counters of a running loader over a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Counts over a stretch of time; measurements can be added and subtracted.

    CPU time is that of this process, of its workers, and of all processes on the machine; `disk_bytes` are those that
    the workers read from a disk and not from the page cache.
    """

    images: int = 0
    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    workers_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    disk_bytes: int = 0

    def __add__(self, other: Measurement) -> Measurement:
        return Measurement(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def __sub__(self, other: Measurement) -> Measurement:
        return Measurement(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})

    @property
    def images_per_s(self) -> float:
        """Images per wall-clock second."""
        return self.images / self.wall_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process and its workers."""
        return self.own_cpu_s + self.workers_cpu_s

    @property
    def cpu_ms_per_image(self) -> float:
        """CPU milliseconds of this process and its workers, per image."""
        return 1000 * self.cpu_s / self.images
