"""Several views of each image: crops from one decode, for self-supervised training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardflow.errors import ConfigError
from shardflow.geometry.crops import Crops, Sizes
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder, check_crop_decoder
from .decoder import Plan


class MultiView(CropDecoder):
    """Several crops of each image, which is read and decoded once; the field "image" is a tuple of tensors.

    View v has exactly the pixels that its decoder returns for the key of view v. View 0 has the same pixels as its
    decoder without `MultiView`.

    >>> views = [shardflow.decoders.RandomResizedCrop(224)] * 2
    >>> views += [shardflow.decoders.RandomResizedCrop(96, scale=(0.05, 0.25))] * 8
    >>> decoder = shardflow.decoders.MultiView(views)
    >>> loader = shardflow.Loader(url, batch_size=64, decoder=decoder)  # images: [64, 3, 224, 224], …, [64, 3, 96, 96]

    Source: ten crops of two sizes follow Caron et al., "Emerging properties in self-supervised vision
    transformers" (DINO), 2021.

    Args:
        views: The decoder of each view, one or more, with the same `max_pixels`.

    Raises:
        ConfigError: The list is empty, a decoder does not crop, or their limits differ.
    """

    def __init__(self, views: Sequence[CropDecoder]) -> None:
        self.views = tuple(views) if isinstance(views, Sequence) else ()
        if not self.views:
            raise ConfigError("MultiView needs a list of one or more decoders that crop, such as RandomResizedCrop")
        for view in self.views:
            check_crop_decoder("each view of a MultiView", view)
        if len(limits := {view.max_pixels for view in self.views}) > 1:
            raise ConfigError(f"the views share one decode, so they need one max_pixels, found {limits}")
        self.max_pixels = self.views[0].max_pixels
        self.needs_shape = any(view.needs_shape for view in self.views)

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> tuple[Crops, ...]:
        """Return the crops of each view of images of these sizes."""
        planned: list[Plan] = [
            view.plan(epoch, shape, sizes, view_keys(keys, number)) for number, view in enumerate(self.views)
        ]
        if wrong := [number for number, crops in enumerate(planned) if not isinstance(crops, Crops)]:
            raise ConfigError(f"the plan of view {wrong[0]}, {self.views[wrong[0]]!r}, must return Crops")
        return tuple(crops for crops in planned if isinstance(crops, Crops))


def view_keys(keys: U64, view: int) -> U64:
    """Return the keys of samples in a view, uint64 [B]; for view 0, `keys` itself."""
    return keys if view == 0 else keyed_rng.fold_array(keys, np.array([keyed_rng.key("view", view)], dtype=np.uint64))
