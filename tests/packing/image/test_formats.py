from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardflow as sf
from shardflow.errors import DecodeError
from shardflow.packing.recipe import Recipe
from tests.helpers import profiles
from tests.helpers.folders import encoded, photo, png16, turned, write_tree, xmp_file

RGB = Image.open(io.BytesIO(photo(3)))
KEEP = Recipe(short_side=64, format="keep")

KEPT: dict[str, Callable[[], bytes]] = {
    "jpg": lambda: encoded(RGB, "JPEG", quality=77, comment="kept"),
    "png": lambda: encoded(RGB, "PNG"),
    "webp": lambda: encoded(RGB, "WEBP", quality=50),
}
NOT_KEPT: dict[str, tuple[str, Callable[[], bytes]]] = {
    "larger": ("jpg", lambda: encoded(Image.new("RGB", (66, 65)), "JPEG")),
    "progressive": ("jpg", lambda: encoded(RGB, "JPEG", progressive=True)),
    "grey": ("jpg", lambda: encoded(RGB.convert("L"), "JPEG")),
    "CMYK": ("jpg", lambda: encoded(RGB.convert("CMYK"), "JPEG")),
    "turned": ("jpg", lambda: encoded(RGB, "JPEG", exif=turned(3))),
    "turned by XMP": ("png", lambda: xmp_file("PNG", RGB, 3)),
    "other colours": ("jpg", lambda: encoded(RGB, "JPEG", icc_profile=profiles.rgb(profiles.ADOBE, 2.2))),
    "with a second view": ("jpg", lambda: encoded(RGB, "MPO", save_all=True, append_images=[RGB])),
    "palette": ("png", lambda: encoded(RGB.convert("P"), "PNG")),
    "grey PNG": ("png", lambda: encoded(RGB.convert("L"), "PNG")),
    "16 bits": ("png", lambda: png16(np.full((64, 96, 3), 40_000, np.uint16), 2)),
    "transparent": ("png", lambda: encoded(RGB.convert("RGBA"), "PNG")),
    "one transparent colour": ("png", lambda: encoded(RGB, "PNG", transparency=(1, 2, 3))),
    "animated": ("webp", lambda: encoded(RGB, "WEBP", save_all=True, append_images=[RGB.rotate(180)])),
    "BMP": ("png", lambda: encoded(RGB, "BMP")),
    "GIF": ("png", lambda: encoded(RGB, "GIF")),
    "TIFF": ("png", lambda: encoded(RGB, "TIFF")),
}


@pytest.mark.parametrize("part", KEPT)
def test_keep_copies(part: str) -> None:
    """A file in which nothing has to be changed is copied byte for byte if asked, and encoded again if not."""
    data = KEPT[part]()
    packed = KEEP.process(data)
    assert (packed.image, packed.part, packed.done) == (data, part, ("kept",))
    assert Recipe(short_side=64).process(data).image != data
    for other in (
        Recipe(short_side=65, format="keep", enlarge=True),
        Recipe(short_side=64, format="keep", square=True),
    ):
        assert other.process(data).image != data
        assert other.process(data).part == part


@pytest.mark.parametrize("case", NOT_KEPT)
def test_keep_encodes_the_rest(case: str) -> None:
    """What a plain decoder could not take as it is, is encoded again, in the same format where it is one we pack."""
    part, make = NOT_KEPT[case]
    data = make()
    packed = KEEP.process(data)
    assert packed.part == part
    assert packed.image != data
    assert "kept" not in packed.done
    image = Image.open(io.BytesIO(packed.image))
    assert (image.format, image.mode) == ({"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[part], "RGB")
    assert min(image.size) == 64
    assert not {"progressive", "icc_profile", "transparency", "exif"} & image.info.keys()


def test_keep_still_decodes() -> None:
    """A damaged file is not copied just because it is small."""
    for make in KEPT.values():
        with pytest.raises(DecodeError):
            KEEP.process(make()[:-200])


@pytest.mark.parametrize("format_name", ["webp", "png"])
def test_metadata_stays_behind(format_name: str) -> None:
    """A comment, a camera's name or a resolution do not get into what is packed."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    packed = Recipe(short_side=32, format=format_name).process(encoded(RGB, "JPEG", exif=exif, comment="x", dpi=(9, 9)))
    image = Image.open(io.BytesIO(packed.image))
    assert packed.part == format_name
    assert not {"exif", "comment", "dpi", "Comment"} & image.info.keys()


def test_png_loses_nothing() -> None:
    """A PNG has the pixels that were measured, to the last bit."""
    data = encoded(RGB, "PNG")
    packed = Recipe(short_side=64, format="png").process(data)
    assert (np.asarray(Image.open(io.BytesIO(packed.image))) == np.asarray(RGB)).all()


@pytest.mark.parametrize("format_name", ["webp", "png", "keep"])
def test_loader_reads_every_format(tmp_path: Path, format_name: str) -> None:
    """What is packed as WebP or PNG, or as a mixture, is verified and loaded as JPEGs are, by every decoder."""
    src = write_tree(tmp_path / "src", {f"{n}.jpg": photo(n) for n in range(6)})
    for number, name in enumerate(("PNG", "WEBP", "BMP")):
        write_tree(src, {f"x{number}.{name.lower()}": encoded(RGB, name)})
    sf.pack(src, tmp_path / "dst", executor="serial", short_side=48, format=format_name, shuffle=False)
    assert not sf.verify(tmp_path / "dst")
    for decoder in (sf.RandomResizedCropDecoder(32), sf.CenterCropDecoder(32)):
        loader = sf.Loader(
            tmp_path / "dst", batch_size=9, decoder=decoder, fields=("image",), shuffle=False, num_workers=0
        )
        (batch,) = [images for (images,) in loader]
        assert batch.shape == (9, 3, 32, 32)
    whole = sf.ImageDecoder()
    payloads = [
        memoryview(bytearray(next(sample[part] for part in ("jpg", "png", "webp") if part in sample)))
        for sample in sf.open(tmp_path / "dst")["train"]
    ]
    images, failures = whole(payloads, np.zeros(9, np.uint64))
    assert not failures
    assert {tuple(image.shape) for image in images} == {(3, 48, 72)}
