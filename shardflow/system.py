"""What a bug report needs to know about this machine and installation."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata

from . import native

_PACKAGES = ("torch", "torchvision", "webdataset", "numpy", "pillow", "fsspec", "s3fs")


def describe_system() -> dict[str, str]:
    """Return versions, cores, shared memory, and whether the native kernel is active, or why it is not."""
    shared = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "shardflow": metadata.version("shardflow"),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "shared memory": f"{shared.free / 1e9:.1f} of {shared.total / 1e9:.1f} GB free" if shared else "no /dev/shm",
        "native kernel": native.why() if native.available() else f"not active: {native.why()}",
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
