"""Masks, boxes and keypoints that follow the images through the transforms of a prefetcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812 - the usual name

import shardflow
from shardflow.device import prefetcher as module
from shardflow.device.transforms.rng import fold
from shardflow.errors import ConfigError
from tests.helpers.delayed_copy_stream import DelayedCopyStream
from tests.helpers.device import annotated_batch
from tests.helpers.examples import examples
from tests.helpers.making import jpeg, make_dataset, write_dataset
from tests.helpers.masks import resize_mask
from tests.helpers.scenes import write_scenes

CROP = shardflow.device.RandomResizedCrop(14, hflip=0.5)
FLIP = shardflow.device.RandomHorizontalFlip(0.5)
ERASING = shardflow.device.RandomErasing(0.7, mask_value=255)


def transformed(batch: dict[str, Any], transforms: list[Any]) -> dict[str, Any]:
    """Return the batch as a prefetcher hands it out."""
    (result,) = shardflow.device.Prefetcher([batch], "cpu", transforms)
    return dict(result)


@examples(40)
@given(
    count=st.integers(0, 6),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.integers(1, 50),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.uint8, torch.int32]),
)
def test_annotations_are_moved_as_torchvision_does(
    count: int, height: int, width: int, size: int, seed: int, dtype: torch.dtype
) -> None:
    """Given the parameters, masks are exact, boxes torchvision's within 1e-4; fields go with their boxes."""
    batch = annotated_batch(count, height, width, seed)
    batch["mask"] = batch["mask"].to(dtype) * (1 if dtype == torch.uint8 else 1000)
    crop = shardflow.device.RandomResizedCrop(size, hflip=0.5)
    result = transformed(batch, [crop, shardflow.device.ColorJitter(0.2), FLIP])
    keys = batch["random_key"]
    crops = crop.make_params(fold(keys, 0), height, width).int().tolist()
    flips = FLIP.make_params(fold(keys, 2), size, size).tolist()
    assert result["mask"].shape == (count, 1, size, size)
    for index, ((x, y, w, h, mirrored), again) in enumerate(zip(crops, flips, strict=True)):
        mask = batch["mask"][index]
        boxes = tv_tensors.BoundingBoxes(batch["boxes"][index], format="XYXY", canvas_size=(height, width))
        mask = resize_mask(mask[:, y : y + h, x : x + w], size, size)
        boxes = F.resized_crop(boxes, y, x, h, w, [size, size])
        if mirrored != again:
            mask, boxes = F.horizontal_flip(mask), F.horizontal_flip(boxes)
        assert torch.equal(result["mask"][index], mask)
        theirs = F.clamp_bounding_boxes(boxes).as_subclass(torch.Tensor)
        kept = torch.isin(batch["box_labels"][index], result["box_labels"][index])
        torch.testing.assert_close(result["boxes"][index], theirs[kept], rtol=0, atol=1e-4)
        sides = theirs[:, 2:] - theirs[:, :2]
        assert (sides[kept] > -1e-4).all()
        assert (sides[~kept].amin(1) < 1e-4).all()
        assert len(result["keypoints"][index]) == int(kept.sum())


def test_images_are_what_they_are_without_annotations() -> None:
    """Annotations change no pixel of the images, and keypoints move as a lit pixel does."""
    batch = annotated_batch(8, 30, 40)
    transforms = [CROP, shardflow.device.ColorJitter(0.4, 0.4), ERASING, FLIP]
    alone = transformed({name: batch[name] for name in ("image", "random_key")}, transforms)
    assert torch.equal(transformed(batch, transforms)["image"], alone["image"])
    lit = {**batch, "image": torch.zeros(8, 3, 30, 40, dtype=torch.uint8)}
    lit["image"][:, :, 10:20, 5:25] = 255
    lit["keypoints"] = [torch.tensor([[15.0, 15.0], [5.0, 10.0]])] * 8
    result = transformed(lit, [FLIP, shardflow.device.RandomResizedCrop(60, scale=(0.9, 1))])
    for image, (centre, corner) in zip(result["image"], result["keypoints"], strict=True):
        rows, columns = torch.nonzero(image[0] > 127).T
        torch.testing.assert_close(
            centre, torch.stack([columns.float().mean(), rows.float().mean()]) + 0.5, rtol=0, atol=0.6
        )
        assert abs(float(corner[0] - centre[0])) == pytest.approx(float(columns.max() - columns.min() + 1) / 2, abs=1)


def test_erasing_leaves_masks_or_fills_them() -> None:
    """Where the image is erased, the mask has `mask_value`; by default it stays, as with torchvision; boxes stay."""
    batch = annotated_batch(8, 20, 30)
    result = transformed(batch, [ERASING])
    erased = (shardflow.device.RandomErasing(0.7, value=1)(torch.zeros(8, 1, 20, 30), fold(batch["random_key"], 0))) > 0
    assert erased.any()
    assert torch.equal(result["mask"], torch.where(erased, 255, batch["mask"]).to(torch.uint8))
    assert all(torch.equal(*pair) for pair in zip(result["boxes"], batch["boxes"], strict=True))
    assert torch.equal(transformed(batch, [shardflow.device.RandomErasing(1)])["mask"], batch["mask"])
    with pytest.raises(ConfigError, match=r"uint8 .*255, found -100"):
        transformed(batch, [shardflow.device.RandomErasing(mask_value=-100)])


@pytest.mark.parametrize("pinned", [False, True])
def test_annotations_travel_with_a_copy_stream(pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through buffers that copy as late as they may, batches are those without; a crop sends three things over."""
    batches = [annotated_batch(count, 30, 300, seed=count) for count in (3, 5, 0, 4)]
    expected = list(shardflow.device.Prefetcher(batches, "cpu", [CROP, ERASING]))
    stream = DelayedCopyStream(pinned=pinned)
    monkeypatch.setattr(module, "copy_stream_for", lambda _: stream)
    torch.testing.assert_close(
        [*shardflow.device.Prefetcher(batches, "cpu", [CROP, ERASING])], expected, rtol=0, atol=0
    )
    copies = [kind for kind, _ in stream.log if kind == "copy"]
    assert len(copies) <= 3 * len(batches)  # images, masks, and all that is small


def test_images_of_a_list_are_transformed_one_by_one() -> None:
    """Images of different sizes come out as each would in a batch of its own, with what follows it."""
    sizes = ((20, 30), (30, 20), (25, 25), (20, 30))
    whole = [annotated_batch(4, *size) for size in sizes]
    listed = {
        name: [own[name][row] for row, own in enumerate(whole)] if name != "random_key" else whole[0][name]
        for name in whole[0]
    }
    transforms = [FLIP, shardflow.device.ColorJitter(0.3), CROP, ERASING, shardflow.device.Normalize()]
    result = transformed(listed, transforms)
    assert isinstance(result["image"], list)
    for row, own in enumerate(whole):
        expected = transformed(own, transforms)
        for name, column in result.items():
            torch.testing.assert_close(column[row], expected[name][row], rtol=0, atol=1e-5)


def test_a_loaders_declaration_and_rule_hold(tmp_path: Path) -> None:
    """Fields of a loader, or of a mix, are what its dataset declares, and boxes stay by the loader's rule."""
    write_scenes(tmp_path / "scenes", train=24, val=2)
    boxes = shardflow.annotations.Boxes("json", "boxes", "xyxy", fields={"labels": "labels"})
    declared = shardflow.annotations.Annotations(masks=("mask.png",), boxes=boxes)
    shardflow.pack(tmp_path / "scenes", tmp_path / "packed", annotations=declared, short_side=64, workers=1)
    kept = {}
    for least in (0.0, 0.9):
        options = {"batch_size": 24, "decoder": shardflow.decoders.CenterCrop(64, resize=64), "num_workers": 0}
        fields = ("box_labels", "mask", "image", "random_key", shardflow.annotations.CroppedBoxes(min_visibility=least))
        plain = shardflow.Loader(tmp_path / "packed", fields=fields, **options)
        mix = shardflow.Mix([(plain, 1)])
        ((labels, masks, images, boxes),) = shardflow.device.Prefetcher(
            mix, "cpu", [shardflow.device.RandomResizedCrop(48, scale=(0.2, 0.5)), FLIP]
        )
        assert images.shape[2:] == masks.shape[2:] == (48, 48)
        kept[least] = sum(map(len, boxes))
        for mask, own, numbers in zip(masks[:, 0], boxes, labels, strict=True):
            for (left, top, right, bottom), number in zip(own.tolist(), numbers.tolist(), strict=True):
                rows, columns = torch.nonzero(mask == number + 1).T
                inside = (columns > left - 2) & (columns < right + 1) & (rows > top - 2) & (rows < bottom + 1)
                assert inside.any() or min(right - left, bottom - top) < 8
    assert 0 < kept[0.9] < kept[0.0]


def test_flips_of_both_are_one_field(tmp_path: Path) -> None:
    """What the loader mirrored and the device mirrors again is not mirrored; a device's crop is not the loader's."""
    url = make_dataset(tmp_path / "set", [20])
    options: dict[str, Any] = {"batch_size": 20, "num_workers": 0, "decoder": shardflow.decoders.RandomResizedCrop(16)}
    fields = ("image", "flipped", "crop", "random_key")

    def load(*transforms: Any, **others: Any) -> Any:
        loader = shardflow.Loader(url, fields=fields, **{**options, **others})
        return next(iter(shardflow.device.Prefetcher(loader, "cpu", transforms)))

    (plain, before, crops), (images, after, same) = load(), load(FLIP, shardflow.device.ColorJitter(0), v2.Identity())
    assert 0 < (before ^ after).sum() < 20
    for one, other, is_turned in zip(plain, images, (before ^ after).tolist(), strict=True):
        assert torch.equal(one.flip(-1) if is_turned else one, other)
    assert torch.equal(crops, same)
    with pytest.raises(ConfigError, match=r"RandomResizedCrop.*'crop'"):
        load(CROP)
    views = shardflow.decoders.MultiView([options["decoder"]] * 2)
    with pytest.raises(ConfigError, match=r"flipped, crop .*2 views"):
        load(FLIP, decoder=views)
    assert len(load(ERASING, shardflow.device.Normalize(), decoder=views)[1]) == 2


def test_points_change_places_on_the_device(tmp_path: Path) -> None:
    """The points of a pair are exchanged where the loader or the device mirrors, and are as they were where both do."""
    content = {"k": [[1, 2], [11, 5], [3, 9]]}
    samples = [(f"{n}", {"jpg": jpeg(n, 16, 16), "json": json.dumps(content).encode()}) for n in range(24)]
    declared = shardflow.annotations.Annotations(
        keypoints=shardflow.annotations.Keypoints("json", "k", "xy", flip_pairs=((0, 1),))
    )
    url = write_dataset(tmp_path / "set", {"train": [samples]}, annotations=declared)
    decoder, sampler = shardflow.decoders.Cover(random=False), shardflow.samplers.AspectBuckets([(16, 16)])
    fields = ("image", "flipped", "keypoints", "random_key")
    loader = shardflow.Loader(url, batch_size=24, fields=fields, decoder=decoder, sampler=sampler, num_workers=0)
    _, flipped, found = next(iter(shardflow.device.Prefetcher(loader, "cpu", [FLIP])))
    assert 0 < flipped.sum() < 24
    for is_flipped, points in zip(flipped.tolist(), found, strict=True):
        assert points.tolist() == ([[5, 5], [15, 2], [13, 9]] if is_flipped else content["k"])


def test_points_of_a_mix_with_different_pairs_are_not_moved_on_the_device(tmp_path: Path) -> None:
    """Where the loaders of a mix declare other pairs of points, a batch does not say whose are to change places."""
    content = {"k": [[1, 2], [11, 5], [3, 9]]}
    loaders = []
    for number, pairs in enumerate((((0, 1),), ((1, 2),))):
        samples = [(f"{n}", {"jpg": jpeg(n, 16, 16), "json": json.dumps(content).encode()}) for n in range(8)]
        declared = shardflow.annotations.Annotations(
            keypoints=shardflow.annotations.Keypoints("json", "k", "xy", flip_pairs=pairs)
        )
        url = write_dataset(tmp_path / f"{number}", {"train": [samples]}, annotations=declared)
        decoder = shardflow.decoders.CenterCrop(16)
        fields = ("image", "keypoints", "random_key")
        loaders.append(shardflow.Loader(url, batch_size=8, fields=fields, decoder=decoder, num_workers=0))
    mix = shardflow.Mix([(loader, 1) for loader in loaders], by="batch")
    for transform in (FLIP, CROP):
        with pytest.raises(ConfigError, match=r"different flip_pairs.*'keypoints'"):
            shardflow.device.Prefetcher(mix, "cpu", [transform])
    assert len(list(shardflow.device.Prefetcher(mix, "cpu", [shardflow.device.Normalize()]))) == 2


def test_whether_images_are_mirrored_is_known_without_the_loader() -> None:
    """Batches of any iterable have the field "flipped" changed with their images, and no "crop" that is not theirs."""
    flipped = torch.arange(16) % 2 > 0
    batch = {"image": torch.arange(16 * 3 * 64, dtype=torch.uint8).view(16, 3, 8, 8), "flipped": flipped}
    batch["random_key"] = torch.arange(16)
    found = transformed({**batch}, [FLIP])
    is_turned = torch.stack([(one != other).any() for one, other in zip(found["image"], batch["image"], strict=True)])
    assert 0 < is_turned.sum() < 16
    assert torch.equal(found["flipped"], flipped ^ is_turned)
    with pytest.raises(ConfigError, match=r"RandomResizedCrop.*'crop'"):
        transformed({**batch, "crop": torch.zeros(16, 4)}, [CROP])


def test_what_cannot_follow_is_refused() -> None:
    """Mixing, views, masks of another size, boxes without their lists, and transforms that move images alone."""
    batch = annotated_batch(4, 20, 30)
    resize = v2.Resize((9, 9))
    for changed, transform, message in (
        ({}, shardflow.device.CutMix(), "CutMix mixes images and their labels, not mask, boxes, box_labels, keypoints"),
        ({"image": (batch["image"], batch["image"])}, FLIP, "mask, boxes, .* cannot follow 2 views"),
        ({"mask": batch["mask"][:, :, :19]}, FLIP, r"field 'mask' must be masks .* sizes, here 20 x 30; .*1, 19, 30"),
        (
            {"boxes": [each[:, [2, 3, 0, 1]] for each in batch["boxes"]]},
            FLIP,
            "'boxes' must be left, top, right, bottom",
        ),
        ({"pixel_mask": batch["mask"][:, 0] > 0}, FLIP, "moves the padding of images too, so pixel_mask would be"),
        ({}, v2.Compose([v2.ColorJitter(), v2.RandomHorizontalFlip()]), r"^RandomHorizontalFlip .*mask, boxes"),
        ({}, resize, r"Resize.* changed the size of the images, which mask, boxes, .* in batch_transform"),
    ):
        with pytest.raises(ConfigError, match=message):
            transformed({**batch, "label": torch.arange(4), **changed}, [transform])
    del batch["boxes"]
    with pytest.raises(ConfigError, match=r"box_labels, keypoints.*'boxes'"):
        transformed(batch, [CROP])
    assert transformed(batch, [shardflow.device.Normalize()])["mask"] is batch["mask"]
