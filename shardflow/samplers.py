"""Samplers: which samples make an epoch, and in which order."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .loading.sample_weights import Subset as Subset
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
