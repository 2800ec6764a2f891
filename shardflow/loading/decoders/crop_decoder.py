"""The base of decoders that only plan crops: it decodes them, in the native kernel or from whole images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from shardflow import native
from shardflow.errors import ConfigError, IntegrityError, SampleError
from shardflow.geometry.crops import Crops, Sizes
from shardflow.native.binding import Problem, Status

from .decoder import Decoder, Failures, Images, Payloads, Plan, as_views
from .pixels import (
    PixelSource,
    check_resized,
    crop_pixels,
    decode_image,
    header_size,
    layout,
    resize,
    warn_without_kernel,
)

_MOST_OF_16_BITS = 65_535

_Views = tuple[torch.Tensor, ...]


class CropDecoder(Decoder):
    """Base of decoders that return their planned crops, all of one size. A subclass defines only `plan`.

    >>> from shardflow.decoders import CropDecoder, Crops
    >>> class LeftHalf(CropDecoder):
    ...     def plan(self, epoch, shape, sizes, keys):
    ...         box = np.stack([0 * sizes[:, 0], 0 * sizes[:, 0], sizes[:, 0] // 2, sizes[:, 1]], axis=1)
    ...         return Crops.of(sizes, box=np.maximum(box, (0, 0, 1, 1)), resized=(112, 224), size=(112, 224))
    """

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode and crop a batch. Images that fail are black."""
        views = tuple(view for view in as_views(crops) if view is not None and view.size is not None)
        if len(views) != len(as_views(crops)):
            raise ConfigError(f"{self!r}: plan must return Crops with a size, found {crops!r:.80}")
        return self._decode_views(payloads, views, as_views(out))

    def load_libraries(self) -> None:
        """Without the native kernel, warn, and load the JPEG decoder that replaces it."""
        warn_without_kernel()

    @property
    def takes_pixels_of(self) -> PixelSource | None:
        """ "kernel" or "libraries"; None for a subclass with another `decode`, which may expect encoded bytes."""
        return pixel_source() if decodes_plan(self) else None

    def _decode_views(self, payloads: Payloads, crops: tuple[Crops, ...], images: _Views) -> Failures:
        """Decode a batch once, and crop it to each view."""
        expected = self._complete(payloads, crops)
        failures: dict[int, SampleError] = {}
        for index, problem in decode_in_kernel(
            payloads, expected, _kernel_views(crops, images), self.max_pixels
        ).items():
            row = slice(index, index + 1)
            its_crops, its_images = tuple(view[row] for view in crops), tuple(view[row] for view in images)
            in_file = payloads.in_files[index] if payloads.in_files else None
            if in_file is not None:
                alone = replace(payloads[row], files=[in_file.read()], in_files=())
                if layout(alone.files) != (images[0].shape[1], images[0].dtype):
                    raise IntegrityError("an array, named as a JPEG: its batch is to be decoded from memory")
                if found := self._decode_views(alone, its_crops, its_images):
                    failures[index] = found[0]
                continue
            if problem is not None and problem.status is Status.WRONG_SIZE and payloads.sizes[index].all():
                # The index is wrong: the header decides.
                alone = replace(payloads[row], sizes=np.zeros_like(payloads.sizes[row]))
                if found := self._decode_views(alone, its_crops, its_images):
                    failures[index] = found[0]
                continue
            try:
                image = decode_image(payloads.files[index], self.max_pixels, problem)
                size = np.array([image.shape[:0:-1]])
                if (size != expected[index]).any():  # the size was not known, or the header is wrong
                    self._plan_again(payloads, crops, row, size)
                for view in its_crops:
                    check_resized(view.resized[0].tolist(), self.max_pixels)
                _crop_decoded(image, its_crops, its_images, self.max_pixels)
            except SampleError as error:
                for pixels in its_images:
                    pixels[:] = 0
                failures[index] = error
        return failures

    def _complete(self, payloads: Payloads, crops: tuple[Crops, ...]) -> Sizes:
        """Return all sizes, reading unknown ones from the image headers and planning those crops again.

        A size stays 0 if the header lacks it, and for JPEGs that the kernel must not decode: see `is_plain_jpeg`.
        """
        unknown = np.flatnonzero(~payloads.sizes.all(axis=1))
        if not len(unknown):
            return payloads.sizes
        sizes: Sizes = payloads.sizes.copy()
        sizes[unknown] = [header_size(payloads.files[index], self.max_pixels) for index in unknown.tolist()]
        self._plan_again(payloads, crops, unknown, sizes[unknown])
        return sizes

    def _plan_again(
        self, payloads: Payloads, crops: tuple[Crops, ...], rows: slice | npt.NDArray[np.int64], sizes: Sizes
    ) -> None:
        """Replace the crops of images whose sizes differ from the index."""
        asked = payloads[rows]
        planned = as_views(self.plan(asked.epoch, asked.shape, sizes, asked.keys))
        for view, right in zip(crops, planned, strict=True):
            assert right is not None
            view.replace(rows, right)


def pixel_source() -> PixelSource:
    """Return whether the kernel or libraries decode whole images here."""
    return "kernel" if native.available() else "libraries"


def decodes_plan(decoder: object) -> bool:
    """Return whether a decoder only plans: its `decode` is that of `CropDecoder`."""
    return isinstance(decoder, CropDecoder) and type(decoder).decode is CropDecoder.decode


def check_crop_decoder(name: str, decoder: object) -> None:
    """Raise ConfigError if an argument is not a decoder with exactly one crop per image."""
    if not isinstance(decoder, CropDecoder) or not decodes_plan(decoder) or decoder.views:
        raise ConfigError(
            f"{name} must be a decoder that crops, such as RandomResizedCrop or CenterCrop, found {decoder!r:.80}"
        )


def decode_in_kernel(
    payloads: Payloads, sizes: Sizes, views: list[native.View], max_pixels: int
) -> dict[int, Problem | None]:
    """Decode `views` with the native kernel; return the images that remain, each with the kernel's reason or None."""
    if not views or not native.available():
        return dict.fromkeys(range(len(payloads)))
    # Formats other than JPEG are separate problems, so an image's pixels do not depend on the rest of the batch.
    problems = native.decode_views(
        payloads.files,
        views,
        in_files=payloads.in_files,
        expected=sizes.astype(np.int32),
        seek_tables=payloads.have_tables,
        max_pixels=max_pixels,
    )
    # The crop of a JPEG of unknown size was planned for an image of 1 x 1.
    remaining: dict[int, Problem | None] = dict.fromkeys(np.flatnonzero(~sizes.all(axis=1)).tolist())
    # Corrupt data that still decodes is accepted, as by torchvision and Pillow: its CRC shows that it was packed so.
    remaining |= {found.index: found for found in problems if found.status is not Status.DAMAGED}
    return dict(sorted(remaining.items()))


def _crop_decoded(image: torch.Tensor, crops: tuple[Crops, ...], images: _Views, max_pixels: int) -> None:
    """Crop a whole image into a batch of one: in the kernel, at a tenth of the cost, or with torch."""
    views = _kernel_views(crops, images)
    if native.available() and views:
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        if not native.decode_views([pixels], views, max_pixels=max_pixels):
            return
    if image.dtype == torch.uint16:
        image = image.float()  # exact; torch cannot resize or mirror uint16
    for view, own in zip(images, crops, strict=True):
        cropped = crop_pixels(own, 0, image, resize)
        if view.dtype == torch.uint16:
            view.numpy()[0] = cropped.round().clamp(0, _MOST_OF_16_BITS).numpy()
        else:
            view[0] = cropped


def _kernel_views(crops: tuple[Crops, ...], images: _Views) -> list[native.View]:
    if images[0].shape[1] != 3 or images[0].dtype != torch.uint8:
        return []
    return [
        native.View(own.box, own.flip, view.numpy(), np.concatenate([own.resized, own.offset], axis=1))
        for own, view in zip(crops, images, strict=True)
    ]
