"""Device: batches are copied to a device while the training step runs, and augmented there."""

from typing import TYPE_CHECKING

from shardflow._imports import lazy_names

if TYPE_CHECKING:
    from .prefetcher import Prefetcher as Prefetcher
    from .transforms.color_jitter import ColorJitter as ColorJitter
    from .transforms.decode_jpeg import DecodeJpeg as DecodeJpeg
    from .transforms.mixup import CutMix as CutMix
    from .transforms.mixup import MixedTargets as MixedTargets
    from .transforms.mixup import MixUp as MixUp
    from .transforms.mixup import OneOf as OneOf
    from .transforms.normalize import Normalize as Normalize
    from .transforms.random_erasing import RandomErasing as RandomErasing
    from .transforms.random_flip import RandomHorizontalFlip as RandomHorizontalFlip
    from .transforms.random_resized_crop import RandomResizedCrop as RandomResizedCrop
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
