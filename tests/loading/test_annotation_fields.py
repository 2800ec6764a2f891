from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812 - as torchvision's own code names it

import shardflow
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.geometry.crops import Crops
from shardflow.loading.annotation_fields import AnnotationFields
from tests.helpers import making
from tests.helpers.examples import examples
from tests.helpers.making import jpeg, write_dataset
from tests.helpers.masks import centres, resize_mask

with_keypoints = pytest.mark.skipif(
    not hasattr(tv_tensors, "KeyPoints"), reason="torchvision moves keypoints as of 0.23"
)

sanitizes_beside_masks = pytest.mark.skipif(
    Version(torchvision.__version__) < Version("0.25"),
    reason="before torchvision 0.25 SanitizeBoundingBoxes takes any mask for one per box",
)

MASK, FIELDS = "mask.png", ("mask", "boxes", "box_labels", "box_area", "keypoints")
DECLARED = Annotations(
    masks=(MASK,),
    boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels", "area": "area:float"}),
    keypoints=Keypoints("json", "keypoints[]", "xyv"),
)
CROP = shardflow.decoders.RandomResizedCrop(24)


def png(values: np.ndarray[Any, Any], mode: str | None = None) -> bytes:
    """Return a PNG of these values, in a mode of Pillow."""
    buffer = io.BytesIO()
    image = Image.fromarray(values)
    (image if mode is None else image.convert(mode)).save(buffer, "PNG")
    return buffer.getvalue()


def mask(width: int, height: int) -> np.ndarray[Any, Any]:
    """Values that tell the place of a pixel."""
    y, x = np.mgrid[:height, :width]
    return ((7 * x + 31 * y) % 251).astype(np.uint8)


def annotations(boxes: Sequence[Sequence[float]], keypoints: Any = None) -> bytes:
    """Return a JSON of boxes, with keypoints in two of their corners unless others are given."""
    points = [[[box[0], box[1], 2], [box[2], box[3], 1]] for box in boxes] if keypoints is None else keypoints
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in boxes]
    content = {"boxes": boxes, "labels": [*range(len(boxes))], "area": areas, "keypoints": points}
    return json.dumps(content).encode()


def sample(number: int) -> making.Sample:
    """A sample with as many boxes as its number says, modulo 4."""
    width, height = 40 + number % 5, 30 + number % 7
    rng = np.random.default_rng(number)
    corners = np.sort(rng.uniform(0, (width, height), (number % 4, 2, 2)), axis=1)
    parts = {"jpg": jpeg(number, width, height), MASK: png(mask(width, height)), "cls": b"0"}
    return f"{number:04}", {**parts, "json": annotations(corners.reshape(-1, 4).round(3).tolist())}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty samples with masks, boxes and keypoints, in two shards."""
    samples = [sample(number) for number in range(30)]
    root = tmp_path_factory.mktemp("data") / "set"
    return write_dataset(root, {"train": [samples[:20], samples[20:]]}, classes=("only",), annotations=DECLARED)


def loader(url: Path, *fields: Any, **options: Any) -> shardflow.Loader:
    """A loader of small crops in this process, with the image and these fields."""
    options = {"batch_size": 6, "decoder": CROP, "num_workers": 0, **options}
    return shardflow.Loader(url, fields=("image", *fields), **options)


def test_a_batch_has_crops_of_everything(dataset: Path) -> None:
    """Masks come as a tensor, boxes, their fields and keypoints as lists with a tensor for each sample."""
    images, masks, boxes, labels, areas, keypoints, label = next(iter(loader(dataset, *FIELDS, "label")))
    assert tuple(images.shape) == (6, 3, 24, 24)
    assert (tuple(masks.shape), masks.dtype, len(label)) == ((6, 1, 24, 24), torch.uint8, 6)
    assert len(boxes) == len(labels) == len(areas) == len(keypoints) == 6
    for box, number, area, points in zip(boxes, labels, areas, keypoints, strict=True):
        assert (box.dtype, number.dtype, area.dtype, points.dtype) == (torch.float32, torch.int64, *[torch.float32] * 2)
        assert box.shape == (len(number), 4)
        assert len(area) == len(points) == len(number)
        assert points.shape[2] == 3


sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
corner = st.floats(-20, 60, width=32)
rectangle = st.tuples(corner, corner, corner, corner)


@st.composite
def any_views(draw: st.DrawFn) -> list[Crops]:
    """Draw some views of an image of any size."""
    return draw(st.lists(any_crops(draw(sizes)), min_size=1, max_size=3))


@st.composite
def any_crops(draw: st.DrawFn, source: tuple[int, int]) -> Crops:
    """Draw any box of an image, resized to any size, with any part of it, mirrored or not."""
    resized = draw(sizes)
    left, top = (draw(st.integers(0, side - 1)) for side in source)
    box = [left, top, draw(st.integers(1, source[0] - left)), draw(st.integers(1, source[1] - top))]
    window = [draw(st.integers(0, side - 1)) for side in resized]
    size = [draw(st.integers(1, side - start)) for side, start in zip(resized, window, strict=True)]
    return Crops.of(
        [source], box=[box], resized=resized, offset=window, flip=[draw(st.booleans())], size=(size[0], size[1])
    )


def reference(crops: Crops, index: int, value: Any) -> Any:
    """Return a tv_tensor as torchvision's functionals crop, resize, crop and flip it."""
    x, y, width, height = crops.box[index].tolist()
    to_width, to_height = crops.resized[index].tolist()
    left, top = crops.offset[index].tolist()
    if isinstance(value, tv_tensors.Mask):
        cropped = _plain(value)[..., y : y + height, x : x + width]
        resized = tv_tensors.Mask(resize_mask(cropped, to_height, to_width))
    else:
        resized = F.resized_crop(value, y, x, height, width, size=[to_height, to_width])
    window_width, window_height = crops.extents[index].tolist()
    window = F.crop(resized, top, left, window_height, window_width)
    if crops.flip[index] and isinstance(value, tv_tensors.KeyPoints):
        # torchvision flips boxes at the middle of the image, and keypoints half a pixel beside it, at W - 1 - x.
        return torch.tensor([window_width, 0]) + _plain(window) * torch.tensor([-1, 1])
    return F.horizontal_flip(window) if crops.flip[index] else window


@examples(300)
@given(st.integers(1, 300), st.integers(1, 300))
def test_masks_are_resized_as_nearest_exact(source: int, size: int) -> None:
    """A resized mask is that of NEAREST_EXACT, which rounds a centre between two pixels either way."""
    mask = np.arange(source, dtype=np.float32)[None]
    crops = Crops.of([(source, 1)], resized=(size, 1), size=(size, 1))
    found = crops.crop_mask(0, mask)[0]
    theirs = F.resize(torch.from_numpy(mask)[None], [1, size], interpolation=v2.InterpolationMode.NEAREST_EXACT)[0, 0]
    for one, other, centre in zip(found.tolist(), theirs.tolist(), centres(source, size), strict=True):
        assert one == math.floor(centre)
        assert other == one or centre == one == other + 1


@with_keypoints
@examples(150)
@given(any_views(), st.lists(rectangle, max_size=4), st.sampled_from(["L", "1", "P", "I;16", "RGB"]))
def test_annotations_equal_torchvisions_functionals(
    views: list[Crops], rectangles: list[tuple[float, ...]], mode: str
) -> None:
    """Masks are exactly those of torchvision, boxes and keypoints to 1e-4, for any crop, size, flip, view and mask."""
    width, height = views[0].source[0].tolist()
    boxes = [[min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in rectangles]
    values = mask(width, height).astype(np.uint16) * 257 if mode == "I;16" else mask(width, height)
    parts = {MASK: png(values, None if mode == "I;16" else mode), "json": annotations(boxes)}
    fields = AnnotationFields(FIELDS, DECLARED, shardflow.annotations.CroppedBoxes(min_visibility=None))
    some = Sample({part: memoryview(data) for part, data in parts.items()}, (width, height), 0, 0, "", "")
    annotated = fields.of_views([fields.read(some, views, 0, 10**6)], views)
    assert len(annotated) == len(views)
    whole = torch.from_numpy(np.array(Image.open(io.BytesIO(parts[MASK]))).astype(np.int32))
    whole = whole.permute(2, 0, 1) if whole.dim() == 3 else whole[None]
    canvas = {"canvas_size": (height, width)}
    corners = tv_tensors.BoundingBoxes(torch.tensor(boxes).view(-1, 4), format="XYXY", **canvas)  # type: ignore[call-overload]
    points = tv_tensors.KeyPoints(torch.tensor(boxes).view(-1, 2, 2), **canvas)  # type: ignore[call-overload]
    for crops, found in zip(views, annotated, strict=True):
        (own,) = found["mask"]
        assert torch.equal(own, reference(crops, 0, tv_tensors.Mask(whole)).to(own.dtype))
        assert own.dtype == (torch.int32 if mode == "I;16" else torch.uint8)
        torch.testing.assert_close(found["boxes"][0], _plain(reference(crops, 0, corners)), atol=1e-4, rtol=1e-5)
        moved = found["keypoints"][0][..., :2] if boxes else torch.zeros(0, 2, 2)
        torch.testing.assert_close(moved, _plain(reference(crops, 0, points)), atol=1e-4, rtol=1e-5)


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(torch.Tensor)


DECODERS = [
    CROP,
    shardflow.decoders.CenterCrop(20, resize=25),
    shardflow.decoders.Cover(),
    shardflow.decoders.Image(),
]


@with_keypoints
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: type(decoder).__name__)
def test_fields_follow_the_crops_of_every_decoder(dataset: Path, decoder: Any) -> None:
    """Masks, boxes and keypoints of a batch are those of torchvision, given the crops of the images' decoder."""
    size = v2.Resize((16, 16), interpolation=v2.InterpolationMode.NEAREST)
    transform = size if isinstance(decoder, shardflow.decoders.Image) else None
    buckets = shardflow.samplers.AspectBuckets([(20, 24), (24, 20)])
    is_bucketed = isinstance(decoder, shardflow.decoders.Cover)
    options = {"decoder": decoder, "transform": transform, "sampler": buckets if is_bucketed else None}
    some = loader(dataset, "random_key", "index", *FIELDS, **options)
    for _, keys, numbers, masks, boxes, *_ in some:
        for key, number, found, found_boxes in zip(keys, numbers.tolist(), masks, boxes, strict=True):
            parts = sample(number)[1]
            image = Image.open(io.BytesIO(parts["jpg"]))
            sizes = np.array([image.size])
            shape = buckets.shapes[buckets.buckets(sizes)[0]] if is_bucketed else None
            crops = decoder.plan(0, shape, sizes, key.view(1).numpy().view(np.uint64))
            expected = reference(crops, 0, tv_tensors.Mask(torch.from_numpy(mask(*image.size))[None]))
            corners = torch.tensor(json.loads(parts["json"])["boxes"], dtype=torch.float32).view(-1, 4)
            right = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=image.size[::-1])  # type: ignore[call-overload]
            right = reference(crops, 0, right)
            if transform is not None:
                expected, right = transform(expected), transform(right)
            assert torch.equal(found, _plain(expected))
            kept = (right[:, 2] > right[:, 0]) & (right[:, 3] > right[:, 1])
            torch.testing.assert_close(found_boxes, _plain(right)[kept], atol=1e-4, rtol=1e-5)


VIEWS = shardflow.decoders.MultiView([CROP, shardflow.decoders.CenterCrop(20), shardflow.decoders.RandomResizedCrop(9)])


def test_each_view_has_its_annotations(dataset: Path) -> None:
    """A field is a tuple with one for each view: that of view v follows the crop which its image has, also in order."""
    some = loader(dataset, "random_key", "index", *FIELDS, decoder=VIEWS)
    for images, keys, numbers, masks, boxes, labels, areas, points in some:
        assert len(images) == len(masks) == len(boxes) == len(labels) == len(areas) == len(points) == 3
        for row, number in enumerate(numbers.tolist()):
            parts = sample(number)[1]
            size = Image.open(io.BytesIO(parts["jpg"])).size
            crops = VIEWS.plan(0, None, np.array([size]), keys[row : row + 1].numpy().view(np.uint64))
            expected = AnnotationFields(FIELDS, DECLARED, shardflow.annotations.CroppedBoxes())
            whole = Sample({part: memoryview(data) for part, data in parts.items()}, size, 0, 0, "", "")
            for view, crop in enumerate(crops):
                (alone,) = expected.of_views([expected.read(whole, [crop], 0, 10**6)], [crop])
                found = (masks[view], boxes[view], labels[view], areas[view], points[view])
                for field, column in zip(FIELDS, found, strict=True):
                    assert torch.equal(column[row], alone[field][0])


@with_keypoints
def test_views_are_transformed_with_their_annotations(dataset: Path) -> None:
    """Each view has the transform of its number, which gets and returns a dict; `explain` shows the same."""
    mirror = v2.RandomHorizontalFlip(1)
    plain, mirrored = (
        loader(dataset, *FIELDS, "index", decoder=VIEWS, transform=transform, shuffle=False)
        for transform in (None, [None, mirror, None])
    )
    ours, theirs = next(iter(mirrored)), next(iter(plain))
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert all(torch.equal(a, b) for view in (0, 2) for a, b in zip(one[view], other[view], strict=True))
    assert torch.equal(ours[1][1], theirs[1][1].flip(-1))
    for one, other in zip(ours[2][1], theirs[2][1], strict=True):
        assert torch.equal(one[:, [2, 0]], 20 - other[:, [0, 2]])
    explained = mirrored.explain(3)
    assert explained is not None
    for view, found in enumerate(explained.annotations):
        assert all(torch.equal(found[field], ours[at + 1][view][3]) for at, field in enumerate(FIELDS))


@pytest.mark.parametrize(("padding", "dtype"), [(None, torch.uint8), (0, torch.uint8), (-100, torch.int32)])
def test_masks_are_padded_and_listed_as_the_images_are(dataset: Path, padding: int | None, dtype: torch.dtype) -> None:
    """Masks of whole images have the shape of the batch, with the value to ignore beyond the image; or are a list."""
    options = {} if padding is None else {"mask_padding": padding}
    padded = shardflow.decoders.Image(pad_to_multiple_of=16, **options)
    images, masks, pixels, sizes = next(iter(loader(dataset, "mask", "pixel_mask", "image_size", decoder=padded)))
    assert (masks.shape[-2:], masks.shape[1], masks.dtype) == (images.shape[-2:], 1, dtype)
    for found, inside, (height, width) in zip(masks[:, 0], pixels, sizes.tolist(), strict=True):
        assert torch.equal(found[inside].view(height, width), torch.from_numpy(mask(width, height)).to(dtype))
        assert (found[~inside] == (255 if padding is None else padding)).all()
    images, masks = next(iter(loader(dataset, "mask", decoder=shardflow.decoders.Image(stack=False))))
    assert [image.shape[1:] for image in images] == [found.shape[1:] for found in masks]


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_send_the_same_batches(dataset: Path, context: str) -> None:
    """Batches with lists of any length arrive from other processes as they are made in this one."""
    workers = shardflow.Workers(2 if context == "fork" else 1, multiprocessing_context=context)
    options = {"tail": "pad", "num_workers": workers}
    through = loader(dataset, *FIELDS, "valid", batch_size=7, **options)
    direct = loader(dataset, *FIELDS, "valid", batch_size=7, tail="pad")
    for batch, expected in zip(through, direct, strict=True):
        for column, right in zip(batch, expected, strict=True):
            assert len(column) == len(right) == 7
            assert all(torch.equal(one, other) for one, other in zip(column, right, strict=True))


BOXES = [[0, 0, 10, 10], [18, 0, 28, 10], [19, 19, 21, 21], [20, 0, 30, 10], [5, 5, 5, 9]]


@pytest.mark.parametrize(
    ("least", "kept"),
    [(0.0, [0, 1, 2]), (0.2, [0, 1, 2]), (0.21, [0, 2]), (0.25, [0, 2]), (1.0, [0]), (None, [0, 1, 2, 3, 4])],
)
def test_boxes_stay_with_enough_of_their_area(tmp_path: Path, least: float | None, kept: list[int]) -> None:
    """A box stays if this share of its area is within the crop; its fields and its keypoints go with it."""
    parts = {"jpg": jpeg(1, 40, 20), "json": annotations(BOXES)}
    url = write_dataset(tmp_path / "set", {"train": [[("one", parts)]]}, annotations=DECLARED)
    left = shardflow.decoders.CenterCrop(20, resize=20)
    left.plan = _left_half  # type: ignore[method-assign]
    rule = shardflow.annotations.CroppedBoxes(min_visibility=least)
    options = {"decoder": left, "batch_size": 1}
    (_, boxes, labels, keypoints), *_ = loader(url, rule, "box_labels", "keypoints", **options)
    assert labels[0].tolist() == kept
    assert len(boxes[0]) == len(keypoints[0]) == len(kept)
    assert boxes[0].max() <= 20
    if least == 0.0:
        (_, labels, keypoints), *_ = loader(url, "box_labels", "keypoints", **options)
        assert (labels[0].tolist(), len(keypoints[0])) == (kept, 3)


def crowded(root: Path, boxes: Any, *, declares: bool = True, points: str = "keypoints[]") -> Path:
    """A dataset of six equal samples with a crowd among their boxes; it may declare no crowds."""
    content = {"boxes": boxes, "labels": [7, 8, 9], "iscrowd": [0, 1, 0], "points": [[1, 2]]}
    content["keypoints"] = [[box[:2]] for box in boxes]
    parts = {"jpg": jpeg(1, 40, 20), "json": json.dumps(content).encode()}
    fields = {"labels": "labels"} | ({"iscrowd": "iscrowd"} if declares else {})
    declared = Annotations(
        boxes=Boxes("json", "boxes", "xyxy", fields=fields), keypoints=Keypoints("json", points, "xy")
    )
    return write_dataset(root, {"train": [[(f"{n}", parts) for n in range(6)]]}, annotations=declared)


THREE = [[1, 1, 5, 5], [0, 0, 40, 20], [6, 6, 9, 9]]


@pytest.mark.parametrize(
    "fields",
    [("boxes", "box_labels", "keypoints"), ("box_labels",), ("keypoints",), ("boxes",), ("keypoints", "boxes")],
)
def test_crowds_are_left_out(tmp_path: Path, fields: tuple[str, ...]) -> None:
    """A crowd's box is not an object: it is left out with all that belongs to it, whichever fields are asked for."""
    url = crowded(tmp_path / "set", THREE)
    _, *columns = next(iter(loader(url, *fields, decoder=shardflow.decoders.Image())))
    expected = {"boxes": THREE[::2], "box_labels": [7, 9], "keypoints": [[box[:2]] for box in THREE[::2]]}
    for field, column in zip(fields, columns, strict=True):
        assert [each.tolist() for each in column] == [expected[field]] * 6


def test_crowds_on_request(tmp_path: Path) -> None:
    """With crowds=True their boxes come, and a field says which they are; without, that field is refused."""
    url = crowded(tmp_path / "set", THREE, points="points")
    options = {"decoder": shardflow.decoders.Image()}
    rule = shardflow.annotations.CroppedBoxes(crowds=True)
    _, boxes, crowds, points = next(iter(loader(url, rule, "box_iscrowd", "keypoints", **options)))
    assert (boxes[0].tolist(), crowds[0].tolist(), points[0].tolist()) == (THREE, [0, 1, 0], [[1, 2]])
    _, boxes, points = next(iter(loader(url, "boxes", "keypoints", **options)))
    assert (boxes[0].tolist(), points[0].tolist()) == (THREE[::2], [[1, 2]])  # points of the sample stay
    with pytest.raises(ConfigError, match=r"box_iscrowd.*crowds=True"):
        loader(url, "boxes", "box_iscrowd", **options)
    with pytest.raises(ConfigError, match="crowds"):
        shardflow.annotations.CroppedBoxes(crowds=1)  # type: ignore[arg-type]
    other = crowded(tmp_path / "other", THREE, declares=False)
    mix = shardflow.Mix([(loader(each, "boxes", **options), 1) for each in (url, other)])
    assert {len(each) for each in next(iter(mix))[1]} == {2, 3}


def test_points_of_the_sample_stay_whatever_boxes_do(tmp_path: Path) -> None:
    """Keypoints that belong to no box are all there, also where boxes are dropped."""
    content = json.dumps({"boxes": [[1, 1, 5, 5], [30, 2, 38, 9]], "points": [[2, 2], [35, 5], [36, 6]]}).encode()
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy"), keypoints=Keypoints("json", "points", "xy"))
    samples = [("0", {"jpg": jpeg(0, 40, 20), "json": content})]
    root = write_dataset(tmp_path / "set", {"train": [samples]}, annotations=declared)
    left = shardflow.decoders.CenterCrop(20, resize=20)
    left.plan = _left_half  # type: ignore[method-assign]
    ((_, (boxes,), (points,)),) = loader(root, "boxes", "keypoints", batch_size=1, decoder=left)
    assert len(boxes) == 1
    assert points.tolist() == [[2, 2], [35, 5], [36, 6]]


def _left_half(epoch: int, shape: Any, sizes: Any, keys: Any) -> Crops:  # noqa: ARG001 - as a decoder's plan is called
    return Crops.of(sizes, box=[(0, 0, 20, height) for _, height in sizes], resized=(20, 20), size=(20, 20))


@pytest.mark.parametrize("per_box", [True, False])
@pytest.mark.parametrize("shape", ["xy", "xyv"])
def test_left_and_right_points_change_places(tmp_path: Path, per_box: bool, shape: str) -> None:
    """Where an image is mirrored, and there alone, the points of a pair are exchanged, with their visibilities."""
    points = [[9, 9, 2], [3, 4, 1], [30, 5, 2], [0, 0, 0]]
    listed = [point[: len(shape)] for point in points]
    content = {"boxes": [[1, 1, 39, 19]] * per_box, "k": [listed] if per_box else listed}
    samples = [(f"{n}", {"jpg": jpeg(n, 40, 20), "json": json.dumps(content).encode()}) for n in range(16)]
    samples.append(("none", {"jpg": jpeg(0, 40, 20), "json": b'{"boxes": [], "k": []}'}))
    keypoints = Keypoints("json", "k[]" if per_box else "k", shape, flip_pairs=((2, 1), (0, 3)))
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy") if per_box else None, keypoints=keypoints)
    url = write_dataset(tmp_path / "set", {"train": [samples]}, annotations=declared)
    decoder, sampler = shardflow.decoders.Cover(random=False), shardflow.samplers.AspectBuckets([(20, 40)])
    some = loader(url, "flipped", "keypoints", "key", decoder=decoder, sampler=sampler, batch_size=17, seed=2)
    ((_, flipped, found, keys),) = some
    assert 0 < flipped.sum() < 16
    absent = [0, 0, 0] if shape == "xyv" else [40, 0]  # without a visibility it is a point like any other
    mirrored = [absent, [10, 5, 2], [37, 4, 1], [31, 9, 2]]
    for key, is_flipped, each in zip(keys, flipped.tolist(), found, strict=True):
        own = (each[0] if len(each) else each) if per_box else each
        if key == "none":
            assert len(own) == 0
        else:
            expected = mirrored if is_flipped else points
            assert own.tolist() == [[float(number) for number in point[: len(shape)]] for point in expected]


def test_loaders_with_other_pairs_do_not_mix(tmp_path: Path) -> None:
    """Samples whose points change places differently do not come in one batch."""
    loaders = []
    for name, pairs in (("a", ((0, 1),)), ("b", ())):
        declared = Annotations(keypoints=Keypoints("json", "keypoints[]", "xyv", flip_pairs=pairs))
        url = write_dataset(tmp_path / name, {"train": [[sample(1)] * 6]}, annotations=declared)
        loaders.append((loader(url, "keypoints"), 1))
    with pytest.raises(ConfigError, match="flip pairs"):
        shardflow.Mix(loaders)


def damaged(tmp_path: Path, **parts: bytes | None) -> Path:
    """A dataset whose third of six samples has other parts than the rest, or lacks them."""
    samples = [sample(3 + 35 * number) for number in range(6)]  # images of one size, with other boxes
    samples = [(f"{number:04}", own) for number, (_, own) in enumerate(samples)]
    other = {name.replace("_", "."): data for name, data in parts.items()}
    samples[2] = ("0002", {name: data for name, data in {**samples[2][1], **other}.items() if data is not None})
    return write_dataset(tmp_path / "set", {"train": [samples]}, annotations=DECLARED)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"mask_png": png(mask(9, 9))}, r"mask.png.*9x9 pixels.*43x33"),
        ({"mask_png": png(mask(43, 33))[:60]}, r"part 'mask.png'"),
        ({"mask_png": b"GIF"}, r"part 'mask.png': not an image"),
        ({"mask_png": None}, r"lacks the part 'mask.png'"),
        ({"json": b'{"boxes": [[1, 2'}, "part 'json' is not JSON"),
        ({"json": annotations([[1, 2, 3, 4]]).replace(b"[1, 2, 3, 4]", b"[1, 2, 3]")}, "expected 4 numbers"),
        ({"json": None}, "lacks the part 'json'"),
    ],
)
def test_damaged_annotations_name_their_sample(tmp_path: Path, parts: Any, message: str) -> None:
    """A mask of another size and JSON that does not parse are errors with the sample's key; others may replace it."""
    url = damaged(tmp_path, **parts)
    with pytest.raises(DecodeError, match=message) as raised:
        list(loader(url, *FIELDS, shuffle=False))
    assert raised.value.key == "0002"
    crop = shardflow.decoders.CenterCrop(24)
    for decoder in (crop, shardflow.decoders.MultiView([crop, crop])):
        replaced = loader(url, *FIELDS, "key", shuffle=False, max_errors=1, decoder=decoder)
        ((*columns, keys),) = replaced
        assert keys[2] == "0003"
        for column in columns:
            assert all(torch.equal(view[2], view[3]) for view in (column if decoder.views else [column]))
        assert len(replaced.replaced) == 1


def test_a_sample_that_replaces_another_is_transformed_once(tmp_path: Path) -> None:
    """A transform that writes into images and masks meets a sample once in each of the places that it takes."""

    def darken(sample: Any) -> Any:
        for name in ("image", "mask"):
            sample[name] //= 2
        return sample

    options: Any = {"decoder": shardflow.decoders.Image(stack=False), "shuffle": False}
    ((expected, masks),) = loader(damaged(tmp_path / "mask"), "mask", transform=darken, **options)
    for place, parts in enumerate(({"mask_png": png(mask(9, 9))}, {"jpg": b"not a JPEG"})):
        url = damaged(tmp_path / str(place), **parts)
        some = loader(url, "mask", transform=darken, max_errors=1, **options)
        ((images, found),) = some
        assert len(some.replaced) == 1
        for number, original in enumerate((0, 1, 3, 3, 4, 5)):
            assert torch.equal(images[number], expected[original])
            assert torch.equal(found[number], masks[original])


def test_masks_have_the_limit_of_the_decoder(tmp_path: Path) -> None:
    """A mask of more pixels than the decoder allows is refused, whatever the size in its header."""
    huge = bytearray(png(mask(43, 33)))
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(shardflow.errors.TooLargeError, match=r"mask.png.*60,000 x 60,000"):
        list(loader(damaged(tmp_path, mask_png=bytes(huge)), "mask"))


@with_keypoints
@sanitizes_beside_masks
def test_a_transform_gets_and_returns_tv_tensors(dataset: Path) -> None:
    """Any v2 transform moves all fields at once, with random numbers that depend on the sample alone."""
    transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(0.5),
            v2.RandomResizedCrop(12, scale=(0.2, 0.6)),
            v2.SanitizeBoundingBoxes(labels_getter=_per_box),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )
    decoder = shardflow.decoders.Image()
    options = {"decoder": decoder, "shuffle": False, "batch_size": 6}
    found = list(loader(dataset, *FIELDS, transform=transform, num_workers=2, **options))
    again = next(iter(loader(dataset, *FIELDS, transform=transform, **(options | {"batch_size": 30}))))
    for field, other in enumerate(again):
        joined = [value for batch in found for value in batch[field]]
        assert all(torch.equal(one, two) for one, two in zip(joined, other, strict=True))
    images, masks, boxes, labels, _, keypoints = again
    assert (images.dtype, tuple(images.shape[1:]), tuple(masks.shape[1:])) == (torch.float32, (3, 12, 12), (1, 12, 12))
    assert {type(column) for batch in found for fields in batch for column in fields} == {torch.Tensor}
    assert any(len(each) for each in boxes)
    for number, (some_boxes, some_labels, some_points) in enumerate(zip(boxes, labels, keypoints, strict=True)):
        assert len(some_boxes) == len(some_labels) == len(some_points) <= number % 4
        assert some_points[..., 2].flatten().tolist() == [2, 1] * len(some_points)
        assert some_boxes.numel() == 0 or some_boxes.max() <= 12


def _per_box(sample: dict[str, Any]) -> list[Any]:
    return [sample[name] for name in PER_BOX]


PER_BOX = ("box_labels", "box_area", "keypoints", "keypoint_visibility")


@with_keypoints
def test_what_a_transform_may_return(dataset: Path) -> None:
    """One that loses a field, or drops boxes without their fields, is told what is expected."""
    with pytest.raises(ConfigError, match=r"sample 00.*image, mask.*without mask"):
        next(iter(loader(dataset, "mask", transform=lambda one: {"image": one["image"]})))
    with pytest.raises(ConfigError, match=r"dict.*got Image"):
        next(iter(loader(dataset, "mask", transform=lambda one: one["image"])))
    with pytest.raises(ConfigError, match=r"added 'depth'.*remove it") as raised:
        next(iter(loader(dataset, "mask", transform=lambda one: one | {"depth": one["mask"]})))
    assert raised.value.key is not None
    lossy = loader(dataset, *FIELDS, transform=lambda one: one | {"boxes": one["boxes"][:0]})
    with pytest.raises(ConfigError, match=r"\b0\b.*[1-3].*'box_labels'.*labels_getter"):
        list(lossy)


@pytest.mark.parametrize("wrap", [lambda one: one, shardflow.annotations.WholeSample])
def test_boxes_come_back_as_corners(dataset: Path, wrap: Any) -> None:
    """Boxes that a transform returns as centre, width and height are refused: a device would flip them as corners."""
    with pytest.raises(ConfigError, match=r"'boxes' as CXCYWH.*batch_transform"):
        next(iter(loader(dataset, "boxes", transform=wrap(v2.ConvertBoundingBoxFormat("CXCYWH")))))


def test_fields_that_cannot_be(dataset: Path, tmp_path: Path) -> None:
    """Fields that are not declared, lack the image or a decoder that tells its crops are refused with a remedy."""
    plain = write_dataset(tmp_path / "plain", {"train": [[sample(1)] * 6]})
    for field, remedy in (("boxes", "--boxes json:"), ("keypoints", "--keypoints"), ("mask", "--mask mask.png")):
        with pytest.raises(ConfigError, match=f"declare.*{remedy}"):
            loader(plain, field)
    assert next(iter(loader(plain, "mask.png")))[1][0][1:4] == b"PNG"
    with pytest.raises(ConfigError, match="area, labels"):
        loader(dataset, "box_crowd")
    with pytest.raises(ConfigError, match="add 'image'"):
        shardflow.Loader(dataset, batch_size=6, fields=("mask", "boxes"))
    with pytest.raises(ConfigError, match=r"min_visibility .*found 25"):
        shardflow.annotations.CroppedBoxes(min_visibility=25)
    silent = loader(dataset, "mask", decoder=_Silent())
    with pytest.raises(ConfigError, match="RandomResizedCrop"):
        next(iter(silent))


class _Silent(shardflow.decoders.Decoder):
    """A decoder that does not say how it crops."""

    def decode(self, payloads: Any, crops: Any, out: Any) -> Any:
        """Make black images."""
        assert crops is None
        out[:] = torch.zeros(len(payloads), 3, 8, 8)
        return {}


def test_mixes_have_fields_of_all_sources(dataset: Path, tmp_path: Path) -> None:
    """Samples of several datasets come with their annotations; loaders with other rules for boxes do not mix."""

    def rules(*least: float) -> list[tuple[shardflow.Loader, float]]:
        chosen = [shardflow.annotations.CroppedBoxes(min_visibility=each) for each in least]
        return [(loader(dataset, "mask", rule, seed=number), 1) for number, rule in enumerate(chosen)]

    images, masks, boxes = next(iter(shardflow.Mix(rules(0, 0), steps_per_epoch=2)))
    assert (tuple(images.shape), tuple(masks.shape), len(boxes)) == ((6, 3, 24, 24), (6, 1, 24, 24), 6)
    for by in ("sample", "batch"):
        with pytest.raises(ConfigError, match="boxes differ"):
            shardflow.Mix(rules(0, 0.5), by=by)
    declared = Annotations(keypoints=Keypoints("json", "keypoints[]", "xyv"))
    alone = write_dataset(tmp_path / "alone", {"train": [[sample(1)] * 6]}, annotations=declared)
    with pytest.raises(ConfigError, match=r"annotation fields .*xyv of boxes.*xyv'"):
        shardflow.Mix([(loader(url, "keypoints"), 1) for url in (dataset, alone)])
    other = loader(dataset, "mask", shardflow.annotations.CroppedBoxes(), decoder=shardflow.decoders.CenterCrop(24))
    with pytest.raises(ConfigError, match="equal decoders"):
        list(shardflow.Mix([*rules(0), (other, 1)]))
