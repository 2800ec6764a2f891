"""Whole images, without a crop or resize."""

from __future__ import annotations

import numpy as np
import torch

from shardflow._validation import check_integer, explain_unknown_arguments
from shardflow.errors import SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.padding import MASK_PADDING, Padding
from shardflow.order.keyed_rng import U64

from .decoder import Decoder, Failures, Images, Payloads, Plan
from .pixels import PixelSource, decode_image, jpeg_decoder
from .standard_crops import NO_FLIP


class Image(Decoder):
    """Whole images. Unless the loader's `transform` makes them one size, pad them or pass `stack=False`.

    >>> decoder = shardflow.decoders.Image(pad_to_multiple_of=32)
    >>> fields = ("image", "pixel_mask", "image_size", "boxes")
    >>> loader = shardflow.Loader(url, batch_size=16, decoder=decoder, fields=fields)

    Args:
        pad_to_multiple_of: Pad with zeros at the right and bottom, after the transform, to the largest height and width
            of the batch, rounded up to a multiple of this. The field "pixel_mask" is True on the images, "image_size"
            has their heights and widths; coordinates do not change.
        mask_padding: Value that pads masks, such as the `ignore_index` of the loss; a 32-bit integer. Masks become
            int32 if it is not within 0 … 255. For depth maps, do not use 255, a valid depth.
        stack: False for a list of images [3, H, W] of any size, as torchvision's detection models take them.
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range, or a list would be padded.
    """

    keeps_sizes = True

    @explain_unknown_arguments({"hflip": NO_FLIP})
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
        """Return crops that show all of each image."""
        return Crops.of(sizes)

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode a batch into a list of uint8 [3, H, W]."""
        assert isinstance(crops, Crops)
        failures: dict[int, SampleError] = {}
        for index, payload in enumerate(payloads.files):
            try:
                image = decode_image(payload, self.max_pixels)
                # The next batch overwrites the pixels from a pixel cache, and a transform may keep this image.
                out[index] = image.clone() if isinstance(payload, np.ndarray) else image
            except SampleError as error:
                out[index] = torch.zeros((3, 1, 1), dtype=torch.uint8, device="cpu")
                failures[index] = error
        crops.replace(slice(None), Crops.of([image.shape[:0:-1] for image in out]))
        return failures

    def load_libraries(self) -> None:
        """Load the decoder of JPEGs."""
        jpeg_decoder()

    @property
    def takes_pixels_of(self) -> PixelSource | None:
        """ "libraries"; None for a subclass with another `decode`, which may expect encoded bytes."""
        return "libraries" if type(self).decode is Image.decode else None
