"""What the augmentation does to one image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardflow
from making import make_dataset
from shardflow.errors import DecodeError
from shardflow.look.augmented import augmented
from shardflow.look.peek import Peek, Peeked
from shardflow.look.tile import SIDE


def test_versions_are_those_of_the_loader(tmp_path: Path) -> None:
    """Version e of a sample is what a loader with the same seed hands out for it in epoch e, pixel by pixel."""
    url = make_dataset(tmp_path / "set", [6, 6])
    decoder = shardflow.RandomResizedCropDecoder(SIDE)
    loader = shardflow.Loader(url, batch_size=4, decoder=decoder, fields=("image", "label"), seed=3, num_workers=0)
    (sample,) = Peek(shardflow.open(url), "train").samples([7])
    for tile in augmented(sample, versions=3, seed=3):
        handed_out = {
            int(label): image for images, labels in loader for image, label in zip(images, labels, strict=True)
        }
        assert tile.picture is not None
        assert (np.asarray(tile.picture) == handed_out[7].permute(1, 2, 0).numpy()).all()


def test_a_sample_without_an_image_is_refused() -> None:
    """The message names the sample and what it has."""
    with pytest.raises(DecodeError, match="sample a has no image, only txt"):
        augmented(Peeked(0, "a", {"txt": b"words"}), versions=1)
