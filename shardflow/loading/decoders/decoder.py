"""The contract of a decoder: `plan` chooses crops from the image sizes in the index, `decode` turns bytes into pixels.

Decoding and cropping are one step, so a crop can be decoded without the rest of its image. Crops are known before a
byte is read, for annotations, previews, buckets and devices to follow.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from shardflow.errors import ConfigError, SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.memory_layout import places
from shardflow.loading.padding import Padding
from shardflow.native.binding import ImageInFile
from shardflow.order.keyed_rng import U64

from .pixels import Payload, PixelSource, layout

Allocator = Callable[[tuple[int, ...]], torch.Tensor]
"""Returns an uninitialised uint8 tensor of a shape."""

Images = Any
"""uint8 RGB: a tensor [B, 3, H, W] if all have one size, else a list of tensors [3, H, W]; with views, a tuple."""

Plan = Crops | tuple[Crops, ...] | None
"""The crops of a batch; with views, a tuple with one per view; None from a decoder that does not plan."""

BatchShape = tuple[int, int] | npt.NDArray[np.int64] | None
"""Height and width of all images of a batch, or int64 [B, 2] of each; None if the decoder decides."""

Failures = Mapping[int, SampleError]
"""Index in the batch → error, for each image that failed to decode; its pixels are arbitrary."""

_PLAIN = int, float, str, tuple, dict, Padding

T = TypeVar("T")


def allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Return new memory: the default `Allocator`."""
    return torch.empty(shape, dtype=torch.uint8, device="cpu")  # whatever torch.set_default_device has named


def as_views(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """Return the images or crops of each view; one without `MultiView`."""
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payloads:
    """The encoded images of a batch, and the arguments from which their plan was made.

    Attributes:
        files: The encoded images, or decoded ones from a pixel cache if the decoder has `takes_pixels_of`.
        in_files: The place of each image that the native kernel reads from a file; its entry in `files` is empty. None
            for other images. Empty unless `takes_pixels_of` is "kernel".
        sizes, keys, epoch, shape: The arguments of `Decoder.plan`.
        have_tables: bool [B], True if the image may be decoded with its seek table.
    """

    files: Sequence[Payload]
    sizes: Sizes
    keys: U64
    epoch: int
    shape: BatchShape
    have_tables: npt.NDArray[np.bool_]
    in_files: Sequence[ImageInFile | None] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Payloads:
        """Return the payloads of some images."""
        indexes = np.arange(len(self))[rows].tolist()
        return Payloads(
            files=[self.files[index] for index in indexes],
            sizes=self.sizes[rows],
            keys=self.keys[rows],
            epoch=self.epoch,
            shape=self.shape[rows] if isinstance(self.shape, np.ndarray) else self.shape,
            have_tables=self.have_tables[rows],
            in_files=[self.in_files[index] for index in indexes] if self.in_files else (),
        )


class Decoded(NamedTuple):
    """A decoded batch: images, crops and failures."""

    images: Images
    crops: Plan
    failures: Failures


class Decoder(ABC):
    """Turns encoded images into tensors. A subclass defines `decode`, and `plan` if it crops.

    To choose only crops, inherit from `CropDecoder`. A decoder is copied to the worker processes. An image that fails
    to decode does not affect the others.

    >>> from shardflow.decoders import Decoder, Padding, Payloads
    >>> class Thumbnails(Decoder):
    ...     padding = Padding(pad_to_multiple_of=32)
    ...     def decode(self, payloads: Payloads, crops, out):
    ...         for index, file in enumerate(payloads.files):
    ...             out[index] = my_decoder(file)       # a uint8 tensor [3, H, W]
    ...         return {}

    Attributes:
        max_pixels: Limit of the pixels of an image or mask; larger ones fail with `TooLargeError`.
        padding: The rule for images of different sizes in a batch.
        views: The decoder of each view, if the images of a batch are a tuple of tensors; else empty.
        keeps_sizes: Whether images keep the sizes in the index, which are then checked before loading begins.
        needs_shape: Whether images are cropped to the shape of the batch, which a sampler must choose.
        patch: If a sampler chooses the shape of each image, its sides are multiples of this; otherwise None.
        rows_are_images: Whether each row is a whole image, so that rows of several decoders can form one batch.
        takes_pixels_of: "kernel" or "libraries" if `decode` also takes pixels that this decoder made of whole images,
            and returns the same result bit by bit; a pixel cache may then keep them. Otherwise None.
    """

    max_pixels: int = MAX_PIXELS
    padding: Padding = Padding()
    views: tuple[Decoder, ...] = ()
    keeps_sizes: bool = False
    needs_shape: bool = False
    patch: int | None = None
    rows_are_images: bool = True

    def plan(self, epoch: int, shape: Any, sizes: Sizes, keys: U64) -> Plan:  # noqa: ARG002
        """Return the crops of a batch, each independent of the others; None to plan none.

        Masks, boxes and keypoints follow the crops, so a loader without crops cannot return them.

        Args:
            epoch: The epoch.
            shape: Height and width that a sampler chose for the batch, or int64 [B, 2] for each image; else None.
            sizes: int64 [B, 2], width and height from the dataset's index; 0 if unknown, and for JPEGs that must be
                turned upright or converted to sRGB.
            keys: uint64 [B], the only source of randomness.
        """
        return None

    def allocate_images(self, payloads: Payloads, crops: Plan, allocate: Allocator) -> Images:
        """Return memory for `decode`: a tensor if the crops have one size, otherwise a list with one entry per image.

        Call `allocate` at most once: its memory reaches the training process without a copy. It is on loan for this
        batch: keep no view of it.
        """
        views = [view for view in as_views(crops) if view is not None and view.size is not None]
        if not views:
            return [None] * len(payloads)
        channels, dtype = layout([file for file in payloads.files if len(file)])
        shapes = [(len(payloads), channels, *view.size[::-1]) for view in views if view.size is not None]
        images = _divided(allocate, shapes, dtype)
        return images if isinstance(crops, tuple) else images[0]

    @abstractmethod
    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode a batch of one or more images into `out`, the result of `allocate_images`.

        If the size of an image differs from the index, plan its crop again, and replace its row of `crops`.
        """

    def copy_image(self, images: Images, index: int, source: int) -> None:
        """Replace image `index` of a batch by image `source`, in every view."""
        for view in as_views(images):  # a copy: a transform may write into either
            view[index] = view[source].clone()

    def load_libraries(self) -> None:  # noqa: B027 - most need none
        """Import libraries; called once, before the workers are forked."""

    @property
    def takes_pixels_of(self) -> PixelSource | None:  # noqa: D102 - an attribute, see above
        return None

    def read(self, file: str | os.PathLike[str] | bytes) -> Images:
        """Return an image file, given by its path or its bytes, as a batch of one: uint8 [1, 3, H, W].

        Whole images are a list of one, views a tuple. The image is turned upright, in sRGB, and on white where it is
        transparent, as `pack` stores it. A random crop is always the same.

        >>> image = shardflow.decoders.CenterCrop(224).read("photos/val/cat/0264.jpg")

        Raises:
            SampleError: The image cannot be decoded.
            ConfigError: The decoder needs a shape that a sampler chooses.
            OSError: The file cannot be read.
        """
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        images, _, failures = self([memoryview(data)], np.zeros((1, 2), np.int64), np.zeros(1, np.uint64))
        if failures:
            raise failures[0] if isinstance(file, bytes) else failures[0].with_location(shard=os.fspath(file))
        return images

    def __call__(
        self,
        files: Sequence[Payload],
        sizes: Sizes,
        keys: U64,
        *,
        epoch: int = 0,
        shape: BatchShape = None,
        have_tables: npt.ArrayLike = False,
        in_files: Sequence[ImageInFile | None] = (),
        allocate: Allocator = allocate,
    ) -> Decoded:
        """Plan and decode a batch. For the arguments, see `plan` and `Payloads`."""
        crops = self.plan(epoch, shape, sizes, keys)
        payloads = Payloads(
            files=files,
            sizes=sizes,
            keys=keys,
            epoch=epoch,
            shape=shape,
            have_tables=np.broadcast_to(np.asarray(have_tables, dtype=np.bool_), len(files)),
            in_files=in_files,
        )
        images = self.allocate_images(payloads, crops, allocate)
        failures = self.decode(payloads, crops, images)
        indexes = failures if isinstance(failures, Mapping) else [-1]
        if not all(index in range(len(files)) and isinstance(failures[index], SampleError) for index in indexes):
            raise ConfigError(
                f"{type(self).__name__}.decode must return a dict from the index of each image that failed to its "
                f"SampleError, {{}} if none failed; found {failures!r:.80}"
            )
        return Decoded(images, crops, failures)

    def __repr__(self) -> str:
        public = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(public)})"

    def __eq__(self, other: object) -> bool:
        """Return whether two decoders have equal settings; those that are not plain values must be the same objects."""
        if self is other:
            return True
        if not isinstance(other, Decoder) or type(self) is not type(other) or vars(self).keys() != vars(other).keys():
            return False
        if any(vars(each).get("__slots__") for each in type(self).__mro__):  # settings that are not among vars
            return False
        pairs = ((value, vars(other)[name]) for name, value in vars(self).items())
        try:
            return all(one is two or (isinstance(one, _PLAIN) and bool(one == two)) for one, two in pairs)
        except ValueError:  # arrays within
            return False

    __hash__ = None  # type: ignore[assignment] # compared by value


def check_decoder(decoder: object) -> None:
    """Raise ConfigError if an argument is not a decoder."""
    if isinstance(decoder, type) and issubclass(decoder, Decoder):
        raise ConfigError(f"decoder must be an instance, such as {decoder.__name__}(), found the class")
    if not isinstance(decoder, Decoder):
        raise ConfigError(
            f"decoder must be one of shardflow.decoders, or inherit from shardflow.decoders.Decoder; "
            f"found {decoder!r:.80}"
        )


def _divided(allocate: Allocator, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return memory for tensors of these shapes, from one call."""
    shapes = [(*shape[:-1], shape[-1] * dtype.itemsize) for shape in shapes]
    if len(shapes) == 1:
        return (allocate(shapes[0]).view(dtype),)
    *begins, size = places(map(math.prod, shapes))
    memory = allocate((size,))
    pieces = (memory[at : at + math.prod(shape)].view(shape) for at, shape in zip(begins, shapes, strict=True))
    return tuple(piece.view(dtype) for piece in pieces)
