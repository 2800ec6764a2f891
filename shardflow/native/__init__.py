"""The native kernel: decodes, crops, resizes and flips a batch of JPEGs into an array of the caller, in one call.

The kernel is optional: wheels include it, and installing from source builds it if there is a C compiler. `describe()`
names the library that it uses, or says why the kernel is missing.

It computes torchvision's `decode_jpeg(mode=RGB)`, `resized_crop(antialias=True)` and `hflip` on uint8, without decoding
the rest of the image. The resampling arithmetic equals PyTorch's, bit by bit. If torchvision uses another version of
libjpeg-turbo, rare pixels may differ by one level.

- Crops of 1 x 1 pixel or more inside the image are resized to any size. Another crop, or a file that is not a JPEG, is
  a problem of that image: its pixels are zero, and the other images of the batch are complete.
- The kernel decodes baseline JPEGs with the samplings of photographs. libjpeg-turbo, in any version, decodes
  progressive, rare and faulty ones, through its public interface.
- Grey is replicated to RGB. CMYK, 12 bits and arithmetic coding are `Status.UNSUPPORTED`: use a general decoder.
- A truncated file is `Status.TRUNCATED`, even if the crop is above the cut. Corrupt data after which libjpeg-turbo
  continues, as in Pillow and torchvision, is `Status.DAMAGED`; its pixels are complete, and the caller decides whether
  to use them. Damage below the crop is not found, because it is not decoded. In a JPEG with a seek table
  (`formats.seek_table`), damage above and beside the crop is not found either; the crop's pixels are the same.
- EXIF orientation is ignored.

Every function may be called from any thread; each thread has its own working memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS

from . import binding
from .binding import FILTERS, Header, ImageInFile, Payload, Problem
from .transcoding import Interpolation

_MOST_SIDE = 65_500  # MAX_DIMENSION

MATRIX_BITS = 14  # SF_MATRIX_BITS
COLOUR_TABLES = np.dtype([("linear", "u2", (3, 256)), ("matrix", "i4", (3, 3)), ("encoded", "u1", (1 << 15,))])
"""The conversion of another RGB space to sRGB, sf_colour_tables of kernel.h: `linear` has the light of each channel's
levels, `matrix` is in units of 1/2^MATRIX_BITS, with sums of magnitudes below 4 per row, and `encoded` has the level
of each light."""


def available() -> bool:
    """Return whether the kernel can be used in this process."""
    return not binding.why_missing()


def describe() -> str:
    """Return which libjpeg-turbo and instructions the kernel uses, or why the kernel is missing."""
    kernel = binding.load()
    if isinstance(kernel, str):
        return kernel
    return f"{kernel.version} ({kernel.libjpeg}), {kernel.about}"


def version() -> str:
    """Return the version of the libjpeg-turbo that the kernel uses, "none" without a kernel.

    The pixels depend on nothing else, such as the instructions in use, with one exception: libjpeg-turbo decodes
    damaged files whose coefficients exceed an encoder's range to different pixels on x86 and aarch64.
    """
    kernel = binding.load()
    return "none" if isinstance(kernel, str) else kernel.version


class View(NamedTuple):
    """A crop of each image of a batch, with antialiasing. N is the number of images.

    Attributes:
        boxes: int32 [N, 4], crops as x, y, width, height in pixels of the encoded image; None for the whole images.
        flips: bool or uint8 [N], whether to flip horizontally.
        out: uint8 [N, 3, H, W], RGB; each image is contiguous as [3, H, W] or as [H, W, 3] (channels last). With
            `places`, uint8 [bytes].
        resized: int32 [N, 4], width, height, left, top: the crop is resized to width x height, and the H x W window at
            (left, top) of the result is written, as by torchvision's `Resize` and `CenterCrop`. None resizes the crop
            to H x W.
        places: int64 [N, 3], the offset in `out`, width and height of each image, for images of different sizes.
        patch: Write images as patches [3, patch, patch], row by row; their sides must be multiples.
    """

    boxes: NDArray[np.int32] | None
    flips: NDArray[np.bool_] | NDArray[np.uint8]
    out: NDArray[np.uint8]
    resized: NDArray[np.int32] | None = None
    places: NDArray[np.int64] | None = None
    patch: int = 0


def decode_views(
    payloads: Sequence[Payload],
    views: Sequence[View],
    *,
    in_files: Sequence[ImageInFile | None] = (),
    expected: NDArray[np.int32] | None = None,
    seek_tables: NDArray[np.bool_] | None = None,
    interpolation: Interpolation = "bilinear",
    oversampling: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> list[Problem]:
    """Decode each image once, as far as its views need it, and write all views of it.

    A problem applies to all views of an image: damage is found if it is in the decoded part of any view.

    Args:
        payloads: N encoded images, which are read in place, such as slices of a memory map; or decoded images, uint8
            [H, W, 3], RGB, contiguous, which are cropped, resized and flipped in the same way.
        views: The crops of each image; each view has the pixels that it would have alone.
        in_files: Images to read from files; their payloads are empty. An image whose file cannot be read, or has
            another CRC-32, is `Status.UNREAD`.
        expected: int32 [N, 2], width and height for which each box was chosen, 0 if unknown. An image of another size
            is `Status.WRONG_SIZE`.
        seek_tables: bool [N], whether an image's seek table may be used, if it has one. Allow it only if it is known to
            be made from this image: a forged table gives other pixels. None uses no table.
        interpolation: The filter; all are antialiased.
        oversampling: 0 decodes at full scale, which gives torchvision's pixels. n > 0 decodes a single view at the
            smallest of the scales 1, 1/2, 1/4 and 1/8 at which both sides of the crop are still n times as long as
            wanted. 2 saves a third of the time on photographs of 12 megapixels, and pixels differ by a few levels
            (54 dB).
        max_pixels: Larger images are `Status.TOO_LARGE` before memory is allocated for them, as are images that exceed
            a limit derived from it (`formats.image_limits`).

    Returns:
        The images with a problem, by ascending index.

    Raises:
        ConfigError: An array has the wrong type or shape.
        ShardflowError: There is no kernel.
    """
    if interpolation not in FILTERS:
        raise ConfigError(f"interpolation: expected one of {', '.join(FILTERS)}, found {interpolation!r}")
    count = len(payloads)
    _check_integers("expected", expected, count, 2)
    if seek_tables is not None and (seek_tables.dtype != np.bool_ or seek_tables.shape != (count,)):
        found = f"{seek_tables.dtype} {list(seek_tables.shape)}"
        raise ConfigError(f"seek_tables: expected bool [{count}], found {found}")
    for view in views:
        _check_view(view, count)
    if count == 0:
        return []
    payloads = list(payloads)  # keeps them alive, if the caller changes its list meanwhile
    decoded = _decoded_sizes(payloads)
    images, sizes = binding.addresses(payloads)
    files, parts = binding.places(in_files)
    each_image = {"decoded": decoded, "expected": expected, "seek_tables": seek_tables, "files": files, "parts": parts}
    kept: list[NDArray[Any]] = []

    def address(array: NDArray[Any] | None) -> int | None:
        if array is None:
            return None
        kept.append(np.ascontiguousarray(array))
        return kept[-1].ctypes.data

    shared = {name: address(array) for name, array in each_image.items()}
    batches = [
        binding.Batch(
            images=ctypes.addressof(images),
            sizes=ctypes.addressof(sizes),
            **shared,
            boxes=address(view.boxes),
            resized=address(view.resized),
            flips=address(view.flips),
            out=view.out.ctypes.data,
            limits=binding.Limits(max_pixels),
            count=count,
            **_layout(view, address),
            filter=FILTERS[interpolation],
            oversampling=oversampling,
        )
        for view in views
    ]
    return binding.thread_decoder().decode(*batches)


def _layout(view: View, address: Callable[[NDArray[Any] | None], int | None]) -> dict[str, Any]:
    """Return the fields of a batch for the place and size of its images."""
    if view.places is not None:
        return {"places": address(view.places), "patch": view.patch}
    out = view.out
    return {
        "image_stride": out.strides[0] if len(out) > 1 else 0,
        "width": out.shape[3],
        "height": out.shape[2],
        "interleaved": not out[0].flags.c_contiguous,
    }


def _check_view(view: View, count: int) -> None:
    _check_integers("boxes", view.boxes, count, 4)
    _check_integers("resized", view.resized, count, 4)
    flips, out = view.flips, view.out
    if flips.dtype not in (np.bool_, np.uint8) or flips.shape != (count,):
        raise ConfigError(f"flips: expected bool or uint8 [{count}], found {flips.dtype} {list(flips.shape)}")
    if view.places is not None:
        _check_places(view, count)
        return
    if out.dtype != np.uint8 or out.ndim != 4 or out.shape[:2] != (count, 3) or not out.flags.writeable:
        raise ConfigError(f"out: expected a writable uint8 [{count}, 3, H, W], found {out.dtype} {list(out.shape)}")
    if count == 0:
        return
    first = out[0]
    if min(first.shape) < 1 or not (first.flags.c_contiguous or first.transpose(1, 2, 0).flags.c_contiguous):
        raise ConfigError("out: expected each image contiguous as [3, H, W] or as [H, W, 3], and not empty")
    if count > 1 and out.strides[0] < first.size:
        raise ConfigError(f"out: expected images {first.size} bytes apart or more, found {out.strides[0]}")


def _check_places(view: View, count: int) -> None:
    places, out = view.places, view.out
    assert places is not None
    if places.dtype != np.int64 or places.shape != (count, 3):
        raise ConfigError(f"places: expected int64 [{count}, 3], found {places.dtype} {list(places.shape)}")
    if out.dtype != np.uint8 or out.ndim != 1 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ConfigError(f"out: expected writable bytes, uint8 [bytes], found {out.dtype} {list(out.shape)}")
    begins, sides = places[:, 0], places[:, 1:]
    if (begins < 0).any() or (sides < 1).any() or (sides > _MOST_SIDE).any() or (sides % max(view.patch, 1)).any():
        raise ConfigError(f"places: expected sides 1 … {_MOST_SIDE} that are multiples of patch={view.patch}")
    if (3 * sides.prod(axis=1) > out.size - begins).any():
        raise ConfigError(f"places: expected images within {out.size} bytes")


def _check_integers(name: str, array: NDArray[np.int32] | None, count: int, columns: int) -> None:
    if array is not None and (array.dtype != np.int32 or array.shape != (count, columns)):
        raise ConfigError(f"{name}: expected int32 [{count}, {columns}], found {array.dtype} {list(array.shape)}")


def decode_resized(
    payload: bytes | memoryview,
    out: NDArray[np.uint8],
    *,
    interpolation: Interpolation = "bilinear",
    oversampling: int = 2,
    max_pixels: int = MAX_PIXELS,
) -> Problem | None:
    """Decode a whole JPEG and resize it, with antialiasing, to the size of `out`: uint8 [H, W, 3], RGB, contiguous.

    It is for packing, so `oversampling` is on by default. Returns the problem of the image; raises as `decode_views`.
    """
    if out.ndim != 3 or out.shape[2] != 3 or not out.flags.c_contiguous:
        raise ConfigError(f"out: expected a contiguous uint8 [H, W, 3], found {out.dtype} {list(out.shape)}")
    view = View(boxes=None, flips=np.zeros(1, np.bool_), out=out.transpose(2, 0, 1)[np.newaxis])
    problems = decode_views(
        [payload], [view], interpolation=interpolation, oversampling=oversampling, max_pixels=max_pixels
    )
    return problems[0] if problems else None


def read_header(payload: bytes | memoryview) -> Header:
    """Return the size and the kind of a JPEG, or raise a DecodeError if its header cannot be read."""
    return binding.thread_decoder().read_header(payload)


def convert_colours(pixels: NDArray[np.uint8], tables: NDArray[np.void]) -> None:
    """Convert RGB pixels in place, contiguous uint8 [..., 3], by `COLOUR_TABLES`."""
    assert pixels.flags.c_contiguous
    assert tables.dtype == COLOUR_TABLES
    binding.thread_decoder().convert_colours(pixels.ctypes.data, pixels.size // 3, tables.ctypes.data)


def seek_table(payload: bytes | memoryview, *, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """Return the segment with a new seek table of a JPEG (`formats.seek_table`).

    None if the JPEG can have no table, because it is damaged or progressive, has restart markers or several scans, or
    `decode_views` cannot decode it; or if the table would exceed 1 % of the scan.
    """
    return binding.thread_decoder().seek_table(payload, binding.Limits(max_pixels)) or None


def _decoded_sizes(payloads: Sequence[Payload]) -> NDArray[np.int32] | None:
    """Return int32 [N, 2], width and height of the decoded images and 0 of the encoded; None where all are encoded."""
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
