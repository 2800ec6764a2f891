"""The native kernel: JPEG bytes in, cropped and resized RGB pixels in the caller's array out, a batch per call.

The kernel is optional. It is a shared library without Python in it, built where a C compiler and the headers of
libjpeg-turbo are (`setup.py`), and loaded here with ctypes, which also lets go of the GIL for the length of a call.
libjpeg-turbo itself is looked for at run time: inside Pillow's wheel first, because that one is recent and belongs to
the environment, then inside torchvision's, then on the system. `why()` says what was found, or what is missing.

What it computes is torchvision's `decode_jpeg(mode=RGB)`, `resized_crop(antialias=True)` and `hflip` on uint8, without
decoding what lies outside the crop. The resampling arithmetic is PyTorch's, bit by bit; what may differ by one level,
in rare pixels, is the decoder, because the two may hold different versions of it.

- Crops lie inside the image, from 1 x 1 pixel up; they are enlarged or reduced to any size. A crop that does not is
  that image's problem, as is a file that is no JPEG: its pixels are zero, and its neighbours never notice.
- Grey is replicated to RGB. CMYK, 12 bits and arithmetic coding are `Status.UNSUPPORTED`: use a general decoder.
- A file cut anywhere is `Status.TRUNCATED`, even where the crop lies above the cut. Corrupt data after which
  libjpeg-turbo goes on, as Pillow and torchvision do, is `Status.DAMAGED`, and the pixels are there: the caller
  decides. Damage below the crop is not seen, because it is not decoded.
- EXIF orientation is not looked at.

Every function may be called from any thread; each thread has working memory of its own.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.machinery
import importlib.util
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardflow.errors import ConfigError, DecodeError, ShardflowError

__all__ = [
    "MAX_PIXELS",
    "Header",
    "Interpolation",
    "Problem",
    "Status",
    "available",
    "decode_crops",
    "decode_resized",
    "read_header",
    "version",
    "why",
]

MAX_PIXELS = 100_000_000  # 600 MB in the worst case, a progressive image without chroma subsampling

Payload: TypeAlias = bytes | memoryview | NDArray[np.uint8]
"""An encoded image, or one that is decoded already: uint8 [H, W, 3], RGB, contiguous."""

Interpolation = Literal["bilinear", "bicubic", "lanczos"]
_FILTERS: dict[str, int] = {"bilinear": 0, "bicubic": 1, "lanczos": 2}

_ABI = 4  # SF_ABI in kernel.h
_MESSAGE_BYTES = 240


class Status(enum.IntEnum):
    """What is wrong with an image. After `DAMAGED` the pixels are complete, after all others they are zero."""

    DAMAGED = 1
    CORRUPT = 2
    TRUNCATED = 3
    UNSUPPORTED = 4
    TOO_LARGE = 5
    BAD_BOX = 6
    NO_MEMORY = 7
    WRONG_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An image of a batch that could not be used as it is, and why."""

    index: int
    status: Status
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a JPEG says about itself. `components` is 1 for grey, 3 for colour, 4 for CMYK."""

    width: int
    height: int
    components: int
    progressive: bool


def available() -> bool:
    """Whether the kernel can be used in this process."""
    return isinstance(_load(), _Kernel)


def why() -> str:
    """Say which libjpeg-turbo and which instructions the kernel uses, or why there is no kernel."""
    kernel = _load()
    return kernel if isinstance(kernel, str) else f"{kernel.version} ({kernel.libjpeg}), {kernel.about}"


def version() -> str:
    """Return which libjpeg-turbo the kernel decodes with, "none" without a kernel.

    That is all its pixels depend on: where the library lies and which instructions are used make no difference.
    """
    kernel = _load()
    return "none" if isinstance(kernel, str) else kernel.version


def decode_crops(
    payloads: Sequence[Payload],
    boxes: NDArray[np.int32] | None,
    flips: NDArray[np.bool_] | NDArray[np.uint8],
    out: NDArray[np.uint8],
    *,
    resized: NDArray[np.int32] | None = None,
    expected: NDArray[np.int32] | None = None,
    interpolation: Interpolation = "bilinear",
    oversampling: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> list[Problem]:
    """Decode a crop of each JPEG, resize it with antialiasing, and write it into `out`, mirrored where `flips` says so.

    - `payloads`: N encoded images, of which slices of a memory map are read where they are, or images that are decoded
      already: uint8 [H, W, 3], RGB, contiguous. These are cropped, resized and mirrored alike.
    - `boxes`: [N, 4] crops as x, y, width, height in pixels of the encoded image; None for the whole images.
    - `flips`: [N].
    - `out`: [N, 3, H, W] RGB; each image contiguous either as such or as [H, W, 3] (channels last).
    - `resized`: [N, 4] width, height, left, top: the crop is resized to width x height, and of that the H x W window at
      (left, top) is made: torchvision's `Resize` followed by `CenterCrop`. Without it the crop becomes H x W.
    - `expected`: [N, 2] width and height that each box was chosen for, 0 where not known. An image of another size is
      `Status.WRONG_SIZE`.
    - `oversampling`: if n > 0, decode at the smallest of the scales 1, 1/2, 1/4 and 1/8 at which the crop is still n
      times as large as wanted, each way. 2 saves a third of the time on 12-megapixel photographs, and pixels differ by
      a few levels from those of a full decode (54 dB). With 0 they are torchvision's.
    - `max_pixels`: larger images are refused before memory is set aside for them.

    Returns the images that have a problem, by ascending index. Raises `ConfigError` for arrays of the wrong kind and
    `ShardflowError` when there is no kernel.

        out = np.empty((len(payloads), 3, 224, 224), np.uint8)
        for problem in decode_crops(payloads, boxes, flips, out):
            ...
    """
    count = len(payloads)
    if boxes is not None and (boxes.dtype != np.int32 or boxes.shape != (count, 4)):
        raise ConfigError(f"boxes: expected int32 [{count}, 4], found {boxes.dtype} {list(boxes.shape)}")
    if flips.dtype not in (np.bool_, np.uint8) or flips.shape != (count,):
        raise ConfigError(f"flips: expected bool or uint8 [{count}], found {flips.dtype} {list(flips.shape)}")
    if resized is not None and (resized.dtype != np.int32 or resized.shape != (count, 4)):
        raise ConfigError(f"resized: expected int32 [{count}, 4], found {resized.dtype} {list(resized.shape)}")
    if expected is not None and (expected.dtype != np.int32 or expected.shape != (count, 2)):
        raise ConfigError(f"expected: expected int32 [{count}, 2], found {expected.dtype} {list(expected.shape)}")
    if out.dtype != np.uint8 or out.ndim != 4 or out.shape[:2] != (count, 3) or not out.flags.writeable:
        raise ConfigError(f"out: expected a writable uint8 [{count}, 3, H, W], found {out.dtype} {list(out.shape)}")
    if count == 0:
        return []
    first = out[0]
    interleaved = not first.flags.c_contiguous
    if min(first.shape) < 1 or (interleaved and not first.transpose(1, 2, 0).flags.c_contiguous):
        raise ConfigError("out: expected each image contiguous as [3, H, W] or as [H, W, 3], and not empty")
    if count > 1 and out.strides[0] < first.size:
        raise ConfigError(f"out: expected images {first.size} bytes apart or more, found {out.strides[0]}")
    if interpolation not in _FILTERS:
        raise ConfigError(f"interpolation: expected one of {', '.join(_FILTERS)}, found {interpolation!r}")

    payloads = list(payloads)  # keeps them alive whatever the caller does with its own list meanwhile
    decoded = _decoded_sizes(payloads)
    images, sizes = _addresses(payloads)
    boxes = None if boxes is None else np.ascontiguousarray(boxes)
    mirrored = np.ascontiguousarray(flips)
    resized = None if resized is None else np.ascontiguousarray(resized)
    expected = None if expected is None else np.ascontiguousarray(expected)
    batch = _Batch(
        images=ctypes.addressof(images),
        sizes=ctypes.addressof(sizes),
        boxes=None if boxes is None else boxes.ctypes.data,
        resized=None if resized is None else resized.ctypes.data,
        decoded=None if decoded is None else decoded.ctypes.data,
        expected=None if expected is None else expected.ctypes.data,
        flips=mirrored.ctypes.data,
        out=out.ctypes.data,
        image_stride=out.strides[0] if count > 1 else 0,
        max_pixels=max_pixels,
        count=count,
        width=out.shape[3],
        height=out.shape[2],
        interleaved=interleaved,
        filter=_FILTERS[interpolation],
        oversampling=oversampling,
    )
    return _decoder().decode(batch)


def decode_resized(
    payload: bytes | memoryview,
    out: NDArray[np.uint8],
    *,
    interpolation: Interpolation = "bilinear",
    oversampling: int = 2,
    max_pixels: int = MAX_PIXELS,
) -> Problem | None:
    """Decode a whole JPEG and resize it, with antialiasing, to the size of `out`: [H, W, 3] RGB, contiguous.

    For packing, hence `oversampling` is on. Encoding is left to the caller: doing it here would save a tenth of it.
    Returns the problem, if there is one; raises as `decode_crops` does.
    """
    if out.ndim != 3 or out.shape[2] != 3 or not out.flags.c_contiguous:
        raise ConfigError(f"out: expected a contiguous uint8 [H, W, 3], found {out.dtype} {list(out.shape)}")
    problems = decode_crops(
        [payload],
        None,
        np.zeros(1, np.bool_),
        out.transpose(2, 0, 1)[np.newaxis],
        interpolation=interpolation,
        oversampling=oversampling,
        max_pixels=max_pixels,
    )
    return problems[0] if problems else None


def read_header(payload: bytes | memoryview) -> Header:
    """Read the size and kind of a JPEG; raises `DecodeError` when its header cannot be read."""
    return _decoder().read_header(payload)


class _Batch(ctypes.Structure):
    """sf_batch of kernel.h."""

    _fields_ = (
        ("images", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("boxes", ctypes.c_void_p),
        ("resized", ctypes.c_void_p),
        ("decoded", ctypes.c_void_p),
        ("expected", ctypes.c_void_p),
        ("flips", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("image_stride", ctypes.c_size_t),
        ("max_pixels", ctypes.c_int64),
        ("count", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("interleaved", ctypes.c_int32),
        ("filter", ctypes.c_int32),
        ("oversampling", ctypes.c_int32),
    )


class _Problem(ctypes.Structure):
    """sf_problem of kernel.h."""

    _fields_ = (
        ("index", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("message", ctypes.c_char * _MESSAGE_BYTES),
    )


class _Header(ctypes.Structure):
    """sf_header of kernel.h."""

    _fields_ = (
        ("width", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("components", ctypes.c_int32),
        ("progressive", ctypes.c_int32),
    )


class _Kernel:
    """The loaded kernel and the libjpeg-turbo it uses."""

    def __init__(self, dll: ctypes.CDLL, library: int, libjpeg: str) -> None:
        self.dll = dll
        self.library = library
        self.libjpeg = libjpeg
        self.about = _Decoder(self).about

    @functools.cached_property
    def version(self) -> str:
        """What the library says it is."""
        found = re.search(rb"libjpeg-turbo version ([\d.]+)", Path(self.libjpeg).read_bytes())
        return f"libjpeg-turbo {found[1].decode() if found else '(unknown version)'}"


class _Decoder:
    """The working memory of one thread. `fast=False` takes the plain C loops and libjpeg-turbo's Huffman decoding."""

    def __init__(self, kernel: _Kernel, *, fast: bool = True) -> None:
        self._dll = kernel.dll
        self._problems = (_Problem * 0)()
        self._handle = self._dll.sf_decoder_new(kernel.library, fast)
        if not self._handle:
            raise MemoryError
        self.about: str = self._dll.sf_decoder_about(self._handle).decode()

    def __del__(self) -> None:
        self._dll.sf_decoder_free(self._handle)

    @property
    def faults(self) -> int:
        """How many images were decoded once more, for a fault in their Huffman codes."""
        return int(self._dll.sf_decoder_faults(self._handle))

    def decode(self, batch: _Batch) -> list[Problem]:
        if len(self._problems) < batch.count:
            self._problems = (_Problem * batch.count)()
        found = self._dll.sf_decode(self._handle, ctypes.byref(batch), self._problems)
        return [_describe(self._problems[i]) for i in range(found)]

    def read_header(self, payload: bytes | memoryview) -> Header:
        images, sizes = _addresses([payload])
        header, problem = _Header(), _Problem()
        found = self._dll.sf_read_header(
            self._handle,
            ctypes.cast(images, ctypes.POINTER(ctypes.c_void_p))[0],
            sizes[0],
            ctypes.byref(header),
            ctypes.byref(problem),
        )
        if found:
            raise DecodeError(_describe(problem).message)
        return Header(
            width=header.width,
            height=header.height,
            components=header.components,
            progressive=bool(header.progressive),
        )


def _describe(problem: _Problem) -> Problem:
    message = problem.message.decode(errors="replace")
    return Problem(index=problem.index, status=Status(problem.status), message=message)


def _decoded_sizes(payloads: Sequence[Payload]) -> NDArray[np.int32] | None:
    """Return [N, 2] width and height of the images that are decoded already, zeros of the others; None without any."""
    sizes = None
    for index, payload in enumerate(payloads):
        if not isinstance(payload, np.ndarray):
            continue
        height, width, channels = payload.shape if payload.ndim == 3 else (0, 0, 0)
        if payload.dtype != np.uint8 or channels != 3 or not height or not width or not payload.flags.c_contiguous:
            found = f"{payload.dtype} {list(payload.shape)}"
            raise ConfigError(f"payload {index}: expected a contiguous uint8 [H, W, 3], not empty, found {found}")
        if sizes is None:
            sizes = np.zeros((len(payloads), 2), np.int32)
        sizes[index] = width, height
    return sizes


def _addresses(
    payloads: Sequence[Payload],
) -> tuple[ctypes.Array[Any], ctypes.Array[ctypes.c_size_t]]:
    """Where the payloads lie and how long they are; nothing is copied, so valid while the caller holds them."""
    count = len(payloads)
    sizes = (ctypes.c_size_t * count)(*map(len, payloads))
    strings: Callable[..., ctypes.Array[ctypes.c_char_p]] = ctypes.c_char_p * count
    try:
        return strings(*payloads), sizes  # 0.2 us each, but takes nothing other than `bytes`
    except TypeError:
        pass
    images = (ctypes.c_void_p * count)()
    for i, payload in enumerate(payloads):  # 1 us each
        data = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        images[i] = data.ctypes.data if sizes[i] else None
    return images, sizes


_threads = threading.local()


def _decoder() -> _Decoder:
    """Return this thread's decoder."""
    decoder: _Decoder | None = getattr(_threads, "decoder", None)
    if decoder is None:
        kernel = _load()
        if isinstance(kernel, str):
            raise ShardflowError(kernel)
        decoder = _threads.decoder = _Decoder(kernel)
    return decoder


@functools.cache
def _load() -> _Kernel | str:
    """Return the kernel of this installation, or the reason why there is none."""
    return _open(Path(__file__).parent, _libjpeg_candidates())


def _open(here: Path, libjpeg_candidates: Iterable[str]) -> _Kernel | str:
    built = [path for suffix in importlib.machinery.EXTENSION_SUFFIXES if (path := here / f"_kernel{suffix}").exists()]
    if not built:
        return (
            "the native kernel is not built; install a C compiler and the headers of libjpeg-turbo (on Debian: "
            "libjpeg62-turbo-dev), then install shardflow again"
        )
    try:
        dll = _declare(ctypes.CDLL(str(built[0])))
    except (AttributeError, OSError) as error:
        return f"the native kernel {built[0]} cannot be loaded ({error}); install shardflow again"
    if dll.sf_abi() != _ABI:
        return f"the native kernel {built[0]} was built from other sources; install shardflow again"
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    refused = []
    for candidate in libjpeg_candidates:
        library = dll.sf_library_open(candidate.encode(), message)
        if library:
            return _Kernel(dll, library, str(Path(message.value.decode()).resolve()))
        refused.append(f"{candidate}: {message.value.decode(errors='replace')}")
    return f"no libjpeg-turbo that the native kernel can use ({'; '.join(refused)}); install Pillow from its wheel"


def _declare(dll: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions their types; AttributeError when the binary lacks one."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    dll.sf_abi.argtypes = []
    dll.sf_library_open.argtypes, dll.sf_library_open.restype = [ctypes.c_char_p, ctypes.c_char_p], pointer
    dll.sf_decoder_new.argtypes, dll.sf_decoder_new.restype = [pointer, integer], pointer
    dll.sf_decoder_free.argtypes, dll.sf_decoder_free.restype = [pointer], None
    dll.sf_decoder_about.argtypes, dll.sf_decoder_about.restype = [pointer], ctypes.c_char_p
    dll.sf_decoder_faults.argtypes, dll.sf_decoder_faults.restype = [pointer], ctypes.c_int64
    dll.sf_decode.argtypes, dll.sf_decode.restype = [pointer, pointer, pointer], integer
    dll.sf_read_header.argtypes = [pointer, pointer, ctypes.c_size_t, pointer, pointer]
    return dll


def _libjpeg_candidates() -> Iterator[str]:
    """Yield the paths to try. Debian's headers go with version 62 of the interface, others' (Ubuntu, conda) with 8."""
    for package, folder in (("PIL", "pillow.libs"), ("torchvision", "torchvision.libs")):
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(map(str, Path(location).parent.joinpath(folder).glob("libjpeg*.so*")))
    yield "libjpeg.so.62"
    yield "libjpeg.so.8"
