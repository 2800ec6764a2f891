"""What a bug report, or a paper's appendix, needs to know about this machine and installation."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from shardflow._cores import allowed_cores
from shardflow.loading.provenance import describe_versions, package_version
from shardflow.storage.cache import default_directory

_S3_CLIENT = ("fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp")
_OPTIONAL = ("pyarrow", "ray", "kornia", "lightning", "datasets")


def describe_system() -> dict[str, str]:
    """Return the machine, the versions of what matters, and whether the native kernel is active, or why it is not."""
    return {
        **describe_versions(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{_distribution()}, {platform.platform()}",
        "processor": _processor(),
        "cores": f"{allowed_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
        "shared memory": _free("/dev/shm") if os.path.isdir("/dev/shm") else "no /dev/shm",
        "cache": f"{default_directory()}, {_free(default_directory())}",
        "GPU": _gpu(),
        "S3 client": ", ".join(f"{package} {package_version(package)}" for package in _S3_CLIENT),
        "others": ", ".join(f"{package} {package_version(package)}" for package in _OPTIONAL),
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "an unnamed distribution"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    """Return the memory of the machine, and what this process's control group may have of it."""
    text = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB"
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return text if limit == "max" else f"{text}, of which {int(limit) / 1e9:.1f} GB may be used"


def _free(place: str | Path) -> str:
    """Return how much is free where a directory is, or would be."""
    there = next(path for path in (Path(place), *Path(place).parents) if path.exists())
    disk = shutil.disk_usage(there)
    return f"{disk.free / 1e9:.1f} of {disk.total / 1e9:.1f} GB free"


def _gpu() -> str:
    try:
        import torch
    except (ImportError, OSError) as error:  # a library of CUDA's that is missing is an OSError
        return f"torch cannot be imported: {error}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{', '.join(names) or 'none'}; torch is built for CUDA {torch.version.cuda or 'not at all'}"
