"""The cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def allowed_cores() -> int:
    """Return how many cores affinity and control group allow this process."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group of version 2: affinity alone counts
    return cores
