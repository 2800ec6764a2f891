"""What the augmentation does to one image: the crops that a loader hands out in its first epochs."""

from __future__ import annotations

import numpy as np
from PIL import Image

from shardflow.errors import DecodeError
from shardflow.load.decode import RandomResizedCropDecoder
from shardflow.load.source import augmentation_keys

from .peek import Peeked
from .tile import SIDE, Tile


def augmented(sample: Peeked, *, versions: int, seed: int = 0) -> list[Tile]:
    """Return a sample as the loader's default decoder makes it in its first epochs, one tile each.

    Args:
        sample: What is augmented.
        versions: How many epochs.
        seed: The loader's.

    Raises:
        DecodeError: It has no image, or one that does not decode.
    """
    payload = sample.image
    if payload is None:
        raise DecodeError(sample.problem or f"sample {sample.key} has no image, only {', '.join(sample.parts)}")
    decoder = RandomResizedCropDecoder(SIDE)
    tiles = []
    for epoch in range(versions):
        keys = augmentation_keys(seed, epoch, np.array([sample.number]))
        images, failures = decoder([memoryview(bytearray(payload))], keys)
        if failures:
            raise failures[0]
        picture = Image.fromarray(np.ascontiguousarray(images[0].permute(1, 2, 0).numpy()))
        tiles.append(Tile(title=f"epoch {epoch}", detail="", picture=picture))
    return tiles
