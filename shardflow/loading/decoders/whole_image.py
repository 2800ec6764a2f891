"""Whole images, as they are."""

from __future__ import annotations

import numpy as np
import torch

from shardflow._validation import check_integer
from shardflow.errors import SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.padding import MASK_PADDING, Padding
from shardflow.order.keyed_rng import U64

from .decoder import Decoder, Failures, Images, Payloads, Plan
from .pixels import PixelSource, decode_image, jpeg_decoder


class Image(Decoder):
    """Whole images. In a batch they have one size, perhaps by the loader's `transform`, or are padded.

    >>> decoder = shardflow.decoders.Image(pad_to_multiple_of=32)
    >>> fields = ("image", "pixel_mask", "image_size", "boxes")
    >>> loader = shardflow.Loader(url, batch_size=16, decoder=decoder, fields=fields)

    Args:
        pad_to_multiple_of: Pad with zeros at the right and at the bottom, after the transform. The size is the largest
            height and width of the batch, rounded up to a multiple of this. The field "pixel_mask" is True on the
            images, "image_size" has their heights and widths; coordinates stay as they are.
        mask_padding: Padding of masks, a 32-bit integer that the loss ignores. Masks become int32 if it is not within 0
            … 255. For depth maps choose another value than 255, which is a valid depth.
        stack: False for a list of images [3, H, W] of any sizes, as torchvision's detection models take them.
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range, or a list would be padded.
    """

    keeps_sizes = True

    def __init__(
        self,
        *,
        pad_to_multiple_of: int | None = None,
        mask_padding: int = MASK_PADDING,
        stack: bool = True,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.padding = Padding(stack=stack, pad_to_multiple_of=pad_to_multiple_of, mask_padding=mask_padding)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes: all of them."""
        return Crops.of(sizes)

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode a batch into a list of uint8 [3, H, W]."""
        assert isinstance(crops, Crops)
        failures: dict[int, SampleError] = {}
        for index, payload in enumerate(payloads.files):
            try:
                image = decode_image(payload, self.max_pixels)
                # Pixels from the pixel cache are overwritten by the next batch, and a transform may keep this image.
                out[index] = image.clone() if isinstance(payload, np.ndarray) else image
            except SampleError as error:
                out[index] = torch.zeros((3, 1, 1), dtype=torch.uint8)
                failures[index] = error
        crops.replace(slice(None), Crops.of([image.shape[:0:-1] for image in out]))
        return failures

    def load_libraries(self) -> None:
        """Load the decoder of JPEGs."""
        jpeg_decoder()

    @property
    def takes_pixels_of(self) -> PixelSource | None:
        """The libraries; None for a subclass that decodes otherwise, and may expect bytes."""
        return "libraries" if type(self).decode is Image.decode else None
