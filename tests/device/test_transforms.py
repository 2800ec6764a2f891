from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812 - the usual name

import shardflow
from shardflow.device.transforms.color_jitter import jitter
from shardflow.device.transforms.random_resized_crop import crop_and_resize, random_boxes
from shardflow.device.transforms.rng import uniforms
from shardflow.errors import ConfigError
from tests.helpers.device import KEYED, MIXING, kolmogorov_smirnov, noise, random_keys

DRAWS = 4000


@pytest.mark.parametrize("transform", KEYED.values(), ids=KEYED)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_image_depends_on_its_own_key_alone(transform: Any, dtype: torch.dtype) -> None:
    """The same image with the same key comes out the same from any batch, and is not touched itself."""
    images, keys = F.to_dtype(noise(12), dtype, scale=True), random_keys(12)
    before, whole = images.clone(), transform(images, keys)
    assert torch.equal(images, before)
    parts = [transform(images[part], keys[part]) for part in (slice(0, 1), slice(1, 8), slice(8, 12))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6 if whole.is_floating_point() else 1)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        transform(images[shuffled], keys[shuffled]),
        whole[shuffled],
        rtol=0,
        atol=1e-6 if whole.is_floating_point() else 1,
    )


@pytest.mark.parametrize("transform", [transform for name, transform in KEYED.items() if name != "normalize"])
def test_parameters_differ_from_image_to_image(transform: Any) -> None:
    """Twenty copies of an image come out in several ways: parameters are drawn per image, not per batch."""
    outcomes = transform(noise(1).expand(20, -1, -1, -1), random_keys(20))
    assert len({outcome.numpy().tobytes() for outcome in outcomes}) >= 2
    assert outcomes.dtype == torch.uint8


@pytest.mark.parametrize("transform", KEYED.values(), ids=KEYED)
def test_a_batch_without_images_passes(transform: Any) -> None:
    """The empty batch of a short tail keeps its shape and dtype."""
    empty = transform(noise(0), random_keys(0))
    assert empty.shape[:2] == (0, 3)
    assert empty.dtype == transform(noise(1), random_keys(1)).dtype


@pytest.mark.parametrize("transform", KEYED.values(), ids=KEYED)
def test_transforms_compile_without_graph_breaks(transform: Any) -> None:
    """torch.compile takes each transform as one graph, with the same result."""
    images, keys = noise(4), random_keys(4)
    compiled = torch.compile(transform.__call__, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images, keys), transform(images, keys))


@pytest.mark.parametrize("transform", MIXING.values(), ids=MIXING)
def test_mixing_compiles_without_graph_breaks(transform: Any) -> None:
    """torch.compile takes each mixing transform as one graph."""
    given = noise(4), torch.arange(4), random_keys(4)
    compiled = torch.compile(transform.__call__, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), transform(*given))


@pytest.mark.parametrize(("height", "width", "size"), [(18, 23, 12), (40, 30, 9), (8, 8, 20)])
def test_crops_are_resized_as_torchvision_does(height: int, width: int, size: int) -> None:
    """A box is cropped and resized as by torchvision with antialias=True: floats within 1e-5, uint8 within one step."""
    images, keys = noise(30, height, width), random_keys(30)
    boxes = random_boxes(uniforms(keys, 22), height, width, (0.08, 1.0), (3 / 4, 4 / 3))
    flipped = torch.arange(30) % 2 == 1
    ours = crop_and_resize(images, boxes, size, flipped)
    ours_float = crop_and_resize(images / 255, boxes, size, flipped)
    for index, (x, y, w, h) in enumerate(boxes.int().tolist()):
        for image, result, tolerance in ((images[index], ours, 1), (images[index] / 255, ours_float, 1e-5)):
            theirs = F.resized_crop(image, y, x, h, w, [size, size], antialias=True)
            theirs = theirs.flip(-1) if flipped[index] else theirs
            torch.testing.assert_close(result[index], theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("height", "width", "scale"), [(64, 80, (0.08, 1.0)), (30, 200, (0.5, 1.0))])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int, scale: tuple[float, float]) -> None:
    """Place and size of the boxes are distributed as RandomResizedCrop draws them, the fallback included."""
    ours = random_boxes(uniforms(random_keys(DRAWS), 22), height, width, scale, (3 / 4, 4 / 3))
    torch.manual_seed(0)
    transform, image = v2.RandomResizedCrop(8, scale=scale), torch.empty(3, height, width)
    drawn = [transform.make_params([image]) for _ in range(DRAWS)]
    for column, name in enumerate(("left", "top", "width", "height")):
        theirs = torch.tensor([float(parameters[name]) for parameters in drawn])
        assert kolmogorov_smirnov(ours[:, column], theirs) < 2, name
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= width).all()
    assert (ours[:, 1] + ours[:, 3] <= height).all()


def test_colours_change_as_torchvisions_do() -> None:
    """Given factors and order, the colours are torchvision's for floating-point images, within 1e-5."""
    transform, images = shardflow.device.ColorJitter(0.4, 0.5, 0.6, 0.3), noise(24) / 255
    factors, order = transform.make_params(random_keys(24))
    ours = jitter(images, factors, order, hue=True)
    adjust: list[Callable[..., Any]] = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for index in range(24):
        theirs = images[index]
        for number in order[index].tolist():
            theirs = adjust[number](theirs, float(factors[index, number]))
        torch.testing.assert_close(ours[index], theirs, rtol=0, atol=1e-5)


def test_greys_have_no_hue_to_turn() -> None:
    """Grey pixels, black and white among them, stay as they are when only the hue is turned."""
    greys = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    assert torch.equal(shardflow.device.ColorJitter(hue=0.5)(greys, random_keys(256)), greys)


def test_colour_factors_are_distributed_as_torchvisions() -> None:
    """Factors are distributed as ColorJitter draws them, and all 24 orders are equally likely."""
    factors, order = shardflow.device.ColorJitter(0.4, 1.5, 0.2, 0.3).make_params(random_keys(DRAWS))
    torch.manual_seed(0)
    transform = v2.ColorJitter(0.4, 1.5, 0.2, 0.3)
    drawn = [transform.make_params([]) for _ in range(DRAWS)]
    for column, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        theirs = torch.tensor([parameters[f"{name}_factor"] for parameters in drawn])
        assert kolmogorov_smirnov(factors[:, column], theirs) < 2, name
    orders, counts = order.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert float(((counts - DRAWS / 24) ** 2 / (DRAWS / 24)).sum()) < 50  # chi squared, 23 degrees of freedom


def test_erased_boxes_are_distributed_as_torchvisions() -> None:
    """The erased boxes, and whether there are any, are distributed as RandomErasing draws them."""
    ours = shardflow.device.RandomErasing(0.6).make_params(random_keys(DRAWS), 64, 48)
    erased = ours[:, 2] > 0
    assert float(erased.float().mean()) == pytest.approx(0.6, abs=0.03)
    torch.manual_seed(0)
    transform, image = v2.RandomErasing(1.0), torch.empty(3, 64, 48)
    drawn = [transform.make_params([image]) for _ in range(DRAWS)]
    for column, name in enumerate("jiwh"):
        theirs = torch.tensor([float(parameters[name]) for parameters in drawn])
        assert kolmogorov_smirnov(ours[erased, column], theirs) < 2, name


def test_erasing_sets_exactly_the_box() -> None:
    """The box has the value and all around it stays, as torchvision's `erase` has it."""
    transform, images, keys = shardflow.device.RandomErasing(0.8, value=7), noise(20), random_keys(20)
    ours = transform(images, keys)
    for index, (x, y, w, h) in enumerate(transform.make_params(keys, 18, 23).int().tolist()):
        theirs = F.erase(images[index], y, x, h, w, torch.tensor(7, dtype=torch.uint8)) if w else images[index]
        assert torch.equal(ours[index], theirs)


def test_flips_have_probability_p() -> None:
    """Of many images the share `p` is mirrored, and none or all at the ends."""
    images, keys = noise(1, 1, 2).expand(DRAWS, -1, -1, -1), random_keys(DRAWS)
    for p in (0.0, 0.3, 1.0):
        mirrored = shardflow.device.RandomHorizontalFlip(p)(images, keys)[:, 0, 0, 0] != images[0, 0, 0, 0]
        assert float(mirrored.float().mean()) == pytest.approx(p, abs=0.03 if p == 0.3 else 0)


def test_normalising_is_torchvisions() -> None:
    """uint8 and float images are normalised as torchvision normalises floats."""
    images = noise(3)
    theirs = F.normalize(images / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(shardflow.device.Normalize()(images), theirs)
    assert shardflow.device.Normalize()((images / 255).bfloat16()).dtype == torch.bfloat16


def test_mixup_is_torchvisions() -> None:
    """Given the share, images and soft targets are torchvision's."""
    images, labels, keys = noise(6) / 255, torch.tensor([0, 1, 2, 3, 4, 4]), random_keys(6)
    ours, soft_targets = shardflow.device.MixUp(num_classes=5)(images, labels, keys)
    _, targets = shardflow.device.MixUp()(images, labels, keys)
    assert isinstance(targets, shardflow.device.MixedTargets)
    assert len(targets.weight.unique()) == 1
    weight = float(targets.weight[0])
    torch.testing.assert_close(ours, images.roll(1, 0) * (1 - weight) + images * weight)
    transform = v2.MixUp(num_classes=5)
    transform.make_params = lambda _: {"lam": weight}
    theirs, their_targets = transform(images, labels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(soft_targets, their_targets)


def test_smoothed_targets_are_those_of_the_loss() -> None:
    """Soft targets with label smoothing give the loss that PyTorch's gives for both labels, weighted."""
    images, labels, keys = noise(6) / 255, torch.tensor([0, 1, 2, 3, 4, 4]), random_keys(6)
    _, soft_targets = shardflow.device.CutMix(num_classes=5, label_smoothing=0.1, per_pair=True)(images, labels, keys)
    _, targets = shardflow.device.CutMix(per_pair=True)(images, labels, keys)
    assert isinstance(targets, shardflow.device.MixedTargets)
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    losses = [
        torch.nn.functional.cross_entropy(logits, each, label_smoothing=0.1, reduction="none")
        for each in (targets.first, targets.second)
    ]
    expected = targets.weight * losses[0] + (1 - targets.weight) * losses[1]
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, soft_targets, reduction="none"), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_labels_of_several_classes_are_mixed(dtype: torch.dtype) -> None:
    """A row of classes becomes the weighted sum of two rows; smoothing and another number of classes are refused."""
    images, keys = noise(4) / 255, random_keys(4)
    labels = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1]], dtype=dtype)
    _, found = shardflow.device.MixUp(per_pair=True)(images, labels, keys)
    assert isinstance(found, torch.Tensor)
    _, shares = shardflow.device.MixUp(per_pair=True)(images, torch.arange(4), keys)
    assert isinstance(shares, shardflow.device.MixedTargets)
    weight, rows = shares.weight[:, None], labels.float()
    torch.testing.assert_close(found, weight * rows + (1 - weight) * rows.roll(1, 0))
    for transform in (
        shardflow.device.MixUp(num_classes=4),
        shardflow.device.MixUp(num_classes=3, label_smoothing=0.1),
    ):
        with pytest.raises(ConfigError, match="several classes"):
            transform(images, labels, keys)
    with pytest.raises(ConfigError, match="label_smoothing needs num_classes"):
        shardflow.device.CutMix(label_smoothing=0.1)


def test_labels_that_are_no_classes_are_refused() -> None:
    """Numbers of classes in a column, which look like one class of several, and targets that were mixed already."""
    images, keys = torch.rand(4, 3, 8, 8), torch.arange(4)
    mixup = shardflow.device.MixUp()
    _, mixed = mixup(images, torch.arange(4), keys)
    for labels in (torch.arange(4)[:, None], mixed):
        with pytest.raises(ConfigError, match="expected labels"):
            mixup(images, labels, keys)  # type: ignore[arg-type]


def test_cutmix_pastes_one_box_of_the_neighbour() -> None:
    """Each pixel is the image's or its neighbour's, the latter form a box, and the target's weight is its share."""
    images, labels, keys = noise(40, 20, 30), torch.arange(40), random_keys(40)
    mixed, targets = shardflow.device.CutMix(per_pair=True)(images, labels, keys)
    assert isinstance(targets, shardflow.device.MixedTargets)
    assert torch.equal(targets.first, labels)
    assert torch.equal(targets.second, labels.roll(1))
    pasted = (mixed != images).any(1)
    assert torch.equal(mixed, torch.where(pasted[:, None], images.roll(1, 0), images))
    assert len(targets.weight.unique()) > 20
    for mask, weight in zip(pasted, targets.weight.tolist(), strict=True):
        rows, columns = mask.any(1), mask.any(0)
        assert 1 - float(mask.float().mean()) == pytest.approx(weight, abs=0.01)  # noise may equal its neighbour
        assert float(mask[rows][:, columns].float().mean()) > 0.98 or not mask.any()


def test_cut_shares_are_distributed_as_torchvisions() -> None:
    """The share that is kept is distributed as CutMix draws it."""
    _, targets = shardflow.device.CutMix(per_pair=True)(
        torch.zeros(DRAWS, 1, 32, 48), torch.zeros(DRAWS, dtype=torch.int64), random_keys(DRAWS)
    )
    assert isinstance(targets, shardflow.device.MixedTargets)
    torch.manual_seed(0)
    transform, images = v2.CutMix(num_classes=2), torch.empty(1, 1, 32, 48)
    theirs = torch.tensor([transform.make_params([images])["lam_adjusted"] for _ in range(DRAWS)])
    assert kolmogorov_smirnov(targets.weight, theirs) < 2


def test_one_of_chooses_each_transform_equally_often() -> None:
    """Over many batches, each transform is chosen half of the time, and mixes as it does alone."""
    transforms = [shardflow.device.MixUp(num_classes=4), shardflow.device.CutMix(num_classes=4)]
    images, labels = noise(4), torch.arange(4)
    chosen = []
    for seed in range(100):
        keys = random_keys(4, seed)
        mixed, _ = shardflow.device.OneOf(transforms)(images, labels, keys)
        chosen.append([torch.equal(mixed, transform(images, labels, keys)[0]) for transform in transforms].index(True))
    assert 35 < sum(chosen) < 65


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shardflow.device.RandomHorizontalFlip(1.5), r"p must be 0 … 1, found 1\.5"),
        (lambda: shardflow.device.RandomResizedCrop(0), "size must be 1 or more"),
        (
            lambda: shardflow.device.RandomResizedCrop(scale=(0.5, 2)),
            r"scale must be a range \(low, high\) within \(0, 1\]",
        ),
        (lambda: shardflow.device.RandomResizedCrop(scale=(0, 1)), "scale must be a range"),
        (lambda: shardflow.device.RandomResizedCrop(ratio=(2, 1)), r"ratio must be a range \(low, high\) above 0"),
        (lambda: shardflow.device.ColorJitter(-1), "brightness must be 0 or more"),
        (lambda: shardflow.device.ColorJitter(hue=0.6), r"hue must be 0 … 0\.5, found 0\.6"),
        (
            lambda: shardflow.device.RandomErasing(scale=(0.5, 0.1)),
            r"scale must be a range \(low, high\) within \[0, 1\]",
        ),
        (lambda: shardflow.device.RandomErasing(ratio=(0, 1)), "ratio must be a range"),
        (lambda: shardflow.device.MixUp(alpha=0), "alpha must be above 0"),
        (lambda: shardflow.device.CutMix(num_classes=0), "num_classes must be 1 or more"),
        (lambda: shardflow.device.OneOf([]), "OneOf takes one or more transforms"),
        (lambda: shardflow.device.OneOf(5), "OneOf takes MixUp and CutMix"),
        (lambda: shardflow.device.MixUp(alpha="a"), "alpha must be above 0"),
        (lambda: shardflow.device.Normalize("a"), "mean and std must be numbers"),
        (lambda: shardflow.device.RandomResizedCrop(scale=("a", 1)), r"scale must be a range \(low, high\)"),
        (lambda: shardflow.device.OneOf([shardflow.device.Normalize()]), "OneOf takes MixUp and CutMix"),
        (lambda: shardflow.device.RandomResizedCrop(2.5), "size must be a whole number"),
        (lambda: shardflow.device.RandomResizedCrop(ratio=(1, math.inf)), "ratio must be a range"),
        (lambda: shardflow.device.ColorJitter(math.nan), "brightness must be 0 or more"),
        (lambda: shardflow.device.ColorJitter((0.5, 1.5)), "brightness must be 0 or more"),
        (lambda: shardflow.device.ColorJitter(hue=(-0.1, 0.1)), "hue must be 0"),
        (lambda: shardflow.device.RandomResizedCrop((224, 200)), "size must be a whole number"),
        (lambda: shardflow.device.RandomResizedCrop(scale=0.5), r"scale must be a range \(low, high\), found 0\.5"),
        (lambda: shardflow.device.MixUp(alpha=math.inf), "alpha must be above 0"),
        (lambda: shardflow.device.RandomErasing(value="random"), "value must be one number"),
        (lambda: shardflow.device.Normalize([0.5], [0.5, 0.5]), "mean and std must have the same length"),
        (lambda: shardflow.device.Normalize([0.5] * 3, [0, 1, 1]), "std be above 0"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    """A value out of its range is an error that names the range."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_unsuitable_images_are_refused() -> None:
    """Channels without statistics or colours, and values that the dtype lacks, are errors and not other pixels."""
    keys, images = torch.arange(2), torch.full((2, 1, 4, 4), 200, dtype=torch.uint8)
    for transform, message in (
        (shardflow.device.Normalize(), "Normalize has 3 means, but the images have 1 channels"),
        (shardflow.device.ColorJitter(0.4), "RGB images, found 1 channels"),
        (shardflow.device.RandomErasing(1, value=-1), "needs a value of 0 … 255, found -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            transform(images, keys)


def test_one_number_normalizes_all_channels() -> None:
    """One mean and one deviation are those of every channel, as torchvision has it."""
    images = torch.rand(2, 4, 5, 5)
    expected = v2.functional.normalize(images, [0.5], [0.25])
    for mean, std in (([0.5], [0.25]), (0.5, 0.25)):
        torch.testing.assert_close(shardflow.device.Normalize(mean, std)(images), expected)
