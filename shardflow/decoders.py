"""Decoders for `Loader(decoder=...)`, and the base classes of your own.

Inherit from `CropDecoder` and define `plan`, which chooses the crops; or from `Decoder` and define `decode`, which
decodes the images.
"""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .geometry.crops import Crops as Crops
    from .loading.decoders.crop_decoder import CropDecoder as CropDecoder
    from .loading.decoders.decoder import Decoder as Decoder
    from .loading.decoders.decoder import Payloads as Payloads
    from .loading.decoders.multi_view import MultiView as MultiView
    from .loading.decoders.patches import Patches as Patches
    from .loading.decoders.raw import Raw as Raw
    from .loading.decoders.standard_crops import CenterCrop as CenterCrop
    from .loading.decoders.standard_crops import Cover as Cover
    from .loading.decoders.standard_crops import RandomResizedCrop as RandomResizedCrop
    from .loading.decoders.whole_image import Image as Image
    from .loading.padding import Padding as Padding
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
