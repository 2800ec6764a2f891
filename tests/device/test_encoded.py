from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardflow
from making import jpeg, make_dataset
from shardflow import keyed
from shardflow.device import encoded
from shardflow.errors import ConfigError, DecodeError

FIELDS = ("image", "label", "random_key")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 labelled samples in three shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [13, 20, 7])


CROPS = {
    "random": shardflow.RandomResizedCropDecoder(12),
    "centre": shardflow.CenterCropDecoder(12),
}


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_later_gives_the_same_pixels(dataset: Path, crop: Any, workers: int) -> None:
    """Files that the prefetcher decodes give the pixels that the worker's decoder would have made, bit for bit."""
    options: dict[str, Any] = {"batch_size": 6, "tail": "short", "num_workers": workers}
    at_once = [*shardflow.Loader(dataset, decoder=crop, **options)]
    loader = shardflow.Loader(dataset, decoder=shardflow.EncodedDecoder(), fields=FIELDS, **options)
    later = [*shardflow.DevicePrefetcher(loader, "cpu", [shardflow.DecodeJpeg(crop)])]
    torch.testing.assert_close(later, at_once, rtol=0, atol=0)


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
def test_crops_of_whole_images_are_the_decoders(crop: Any) -> None:
    """What is done with whole images on a GPU, boxes, resizing and flips, is what the decoder does, within rounding."""
    payloads = [memoryview(bytearray(jpeg(number, 48 + number, 40))) for number in range(12)]
    keys = keyed.fold_array(1, np.arange(12))
    whole, failures = shardflow.ImageDecoder()(payloads, keys)
    assert not failures
    ours = shardflow.DecodeJpeg(crop)._crop(list(whole), keys)
    theirs, _ = crop(payloads, keys)
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() <= 2  # the kernel's decoding and torchvision's differ by a step, resizing by another
    assert (difference > 1).float().mean() < 0.001


def test_files_travel_unchanged() -> None:
    """Files of any length come out of the rows as they went in."""
    files = [b"a", b"", b"b" * 20_000, bytes(range(256))]
    rows, failures = shardflow.EncodedDecoder()([memoryview(file) for file in files], np.zeros(4, np.uint64))
    assert not failures
    assert [bytes(file.numpy()) for file in encoded.files_of(rows)] == files


def test_a_file_that_does_not_decode_is_an_error() -> None:
    """The error says which image of the batch it was."""
    rows, _ = shardflow.EncodedDecoder()([memoryview(jpeg(1)), memoryview(b"no image")], np.zeros(2, np.uint64))
    batches = shardflow.DevicePrefetcher([(rows, torch.zeros(2))], "cpu", [shardflow.DecodeJpeg(CROPS["centre"])])
    with pytest.raises(DecodeError, match="image 1 of the batch: the image cannot be decoded"):
        next(iter(batches))


def test_an_empty_batch_passes() -> None:
    """No files are no images, of the right shape."""
    images = shardflow.DecodeJpeg()(torch.zeros(0, 64, dtype=torch.uint8), None, torch.device("cpu"))
    assert images.shape == (0, 3, 224, 224)


def test_wrong_use_is_named(dataset: Path) -> None:
    """Pixels for files, a place behind other stages, missing keys and an unknown crop are errors that say so."""
    pixels = shardflow.Loader(dataset, batch_size=6, num_workers=0, fields=FIELDS)
    with pytest.raises(ConfigError, match=r"takes what EncodedDecoder\(\) hands on"):
        next(iter(shardflow.DevicePrefetcher(pixels, "cpu", [shardflow.DecodeJpeg()])))
    with pytest.raises(ConfigError, match="has to be the first"):
        shardflow.DevicePrefetcher(pixels, "cpu", [shardflow.Normalize(), shardflow.DecodeJpeg()])
    with pytest.raises(ConfigError, match="need random_key"):
        shardflow.DevicePrefetcher([], "cpu", [shardflow.DecodeJpeg()])
    with pytest.raises(ConfigError, match="crop must be"):
        shardflow.DecodeJpeg(shardflow.ImageDecoder())  # type: ignore[arg-type]
