"""The kernel is optional, and says why it is there or not."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardflow import native
from shardflow.native import binding
from shardflow.native.binding import Header, Status
from tests.helpers import jpegs

HERE = Path(native.__file__).parent


def test_what_is_active_is_told() -> None:
    """An available kernel names the version and the file of libjpeg-turbo, and what it does itself."""
    assert native.available()
    assert native.describe().startswith("libjpeg-turbo ")
    assert ".so" in native.describe()
    features = Path("/proc/cpuinfo").read_text().split()
    vectors = "AVX2" if "avx2" in features else "NEON" if platform.machine() == "aarch64" else "plain C"
    assert native.describe().endswith(f", {vectors}, own Huffman decoding")


def test_not_built(tmp_path: Path) -> None:
    """Where the kernel was not built, the reason names what to install, and how pip builds it again."""
    reason = binding.open_kernel(tmp_path, [])
    assert isinstance(reason, str)
    assert "not built" in reason
    assert "C compiler" in reason
    assert "--no-cache-dir" in reason


def test_not_loadable(tmp_path: Path) -> None:
    """A file that is no library, and a library that is no kernel, are reasons, not exceptions."""
    (tmp_path / "_kernel.so").write_bytes(b"no library")
    assert "cannot be loaded" in str(binding.open_kernel(tmp_path, []))
    (tmp_path / "_kernel.so").unlink()
    (tmp_path / "_kernel.so").symlink_to(_some_library())
    assert "cannot be loaded" in str(binding.open_kernel(tmp_path, []))


def test_no_libjpeg() -> None:
    """Every library that was refused is named with its reason: not there, not libjpeg, another interface version."""
    reason = binding.open_kernel(HERE, ["/nowhere/libjpeg.so.62", _some_library()])
    assert isinstance(reason, str)
    assert "/nowhere/libjpeg.so.62" in reason
    assert "it has no jpeg_" in reason
    assert reason.endswith(binding.libjpeg_remedy())


@pytest.mark.parametrize(
    ("system", "remedy"),
    [
        ({"ID": "debian"}, "apt install libjpeg62-turbo"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt install libjpeg-turbo8"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt install libjpeg-turbo8"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install libjpeg-turbo"),
        ({"ID": "unheard-of"}, "pillow"),
    ],
)
def test_remedy_is_the_systems(system: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no libjpeg-turbo is found, the reason names Pillow's wheel and the package of this system."""
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: system)
    assert binding.libjpeg_remedy().startswith("pip install --force-reinstall --no-deps pillow")
    assert binding.libjpeg_remedy().endswith(remedy)


def test_a_conda_environment_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a conda environment its libjpeg-turbo is tried before the system's, and conda is the remedy."""
    library = tmp_path / "lib" / "libjpeg.so.8"
    library.parent.mkdir()
    library.touch()
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert list(binding.libjpeg_candidates())[-3:] == [str(library), "libjpeg.so.62", "libjpeg.so.8"]
    assert binding.libjpeg_remedy() == "conda install -c conda-forge libjpeg-turbo"


@pytest.mark.parametrize("path", [path for path in binding.libjpeg_candidates() if "/" in path])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
def test_every_libjpeg_is_used(path: str, fast: bool) -> None:
    """Libraries of either interface version give torchvision's pixels, and tell a damaged image and a cut one."""
    kernel = binding.open_kernel(HERE, [path])
    assert isinstance(kernel, binding.Kernel)
    assert kernel.about.endswith("own Huffman decoding")
    box = (5, 3, 47, 39)
    for how in ({}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 3}):
        payload = jpegs.make(3, 64, 48, **how)
        out = np.empty((2, 3, 20, 30), np.uint8)
        with jpegs.decoder(fast=fast, kernel=kernel) as decoder:
            cut = payload[: len(payload) * 2 // 3]
            problems = native.decode_views(
                [payload, cut], [native.View(np.array([box] * 2, np.int32), np.zeros(2, np.bool_), out)]
            )
            header = decoder.read_header(payload)
        assert [(problem.index, problem.status) for problem in problems] == [(1, Status.TRUNCATED)]
        assert header == Header(64, 48, 1 if "mode" in how else 3, "progressive" in how)
        wanted = jpegs.reference(payload, box, (20, 30), False)
        assert np.abs(out[0].astype(int) - wanted.astype(int)).max() <= 1


def test_both_interface_versions_are_tried() -> None:
    """Pillow's wheel and torchvision's hold one of each version, so that these tests are about both."""
    names = {Path(path).name for path in binding.libjpeg_candidates() if "/" in path}
    assert {version for name in names for version in (".so.62", ".so.8") if version in name} == {".so.62", ".so.8"}


def test_versions_to_come_are_used_alike(tmp_path: Path) -> None:
    """A libjpeg-turbo of any version is used as fully as the ones that are known."""
    kernel = jpegs.loaded_kernel()
    known = kernel.version.removeprefix("libjpeg-turbo ").encode()
    changed = tmp_path / "libjpeg.so"
    changed.write_bytes(Path(kernel.libjpeg).read_bytes().replace(b"version " + known, b"version 9" + known[1:]))
    other = binding.open_kernel(HERE, [str(changed)])
    assert isinstance(other, binding.Kernel)
    assert other.version == f"libjpeg-turbo 9{known[1:].decode()}"
    assert other.about == kernel.about


WITHOUT_INSIDE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include "libjpeg.h"

#define PRIVATE(f) f(master) f(main) f(coef) f(post) f(inputctl) f(marker) f(entropy) f(idct) f(upsample) f(cconvert)
static void *kept[10], *const none = (void *)16;

static void hide(j_decompress_ptr info) {
    int at = 0;
#define HIDE(name) kept[at++] = info->later.API.name, info->later.API.name = none;
    PRIVATE(HIDE)
}

static void show(j_decompress_ptr info) {
    int at = 0;
#define SHOW(name) if (info->later.API.name == none) info->later.API.name = kept[at++];
    PRIVATE(SHOW)
}

#define WRAP(returned, name, parameters, arguments) \\
    returned name parameters {                      \\
        returned(*real) parameters = dlsym(dlopen(REAL, RTLD_NOW), #name); \\
        show(info);                                 \\
        const returned done = real arguments;       \\
        hide(info);                                 \\
        return done;                                \\
    }
WRAP(int, jpeg_read_header, (j_decompress_ptr info, boolean require), (info, require))
WRAP(boolean, jpeg_start_decompress, (j_decompress_ptr info), (info))
WRAP(JDIMENSION, jpeg_skip_scanlines, (j_decompress_ptr info, JDIMENSION lines), (info, lines))
WRAP(JDIMENSION, jpeg_read_scanlines, (j_decompress_ptr info, JSAMPROW *rows, JDIMENSION most), (info, rows, most))
void jpeg_crop_scanline(j_decompress_ptr info, JDIMENSION *column, JDIMENSION *width) {
    void (*real)(j_decompress_ptr, JDIMENSION *, JDIMENSION *) = dlsym(dlopen(REAL, RTLD_NOW), "jpeg_crop_scanline");
    show(info);
    real(info, column, width);
    hide(info);
}
void jpeg_abort_decompress(j_decompress_ptr info) {
    void (*real)(j_decompress_ptr) = dlsym(dlopen(REAL, RTLD_NOW), "jpeg_abort_decompress");
    show(info);
    real(info);
}
"""
"""A library in front of libjpeg-turbo that shows none of its private structures while the kernel is at work."""

DECODE = """
import sys, hashlib, pathlib
import numpy as np
from shardflow import native
from shardflow.native import binding

kernel = binding.open_kernel(pathlib.Path(binding.__file__).parent, sys.argv[1:2])
binding._threads.decoder = binding.Decoder(kernel)
digest = hashlib.sha256()
for path in sys.argv[2:]:
    out, payload = np.zeros((3, 3, 20, 20), np.uint8), pathlib.Path(path).read_bytes()
    assert native.decode_views([payload] * 3, [native.View(None, np.zeros(3, np.bool_), out)]) == []
    digest.update(out.tobytes())
print(digest.hexdigest())
"""


def test_nothing_private_of_the_library_is_touched(tmp_path: Path) -> None:
    """A library behind the same interface, with other private structures, gives the same pixels."""
    kernel = jpegs.loaded_kernel()
    real, shim = Path(kernel.libjpeg), tmp_path / "libjpeg.so"
    api = "api62" if ".so.62" in real.name else "api80"
    command = ["cc", "-shared", "-fPIC", f'-DREAL="{real}"', f"-DAPI={api}", "-I", HERE, "-x", "c", "-", "-x", "none"]
    command += ["-Wl,--no-as-needed", real, f"-Wl,-rpath,{real.parent}", "-o", shim]
    subprocess.run(command, input=WITHOUT_INSIDE, text=True, check=True, timeout=60)
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path, how in zip(paths, ({}, {"progressive": True}, {"mode": "L", "progressive": True}), strict=True):
        path.write_bytes(jpegs.make(1, 64, 48, **how))
    digests = []
    for library in (real, shim):
        command = [sys.executable, "-c", DECODE, library, *paths]
        digests.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert digests[0] == digests[1]


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
