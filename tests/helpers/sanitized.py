"""The native kernel under the address and undefined-behaviour sanitizers: how to build it, and a plugin that uses it.

    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 SANITIZED_KERNEL=FOLDER \\
        python -m pytest -p tests.helpers.sanitized tests/native
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from shardflow.native import binding

FOLDER = "SANITIZED_KERNEL"
"""The variable with the folder of the kernel."""

_NATIVE = Path(binding.__file__).parent
_FLAGS = ["-std=c11", "-g1", "-O1", "-Wno-psabi", "-fno-omit-frame-pointer", "-fPIC", "-shared"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DSF_SANITIZED"]
_COMPILERS = {
    "gcc": ("libasan.so", ()),
    "clang": (f"libclang_rt.asan-{os.uname().machine}.so", ("-shared-libasan",)),
}


def build(folder: Path) -> dict[str, str] | None:
    """Build the kernel in a folder, and return the environment of a process that uses it; None without a compiler."""
    for name, (library, flags) in _COMPILERS.items():
        if not shutil.which(name):
            continue
        asked = [name, f"-print-file-name={library}"]
        runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(runtime).is_absolute():
            continue
        sources, output = sorted(_NATIVE.glob("*.c")), folder / next(_NATIVE.glob("_kernel*.so")).name
        subprocess.run([name, *_FLAGS, *_SANITIZERS, *flags, *sources, "-o", output, "-ldl", "-lm"], check=True)
        # What Python and torch keep until the process ends is no leak of the kernel.
        options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        return {**os.environ, **options, FOLDER: str(folder), "LD_PRELOAD": runtime}
    return None


def pytest_configure() -> None:
    """Use the sanitized kernel in this process."""
    binding.load = functools.cache(lambda: binding.open_kernel(Path(os.environ[FOLDER]), binding.libjpeg_candidates()))
