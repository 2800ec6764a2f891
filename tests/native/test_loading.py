"""The kernel is optional, and says why it is there or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardflow import native
from shardflow.native import binding

HERE = Path(native.__file__).parent


def test_what_is_active_is_told() -> None:
    """An available kernel names the version and the file of libjpeg-turbo, and what it does itself."""
    assert native.available()
    assert native.describe().startswith("libjpeg-turbo ")
    assert ".so" in native.describe()
    assert native.describe().endswith(("AVX2, Huffman decoding of its own", "plain C, Huffman decoding of its own"))


def test_not_built(tmp_path: Path) -> None:
    """Where the extension was not built, the reason names what to install."""
    reason = binding.open_kernel(tmp_path, [])
    assert isinstance(reason, str)
    assert "not built" in reason
    assert "headers" in reason


def test_not_loadable(tmp_path: Path) -> None:
    """A file that is no library, and a library that is no kernel, are reasons, not exceptions."""
    (tmp_path / "_kernel.abi3.so").write_bytes(b"no library")
    assert "cannot be loaded" in str(binding.open_kernel(tmp_path, []))
    (tmp_path / "_kernel.abi3.so").unlink()
    (tmp_path / "_kernel.abi3.so").symlink_to(_some_library())
    assert "cannot be loaded" in str(binding.open_kernel(tmp_path, []))


def test_no_libjpeg() -> None:
    """Every library that was refused is named with its reason: not there, not libjpeg, another interface version."""
    reason = binding.open_kernel(HERE, ["/nowhere/libjpeg.so.62", _some_library()])
    assert isinstance(reason, str)
    assert "/nowhere/libjpeg.so.62" in reason
    assert "it has no jpeg_" in reason


@pytest.mark.parametrize("path", [path for path in binding.libjpeg_candidates() if "/" in path])
def test_every_libjpeg_is_used_or_refused(path: str) -> None:
    """A libjpeg-turbo with another structure layout is refused by its version, before it is used."""
    kernel = binding.open_kernel(HERE, [path])
    if isinstance(kernel, str):
        assert "version" in kernel.lower() or "size" in kernel.lower()


def test_python_goes_on_without_it() -> None:
    """The module imports, and its functions raise the reason, where there is no kernel."""
    code = (
        "from shardflow import errors, native\n"
        "native.binding.load = lambda: 'no compiler'\n"
        "assert not native.available() and native.describe() == 'no compiler'\n"
        "try: native.read_header(b'')\n"
        "except errors.ShardflowError as error: assert str(error) == 'no compiler'\n"
        "else: raise SystemExit('nothing was raised')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _some_library() -> str:
    """Return a library that is loaded already, and has nothing to do with images."""
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc." in line)
