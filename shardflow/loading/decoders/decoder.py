"""The contract of a decoder: a plan, which is arithmetic on the index's sizes, then the work on the images' bytes.

Decoding and cropping are one step, so that a crop can be decoded without decoding the rest of its image. The crops are
known before a byte is read, to all that follows them: annotations, previews, buckets, a device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from shardflow import native
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.memory_layout import places
from shardflow.loading.padding import Padding
from shardflow.order.keyed_rng import U64

from .pixels import Payload, PixelSource, layout

Allocator = Callable[[tuple[int, ...]], torch.Tensor]
"""Returns a uint8 tensor of a shape, its values arbitrary."""

Images = Any
"""uint8, RGB: one tensor [B, 3, H, W] where all have one size, else a list of tensors [3, H, W]; a tuple of views."""

Plan = Crops | tuple[Crops, ...] | None
"""The crops of a batch, with views those of each; None from a decoder that does not say."""

BatchShape = tuple[int, int] | npt.NDArray[np.int64] | None
"""Height and width of the images of a batch, or of each of them, [B, 2]; None where the decoder decides."""

Failures = Mapping[int, SampleError]
"""The error of each image that did not decode, by its index in the batch; the image itself is arbitrary."""

_PLAIN = int, float, str, tuple, dict, Padding

T = TypeVar("T")


def allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Return fresh memory: the simplest `Allocator`."""
    return torch.empty(shape, dtype=torch.uint8)


def as_views(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """Return the images or crops of each view; without views there is one."""
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payloads:
    """The encoded images of a batch, and the arguments from which their plan was made.

    Attributes:
        files: The encoded images; for a decoder that `takes_pixels_of` something also decoded ones in their place.
        in_files: Where the native kernel is to read an image, whose file is empty then; for a decoder that
            `takes_pixels_of` the kernel. None of other images, or empty.
        sizes, keys, epoch, shape: The arguments of `Decoder.plan`.
        have_tables: bool [B], which of the images may be decoded with the seek table that they hold.
    """

    files: Sequence[Payload]
    sizes: Sizes
    keys: U64
    epoch: int
    shape: BatchShape
    have_tables: npt.NDArray[np.bool_]
    in_files: Sequence[native.ImageInFile | None] = ()

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
    """A decoded batch: its images, how they were cropped, and which of them failed."""

    images: Images
    crops: Plan
    failures: Failures


class Decoder(ABC):
    """Turns encoded images into tensors. A subclass has a `decode`, and a `plan` if it crops.

    To choose only crops, see `CropDecoder`. A decoder is made once, and copied to the worker processes. An image that
    does not decode fails alone: the others are not affected.

    >>> from shardflow.decoders import Decoder, Padding, Payloads
    >>> class Thumbnails(Decoder):
    ...     padding = Padding(pad_to_multiple_of=32)
    ...     def decode(self, payloads: Payloads, crops, out):
    ...         for index, file in enumerate(payloads.files):
    ...             out[index] = my_decoder(file)       # a uint8 tensor [3, H, W]
    ...         return {}

    Attributes:
        max_pixels: The limit of images and of their masks: larger ones are failures (`TooLargeError`).
        padding: The rule for images of different sizes in a batch.
        views: The decoder of each view, where the images of a batch are a tuple with a tensor for each; else empty.
        keeps_sizes: Whether images have the sizes that the index says, which are then checked before loading begins.
        needs_shape: Whether it crops to the shape of a batch, on which a sampler has to decide.
        patch: If a sampler decides on the shape of each image, its sides are multiples of this; otherwise None.
        rows_are_images: Whether each row is a whole image, so that rows of several decoders can form one batch.
        takes_pixels_of: "kernel" or "libraries", the decoder of whole images, if `decode` also takes their pixels
            instead of files and returns the same, bit by bit. A pixel cache may keep them then. Otherwise None.
    """

    max_pixels: int = MAX_PIXELS
    padding: Padding = Padding()
    views: tuple[Decoder, ...] = ()
    keeps_sizes: bool = False
    needs_shape: bool = False
    patch: int | None = None
    rows_are_images: bool = True

    def plan(self, epoch: int, shape: Any, sizes: Sizes, keys: U64) -> Plan:  # noqa: ARG002
        """Return the crops of a batch, whose rows do not depend on each other; None to say nothing about them.

        No byte is read for it. Masks, boxes and keypoints follow the crops, so without them there are none.

        Args:
            epoch: The epoch.
            shape: Height and width of the batch, where a sampler decides on them; int64 [B, 2], those of each image,
                where it decides on each; else None.
            sizes: int64 [B, 2], width and height of the images in the dataset's index. They are 0 if unknown, and for
                JPEGs that must be turned or converted to sRGB.
            keys: uint64 [B], the only source of randomness.
        """
        return None

    def allocate_images(self, payloads: Payloads, crops: Plan, allocate: Allocator) -> Images:
        """Return memory for `decode`: a tensor if the crops have one size, otherwise a list with a place per image.

        `allocate` returns memory that need not be copied on its way to the training process; it is called once at most.
        The memory is on loan for this batch: keep no view of it.
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
        """Decode a batch of one or more images into `out`, which `allocate_images` returned.

        If an image has another size than the index says, its crop is planned again, and its row of `crops` replaced.
        """

    def copy_image(self, images: Images, index: int, source: int) -> None:
        """Replace image `index` of a batch by another one of it, in every view."""
        for view in as_views(images):  # a copy: a transform may write into either
            view[index] = view[source].clone()

    def load_libraries(self) -> None:  # noqa: B027 - most need none
        """Import the libraries that all workers share; called once, before they are forked."""

    @property
    def takes_pixels_of(self) -> PixelSource | None:  # noqa: D102 - an attribute, see above
        return None

    def __call__(
        self,
        files: Sequence[Payload],
        sizes: Sizes,
        keys: U64,
        *,
        epoch: int = 0,
        shape: BatchShape = None,
        have_tables: npt.ArrayLike = False,
        in_files: Sequence[native.ImageInFile | None] = (),
        allocate: Allocator = allocate,
    ) -> Decoded:
        """Plan and decode a batch; the arguments are those of `plan`, and the attributes of `Payloads`."""
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
                f"{type(self).__name__}.decode must return a dict with the SampleError of each image that failed, by "
                f"its index in the batch, and {{}} if none did; found {failures!r:.80}"
            )
        return Decoded(images, crops, failures)

    def __repr__(self) -> str:
        public = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(public)})"

    def __eq__(self, other: object) -> bool:
        """Return whether two decoders make the same images: settings that are not plain values are the same objects."""
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

    __hash__ = None  # type: ignore[assignment] # as of all that compares by value


def check_decoder(decoder: object) -> None:
    """Raise ConfigError if an argument is not a decoder."""
    if isinstance(decoder, type) and issubclass(decoder, Decoder):
        raise ConfigError(f"decoder must be an object, such as {decoder.__name__}() with parentheses, found the class")
    if not isinstance(decoder, Decoder):
        raise ConfigError(
            f"decoder must be one of shardflow.decoders, or of a class that inherits from shardflow.decoders.Decoder; "
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
