"""The system report: facts about the machine and the installation, for a bug report or a paper's appendix."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from shardflow._cores import allowed_cores
from shardflow._imports import import_large
from shardflow.loading.run_metadata import describe_versions, package_version
from shardflow.storage.cache import default_directory

_S3_CLIENT = ("fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp")
_OPTIONAL = ("pyarrow", "ray", "kornia", "lightning", "datasets")


def describe_system() -> dict[str, str]:
    """Return facts about the machine, the versions of libraries, and whether the native kernel is active or why not."""
    versions = describe_versions()
    return {
        **versions,
        "torchvision": versions["torchvision"] + _import_error("torchvision"),
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
        return "unknown distribution"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    """Return the memory of the machine, and the limit of this process's control group."""
    text = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB"
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return text if limit == "max" else f"{text}, of which {int(limit) / 1e9:.1f} GB may be used"


def _free(directory: str | Path) -> str:
    """Return the free space of the file system of a directory, which need not exist yet."""
    existing = next(path for path in (Path(directory), *Path(directory).parents) if path.exists())
    disk = shutil.disk_usage(existing)
    return f"{disk.free / 1e9:.1f} of {disk.total / 1e9:.1f} GB free"


def _import_error(package: str) -> str:
    """Return the import error of a package as text to append to its version; "" if it can be imported."""
    try:
        import_large(package)
    except (ImportError, OSError, RuntimeError) as error:  # the last two: a missing CUDA library, or operator
        return f", cannot be imported: {error}"
    return ""


def _gpu() -> str:
    if error := _import_error("torch"):
        return f"torch{error}"
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return f"{', '.join(names) or 'none'}; torch built {cuda}"
