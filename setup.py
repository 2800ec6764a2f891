"""The optional native kernel; everything else about the package is in pyproject.toml."""

import sysconfig

from setuptools import Extension, setup

# The kernel does not include Python.h, so one binary serves every Python: it takes the stable ABI's name, which
# free-threaded builds do not have.
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "shardflow.native._kernel",
            sources=[f"shardflow/native/{name}.c" for name in ("entropy", "kernel", "libjpeg", "resample")],
            depends=[f"shardflow/native/{name}.h" for name in ("entropy", "kernel", "libjpeg", "resample")],
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
            libraries=["dl", "m"],
            optional=True,  # no compiler or no libjpeg-turbo headers: shardflow.native.describe() says what is missing
            py_limited_api=stable,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if stable else {},
)
