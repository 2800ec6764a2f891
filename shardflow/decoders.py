"""Decoders, which `Loader(decoder=...)` takes: from encoded images to tensors, cropping included."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .device.transforms.decode_jpeg import EncodedDecoder as _EncodedDecoder
    from .loading.aspect_buckets import AspectBucketDecoder as AspectBucketDecoder
    from .loading.decoders import CenterCropDecoder as _CenterCropDecoder
    from .loading.decoders import Decoder as Decoder
    from .loading.decoders import ImageDecoder as _ImageDecoder
    from .loading.decoders import RandomResizedCropDecoder as _RandomResizedCropDecoder
    from .loading.multi_view import MultiView as MultiView

    CenterCrop = _CenterCropDecoder
    Image = _ImageDecoder
    RandomResizedCrop = _RandomResizedCropDecoder
    Raw = _EncodedDecoder
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
