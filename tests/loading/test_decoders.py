from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import shardflow
from shardflow import native
from shardflow.errors import ConfigError
from shardflow.formats.image_types import image_size
from shardflow.geometry.random_boxes import random_resized_crops
from shardflow.loading.decoders import pixels as decoding
from shardflow.order import keyed_rng
from tests.helpers.device import kolmogorov_smirnov
from tests.helpers.kernel import without_kernel
from tests.helpers.making import jpeg
from tests.helpers.warm_python import python


def keys(count: int) -> keyed_rng.U64:
    """Distinct keys."""
    return keyed_rng.fold_array(keyed_rng.key("test"), np.arange(count))


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> memoryview:
    """The bytes of a file that holds the image."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return memoryview(bytearray(buffer.getvalue()))


def unknown(count: int) -> np.ndarray:
    """Sizes that the index does not know."""
    return np.zeros((count, 2), dtype=np.int64)


def payloads(count: int, width: int = 90, height: int = 70) -> list[memoryview]:
    """Photo-like JPEGs."""
    return [memoryview(bytearray(jpeg(number, width, height))) for number in range(count)]


def decoded(payload: memoryview) -> torch.Tensor:
    """What torchvision makes of a JPEG."""
    image: torch.Tensor = decode_jpeg(torch.frombuffer(payload, dtype=torch.uint8), mode=ImageReadMode.RGB)
    return image


@pytest.mark.parametrize("size", [1, 24, 160])
def test_random_resized_crop_equals_torchvisions(size: int) -> None:
    """A crop equals torchvision's decode, antialiased resized_crop and flip, within one step of 255."""
    some = payloads(12)
    images, crops, failures = shardflow.decoders.RandomResizedCrop(size)(some, unknown(12), keys(12))
    assert not failures
    sizes = np.full((12, 2), (90, 70))
    boxes, flip = random_resized_crops(sizes, keys(12), (0.08, 1.0), (3 / 4, 4 / 3))
    assert 0 < (flip < 0.5).sum() < 12
    assert (crops.box == boxes).all()
    assert (crops.flip == (flip < 0.5)).all()
    for image, payload, (x, y, w, h), flipped in zip(images, some, boxes.tolist(), flip < 0.5, strict=True):
        expected = functional.resized_crop(decoded(payload), y, x, h, w, [size, size], antialias=True)
        expected = functional.horizontal_flip(expected) if flipped else expected
        assert (image.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize(("width", "height"), [(90, 70), (70, 90), (32, 32), (20, 200)])
@pytest.mark.parametrize(("size", "resize"), [(24, 32), (32, 32), (17, 40)])
def test_center_crop_equals_torchvisions(width: int, height: int, size: int, resize: int) -> None:
    """An evaluation crop equals torchvision's Resize and CenterCrop, within one step of 255."""
    some = payloads(3, width, height)
    images, _, failures = shardflow.decoders.CenterCrop(size, resize=resize)(some, unknown(3), keys(3))
    assert not failures
    reference = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(size)])
    for image, payload in zip(images, some, strict=True):
        assert (image.int() - reference(decoded(payload)).int()).abs().max() <= 1


def test_whole_images_are_torchvisions() -> None:
    """decoders.Image returns each image as torchvision decodes it, in its own size."""
    some = [*payloads(2), *payloads(1, 33, 21)]
    images, crops, failures = shardflow.decoders.Image()(some, unknown(3), keys(3))
    assert not failures
    assert crops is not None
    assert (crops.source == [image.shape[:0:-1] for image in images]).all()
    assert (crops.box == np.concatenate([0 * crops.source, crops.source], axis=1)).all()
    assert (crops.extents == crops.source).all()
    assert all(torch.equal(image, decoded(payload)) for image, payload in zip(images, some, strict=True))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_other_formats_are_decoded_too(kind: str) -> None:
    """PNG, WebP and whatever else Pillow reads become RGB tensors."""
    image = Image.fromarray(np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3))
    payload = encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    images, _, failures = shardflow.decoders.Image()([payload], unknown(1), keys(1))
    assert not failures
    expected = np.array(Image.open(io.BytesIO(payload)).convert("RGB"))
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("decoder", [shardflow.decoders.RandomResizedCrop(40), shardflow.decoders.CenterCrop(40)])
def test_formats_do_not_disturb_each_other(decoder: shardflow.decoders.RandomResizedCrop) -> None:
    """The pixels of an image are the same whatever else is in its batch: other formats, or sizes that are not known."""
    picture = Image.open(io.BytesIO(jpeg(3, 90, 70)))
    unsized = bytearray(jpeg(5, 90, 70))
    frame = unsized.index(b"\xff\xc0")
    unsized[frame + 5 : frame + 7] = b"\0\0"  # as of a file that gives its height behind the scan
    some = [*payloads(3), encoded(picture, "PNG"), encoded(picture, "WEBP", lossless=True), memoryview(unsized)]
    together, _, failures = decoder(some, unknown(6), keys(6))
    assert set(failures) <= {5}
    for index, payload in enumerate(some[:5]):
        alone = decoder([payload], unknown(1), keys(6)[index : index + 1]).images
        assert (together[index] == alone[0]).all()


@pytest.mark.parametrize("decoder", [shardflow.decoders.RandomResizedCrop(40), shardflow.decoders.CenterCrop(40)])
def test_other_formats_are_cropped_as_without_the_kernel(decoder: shardflow.decoders.RandomResizedCrop) -> None:
    """The crop of a PNG, of colour or grey, is the same bit by bit whether the kernel or torch resizes it."""
    pictures = [Image.open(io.BytesIO(jpeg(number, 50 + 17 * number, 47 + 30 * number))) for number in range(4)]
    some = [encoded(picture.convert(mode), "PNG") for picture in pictures for mode in ("RGB", "L")]
    with_kernel = decoder(some, unknown(8), keys(8)).images
    with without_kernel():
        assert torch.equal(decoder(some, unknown(8), keys(8)).images, with_kernel)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_become_rgb(mode: str) -> None:
    """JPEGs of one and four channels come out with three."""
    payload = encoded(Image.open(io.BytesIO(jpeg(3))).convert(mode))
    images, _, failures = shardflow.decoders.RandomResizedCrop(16)([payload], unknown(1), keys(1))
    assert not failures
    assert tuple(images.shape) == (1, 3, 16, 16)


@pytest.mark.parametrize("decoder", [shardflow.decoders.RandomResizedCrop(16), shardflow.decoders.CenterCrop(16)])
def test_a_bad_image_is_its_own_failure(decoder: shardflow.decoders.RandomResizedCrop) -> None:
    """Of a batch with damaged images the others are what they are without them, and each failure has its index."""
    good = payloads(6)
    expected = decoder(good, unknown(6), keys(6)).images
    bad = list(good)
    bad[1] = good[1][: len(good[1]) // 2]
    bad[3] = memoryview(b"<html>not found</html>")
    bad[4] = memoryview(b"")
    images, _, failures = decoder(bad, unknown(6), keys(6))
    assert sorted(failures) == [1, 3, 4]
    for index in (0, 2, 5):
        assert torch.equal(images[index], expected[index])


@pytest.mark.parametrize("decoder", [shardflow.decoders.RandomResizedCrop(16), shardflow.decoders.CenterCrop(16)])
@pytest.mark.parametrize("wrong", [(70, 90), (300, 200), (20, 10), (90, 71), (1, 1)])
@pytest.mark.usefixtures("way")
def test_a_wrong_size_in_the_index_changes_nothing(
    decoder: shardflow.decoders.RandomResizedCrop, wrong: tuple[int, int]
) -> None:
    """Pixels and crops follow from the image itself, whatever size the index says it has."""
    picture = Image.open(io.BytesIO(jpeg(3, 90, 70)))
    some = [*payloads(4), encoded(picture, "PNG"), encoded(picture, "WEBP", lossless=True)]
    right = np.full((6, 2), (90, 70))
    expected = decoder(some, right, keys(6))
    for sizes in (np.full((6, 2), wrong), np.where(np.arange(6)[:, None] % 2, wrong, right), unknown(6)):
        found = decoder(some, sizes, keys(6))
        assert not found.failures
        assert torch.equal(found.images, expected.images)
        for name in ("box", "resized", "offset", "flip"):
            assert (getattr(found.crops, name) == getattr(expected.crops, name)).all()


@pytest.mark.skipif(not native.available(), reason="needs the native kernel")
def test_known_sizes_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are read in Python for images alone whose size the index does not have."""
    parsed: list[memoryview] = []
    monkeypatch.setattr(decoding, "image_size", lambda payload: parsed.append(payload) or image_size(payload))
    some, sizes = payloads(4), np.full((4, 2), (90, 70))
    sizes[2] = 0
    shardflow.decoders.RandomResizedCrop(16)(some, sizes, keys(4))
    assert [payload is some[2] for payload in parsed] == [True]


@pytest.mark.parametrize(
    "decoder", [shardflow.decoders.RandomResizedCrop(64, scale=(0.3, 1)), shardflow.decoders.CenterCrop(64)]
)
def test_points_follow_the_crops(decoder: shardflow.decoders.RandomResizedCrop) -> None:
    """A bright spot of an image lies where the documented steps put it."""
    count, spot, width, height = 16, 12, 180, 140
    keyed, files, places = keys(count), [], []
    for number in range(count):
        x, y = 50 + 4 * number, 90 - 3 * number
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        pixels[y : y + spot, x : x + spot] = 255
        files.append(encoded(Image.fromarray(pixels), quality=95))
        places.append((x + spot / 2, y + spot / 2))
    images, crops, _ = decoder(files, np.full((count, 2), (width, height)), keyed)
    assert crops.size == (64, 64)
    seen = 0
    for index, (x, y) in enumerate(places):
        (left, top, box_width, box_height), resized = crops.box[index].tolist(), crops.resized[index].tolist()
        x = (x - left) * resized[0] / box_width - crops.offset[index, 0]
        y = (y - top) * resized[1] / box_height - crops.offset[index, 1]
        x = crops.size[0] - x if crops.flip[index] else x
        if not (8 < x < 56 and 8 < y < 56):
            continue
        bright, centres = images[index, 0].float(), torch.arange(64) + 0.5
        assert abs(bright.sum(0) @ centres / bright.sum() - x) < 0.6
        assert abs(bright.sum(1) @ centres / bright.sum() - y) < 0.6
        seen += 1
    assert seen > 4


def test_crops_are_distributed_as_torchvisions() -> None:
    """Area, aspect ratio and place of the crops follow torchvision's distribution (Kolmogorov-Smirnov, fixed keys)."""
    count, width, height = 20_000, 340, 256
    ours, flip = random_resized_crops(np.full((count, 2), (width, height)), keys(count), (0.08, 1.0), (3 / 4, 4 / 3))
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(224)
    image = torch.empty((3, height, width), dtype=torch.uint8)
    drawn = [transform.make_params([image]) for _ in range(count // 4)]
    theirs = np.array([(p["left"], p["top"], p["width"], p["height"]) for p in drawn])

    def measures(boxes: np.ndarray) -> list[np.ndarray]:
        x, y, w, h = boxes.T.astype(float)
        return [w * h, w / h, x / np.maximum(1, width - w), y / np.maximum(1, height - h)]

    for a, b in zip(measures(ours), measures(theirs), strict=True):
        assert kolmogorov_smirnov(torch.from_numpy(a), torch.from_numpy(b)) < 1.95  # p < 0.001
    assert abs((flip < 0.5).mean() - 0.5) < 0.02


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 500), (500, 1), (2, 3), (65000, 2)])
def test_crops_lie_inside_any_image(width: int, height: int) -> None:
    """However odd the image, every box is at least one pixel and inside of it."""
    boxes, _ = random_resized_crops(np.full((300, 2), (width, height)), keys(300), (0.08, 1.0), (3 / 4, 4 / 3))
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= (width, height)).all()


def test_impossible_ratios_fall_back_to_the_central_crop() -> None:
    """Where ten tries fit nowhere, the largest central box of an allowed ratio is taken, as torchvision does."""
    boxes, _ = random_resized_crops(np.array([[400, 10], [10, 400]]), keys(2), (0.9, 1.0), (3 / 4, 4 / 3))
    assert boxes.tolist() == [[193, 0, 13, 10], [0, 193, 10, 13]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shardflow.decoders.RandomResizedCrop(0), "size must be 1 or more"),
        (lambda: shardflow.decoders.RandomResizedCrop(8, scale=(0.5, 0.1)), "scale must be a range"),
        (lambda: shardflow.decoders.RandomResizedCrop(8, ratio=(0, 1)), "ratio must be a range"),
        (lambda: shardflow.decoders.RandomResizedCrop(8, hflip=1.5), "hflip must be"),
        (
            lambda: shardflow.decoders.RandomResizedCrop(8, hflip=True),
            "hflip must be a probability, 0 … 1, .*found True",
        ),
        (lambda: shardflow.decoders.CenterCrop(8, hflip=0.5), "no argument 'hflip'; it flips no image"),
        (lambda: shardflow.decoders.Image(hflip=0.5), "no argument 'hflip'; it flips no image"),
        (lambda: shardflow.decoders.RandomResizedCrop(8, scales=(0.5, 1)), "did you mean 'scale'"),
        (lambda: shardflow.decoders.Cover(8), "name of each argument"),
        (lambda: shardflow.decoders.CenterCrop(300, resize=256), "size must be 1 … resize"),
        (lambda: shardflow.decoders.CenterCrop("224"), "size must be a whole number"),
        (lambda: shardflow.decoders.CenterCrop(224, resize=256.5), "resize must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(make: type, message: str) -> None:
    """A wrong argument raises ConfigError that says what is allowed."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_size_of_an_epoch_is_the_last_that_was_named() -> None:
    """A size counts from the epoch that names it until the next one; the crops are those of a decoder of that size."""
    decoder = shardflow.decoders.RandomResizedCrop({0: 8, 3: 12, 7: 10})
    assert [decoder.plan(epoch, None, unknown(1), keys(1)).size[0] for epoch in (0, 2, 3, 6, 7, 100)] == [
        8,
        8,
        12,
        12,
        10,
        10,
    ]
    assert repr(decoder).startswith("RandomResizedCrop(size={0: 8, 3: 12, 7: 10}, scale=(0.08, 1.0)")
    for wrong, message in (({3: 8}, "must begin with epoch 0"), ({0: 0}, "size must be 1"), ({-1: 8}, "epoch must be")):
        with pytest.raises(ConfigError, match=message):
            shardflow.decoders.RandomResizedCrop(wrong)


@pytest.fixture
def without_torchvision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torchvision without its JPEG decoder, as it will be."""
    monkeypatch.delattr("torchvision.io.decode_jpeg")
    decoding.jpeg_decoder.cache_clear()
    yield
    decoding.jpeg_decoder.cache_clear()


TURNED = Image.Exif()
TURNED[0x0112] = 6


@pytest.mark.usefixtures("without_torchvision")
@pytest.mark.parametrize("has_torchcodec", [True, False])
def test_pixels_stay_when_torchvision_decodes_no_longer(monkeypatch: pytest.MonkeyPatch, has_torchcodec: bool) -> None:
    """In the place of torchvision, torchcodec or else Pillow decodes to the same pixels, turned as EXIF says."""
    if not has_torchcodec:
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    assert (decoding.jpeg_decoder() is not None) == has_torchcodec
    rng = np.random.default_rng(1)
    for mode in ("RGB", "L"):
        for options in ({}, {"progressive": True}, {"subsampling": 0}, {"exif": TURNED}):
            pixels = rng.integers(0, 256, (24, 37, 3), dtype=np.uint8)
            payload = encoded(Image.fromarray(pixels).convert(mode), quality=90, **options)
            expected = torch.ops.image.decode_jpeg(torch.frombuffer(payload, dtype=torch.uint8), 3, False)
            if "exif" in options:
                expected = expected.rot90(-1, (1, 2))
            assert torch.equal(decoding.decode_image(payload, 10**6), expected)


def test_the_fallback_warns_of_nothing() -> None:
    """Where warnings are errors, the JPEG decoder decodes all the same."""
    code = """
import warnings; warnings.simplefilter("error")
import io, torch; from PIL import Image; from shardflow.loading.decoders.pixels import jpeg_decoder
Image.new("RGB", (9, 7)).save(file := io.BytesIO(), "JPEG")
assert jpeg_decoder()(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)).shape == (3, 7, 9)
"""
    subprocess.run([python(), "-c", code], check=True)


@pytest.mark.parametrize("kind", ["RandomResizedCrop", "CenterCrop"])
def test_the_size_of_a_decoder_is_fixed(kind: str) -> None:
    """Assigning a size, from which other values follow, is an error. The rest can change."""
    decoder = getattr(shardflow.decoders, kind)(32)
    for name in {"size", "resize"} & {*vars(decoder)}:
        with pytest.raises(AttributeError, match=f"{name} is fixed once a decoder is made; make another one"):
            setattr(decoder, name, 16)
        assert pickle.loads(pickle.dumps(decoder)).size == 32
    decoder.hflip = 0
