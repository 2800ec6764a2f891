from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

import shardflow as sf
from shardflow import _pillow
from shardflow.errors import DecodeError
from shardflow.formats.image_types import IMAGE_TYPES, ImageType
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe
from tests.helpers import profiles
from tests.helpers.folders import encoded, photo, png16, quarantined, turned, write_tree, xmp_file
from tests.helpers.tars import write_tar

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
    packed = pack_image(data, KEEP)
    assert (packed.image, packed.part, packed.done) == (data, part, ("kept",))
    assert pack_image(data, Recipe(short_side=64)).image != data
    for recipe in (replace(KEEP, short_side=65, enlarge=True), replace(KEEP, square=True)):
        other = pack_image(data, recipe)
        assert other.image != data
        assert other.part == part


@pytest.mark.parametrize("case", NOT_KEPT)
def test_keep_encodes_the_rest(case: str) -> None:
    """What a plain decoder could not take as it is, is encoded again, in the same format where it is one we pack."""
    part, make = NOT_KEPT[case]
    data = make()
    packed = pack_image(data, KEEP)
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
            pack_image(make()[:-200], KEEP)


@pytest.mark.parametrize("format_name", ["webp", "png"])
def test_metadata_stays_behind(format_name: str) -> None:
    """A comment, a camera's name or a resolution do not get into what is packed."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    packed = pack_image(
        encoded(RGB, "JPEG", exif=exif, comment="x", dpi=(9, 9)), Recipe(short_side=32, format=format_name)
    )
    image = Image.open(io.BytesIO(packed.image))
    assert packed.part == format_name
    assert not {"exif", "comment", "dpi", "Comment"} & image.info.keys()


def test_png_loses_nothing() -> None:
    """A PNG has the pixels that were measured, to the last bit."""
    data = encoded(RGB, "PNG")
    packed = pack_image(data, Recipe(short_side=64, format="png"))
    assert (np.asarray(Image.open(io.BytesIO(packed.image))) == np.asarray(RGB)).all()


@pytest.mark.parametrize("format_name", ["webp", "png", "keep"])
def test_loader_reads_every_format(tmp_path: Path, format_name: str) -> None:
    """What is packed as WebP or PNG, or as a mixture, is verified and loaded as JPEGs are, by every decoder."""
    src = write_tree(tmp_path / "src", {f"{n}.jpg": photo(n) for n in range(6)})
    for number, name in enumerate(("PNG", "WEBP", "BMP")):
        write_tree(src, {f"x{number}.{name.lower()}": encoded(RGB, name)})
    sf.pack(src, tmp_path / "dst", executor="serial", short_side=48, format=format_name, shuffle=False)
    assert not sf.verify(tmp_path / "dst")
    for decoder in (sf.decoders.RandomResizedCrop(32), sf.decoders.CenterCrop(32)):
        loader = sf.Loader(
            tmp_path / "dst", batch_size=9, decoder=decoder, fields=("image",), shuffle=False, num_workers=0
        )
        (batch,) = [images for (images,) in loader]
        assert batch.shape == (9, 3, 32, 32)
    whole = sf.decoders.Image()
    samples = sf.open(tmp_path / "dst")["train"]
    payloads = [memoryview(bytearray(sample[part])) for sample in samples for part in KEPT if part in sample]
    decoded = whole(payloads, np.zeros((9, 2), np.int64), np.zeros(9, np.uint64))
    assert not decoded.failures
    assert {tuple(image.shape) for image in decoded.images} == {(3, 48, 72)}


with_avif = pytest.mark.skipif(not features.version("avif"), reason="this build of Pillow cannot read AVIF")


@with_avif
def test_avif_is_packed(tmp_path: Path) -> None:
    """AVIF files of a folder and of a tar are packed as any other image, turned and reduced to their first frame."""
    files = {
        "plain": encoded(RGB, "AVIF"),
        "turned": encoded(RGB, "AVIF", exif=turned(6)),
        "animated": encoded(RGB, "AVIF", save_all=True, append_images=[RGB.rotate(180)]),
    }
    src = write_tree(tmp_path / "src", {f"{name}.avif": data for name, data in files.items()})
    tar = write_tar(tmp_path / "tars" / "0.tar", [(f"{name}.avif", data) for name, data in sorted(files.items())])
    datasets = []
    for number, source in enumerate((src, tar.parent)):
        dst = tmp_path / str(number)
        report = sf.pack(source, dst, executor="serial", short_side=32, shuffle=False)
        assert (report.packed, report.quarantined) == (3, 0)
        datasets.append([sample["jpg"] for sample in sf.open(dst)["train"]])
    assert datasets[0] == datasets[1]
    assert [Image.open(io.BytesIO(image)).size for image in datasets[0]] == [(48, 32), (48, 32), (32, 48)]
    assert pack_image(files["plain"], KEEP).part == "png"
    assert "first_frame" in pack_image(files["animated"], KEEP).done


@with_avif
def test_avif_is_read_where_it_lies(tmp_path: Path) -> None:
    """A tar with AVIF images is indexed in place and loaded."""
    members = [(f"{number}.avif", encoded(RGB, "AVIF")) for number in range(3)]
    write_tar(tmp_path / "tars" / "0.tar", members)
    sf.index(tmp_path / "tars", tmp_path / "indexed")
    assert not sf.verify(tmp_path / "indexed")
    loader = sf.Loader(
        tmp_path / "indexed", batch_size=3, decoder=sf.decoders.CenterCrop(32), fields=("image",), num_workers=0
    )
    (batch,) = [images for (images,) in loader]
    assert batch.shape == (3, 3, 32, 32)


@with_avif
def test_avif_that_pillow_cannot_read_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AVIF in Pillow such an image is quarantined, and the report counts it with the remedy."""
    reason = "this build of Pillow cannot read AVIF; install a newer Pillow"
    monkeypatch.setitem(_pillow.MISSING_CODECS, "AVIF", reason)
    formats = tuple(name for name in _pillow.FORMATS if name != "AVIF")
    monkeypatch.setitem(_pillow.open_image.__kwdefaults__, "formats", formats)
    files = {"a.avif": encoded(RGB, "AVIF"), "b.jpg": photo(1), "t.csv": b"image\na.avif\nb.jpg\n"}
    src = write_tree(tmp_path / "src", files) / "t.csv"
    report = sf.pack(src, tmp_path / "dst", executor="serial", max_errors=1)
    (bad,) = quarantined(tmp_path / "dst")
    assert bad["path"] == "a.avif"
    assert bad["reason"] == reason
    assert report.reasons == {f"decode: {reason}": 1}


@pytest.mark.parametrize("kind", [each for each in IMAGE_TYPES if each.extra], ids=lambda kind: kind.name)
def test_a_format_is_read_with_its_extra(tmp_path: Path, kind: ImageType) -> None:
    """With the plug-in of Pillow that an extra installs, such as `heic`, a file is packed like any other image."""
    if kind.name in _pillow.MISSING_CODECS:
        pytest.skip(_pillow.MISSING_CODECS[kind.name])
    first, last = kind.parts[0], kind.parts[-1].upper()
    pixels = {f"a.{first}": RGB, f"b.{last}": RGB.rotate(180)}
    files = {name: encoded(image, kind.name, quality=95) for name, image in pixels.items()}
    report = sf.pack(write_tree(tmp_path / "src", files), tmp_path / "dst", executor="serial", shuffle=False)
    assert (report.inputs, report.packed, report.skipped) == (2, 2, 0)
    images = [Image.open(io.BytesIO(sample["jpg"])) for sample in sf.open(tmp_path / "dst")["train"]]
    for image, expected in zip(images, (RGB, RGB.rotate(180)), strict=True):
        assert np.abs(np.asarray(image).astype(int) - np.asarray(expected).astype(int)).mean() < 6


def test_a_plugin_need_not_state_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of a plug-in of Pillow, which recipes name, is that of its installed package."""
    files = {"plain_codec/plugin.py": b"", "plain_codec-1.5.dist-info/METADATA": b"Name: plain-codec\nVersion: 1.5\n"}
    monkeypatch.syspath_prepend(write_tree(tmp_path, files))
    found, absent = (
        replace(IMAGE_TYPES[0], plugin=(f"{name}-codec", f"{name}_codec.plugin")) for name in ("plain", "no")
    )
    monkeypatch.setattr(_pillow, "IMAGE_TYPES", (found, absent))
    assert _pillow._load_plugins() == {"plain-codec": "1.5"}
