"""The CPU cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def allowed_cores() -> int:
    """Return the number of cores that affinity and control group allow this process, 1 or more."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2: only affinity limits this process
    return cores
