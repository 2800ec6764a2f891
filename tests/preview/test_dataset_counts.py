"""What is known of the images where the manifest has no statistics."""

from __future__ import annotations

from pathlib import Path

import shardflow
from shardflow.preview.dataset_counts import count_images
from shardflow.preview.sample_reader import SampleReader
from tests.helpers.making import jpeg, write_dataset


def test_images_are_counted_and_masks_are_not(tmp_path: Path) -> None:
    """Indexes say how many images there are, their bytes and sizes; other parts that are pictures are no images."""
    images = [jpeg(number, 31, 20) for number in range(3)]
    samples = [(f"{number:09}", {"jpg": image, "mask.png": b"x" * 99}) for number, image in enumerate(images)]
    dataset = shardflow.open(write_dataset(tmp_path, {"train": [samples]}))
    counted, whole = count_images(dataset, SampleReader(dataset, "train"))
    assert whole
    assert counted.counts == {"images": 3, "bytes_after": sum(map(len, images))}
    assert (counted.widths_after, counted.heights_after) == ({31: 3}, {20: 3})
    assert not counted.widths_before
