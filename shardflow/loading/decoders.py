"""Decoders: from encoded images to uint8 tensors, a batch at a time, cropping included.

Decoding and cropping are one step, so that a crop can be decoded without decoding the rest of its image. An image that
does not decode is a failure of its own; the other images of the batch are not affected. One that is too large for
`formats.image_limits` is refused by all decoders alike, before memory is allocated for it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import PIL
import torch

from shardflow import native
from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import is_plain_jpeg, rgb_pixels
from shardflow._validation import check_integer, check_probability, check_range
from shardflow._wording import plural
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats.image_array import is_array
from shardflow.formats.image_array import pixels as array_pixels
from shardflow.formats.image_array import shape as array_shape
from shardflow.formats.image_limits import MAX_PIXELS, check_image
from shardflow.formats.image_types import image_size, is_jpeg
from shardflow.order.keyed_rng import U64

from .crop_sampling import random_resized_crops
from .geometry import Geometry, Sizes
from .provenance import package_version
from .stacking import MASK_PADDING, Stacking

logger = logging.getLogger(__name__)

_EXIF = re.compile(rb"\xff\xe1..Exif\0\0", re.DOTALL)  # begins a segment; entropy-coded data cannot hold it
_ALIGNMENT = 64  # of the views of a batch in memory: a cache line
_ENCODED = 3, 1  # channels, and bytes per value, of all that is no array
_MOST_OF_16_BITS = 65_535

Images = torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]
"""uint8, RGB: one tensor [B, 3, H, W] where all have one size, else a list of tensors [3, H, W]; a tuple of views."""

Empty = Callable[[tuple[int, ...]], torch.Tensor]
"""Returns a uint8 tensor of a shape, its values arbitrary."""

Pixels = npt.NDArray[np.uint8]
"""A decoded image: [H, W, 3], RGB, contiguous."""

Payload = memoryview | Pixels
"""An encoded image, or a decoded one in its place: the decoders of this module accept either."""


class Payloads(list[Any]):
    """The images of a batch, and which of them may be decoded with the seek table that they hold.

    A decoder gets it in the place of a plain list, whose tables are not used.
    """

    def __init__(self, payloads: Sequence[Payload], *, have_tables: npt.ArrayLike) -> None:
        super().__init__(payloads)
        self.have_tables: npt.NDArray[np.bool_] = np.array(have_tables, dtype=np.bool_)

    def take(self, places: Sequence[int]) -> Payloads:
        """Return some of them."""
        return Payloads([self[place] for place in places], have_tables=self.have_tables[[*places]])


def new(shape: tuple[int, ...]) -> torch.Tensor:
    """Return fresh memory: the simplest `Empty`."""
    return torch.empty(shape, dtype=torch.uint8)


class Decoded(NamedTuple):
    """A decoded batch.

    Attributes:
        images: The images.
        geometry: How they were cropped, with views a tuple of one for each; None for a decoder that does not say.
        failures: The error of each image that did not decode, by its index in the batch; the image itself is arbitrary.
    """

    images: Images
    geometry: Geometry | tuple[Geometry, ...] | None
    failures: dict[int, SampleError]


class Decoder(Protocol):
    """Turns encoded images into tensors.

    One whose result depends on the epoch has a method `at_epoch(epoch)`, which returns the decoder of that epoch. One
    whose images are not a row each has a method `copy_image(images, index, source)`, which replaces an image.
    """

    def __call__(self, payloads: Sequence[memoryview], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Decode a batch of one or more images.

        Args:
            payloads: The encoded images.
            sizes: int64 [B, 2], width and height of the images as the dataset's index has them, 0 where not known, and
                of JPEGs that have to be turned, or converted to sRGB. They help to plan a crop; the image itself is
                decisive.
            keys: uint64 [B], the only source of randomness.
            empty: Returns memory that need not be copied on its way to the training process; to be called at most once.
                The memory is on loan for this batch: keep no view of it.
        """


class RandomResizedCropDecoder:
    """A random part of each image, resized to one size and flipped half of the time: the usual training crop.

    The crops are distributed as those of `torchvision.transforms.v2.RandomResizedCrop` followed by
    `RandomHorizontalFlip`; resizing is antialiased and bilinear.

    Args:
        size: Height and width of the result in pixels, 1 or more; or the sizes of the epochs from which they count,
            {0: 128, 6: 160, 14: 192}, for training that begins with small crops.
        scale: Range of the crop's share of the image's area, within (0, 1].
        ratio: Range of the crop's width / height, above 0.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: Larger images are failures (`TooLargeError`), as are those that need more memory or scans than the
            limits that follow from it. 110 million pixels take up to 0.99 GB.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        size: int | Mapping[int, int] = 224,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float = 0.5,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._sizes = size_by_epoch(size)
        self.size = self._sizes[0]
        self.scale, self.ratio = check_range("scale", scale, most=1), check_range("ratio", ratio)
        self.hflip = check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def __call__(self, payloads: Sequence[Payload], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Return uint8 [B, 3, size, size]."""
        return decode_crops(self, payloads, sizes, keys, empty)

    def __repr__(self) -> str:
        size = self.size if len(self._sizes) == 1 else self._sizes
        return f"{type(self).__name__}(size={size}, scale={self.scale}, ratio={self.ratio}, hflip={self.hflip})"

    def at_epoch(self, epoch: int) -> RandomResizedCropDecoder:
        """Return the decoder with the size of an epoch."""
        size = self._sizes[max(first for first in self._sizes if first <= epoch)]
        if size == self.size:
            return self
        other = copy.copy(self)
        other.size = size
        return other

    def geometry(self, sizes: Sizes, keys: U64) -> Geometry:
        """Return the crops of images of these sizes."""
        boxes, flip = random_resized_crops(np.maximum(sizes, 1), keys, self.scale, self.ratio)
        resized = np.full((len(sizes), 2), self.size, dtype=np.int32)
        window = np.zeros((len(sizes), 2), dtype=np.int32)
        return Geometry(
            source=sizes.astype(np.int32),
            box=boxes,
            resized=resized,
            window=window,
            flip=flip < self.hflip,
            size=(self.size, self.size),
        )


def size_by_epoch(size: int | Mapping[int, int]) -> dict[int, int]:
    """Return epoch → size from there on; epoch 0 is among them.

    Raises:
        ConfigError: An epoch or a size is out of its range, or epoch 0 has none.
    """
    if not isinstance(size, Mapping):
        return {0: check_integer("size", size, 1)}
    sizes = {check_integer("epoch", epoch, 0): check_integer("size", value, 1) for epoch, value in size.items()}
    if 0 not in sizes:
        raise ConfigError(f"size must begin with epoch 0, as in {{0: 128, 6: 160}}, found {dict(size)}")
    return sizes


class CenterCropDecoder:
    """The centre of each image after its short side was resized: the usual evaluation crop.

    Args:
        size: Height and width of the result in pixels, 1 or more.
        resize: Short side before the crop, `size` or more; by default 8/7 of `size` (256 for 224).
        max_pixels: As for `RandomResizedCropDecoder`.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, size: int = 224, *, resize: int | None = None, max_pixels: int = MAX_PIXELS) -> None:
        self.size = check_integer("size", size)
        self.resize = math.ceil(size * 8 / 7) if resize is None else check_integer("resize", resize)
        if not 1 <= self.size <= self.resize:
            raise ConfigError(f"size must be 1 … resize, found size {self.size} and resize {self.resize}")
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def __call__(self, payloads: Sequence[Payload], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Return uint8 [B, 3, size, size]."""
        return decode_crops(self, payloads, sizes, keys, empty)

    def geometry(self, sizes: Sizes, keys: U64) -> Geometry:  # noqa: ARG002 - nothing random here
        """Return the crops of images of these sizes."""
        # Rounded down as torchvision's Resize does.
        resized = sizes * self.resize // np.maximum(sizes.min(axis=1, keepdims=True), 1)
        return Geometry(
            source=sizes.astype(np.int32),
            box=np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int32),
            resized=resized.astype(np.int32),
            window=np.rint((resized - self.size) / 2).astype(np.int32),
            flip=np.zeros(len(sizes), dtype=np.bool_),
            size=(self.size, self.size),
        )


class ImageDecoder:
    """Whole images as they are. Those of a batch have one size, perhaps by the loader's `transform`, or are padded.

    >>> decoder = shardflow.decoders.Image(pad_to_multiple_of=32)  # doctest: +SKIP
    >>> fields = ("image", "pixel_mask", "image_size", "boxes")                                       # doctest: +SKIP
    >>> loader = shardflow.Loader(url, batch_size=16, decoder=decoder, fields=fields)                 # doctest: +SKIP

    Args:
        pad_to_multiple_of: Pad the images of a batch with zeros at the right and at the bottom, after the transform, to
            the largest height and width among them, each rounded up to a multiple of this. The field "pixel_mask" is
            True on the images, "image_size" has their heights and widths; coordinates stay as they are.
        mask_padding: What their masks are padded with, an integer of 32 bits: the value that the loss ignores. Masks
            become int32 where it is not within 0 … 255. It is a valid value of a depth: choose another for these.
        stack: False for a list of images [3, H, W] of any sizes, as torchvision's detection models take them.
        max_pixels: As for `RandomResizedCropDecoder`.

    Attributes:
        stacking: What becomes of the images of a batch.

    Raises:
        ConfigError: A value is out of its range, or a list would be padded.
    """

    def __init__(
        self,
        *,
        pad_to_multiple_of: int | None = None,
        mask_padding: int = MASK_PADDING,
        stack: bool = True,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.stacking = Stacking(stack=stack, pad_to_multiple_of=pad_to_multiple_of, mask_padding=mask_padding)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def __call__(
        self,
        payloads: Sequence[Payload],
        sizes: Sizes,  # noqa: ARG002 - no crop to plan
        keys: U64,  # noqa: ARG002 - nothing random here
        empty: Empty = new,  # noqa: ARG002 - images of different sizes
    ) -> Decoded:
        """Return a list of uint8 [3, H, W]."""
        images: list[torch.Tensor] = []
        failures: dict[int, SampleError] = {}
        for index, payload in enumerate(payloads):
            try:
                image = _decode(payload, self.max_pixels)
                # Pixels from the pixel cache are overwritten by the next batch, and a transform may keep this image.
                images.append(image.clone() if isinstance(payload, np.ndarray) else image)
            except SampleError as error:
                images.append(torch.zeros((3, 1, 1), dtype=torch.uint8))
                failures[index] = error
        whole = Geometry.identity(np.array([image.shape[:0:-1] for image in images], dtype=np.int64))
        return Decoded(images, whole, failures)


def stacking_of(decoder: Decoder) -> Stacking:
    """Return what becomes of the images of a batch."""
    return decoder.stacking if isinstance(decoder, ImageDecoder) else Stacking()


BuiltinDecoder = RandomResizedCropDecoder | CenterCropDecoder | ImageDecoder
"""A decoder that accepts pixels in the place of encoded images."""


def decoder_versions(decoder: Decoder) -> str | None:
    """Return versions and limit that `decode_whole` depends on; None for a decoder that does not accept pixels."""
    if type(decoder) not in (RandomResizedCropDecoder, CenterCropDecoder, ImageDecoder):
        return None  # nor subclasses, which may expect bytes
    assert isinstance(decoder, BuiltinDecoder)
    kernel = native.version() if _uses_kernel(decoder) else "none"
    return (
        f"kernel {kernel}, torchvision {package_version('torchvision')}, Pillow {PIL.__version__}, {decoder.max_pixels}"
    )


def decode_whole(decoder: BuiltinDecoder, payload: memoryview, width: int, height: int) -> Pixels | None:
    """Return the pixels of an encoded image; None when it is damaged or not of that size.

    Called with the pixels instead of the encoded image, the decoder returns the same crop, bit by bit.
    """
    if image_size(payload) != (width, height) or is_array(payload):  # arrays are decoded already
        return None
    try:
        check_image(payload, decoder.max_pixels)
    except TooLargeError:
        return None
    if _uses_kernel(decoder):
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        problem = native.decode_resized(payload, pixels, oversampling=0, max_pixels=decoder.max_pixels)
        if problem is None:
            return pixels
        if is_jpeg(payload) and problem.status is not native.Status.UNSUPPORTED:
            return None
    try:
        image = _decode(payload, decoder.max_pixels)
    except SampleError:
        return None
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy()) if image.shape[1:] == (height, width) else None


@functools.cache
def jpeg_decoder() -> Callable[..., Any] | None:
    """Return the JPEG decoder of torchvision, or of torchcodec, to which torchvision hands it over; None without both.

    It turns uint8 [bytes] into uint8 [3, H, W], and a list into a list, which it decodes on the `device` that is given.
    The pixels are the same: both call libjpeg-turbo alike.

    Importing torchvision takes as long as torch, and 100 MB. With the kernel hardly any image needs it; a loader
    without calls this before its workers are forked, so that they share it.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return _torchcodec_decoder()
    # The warning is for those who choose a decoder, and comes with every image.
    warnings.filterwarnings("ignore", "The image decoding and encoding capabilities of TorchVision", DeprecationWarning)
    return functools.partial(decode_jpeg, mode=ImageReadMode.RGB)


def _torchcodec_decoder() -> Callable[..., Any] | None:
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, OSError, RuntimeError):  # it is not there, or its libraries cannot be loaded
        return None

    def hide_orientation(data: torch.Tensor) -> torch.Tensor:
        """Make EXIF segments APP15, which none reads: torchcodec turns images as they say, unlike the others."""
        found = data.numpy().tobytes()
        hidden = _EXIF.sub(lambda segment: b"\xff\xef" + segment[0][2:], found)
        return data if hidden == found else torch.frombuffer(bytearray(hidden), dtype=torch.uint8)

    def decode(data: torch.Tensor | list[torch.Tensor], **arguments: Any) -> Any:
        hidden = [hide_orientation(one) for one in data] if isinstance(data, list) else hide_orientation(data)
        return decode_jpeg(hidden, mode="RGB", **arguments)

    return decode


@functools.cache
def warn_without_kernel() -> None:
    """Log, the first time in this process, that the native kernel is missing or limited."""
    if not native.available():
        jpeg_decoder()
    if reason := native.limitation():
        logger.warning("JPEGs are decoded at half the speed: %s", reason)


def _uses_kernel(decoder: Decoder) -> bool:
    return native.available() and not isinstance(decoder, ImageDecoder)


class CropDecoder(Decoder, Protocol):
    """A decoder whose crops depend on the sizes of the images and on their keys alone."""

    max_pixels: int

    def geometry(self, sizes: Sizes, keys: U64) -> Geometry:
        """Return the crops of images of these sizes."""


def decode_crops(
    decoder: CropDecoder,
    payloads: Sequence[Payload],
    sizes: Sizes,
    keys: U64,
    empty: Empty,
) -> Decoded:
    """Decode and crop a batch: in the native kernel, or else as whole images. Images that fail are black."""
    images, geometries, failures = decode_views([decoder], payloads, sizes, [keys], empty)
    return Decoded(images[0], geometries[0], failures)


class DecodedViews(NamedTuple):
    """A batch that was decoded once and cropped by several decoders: for each of them its images and its geometry."""

    images: tuple[torch.Tensor, ...]
    geometries: tuple[Geometry, ...]
    failures: dict[int, SampleError]


def decode_views(
    decoders: Sequence[CropDecoder],
    payloads: Sequence[Payload],
    sizes: Sizes,
    keys: Sequence[U64],
    empty: Empty,
) -> DecodedViews:
    """Decode a batch once, and crop it as each decoder does with its keys, bit by bit; the decoders have one limit."""
    max_pixels = decoders[0].max_pixels
    expected = _complete_sizes(payloads, sizes, max_pixels)
    geometries = tuple(decoder.geometry(expected, own) for decoder, own in zip(decoders, keys, strict=True))
    channels, dtype = _layout(payloads)
    images = _divided(empty, [(len(payloads), channels, *geometry.size[::-1]) for geometry in geometries], dtype)
    failures: dict[int, SampleError] = {}
    for index, problem in _decode_in_kernel(payloads, expected, geometries, images, max_pixels).items():
        its_keys = [own[index : index + 1] for own in keys]
        if problem is not None and problem.status is native.Status.WRONG_SIZE and sizes[index].all():
            # The index is wrong: the header decides.
            only = payloads.take([index]) if isinstance(payloads, Payloads) else [payloads[index]]
            alone = decode_views(decoders, only, np.zeros_like(sizes[:1]), its_keys, new)
            for view, found in zip(images, alone.images, strict=True):
                view[index] = found[0]
            for geometry, right in zip(geometries, alone.geometries, strict=True):
                geometry.copy_row(index, right, 0)
            if alone.failures:
                failures[index] = alone.failures[0]
            continue
        try:
            image = _decode(payloads[index], max_pixels, problem)
            size = np.array([image.shape[:0:-1]])
            for decoder, own, geometry in zip(decoders, its_keys, geometries, strict=True):
                if (size != expected[index]).any():  # the size was not known, or the header is wrong
                    geometry.copy_row(index, decoder.geometry(size, own), 0)
                check_resized(geometry.resized[index].tolist(), max_pixels)
            _crop_decoded(index, image, geometries, images, max_pixels)
        except SampleError as error:
            for view in images:
                view[index] = 0
            failures[index] = error
    return DecodedViews(images, geometries, failures)


def _layout(payloads: Sequence[Payload]) -> tuple[int, torch.dtype]:
    """Return the channels and the dtype of the images of a batch; ConfigError if they differ."""
    found = {
        _ENCODED if isinstance(payload, np.ndarray) or not is_array(payload) else array_shape(payload)[2:]
        for payload in payloads
    } - {(0, 0)}  # of a damaged header, which is found again when its image is decoded
    if len(found) > 1:
        described = ", ".join(f"{8 * size} bits in {plural(channels, 'channel')}" for channels, size in sorted(found))
        raise ConfigError(f"images of {described} do not form a batch; load those of one kind, as a dataset of its own")
    channels, value_bytes = found.pop() if found else _ENCODED
    return channels, torch.uint8 if value_bytes == 1 else torch.uint16


def _divided(empty: Empty, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return memory for tensors of these shapes, from one call."""
    shapes = [(*shape[:-1], shape[-1] * dtype.itemsize) for shape in shapes]
    if len(shapes) == 1:
        return (empty(shapes[0]).view(dtype),)
    ends = list(itertools.accumulate(-(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT for shape in shapes))
    memory, starts = empty((ends[-1],)), [0, *ends[:-1]]
    pieces = (memory[at : at + math.prod(shape)].view(shape) for at, shape in zip(starts, shapes, strict=True))
    return tuple(piece.view(dtype) for piece in pieces)


def _complete_sizes(payloads: Sequence[Payload], sizes: Sizes, max_pixels: int) -> Sizes:
    """Return the sizes, those that are not known read from the headers.

    They stay 0 where the header does not say either, and of JPEGs that are not for the kernel: see `is_plain_jpeg`.
    """
    unknown = np.flatnonzero(~sizes.all(axis=1)).tolist()
    if not unknown:
        return sizes
    sizes = sizes.copy()
    for index in unknown:
        payload = payloads[index]
        if isinstance(payload, np.ndarray):
            sizes[index] = payload.shape[1::-1]
        elif not is_jpeg(payload) or is_plain_jpeg(payload, max_pixels):
            sizes[index] = image_size(payload)
    return sizes


def _decode_in_kernel(
    payloads: Sequence[Payload],
    sizes: Sizes,
    geometries: Sequence[Geometry],
    images: Sequence[torch.Tensor],
    max_pixels: int,
) -> dict[int, native.Problem | None]:
    """Decode into `images` with the native kernel, and return the images that remain, with the kernel's reason."""
    if not native.available() or images[0].shape[1] != 3 or images[0].dtype != torch.uint8:
        return dict.fromkeys(range(len(payloads)))
    # Formats other than JPEG are problems of their own; so an image's pixels do not depend on the rest of the batch.
    views = _kernel_views(slice(None), geometries, images)
    tables = payloads.have_tables if isinstance(payloads, Payloads) else None
    problems = native.decode_views(
        payloads, views, expected=sizes.astype(np.int32), seek_tables=tables, max_pixels=max_pixels
    )
    # The crop of a JPEG whose header does not say its size was planned for an image of 1 x 1.
    remaining: dict[int, native.Problem | None] = dict.fromkeys(np.flatnonzero(~sizes.all(axis=1)).tolist())
    # Corrupt data that decodes all the same is accepted, as torchvision and Pillow do: the CRC says it was packed so.
    remaining |= {found.index: found for found in problems if found.status is not native.Status.DAMAGED}
    return dict(sorted(remaining.items()))


def _crop_decoded(
    index: int, image: torch.Tensor, geometries: Sequence[Geometry], images: Sequence[torch.Tensor], max_pixels: int
) -> None:
    """Crop a whole image into row `index` of `images`: in the kernel, at a tenth of the cost, or by torch."""
    if native.available() and len(image) == 3 and image.dtype == torch.uint8:
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        views = _kernel_views(slice(index, index + 1), geometries, images)
        if not native.decode_views([pixels], views, max_pixels=max_pixels):
            return
    if image.dtype == torch.uint16:
        image = image.float()  # exact; torch resizes and mirrors no integers of 16 bits
    for view, geometry in zip(images, geometries, strict=True):
        cropped = geometry.crop(index, image, _resize)
        if view.dtype == torch.uint16:
            view.numpy()[index] = cropped.round().clamp(0, _MOST_OF_16_BITS).numpy()
        else:
            view[index] = cropped


def _kernel_views(rows: slice, geometries: Sequence[Geometry], images: Sequence[torch.Tensor]) -> list[native.View]:
    return [
        native.View(
            crop.box[rows],
            crop.flip[rows],
            view[rows].numpy(),
            np.concatenate([crop.resized[rows], crop.window[rows]], axis=1),
        )
        for crop, view in zip(geometries, images, strict=True)
    ]


def _decode(payload: Payload, max_pixels: int, problem: native.Problem | None = None) -> torch.Tensor:
    """Return a whole image, upright in sRGB, [3, H, W]; `problem` is what the native kernel found, if it was asked."""
    if isinstance(payload, np.ndarray):
        return torch.from_numpy(payload).permute(2, 0, 1)
    try:
        check_image(payload, max_pixels)
        if is_array(payload):
            planes = array_pixels(payload).transpose(2, 0, 1).copy()  # writable, as a transform may expect
            return torch.from_numpy(planes)
        if problem is not None and problem.status is native.Status.TOO_LARGE:
            raise TooLargeError(problem.message)
        is_plain = is_jpeg(payload) and is_plain_jpeg(payload, max_pixels)
        decode_jpeg = jpeg_decoder() if is_plain else None
        with map_codec_errors(DecodeError):  # torchvision and torchcodec raise RuntimeError; Pillow nearly anything
            if decode_jpeg is not None:
                image: torch.Tensor = decode_jpeg(torch.frombuffer(payload, dtype=torch.uint8))
                return image
            # Not torchvision's PNG decoder: damaged files can end the process there.
            with open_image(payload, max_pixels=max_pixels) as opened:
                return torch.from_numpy(rgb_pixels(opened)).permute(2, 0, 1)
    except TooLargeError as error:
        raise TooLargeError(f"the image {error}") from error
    except DecodeError as error:
        raise DecodeError(f"the image cannot be decoded: {str(error).splitlines()[0]}") from error


def check_resized(size: Sequence[int], max_pixels: int) -> None:
    """Refuse an image so long and thin that it would be enlarged to gigabytes on the way to its crop."""
    width, height = size
    if width * height > max_pixels:
        raise TooLargeError(
            f"the image would be resized to {width:,} x {height:,} pixels; the limit is {max_pixels:,} pixels; leave "
            "it out, or raise max_pixels"
        )


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    # The kernel behind torchvision's antialiased resize, without the wrappers around it.
    resized: torch.Tensor = torch.ops.aten._upsample_bilinear2d_aa(image[None], [height, width], False)[0]
    return resized
