"""Decoders: what `Loader(decoder=...)` takes, and what is needed to write another.

A decoder inherits from `CropDecoder` and has a `plan`, which chooses a crop of each image; or from `Decoder` and has a
`decode`, which makes the images.
"""

from .geometry.crops import Crops
from .loading.decoders.center_crop import CenterCrop
from .loading.decoders.cover import Cover
from .loading.decoders.crop_decoder import CropDecoder
from .loading.decoders.decoder import Decoder, Payloads
from .loading.decoders.multi_view import MultiView
from .loading.decoders.random_resized_crop import RandomResizedCrop
from .loading.decoders.raw import Raw
from .loading.decoders.whole_image import Image
from .loading.padding import Padding

__all__ = [
    "CenterCrop",
    "Cover",
    "CropDecoder",
    "Crops",
    "Decoder",
    "Image",
    "MultiView",
    "Padding",
    "Payloads",
    "RandomResizedCrop",
    "Raw",
]
