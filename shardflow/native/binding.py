"""The binding of the native kernel: kernel.h in ctypes, and the search for the kernel and libjpeg-turbo.

The kernel is a shared library without Python code (`setup.py` builds it); ctypes loads it, and releases the GIL during
a call. libjpeg-turbo is loaded at run time: first from Pillow's wheel, which is recent and belongs to the environment,
then from torchvision's, then from the conda environment or the system.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.util
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardflow.errors import ConfigError, DecodeError, ShardflowError
from shardflow.formats.image_limits import BYTES_PER_PIXEL, MAX_SCANS, SCANS_PER_PIXEL

Payload: TypeAlias = bytes | memoryview | NDArray[np.uint8]
"""An encoded image, or a decoded one: uint8 [H, W, 3], RGB, contiguous."""

FILTERS: dict[str, int] = {"bilinear": 0, "bicubic": 1, "lanczos": 2}  # enum sf_filter

_ABI = 14  # SF_ABI
_MESSAGE_BYTES = 240  # SF_MESSAGE_BYTES
_SEGMENT_BYTES = 2 + 65_535  # SF_SEGMENT_BYTES

_SWITCH = "SHARDFLOW_KERNEL"
"""The environment variable that turns the kernel off for all processes of a run."""

# Without --no-cache-dir, pip would install its cached wheel, built without a compiler.
_AGAIN = "install shardflow again, with pip's --no-cache-dir --force-reinstall --no-deps"

_PACKAGES = {  # by the ID of os-release
    "arch": "pacman -S libjpeg-turbo",
    "debian": "apt install libjpeg62-turbo",
    "fedora": "dnf install libjpeg-turbo",
    "rhel": "dnf install libjpeg-turbo",
    "ubuntu": "apt install libjpeg-turbo8",
}


class Status(enum.IntEnum):
    """The problem of an image. Its pixels are complete if it is `DAMAGED`, and zero otherwise."""

    DAMAGED = 1  # corrupt data after which libjpeg-turbo continued
    CORRUPT = 2  # not a JPEG, or not one that can be decoded
    TRUNCATED = 3  # the bytes end before the image does
    UNSUPPORTED = 4  # CMYK, 12 bits, arithmetic coding: use a general decoder
    TOO_LARGE = 5  # more pixels, scans or working memory than allowed
    BAD_BOX = 6  # a crop outside of the image, or a window outside of the resized crop
    NO_MEMORY = 7
    WRONG_SIZE = 8  # not the size that the caller expected
    UNREAD = 9  # its file cannot be read, or a part of it has another CRC-32


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and the position of its image in the batch."""

    index: int
    status: Status
    message: str


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a JPEG."""

    width: int  # in pixels, before any EXIF orientation
    height: int
    components: int  # 1 grey, 3 colour, 4 CMYK
    progressive: bool


@dataclass(slots=True, eq=False)
class ImageInFile:
    """An encoded image in its file: the kernel reads, checks and decodes it while it is in the CPU cache.

    Other parts of its sample may be read with it; they are checked too, and copied to memory.

    Attributes:
        descriptor, begin, size: The file, and the bytes to read from it.
        parts: Per part, the address to copy it to (0 for the image), its offset in the file, its size and CRC-32.
        part_bytes: The total size of all parts.
        read: Reads and checks the image without the kernel, and returns it.
        owners: The objects that keep the file open, and the memory to which parts are copied.
    """

    descriptor: int
    begin: int
    size: int
    parts: Sequence[tuple[int, int, int, int]]
    part_bytes: int
    read: Callable[[], memoryview]
    owners: Sequence[object]


class Limits(ctypes.Structure):
    """sf_limits of kernel.h: the limits that follow from `max_pixels`, see `formats.image_limits`."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("pixels", "memory_bytes", "scan_pixels", "scans"))

    def __init__(self, max_pixels: int) -> None:
        super().__init__(max_pixels, BYTES_PER_PIXEL * max_pixels, SCANS_PER_PIXEL * max_pixels, MAX_SCANS)


class Batch(ctypes.Structure):
    """sf_batch of kernel.h."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("images", "sizes", "boxes", "resized", "decoded", "expected", "seek_tables", "files", "parts"),
                *("flips", "places", "out"),
            )
        ),
        ("image_stride", ctypes.c_size_t),
        ("limits", Limits),
        *((name, ctypes.c_int32) for name in ("count", "width", "height", "patch")),
        *((name, ctypes.c_int32) for name in ("interleaved", "filter", "oversampling")),
    )


class _Problem(ctypes.Structure):  # sf_problem
    _fields_ = (
        ("index", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("message", ctypes.c_char * _MESSAGE_BYTES),
    )


class _Header(ctypes.Structure):  # sf_header
    _fields_ = tuple((name, ctypes.c_int32) for name in ("width", "height", "components", "progressive"))


class Way(enum.IntEnum):
    """How JPEGs are decoded; the pixels and problems do not depend on it."""

    LIBRARY = 0  # by libjpeg-turbo alone
    PLAIN = 1  # by the kernel if it can, in plain C
    FAST = 2  # by the kernel if it can, with vector instructions


class Kernel:
    """The loaded kernel, and the libjpeg-turbo that it uses."""

    def __init__(self, dll: ctypes.CDLL, library: int, libjpeg: str) -> None:
        self.dll = dll
        self.library = library
        self.libjpeg = libjpeg
        found = re.search(rb"libjpeg-turbo version ([\d.]+)", Path(libjpeg).read_bytes())
        self.version = f"libjpeg-turbo {found[1].decode() if found else '(unknown version)'}"
        self.about = Decoder(self).about


class Decoder:
    """The working memory of one thread."""

    def __init__(self, kernel: Kernel, way: Way = Way.FAST) -> None:
        self._dll = kernel.dll
        self._problems = (_Problem * 0)()
        self._handle = self._dll.sf_workspace_new(kernel.library, way)
        if not self._handle:
            raise MemoryError
        self.about: str = self._dll.sf_workspace_about(self._handle).decode()

    def __del__(self) -> None:
        self._dll.sf_workspace_free(self._handle)

    @property
    def faults(self) -> int:
        """Number of images that libjpeg-turbo decoded again because of faulty Huffman codes."""
        return int(self._dll.sf_workspace_faults(self._handle))

    def decode(self, *views: Batch) -> list[Problem]:
        """Decode one or several views of the images; return the problems by ascending index."""
        if len(self._problems) < views[0].count:
            self._problems = (_Problem * views[0].count)()
        found = self._dll.sf_decode(self._handle, (Batch * len(views))(*views), len(views), self._problems)
        return [_problem(problem) for problem in self._problems[:found]]

    def transcode(self, asked: ctypes.Structure, made: ctypes.Structure) -> Problem | None:
        """Transcode an image; return its problem, or fill in `made`, which is valid until the next call."""
        problem = _Problem()
        found = self._dll.sf_transcode(self._handle, ctypes.byref(asked), ctypes.byref(made), ctypes.byref(problem))
        return _problem(problem) if found else None

    def convert_colours(self, pixels: int, count: int, tables: int) -> None:
        """Convert pixels in place; `pixels` and `tables` are addresses."""
        self._dll.sf_convert_colours(pixels, count, tables)

    def read_header(self, payload: bytes | memoryview) -> Header:
        """Return the header of a JPEG."""
        images, sizes = addresses([payload])
        header, problem = _Header(), _Problem()
        found = self._dll.sf_read_header(
            self._handle,
            ctypes.cast(images, ctypes.POINTER(ctypes.c_void_p))[0],
            sizes[0],
            ctypes.byref(header),
            ctypes.byref(problem),
        )
        if found:
            raise DecodeError(_problem(problem).message)
        return Header(header.width, header.height, header.components, bool(header.progressive))

    def seek_table(self, payload: bytes | memoryview, limits: Limits) -> bytes:
        """Return the segment with the seek table of a JPEG; b"" if it can have none."""
        images, sizes = addresses([payload])
        segment, size, problem = ctypes.create_string_buffer(_SEGMENT_BYTES), ctypes.c_size_t(), _Problem()
        found = self._dll.sf_seek_table_of(
            self._handle,
            ctypes.cast(images, ctypes.POINTER(ctypes.c_void_p))[0],
            sizes[0],
            ctypes.byref(limits),
            segment,
            ctypes.byref(size),
            ctypes.byref(problem),
        )
        return b"" if found else segment.raw[: size.value]


def _problem(found: _Problem) -> Problem:
    return Problem(found.index, Status(found.status), found.message.decode(errors="replace"))


def addresses(
    payloads: Sequence[Payload],
) -> tuple[ctypes.Array[Any], ctypes.Array[ctypes.c_size_t]]:
    """Return addresses and sizes of payloads, without copying: they are valid while the caller keeps the payloads."""
    count = len(payloads)
    sizes = (ctypes.c_size_t * count)(*map(len, payloads))
    strings: Callable[..., ctypes.Array[ctypes.c_char_p]] = ctypes.c_char_p * count
    try:
        return strings(*payloads), sizes  # 0.2 us each, but only for `bytes`
    except TypeError:
        pass
    images = (ctypes.c_void_p * count)()
    for i, payload in enumerate(payloads):  # 1 us each
        data = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        images[i] = data.ctypes.data if sizes[i] else None
    return images, sizes


def places(
    images: Sequence[ImageInFile | None],
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[None, None]:
    """Return sf_file and sf_part of images as int64 arrays; None if no image is in a file."""
    files, parts = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for image in images:
        if image is None:
            files.append((0, 0, 0, 0, 0))
        else:
            files.append((image.descriptor, image.begin, image.size, len(parts), len(image.parts)))
            parts += image.parts
    return (np.array(files, np.int64), np.array(parts, np.int64)) if parts else (None, None)


_threads = threading.local()


def thread_decoder() -> Decoder:
    """Return the decoder of this thread."""
    decoder: Decoder | None = getattr(_threads, "decoder", None)
    if decoder is None:
        kernel = load()
        if isinstance(kernel, str):
            raise ShardflowError(kernel)
        decoder = _threads.decoder = Decoder(kernel)
    return decoder


def why_missing() -> str:
    """Return why the kernel cannot be used in this process; "" if it can."""
    kernel = load()
    return kernel if isinstance(kernel, str) else ""


@functools.cache
def load() -> Kernel | str:
    """Return the kernel of this installation, or the reason why there is none.

    Raises:
        ConfigError: The environment variable SHARDFLOW_KERNEL has a value other than "off".
    """
    if switch := os.environ.get(_SWITCH, ""):
        if switch != "off":
            raise ConfigError(f"the environment variable {_SWITCH} is {switch!r}; allowed is off, or leave it unset")
        return f"the native kernel is turned off by {_SWITCH}={switch} in the environment; unset it"
    return open_kernel(Path(__file__).parent, libjpeg_candidates())


def open_kernel(folder: Path, candidates: Iterable[str]) -> Kernel | str:
    """Return the kernel in a folder with the first libjpeg-turbo that it can use, or the reason why there is none."""
    path = folder / "_kernel.so"
    if not path.exists():
        return (
            "the native kernel was not built; install a C compiler (on Debian and Ubuntu: apt install gcc libc6-dev), "
            f"then {_AGAIN}"
        )
    try:
        dll = _declare(ctypes.CDLL(str(path)))
    except (AttributeError, OSError) as error:
        return f"the native kernel {path} cannot be loaded ({error}); {_AGAIN}"
    if dll.sf_abi() != _ABI:
        return f"the native kernel {path} was built from other sources; {_AGAIN}"
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    refused = []
    for candidate in candidates:
        library = dll.sf_library_open(candidate.encode(), message)
        if library:
            return Kernel(dll, library, str(Path(message.value.decode()).resolve()))
        refused.append(f"{candidate}: {message.value.decode(errors='replace')}")
    return f"no libjpeg-turbo that the native kernel can use ({'; '.join(refused)}); {libjpeg_remedy()}"


def _declare(dll: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions of kernel.h; AttributeError if the library lacks one."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    dll.sf_abi.argtypes = []
    dll.sf_crc32.argtypes, dll.sf_crc32.restype = [pointer, ctypes.c_size_t, integer], ctypes.c_uint32
    dll.sf_convert_colours.argtypes, dll.sf_convert_colours.restype = [pointer, ctypes.c_size_t, pointer], None
    dll.sf_library_open.argtypes, dll.sf_library_open.restype = [ctypes.c_char_p, ctypes.c_char_p], pointer
    dll.sf_workspace_new.argtypes, dll.sf_workspace_new.restype = [pointer, integer], pointer
    dll.sf_workspace_free.argtypes, dll.sf_workspace_free.restype = [pointer], None
    dll.sf_workspace_about.argtypes, dll.sf_workspace_about.restype = [pointer], ctypes.c_char_p
    dll.sf_workspace_faults.argtypes, dll.sf_workspace_faults.restype = [pointer], ctypes.c_int64
    dll.sf_decode.argtypes, dll.sf_decode.restype = [pointer, pointer, integer, pointer], integer
    dll.sf_transcode.argtypes = [pointer, pointer, pointer, pointer]
    dll.sf_read_header.argtypes = [pointer, pointer, ctypes.c_size_t, pointer, pointer]
    dll.sf_seek_table_of.argtypes = [pointer, pointer, ctypes.c_size_t, pointer, pointer, pointer, pointer]
    return dll


def libjpeg_candidates() -> Iterator[str]:
    """Yield the libraries to try, in order: the wheels', the conda environment's, the system's."""
    for package, folder in (("PIL", "pillow.libs"), ("torchvision", "torchvision.libs")):
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(map(str, Path(location).parent.joinpath(folder).glob("libjpeg*.so*")))
    names = ("libjpeg.so.62", "libjpeg.so.8")
    yield from (str(path) for name in names if (path := Path(sys.prefix, "lib", name)).exists())
    yield from names


def libjpeg_remedy() -> str:
    """Return the command that installs libjpeg-turbo in this environment."""
    if Path(sys.prefix, "conda-meta").exists():
        return "conda install -c conda-forge libjpeg-turbo"
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    known = [
        _PACKAGES[name] for name in (system.get("ID", ""), *system.get("ID_LIKE", "").split()) if name in _PACKAGES
    ]
    return " or ".join(["pip install --force-reinstall --no-deps pillow", *known[:1]])
