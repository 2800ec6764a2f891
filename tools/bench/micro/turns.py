"""Cases that take turns, so that other work of the machine falls on all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import median
from typing import Any, TypeVar

from bench.usage import own_cpu_s

Case = TypeVar("Case", bound=Hashable)


def medians(cases: Mapping[Case, Callable[[], float]], rounds: int) -> dict[Case, float]:
    """Run all cases once unmeasured, and then in so many rounds; return the median of each."""
    found: dict[Case, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            found[name].append(case())
    return {name: median(values[1:]) for name, values in found.items()}


def epoch_us(batches: Iterable[Any]) -> float:
    """Return the CPU time per image of an epoch in µs, of this process and its workers."""
    begun, images = own_cpu_s(), 0
    for pixels, *_ in batches:
        images += len(pixels)
    return 1e6 * (own_cpu_s() - begun) / images
