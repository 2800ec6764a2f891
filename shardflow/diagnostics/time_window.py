"""A window: what was counted while a loader ran for a while."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Counts over a stretch of time; windows add up.

    Attributes:
        images: How many were handed out.
        wall_s: Seconds that it took.
        own_cpu_s: CPU seconds of this process.
        workers_cpu_s: CPU seconds of its workers.
        machine_cpu_s: CPU seconds of all processes of the machine.
        storage_bytes: What the workers had to have read from a disk, because it was not in memory.
    """

    images: int = 0
    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    workers_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    storage_bytes: int = 0

    def __add__(self, other: Window) -> Window:
        return Window(**{slot.name: getattr(self, slot.name) + getattr(other, slot.name) for slot in fields(self)})

    def __sub__(self, other: Window) -> Window:
        return Window(**{slot.name: getattr(self, slot.name) - getattr(other, slot.name) for slot in fields(self)})

    @property
    def images_per_s(self) -> float:
        """The rate."""
        return self.images / self.wall_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes together."""
        return self.own_cpu_s + self.workers_cpu_s

    @property
    def cpu_ms_per_image(self) -> float:
        """CPU milliseconds of all processes, per image."""
        return 1000 * self.cpu_s / self.images
