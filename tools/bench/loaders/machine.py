"""What a benchmark says of the machine that it runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def hardware() -> str:
    """Describe the machine in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    linux = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} cores of {next(models, platform.machine())}, {memory:.0f} GB, Linux {linux}"
