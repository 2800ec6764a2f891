"""A transcoded JPEG is the picture that a float pipeline makes of it, whatever it is, and whatever is wrong with it."""

from __future__ import annotations

import hashlib
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
from torchvision.transforms.v2 import functional as F  # noqa: N812 - its usual name

from shardflow import native
from shardflow.errors import ConfigError
from shardflow.native import binding, transcoding
from shardflow.native.binding import Problem, Status
from shardflow.native.transcoding import SAMPLINGS, Transcoded
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import make_recipe
from tests.helpers import folders, jpegs
from tests.helpers.reference import decoded, psnr_db, resized
from tests.native.test_codings import CODINGS

GOOD = jpegs.make(1)  # 64 x 48
HOW: dict[str, Any] = {"interpolation": "bicubic", "quality": 90, "subsampling": "4:2:0", "with_seek_table": False}


def transcode(payload: bytes, size: tuple[int, int], **how: Any) -> Transcoded | Problem:
    """Transcode an image to a size, by default upright and whole."""
    stored = Image.open(io.BytesIO(payload)).size
    upright = size if how.get("orientation", 1) < 5 else size[::-1]
    options = {"stored": stored, "resized": size, "orientation": 1, "window": (0, 0, *upright), **HOW, **how}
    return transcoding.transcode(payload, **options)


def turned(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return stored pixels upright; TIFF 6.0, section 8."""
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    return pixels.transpose(1, 0, 2) if orientation >= 5 else pixels


def encoded(pixels: NDArray[np.uint8], quality: int, subsampling: str) -> bytes:
    """Return what Pillow encodes of pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "grey": {"mode": "L"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subsampling", SAMPLINGS)
def test_pictures_are_those_of_a_float_pipeline(kind: str, subsampling: str) -> None:
    """Any size, orientation and window: as near to a float reference as a way through RGB is."""
    rng = random.Random(f"{kind} {subsampling}")
    losses = []
    for orientation in (*range(1, 9), 1, 1):
        width, height = rng.randint(60, 300), rng.randint(60, 300)
        payload = jpegs.make(orientation, width, height, **KINDS[kind])
        factor = rng.uniform(0.3, 0.95)
        size = int(width * factor), int(height * factor)
        upright = size if orientation < 5 else size[::-1]
        left, top = rng.randrange(upright[0] // 3), rng.randrange(upright[1] // 3)
        window = left, top, rng.randint(left + 9, upright[0]), rng.randint(top + 9, upright[1])
        quality = rng.choice((75, 90, 95))
        how = {"orientation": orientation, "window": window, "subsampling": subsampling, "quality": quality}
        made = transcode(payload, size, **how)
        assert isinstance(made, Transcoded)
        reference = turned(resized(decoded(payload), *size), orientation)[window[1] : window[3], window[0] : window[2]]
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        assert native.decode_resized(payload, pixels, interpolation="bicubic") is None
        pixels = turned(pixels, orientation)[window[1] : window[3], window[0] : window[2]]
        best, found = decoded(encoded(pixels, quality, subsampling)), decoded(made.image)
        assert found.shape == reference.shape
        losses.append(psnr_db(best, reference) - psnr_db(found, reference))
        mean = np.array(made.sums) / found[..., 0].size
        deviation = np.sqrt(np.array(made.squares) / found[..., 0].size - mean**2)
        np.testing.assert_allclose(mean, reference.mean((0, 1)), atol=2)
        np.testing.assert_allclose(deviation, reference.std((0, 1)), atol=6)  # sharing chroma blurs it
    assert np.mean(losses) < 0.05
    assert max(losses) < 0.5


@pytest.mark.parametrize("megapixels", [0.2, 2.0])
def test_quality_is_that_of_pixels_and_of_torchvision(megapixels: float) -> None:
    """Packed pictures are as near to a float reference as torchvision's operators and a way through RGB bring them."""
    ours, pixelwise, torchvisions = [], [], []
    for number in range(6 if megapixels < 1 else 3):
        width, height = int((megapixels * 1e6 * 4 / 3) ** 0.5), int((megapixels * 1e6 * 3 / 4) ** 0.5)
        payload = jpegs.make(number, width, height, quality=93)
        size = int(width * 256 / height), 256
        made = transcode(payload, size)
        assert isinstance(made, Transcoded)
        reference = resized(decoded(payload), *size)
        ours.append(psnr_db(decoded(made.image), reference))
        array = np.empty((size[1], size[0], 3), np.uint8)
        assert native.decode_resized(payload, array, interpolation="bicubic") is None
        pixelwise.append(psnr_db(decoded(encoded(array, 90, "4:2:0")), reference))
        image = decode_jpeg(torch.frombuffer(bytearray(payload), dtype=torch.uint8), mode=ImageReadMode.RGB)
        image = F.resize(image, [size[1], size[0]], F.InterpolationMode.BICUBIC, antialias=True)
        torchvisions.append(psnr_db(decoded(encode_jpeg(image, quality=90).numpy().tobytes()), reference))
    assert np.mean(ours) > np.mean(pixelwise) - 0.02
    # A decode at a reduced scale, which torchvision has not, is not quite a resize: docs/packing.md, "Fidelity".
    assert np.mean(ours) > np.mean(torchvisions) - (0.02 if megapixels < 1 else 0.5)


@pytest.mark.parametrize("coding", CODINGS)
def test_odd_codings(coding: str) -> None:
    """Whatever the sampling and the scans, the picture is the decoded one, or the file is for a general decoder."""
    payload, size = CODINGS[coding](), (90, 60)
    made = transcode(payload, size, quality=100, subsampling="4:4:4")
    if isinstance(made, Problem):
        assert made.status == Status.UNSUPPORTED
        assert any(name in coding for name in ("RGB", "4:1", "fourth", "third"))
        return
    pixels = np.empty((101, 150, 3), np.uint8)
    assert native.decode_resized(payload, pixels, oversampling=0) is None
    reference = resized(pixels, *size)
    found = psnr_db(decoded(made.image), reference)
    assert found > 25
    # Random shades are beyond RGB in YCbCr; what is cut off before the resize there is cut off behind it here.
    if "scans" in coding:
        assert found > psnr_db(decoded(encoded(reference.round().astype(np.uint8), 100, "4:4:4")), reference) - 1


def test_bytes_depend_on_nothing_else() -> None:
    """Plain loops, other builds of libjpeg-turbo and whatever was transcoded before make the same bytes."""
    kernel = binding.load()
    assert isinstance(kernel, binding.Kernel)
    folder = Path(kernel.dll._name).parent
    opened = [binding.open_kernel(folder, [candidate]) for candidate in binding.libjpeg_candidates()]
    kernels = [each for each in opened if isinstance(each, binding.Kernel)]
    hows = zip(KINDS.values(), (1, 6, 3, 8, 2, 5), [*SAMPLINGS] * 2, strict=True)
    cases = [(jpegs.make(n, 40 + 13 * n, 90 - 7 * n, **how), way, target) for n, (how, way, target) in enumerate(hows)]
    made = [transcode(data, (31, 27), orientation=way, subsampling=target) for data, way, target in cases]
    assert not any(isinstance(each, Problem) for each in made)
    for other in (kernel, *kernels):
        for fast in (True, False):
            with jpegs.decoder(fast=fast, kernel=other):
                for (data, way, target), wanted in reversed([*zip(cases, made, strict=True)]):
                    transcode(GOOD, (20, 20), stored=(1, 1))
                    assert transcode(data, (31, 27), orientation=way, subsampling=target) == wanted


def test_hostile_bytes() -> None:
    """Thousands of damaged and cut files crash nothing, have a problem or a picture, and leave the next one alone."""
    rng = random.Random(11)
    payloads = [jpegs.make(1, 64, 48, quality=70, **how) for how in (*KINDS.values(), {"optimize": True})]
    stored = {"stored": (64, 48), "resized": (30, 22), "orientation": 6, "window": (2, 3, 21, 29), **HOW}
    wanted, problems = transcoding.transcode(GOOD, **stored), 0
    for _ in range(100):
        for payload in payloads:
            damaged = jpegs.flipped(payload, rng, rng.choice((1, 1, 2, 8)))[: rng.choice((None, rng.randrange(2000)))]
            made = transcoding.transcode(damaged, **stored)
            problems += isinstance(made, Problem)
            assert isinstance(made, Transcoded) or made.message
        assert transcoding.transcode(GOOD, **stored) == wanted
    assert problems > 150


def test_every_truncation() -> None:
    """A file cut anywhere has a problem."""
    stored = {"stored": (64, 48), "resized": (20, 20), "orientation": 1, "window": (0, 0, 20, 20), **HOW}
    for payload in (GOOD, jpegs.make(1, progressive=True), jpegs.make(1, mode="L")):
        for end in range(0, len(payload), 7):
            made = transcoding.transcode(payload[: end or None], **stored)
            assert isinstance(made, Problem) == (end > 0)


def test_limits_and_sizes() -> None:
    """Too many pixels, another size than was said and a window outside the image are problems; nonsense raises."""
    for how, status in (
        ({"max_pixels": 64 * 48 - 1}, Status.TOO_LARGE),
        ({"stored": (48, 64)}, Status.WRONG_SIZE),
        ({"window": (0, 0, 21, 20)}, Status.BAD_BOX),
        ({"window": (-1, 0, 20, 20)}, Status.BAD_BOX),
        ({"window": (5, 5, 5, 9)}, Status.BAD_BOX),
        ({"resized": (65_501, 20)}, Status.BAD_BOX),
    ):
        made = transcode(GOOD, (20, 20), **how)
        assert isinstance(made, Problem)
        assert made.status == status
    for nonsense in ({"orientation": 9}, {"quality": 0}, {"resized": (0, 20)}, {"subsampling": "4:1:1"}):
        with pytest.raises(ConfigError):
            transcode(GOOD, (20, 20), **nonsense)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 300), (300, 1), (7, 9), (1500, 3)])
def test_extreme_shapes(width: int, height: int) -> None:
    """Images of a pixel, a row or a column are transcoded to any other shape."""
    payload = jpegs.make(2, width, height)
    for size in ((1, 1), (5, 3), (200, 1), (1, 200), (33, 47)):
        for orientation in (1, 7):
            made = transcode(payload, size, orientation=orientation)
            assert isinstance(made, Transcoded)
            assert decoded(made.image).shape[:2] == (size[::-1] if orientation == 1 else size)


FROZEN = [  # a source, settings, and the SHA-256 of the packed bytes
    ("RGB", (640, 480), {}, {}, "d8be133463f0171fc40bce80fcc26a1a6bf1fea646219d0d94b3fe85924bae6d"),
    ("RGB", (100, 90), {}, {}, "1cc39b99612666e3e8ddd171682f9703dc3f242315efe90d2b78c5d8a4a862f7"),
    ("L", (500, 600), {}, {}, "5c2ba2db4f9657294d5449adddd4736d414d3946231feeaded2f003aaac1653a"),
    (
        "RGB",
        (301, 997),
        {"subsampling": 0},
        {"short_side": 90, "filter": "bilinear"},
        "d7f4ec1a7cc41a2de3aa4792371024d9c50dc1873f303eee3d454fda46f5cfed",
    ),
    (
        "RGB",
        (1602, 1203),
        {"progressive": True},
        {"square": True, "quality": 75, "subsampling": "4:4:4"},
        "f5d9d2e58359e7010cfa46b5de5c4994bf57c9d44b46d74e7f794e36579ad32f",
    ),
    (
        "RGB",
        (481, 641),
        {"subsampling": 1},
        {"short_side": 128, "subsampling": "4:2:2", "seek_tables": "none"},
        "923b01704605dfe0dc1bdb7eb8ad935a0f6d33517b77f7d0996f280a5fbb6f7d",
    ),
]


@pytest.mark.parametrize(("mode", "size", "how", "settings", "digest"), FROZEN)
def test_bytes_are_frozen(
    mode: str, size: tuple[int, int], how: dict[str, object], settings: dict[str, object], digest: str
) -> None:
    """The bytes that the kernel makes of a JPEG are these: with every version of libjpeg-turbo, compiler and processor.

    When they change, `transcoding.TRANSCODING` has to, so that no dataset is resumed or extended with others.
    """
    x, y = np.meshgrid(*(np.arange(side) for side in size))
    bands = [x * (3 + c) // 4 + y // (1 + c) + (x // 9 ^ y // 7) % 5 * 11 + x * y * (7 + c) % 13 for c in range(3)]
    picture = Image.fromarray(np.stack(bands, -1).astype(np.uint8)).convert(mode)  # integers: the same everywhere
    packed = pack_image(folders.encoded(picture, "JPEG", quality=93, **how), make_recipe(**settings)).image
    assert hashlib.sha256(packed).hexdigest() == digest
