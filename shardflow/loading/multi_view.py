"""Several views of each image: random crops of one decode, for training that compares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardflow.errors import ConfigError
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .decoders import CenterCropDecoder, Decoded, Decoder, Empty, Payload, RandomResizedCropDecoder, decode_views, new
from .geometry import Sizes

Crop = RandomResizedCropDecoder | CenterCropDecoder


class MultiView:
    """Several crops of each image, which is read and decoded once; the field "image" is a tuple of their tensors.

    View v of a sample has the pixels that its decoder gives that sample with the key of view v, bit by bit; view 0
    those that its decoder gives without the others.

    >>> views = [shardflow.decoders.RandomResizedCrop(224)] * 2  # doctest: +SKIP
    >>> views += [shardflow.decoders.RandomResizedCrop(96, scale=(0.05, 0.25))] * 8  # doctest: +SKIP
    >>> loader = shardflow.Loader(url, batch_size=64, decoder=shardflow.decoders.MultiView(views))  # doctest: +SKIP
    >>> for (one, other, *small), labels in loader: ...     # uint8 [64, 3, 224, 224], ... [64, 3, 96, 96]
    ...     # doctest: +SKIP

    Source: ten crops of two sizes are those of Caron et al., "Emerging properties in self-supervised vision
    transformers" (DINO), 2021.

    Args:
        decoders: The decoder of each view, one or more, with the same `max_pixels`.

    Attributes:
        decoders: As given.

    Raises:
        ConfigError: There is no decoder, one is of another kind, or their limits differ.
    """

    def __init__(self, decoders: Sequence[Crop]) -> None:
        self.decoders = tuple(decoders)
        if not self.decoders or not all(isinstance(decoder, Crop) for decoder in self.decoders):
            found = ", ".join(type(decoder).__name__ for decoder in self.decoders)
            raise ConfigError(
                "MultiView needs a list of one or more RandomResizedCropDecoder and CenterCropDecoder, found "
                f"[{found}]; other decoders do not crop one decoded image"
            )
        if len(limits := {decoder.max_pixels for decoder in self.decoders}) > 1:
            raise ConfigError(f"an image is decoded once for all views: give them one max_pixels, found {limits}")

    def __call__(self, payloads: Sequence[Payload], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Return a tuple of uint8 [B, 3, height, width], one tensor for each view."""
        own = [view_keys(keys, view) for view in range(len(self.decoders))]
        return Decoded(*decode_views(self.decoders, payloads, sizes, own, empty))

    def __repr__(self) -> str:
        return f"MultiView({list(self.decoders)})"

    def at_epoch(self, epoch: int) -> MultiView:
        """Return the decoder with the sizes of an epoch."""
        return MultiView(
            [each.at_epoch(epoch) if isinstance(each, RandomResizedCropDecoder) else each for each in self.decoders]
        )


def views_of(decoder: Decoder) -> tuple[Decoder, ...]:
    """Return the decoder of each view, which is the decoder itself where there are no views."""
    return decoder.decoders if isinstance(decoder, MultiView) else (decoder,)


def view_keys(keys: U64, view: int) -> U64:
    """Return the keys of a view of samples, uint64 [B]: for view 0 the samples' own."""
    return keys if view == 0 else keyed_rng.fold_array(keys, np.array([keyed_rng.key("view", view)], dtype=np.uint64))
