"""The optional native kernel; everything else about the package is in pyproject.toml.

The kernel is a shared library that ctypes loads, without Python in it. So one file serves every Python, free-threaded
ones too, and the wheel says so in its name: py3-none-PLATFORM. It is compiled without the flags that this Python was
compiled with, which may name directories of this machine. CC, CFLAGS and LDFLAGS are heeded.
"""

import glob
import os
import shlex

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = [
    *("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"),
    "-Wno-psabi",  # no vector is passed between files
    "-ffp-contract=off",  # fused multiply-adds give other weights, hence other pixels, on processors that have them
]


class BuildKernel(build_ext):
    """Compiles the kernel, and names it without the tag of a Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library below the package's root."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link in one command."""
        library = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(library), exist_ok=True)
        compiler, flags, link_flags = (shlex.split(os.environ.get(name, "")) for name in ("CC", "CFLAGS", "LDFLAGS"))
        self.spawn([*(compiler or ["cc"]), *FLAGS, *flags, *ext.sources, "-o", library, *link_flags, "-ldl", "-lm"])


class PlatformWheel(bdist_wheel):
    """Names the wheel after its platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag: Python, ABI, platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "shardflow.native._kernel",
            sources=sorted(glob.glob("shardflow/native/*.c")),
            depends=sorted(glob.glob("shardflow/native/*.h")),
            optional=True,  # without a compiler shardflow.native.describe() says what is missing
        )
    ],
)
