"""Instance masks: a field with one mask for each box, from polygons and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision import tv_tensors
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.transforms import v2

import shardflow
from shardflow.annotations import CroppedBoxes
from shardflow.errors import ConfigError, TooLargeError
from shardflow.formats.annotations import Annotations, Boxes
from tests.helpers.making import jpeg, write_dataset

FIELDS = {"labels": "labels", "iscrowd": "iscrowd", "masks": "segments:mask"}
DECLARED = Annotations(boxes=Boxes("json", "boxes", "xyxy", fields=FIELDS))
WIDTH, HEIGHT = 48, 36


def _rectangle(left: int, top: int, right: int, bottom: int) -> list[int]:
    return [left, top, right, top, right, bottom, left, bottom]


def _runs(left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    """Return a rectangle as runs."""
    counts = [left * HEIGHT + top]
    for _ in range(left, right):
        counts += [bottom - top, HEIGHT - (bottom - top)]
    counts[-1] = WIDTH * HEIGHT - sum(counts[:-1])
    return {"size": [HEIGHT, WIDTH], "counts": counts}


def _objects(number: int) -> dict[str, Any]:
    """Return rectangles, which are polygons and runs in turn, a crowd, and a degenerate polygon."""
    boxes = [[(5 * number + 7 * n) % 30, (3 * number + 5 * n) % 20] for n in range(number % 3 + 1)]
    boxes = [[x, y, x + 10 + number % 7, y + 12] for x, y in boxes]
    segments: list[Any] = [_runs(*box) if n % 2 else [_rectangle(*box)] for n, box in enumerate(boxes)]
    boxes += [[1, 1, 40, 30], [4, 4, 9, 9]]
    segments += [_runs(1, 1, 40, 30), [[5, 5, 8, 8]]]
    labels = [number % 2 + 1] * len(boxes)
    crowds = [0] * (len(boxes) - 2) + [1, 0]
    return {"boxes": boxes, "labels": labels, "iscrowd": crowds, "segments": segments}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images with rectangles."""
    samples = [
        (f"{n:02}", {"jpg": jpeg(n, WIDTH, HEIGHT), "json": json.dumps(_objects(n)).encode()}) for n in range(12)
    ]
    return write_dataset(tmp_path_factory.mktemp("segments") / "set", {"train": [samples]}, annotations=DECLARED)


def _loader(url: Path, *fields: Any, **options: Any) -> shardflow.Loader:
    options = {"batch_size": 6, "decoder": shardflow.decoders.RandomResizedCrop(24), "num_workers": 0, **options}
    return shardflow.Loader(url, fields=("image", *fields), **options)


def _bounds(mask: torch.Tensor) -> list[int]:
    """Return the box of the pixels of a mask."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def test_masks_follow_the_crop_of_their_boxes(dataset: Path) -> None:
    """Each box has the mask of its object, which fills the box within the crop, as far as pixels can; crowds go."""
    for images, boxes, masks in _loader(dataset, "boxes", "box_masks"):
        for image, own, found in zip(images, boxes, masks, strict=True):
            assert (found.dtype, found.shape) == (torch.uint8, (len(own), *image.shape[1:]))
            for box, mask in zip(own, found, strict=True):
                if mask.any():  # other than the degenerate one, and slivers
                    assert (torch.tensor(_bounds(mask)) - box).abs().max() <= 1
                    assert set(mask.unique().tolist()) <= {0, 1}


def test_whole_images_have_the_masks_of_their_objects(dataset: Path) -> None:
    """Without a crop a mask is its object, one of a degenerate polygon is empty; `crowds=True` keeps crowds."""
    options = {"decoder": shardflow.decoders.Image(stack=False), "shuffle": False}
    _, boxes, masks, numbers = next(iter(_loader(dataset, CroppedBoxes(crowds=True), "box_masks", "index", **options)))
    for own, found, number in zip(boxes, masks, numbers.tolist(), strict=True):
        objects = _objects(number)
        assert own.tolist() == objects["boxes"]
        assert [_bounds(mask) for mask in found[:-1]] == objects["boxes"][:-1]
        assert int(found[-1].sum()) == 0
        for mask, (left, top, right, bottom) in zip(found[:-1], objects["boxes"][:-1], strict=True):
            assert bool(mask[top:bottom, left:right].all())
    _, boxes, masks = next(iter(_loader(dataset, "boxes", "box_masks", **options)))
    assert [len(own) for own in masks] == [len(own) for own in boxes] == [n % 3 + 2 for n in range(6)]


def test_a_packed_mask_is_smaller(dataset: Path, tmp_path: Path) -> None:
    """Packing moves polygons and runs to the new size, and the loader returns masks of it."""
    shardflow.pack(dataset, tmp_path / "half", short_side=HEIGHT // 2, executor="serial", shuffle=False)
    assert shardflow.open(tmp_path / "half").manifest.annotations == DECLARED
    options = {"decoder": shardflow.decoders.Image(stack=False), "shuffle": False}
    large, small = (next(iter(_loader(url, "box_masks", **options))) for url in (dataset, tmp_path / "half"))
    for whole, half in zip(large[1], small[1], strict=True):
        assert half.shape == (len(whole), HEIGHT // 2, WIDTH // 2)
        assert (half - whole[:, 1::2, 1::2].int()).abs().sum((1, 2)).max() <= 40  # pixels of a border


def test_views_transforms_and_the_device_move_masks(dataset: Path) -> None:
    """Each view has its masks; transforms get a Mask [N, H, W], which SanitizeBoundingBoxes filters; a device flips."""
    views = shardflow.decoders.MultiView([shardflow.decoders.CenterCrop(20), shardflow.decoders.CenterCrop(30)])
    _, boxes, masks = next(iter(_loader(dataset, "boxes", "box_masks", decoder=views)))
    for side, own, found in zip((20, 30), boxes, masks, strict=True):
        assert [each.shape for each in found] == [(len(each), side, side) for each in own]
    seen: list[type] = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append(type(sample["box_masks"]))
        return sample

    keep = v2.SanitizeBoundingBoxes(min_size=9, labels_getter=lambda sample: [sample["box_labels"]])
    steps = v2.Compose([note, v2.RandomHorizontalFlip(1), keep])
    center = shardflow.decoders.CenterCrop(24)
    fields = ("boxes", "box_labels", "box_masks")
    plain, changed = (
        next(iter(_loader(dataset, *fields, decoder=center, shuffle=False, transform=transform)))
        for transform in (None, steps)
    )
    assert set(seen) == {tv_tensors.Mask}
    for own, before, after in zip(plain[1], plain[3], changed[3], strict=True):
        large = (own[:, 2:] - own[:, :2] >= 9).all(1)
        assert torch.equal(after, before[large].flip(-1))
    loader = _loader(dataset, *fields, "random_key", decoder=center, shuffle=False)
    flip = shardflow.device.Prefetcher(loader, "cpu", [shardflow.device.RandomHorizontalFlip(1)])
    for before, after in zip(plain[3], next(iter(flip))[3], strict=True):
        assert torch.equal(after, before.flip(-1))


def test_masks_are_padded_with_their_images(tmp_path: Path) -> None:
    """In a padded batch, masks of boxes have the size of the images, so a flip on the device moves both alike."""
    sizes = [(48, 36), (20, 44)]
    box = {"boxes": [[0, 0, 8, 6]], "labels": [0], "iscrowd": [0], "segments": [[_rectangle(0, 0, 8, 6)]]}
    samples = [(str(n), {"jpg": jpeg(n, *size), "json": json.dumps(box).encode()}) for n, size in enumerate(sizes)]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, annotations=DECLARED)
    decoder = shardflow.decoders.Image(pad_to_multiple_of=32)
    loader = _loader(url, "boxes", "box_masks", "random_key", decoder=decoder, shuffle=False, batch_size=2)
    flipped = shardflow.device.Prefetcher(loader, "cpu", [shardflow.device.RandomHorizontalFlip(1)])
    for batches in (loader, flipped):
        images, boxes, masks = next(iter(batches))[:3]
        for image, own, found in zip(images, boxes, masks, strict=True):
            assert found.shape == (1, *image.shape[1:]) == (1, 64, 64)
            assert _bounds(found[0]) == own[0].tolist()


def test_masks_are_limited(dataset: Path) -> None:
    """The masks of an image have `max_pixels` together, at most; an unknown field is refused as others are."""
    small = shardflow.decoders.Image(stack=False, max_pixels=2 * WIDTH * HEIGHT)
    with pytest.raises(TooLargeError, match="max_pixels"):
        list(_loader(dataset, "box_masks", decoder=small, shuffle=False))
    with pytest.raises(ConfigError, match="masks"):
        _loader(dataset, "box_mask")


def test_mask_rcnn_trains_on_them(dataset: Path) -> None:
    """torchvision's Mask R-CNN takes boxes, labels and masks as targets, and its losses are finite."""
    backbone: Any = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8, padding=1), nn.ReLU())
    backbone.out_channels = 4
    pool = torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2)
    anchors = AnchorGenerator(sizes=((12,),), aspect_ratios=((1.0,),))
    model = MaskRCNN(
        backbone, 3, min_size=48, max_size=48, rpn_anchor_generator=anchors, box_roi_pool=pool, mask_roi_pool=pool
    )
    images, boxes, labels, masks = next(iter(_loader(dataset, "boxes", "box_labels", "box_masks")))
    targets = [{"boxes": b, "labels": n, "masks": m} for b, n, m in zip(boxes, labels, masks, strict=True)]
    losses = model([image / 255 for image in images], targets)
    assert "loss_mask" in losses
    assert all(bool(loss.isfinite()) for loss in losses.values())
