"""Files that ask for gigabytes or hours end in typed errors at every door, within 1 GB and a minute."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

import shardflow as sf
from shardflow import native
from shardflow.diagnostics.decode_baseline import DecodeBaseline, payloads
from shardflow.errors import ConfigError, IntegrityError, ManifestError, NotFoundError, TooLargeError
from shardflow.formats import quarantine, shard_index, ustar
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import Shard
from shardflow.loading.decoders.decoder import Decoder
from shardflow.loading.decoders.raw import EncodedImages
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import make_recipe
from shardflow.packing.sources.resolve import list_source
from shardflow.preview.augmentation import augment_sample, training_loader
from shardflow.preview.contact_sheet import sample_tiles
from shardflow.preview.html_page import write_page
from shardflow.preview.quarantine import quarantine_tiles
from shardflow.preview.sample_reader import SampleReader
from tests.helpers.bombs import bombs, burdens, enter_limits
from tests.helpers.folders import encoded, photo, quarantined, turned, write_tree
from tests.helpers.hostile import picture
from tests.helpers.kernel import without_kernel
from tests.helpers.tars import write_tar
from tests.helpers.warm_python import python

DECODERS: dict[str, Decoder] = {
    "random crop": sf.decoders.RandomResizedCrop(16),
    "centre crop": sf.decoders.CenterCrop(16),
    "whole": sf.decoders.Image(),
    "encoded": sf.decoders.Raw(),
}


def source(root: Path) -> Path:
    """Write the files as a folder, and as a tar beside it, of which each file is a sample; return the folder."""
    write_tree(root / "src", {**bombs(), **burdens(), "sound.jpg": photo(1)})
    members = [(f"{name.replace('.', '-')}.jpg", data) for name, data in (*bombs().items(), *burdens().items())]
    write_tar(root / "tars/0.tar", [("sound.jpg", photo(1)), *members])
    return root / "src"


def assert_too_large(said: Any) -> None:
    """Fail unless an error's text names a size and the limit."""
    assert "pixels" in str(said), said
    assert "limit" in str(said), said


def pack(root: Path) -> None:
    """Pack the folder in both ways: all bombs are quarantined as too large, and whatever is packed is whole."""
    for preset in ("imagenet", "original"):
        report = sf.pack(root / "src", root / preset, preset=preset, executor="serial", max_errors=99)
        assert report.inputs == len(bombs()) + len(burdens()) + 1
        rows = {row["path"]: row for row in quarantined(root / preset)}
        assert set(bombs()) <= set(rows) <= {*bombs(), *burdens()}
        for name in bombs():
            assert rows[name]["stage"] == "decode"
            assert_too_large(rows[name]["reason"])
    found = quarantine.from_bytes((root / preset / "quarantine.jsonl").read_bytes())
    with list_source(root / "src") as source:
        assert all(tile.picture is None for tile in quarantine_tiles(found, source) if tile.title in bombs())


def load(root: Path, cache: sf.Cache | None) -> None:
    """Load the tar: the bombs are bad samples, which others replace; without `max_errors` the first is the error."""
    for name, decoder in DECODERS.items():
        if cache is not None and name == "encoded":
            continue
        options: dict[str, Any] = {"shuffle": False, "num_workers": 0, "decoder": decoder, "cache": cache}
        whole = {"transform": lambda image: image[:, :1, :1]} if name == "whole" else {}
        loader = sf.Loader(
            root / "indexed", batch_size=len(bombs()) + len(burdens()) + 1, max_errors=99, **options, **whole
        )
        for _ in range(2 if cache else 1):
            next(iter(loader))
        large = [problem for problem in loader.replaced if "too large" in problem or "limit" in problem]
        for bomb in bombs():
            (problem,) = [problem for problem in large if f"sample {bomb.replace('.', '-')}:" in problem]
            assert "0.tar" in problem
            assert_too_large(problem)
        with pytest.raises(TooLargeError) as caught:
            next(iter(sf.Loader(root / "indexed", batch_size=2, **options, **whole)))
        assert caught.value.key is not None


def decode_on_device() -> None:
    """Give the encoded images to the device's decoder, which does not rely on the loader's check."""
    cpu, decode = torch.device("cpu"), sf.device.DecodeJpeg(sf.decoders.RandomResizedCrop(16))
    for data in bombs().values():
        files = [memoryview(bytearray(file)) for file in (photo(1), data)]
        rows = torch.empty(EncodedImages.shape_for(files), dtype=torch.uint8)
        EncodedImages.pack(rows, files, np.arange(2, dtype=np.uint64))
        with pytest.raises(TooLargeError, match=r"^image 1 of the batch: the image has"):
            decode(rows, cpu)
        with pytest.raises(TooLargeError, match=r"^image 1 of the batch: the image has"):  # as on a GPU
            decode._decode_on_gpu([torch.frombuffer(file, dtype=torch.uint8) for file in files], cpu)


def look(root: Path) -> None:
    """Read samples, draw previews and measure the baseline."""
    dataset = sf.open(root / "indexed")
    assert len([*dataset["train"]]) == len([*sf.samples(root / "indexed", shuffle=False)])
    reader = SampleReader(dataset, "train")
    tiles = [*sample_tiles(reader.samples(range(len(dataset["train"]))), None)]
    assert sum(tile.picture is None and "limit" in tile.problem for tile in tiles) == len(bombs())
    for number in (1, 2):
        with pytest.raises(TooLargeError):
            augment_sample(training_loader(root / "indexed", "train"), number, epochs=1)
    write_page(dataset, root / "page.html", split="train", count=99, findings=None)
    images = payloads(dataset["train"])
    assert len(images) == len(bombs()) + len(burdens()) + 1
    with DecodeBaseline(images, sf.decoders.RandomResizedCrop(16), 1) as baseline:
        assert baseline.measure(0.01).images > 0


def every_door(root: Path, way: str) -> None:
    """Go through all doors, in the limits of this process."""
    torch.set_num_threads(1)
    torch.zeros(3, 40, 40, dtype=torch.uint8)
    warnings.simplefilter("error")
    enter_limits()
    sf.index(root / "tars", root / "indexed", max_errors=99)
    pack(root)
    for cache in (None, sf.Cache(root / "cache", pixels="100GB")):
        load(root, cache)
    if way == "kernel":
        decode_on_device()
        look(root)


def run_alone(function: str, *arguments: object) -> None:
    """Call a function of this module in a process of its own."""
    code = f"import sys; from tests import test_limits; test_limits.{function}(*sys.argv[1:])"
    command = [python(), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "DecompressionBomb" not in done.stderr


@pytest.mark.parametrize("way", ["kernel", "none"])
def test_bombs(tmp_path: Path, way: str) -> None:
    """In a process that may take 1 GB and a minute of CPU, all doors refuse all bombs, with a size and the limit."""
    source(tmp_path)
    run_alone("meet_bombs", tmp_path, way)


def meet_bombs(root: str, way: str) -> None:
    """Run `every_door`, with the kernel or without."""
    with contextlib.nullcontext() if way == "kernel" else without_kernel():
        assert native.available() == (way == "kernel")
        every_door(Path(root), way)


def test_the_largest_images() -> None:
    """Images as large as allowed decode within the memory that the limit names, in every format and at every door."""
    run_alone("decode_largest")


def decode_largest() -> None:
    """Decode images that a limit of 4 million pixels just allows, in 9 bytes for each and 20 MB more."""
    torch.set_num_threads(1)
    most = 4_000_000
    small, large = ({name: make(side) for name, make in LARGEST.items()} for side in (64, 1 << 30))
    recipes = [make_recipe(preset, max_pixels=most) for preset in ("imagenet", "original")]
    whole = sf.decoders.Image(max_pixels=most)
    crops = [sf.decoders.RandomResizedCrop(64, max_pixels=most), sf.decoders.CenterCrop(64, max_pixels=most)]
    for files, limited in ((small, False), (large, True)):  # the first time, codecs are loaded
        if limited:
            enter_limits(9 * most + 20_000_000)
        for name, data in files.items():
            for decoder in (whole, *crops):
                for way in (contextlib.nullcontext(), without_kernel()):
                    with way:
                        failures = decoder([memoryview(data)], np.zeros((1, 2), np.int64), np.zeros(1, np.uint64))[2]
                    assert failures == {}, (name, failures)
            for recipe in recipes:
                pack_image(bytes(data), recipe)


LENGTH = 3 << 30  # of sparse files, which take no space

TOO_LONG: dict[str, Callable[[Path], object]] = {
    "shardflow.json": sf.open,
    "train/000000.npy": lambda url: [sample["jpg"] for sample in sf.open(url)["train"]],
    "quarantine.jsonl": lambda url: sf.open(url).quarantine(),
    "train/000000.json": lambda url: sf.extend(url.with_name("src"), url, executor="serial"),
}
"""File of a dataset → what reads it."""


def test_long_files(tmp_path: Path) -> None:
    """Of files that ask for gigabytes, no more is read than may be: of long ones, manifests that grow, and sparse tars.

    Of a tar with gigabytes of zeros, the parts of a sample are read alone, and a sample that has the zeros is bad.
    """
    write_tree(tmp_path / "src", {f"a/{n}.jpg": photo(n) for n in range(3)})
    for name in TOO_LONG:
        dst = tmp_path / name.replace("/", "-") / "dst"
        sf.pack(tmp_path / "src", dst, executor="serial", short_side=8)
        write_tree(dst.parent / "src", {"a/new.jpg": photo(9)})
        os.truncate(dst / name, LENGTH)
    for number, content in enumerate((b"[" * 100_000_000, b"[" + b"[]," * 30_000_000 + b"[]]")):
        write_tree(tmp_path / f"bomb{number}", {"shardflow.json": content})
    sparse_tar(tmp_path / "sparse/train/000000.tar")
    run_alone("read_long_files", tmp_path)


def read_long_files(root: str) -> None:
    """Read each of the files, and the manifest as a remote one as well."""
    torch.zeros(3, 40, 40, dtype=torch.uint8)
    enter_limits()
    for name, read in TOO_LONG.items():
        path = Path(root, name.replace("/", "-"), "dst")
        if name.endswith(".npy"):
            assert len(read(path)) == 3  # type: ignore[arg-type]
            continue
        with pytest.raises((IntegrityError, NotFoundError), match=r"3,221,225,472 bytes"):
            read(path)
    with pytest.raises(IntegrityError, match=r"3,221,225,472 bytes"):
        sf.open(f"local://{root}/shardflow.json/dst", cache=Path(root, "cache"))
    for bomb in Path(root).glob("bomb*"):
        with pytest.raises(ManifestError):
            sf.open(bomb)
    read_sparse(Path(root, "sparse"))


def sparse_tar(path: Path) -> None:
    """Write a tar of three samples: two have a small text behind 1.7 GB, which belong to the first of them alone."""
    hole = 1_700_000_000
    path.parent.mkdir(parents=True)
    rows = []
    with open(path, "wb") as tar:
        for record, parts in enumerate((("jpg", "txt"), ("jpg", "hole", "txt"), ("jpg",))):
            for part in parts:
                payload = photo(record) if part == "jpg" else b"text"
                size = hole if part == "hole" else len(payload)
                tar.write(ustar.header(f"{record}.{part}", size))
                row = shard_index.make_row(record, part, tar.tell(), payload)
                rows.append(row._replace(size=size))
                tar.seek(size, os.SEEK_CUR) if part == "hole" else tar.write(payload)
                tar.write(bytes(ustar.padding(size)))
            if record == 0:  # as if its text stood behind the hole
                tar.write(ustar.header("0.gap", hole))
                tar.seek(hole + ustar.padding(hole), os.SEEK_CUR)
                tar.write(ustar.header("0.late", 4))
                rows.append(shard_index.make_row(0, "late", tar.tell(), b"late"))
                tar.write(b"late" + bytes(508))
        tar.write(ustar.END)
    index = shard_index.to_bytes(shard_index.from_rows(rows))
    path.with_suffix(".npy").write_bytes(index)
    shard = Shard(
        name="train/000000.tar",
        samples=3,
        bytes=path.stat().st_size,
        sha256="0" * 64,
        index_sha256=hashlib.sha256(index).hexdigest(),
    )
    made = Manifest(splits={"train": (shard,)}, inputs=3)
    (path.parents[1] / "shardflow.json").write_bytes(made.to_bytes())


def read_sparse(url: Path) -> None:
    """Read and load the samples of the sparse tar."""
    train = sf.open(url)["train"]
    assert (train[0]["txt"], train[0]["late"]) == (b"text", b"late")
    with pytest.raises(IntegrityError, match=r"000000\.tar.*1: its parts have 1,700,00"):
        train[1]
    loader = sf.Loader(
        url,
        batch_size=3,
        shuffle=False,
        num_workers=0,
        decoder=DECODERS["centre crop"],
        fields=("image",),
        max_errors=1,
    )
    next(iter(loader))
    assert len(loader.replaced) == 1


def largest(mode: str, kind: str, bytes_per_pixel: int, **options: Any) -> Callable[[int], bytearray]:
    """Return a function that makes a square image, as large as 9 bytes for each of 4 million pixels allow, or less."""

    def make(side: int) -> bytearray:
        side = min(side, math.isqrt(min(4_000_000, 9 * 4_000_000 // bytes_per_pixel)))
        return bytearray(encoded(Image.radial_gradient("L").convert(mode).resize((side, side)), kind, **options))

    return make


LARGEST = {
    "JPEG": largest("RGB", "JPEG", 4),
    "JPEG of CMYK": largest("CMYK", "JPEG", 4),
    "turned JPEG": largest("RGB", "JPEG", 4, exif=turned(6)),
    "progressive JPEG": largest("RGB", "JPEG", 10, progressive=True, subsampling=0),
    "progressive JPEG of CMYK": largest("CMYK", "JPEG", 12, progressive=True),
    "PNG": largest("RGBA", "PNG", 10),
    "PNG of 16 bits": largest("I;16", "PNG", 10),
    "palette": largest("P", "GIF", 10),
    "TIFF in one strip": largest("RGBA", "TIFF", 10, compression="tiff_adobe_deflate", strip_size=1 << 30),
    "BMP": largest("RGB", "BMP", 10),
    "WebP": largest("RGBA", "WEBP", 16, quality=20, method=0),
    **({"AVIF": largest("RGBA", "AVIF", 16, speed=10)} if features.version("avif") else {}),
}


@pytest.mark.parametrize("way", ["kernel", "none"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_limit_is_an_argument(way: str, kind: str, tmp_path: Path) -> None:
    """Every decoder and `pack` take the limit: as many pixels as a JPEG has are enough, one less is too few."""
    data = memoryview(bytearray(encoded(picture(60, 40), kind)))
    sizes, keys = np.zeros((1, 2), np.int64), np.zeros(1, np.uint64)
    enough = 60 * 40 if kind == "JPEG" else -(-60 * 40 * 10 // 9)
    src = write_tree(tmp_path / "src", {f"1.{kind.lower()}": bytes(data), "2.png": encoded(picture(3, 2), "PNG")})
    with contextlib.nullcontext() if way == "kernel" else without_kernel():
        for decoder, arguments in (
            (sf.decoders.RandomResizedCrop, (8,)),
            (sf.decoders.CenterCrop, (8,)),
            (lambda **limit: functools.partial(sf.decoders.Cover(**limit), shape=(8, 12)), ()),
            (sf.decoders.Image, ()),
            (sf.decoders.Raw, ()),
        ):
            assert decoder(*arguments, max_pixels=enough)([data], sizes, keys).failures == {}
            ((index, error),) = decoder(*arguments, max_pixels=60 * 40 - 1)([data], sizes, keys).failures.items()
            assert index == 0
            assert isinstance(error, TooLargeError)
            assert "60 x 40 pixels; the limit is 2,399 pixels" in str(error)
            with pytest.raises(ConfigError, match="max_pixels must be 1 or more"):
                decoder(*arguments, max_pixels=0)
        for most, packed in ((enough, 2), (60 * 40 - 1, 1)):
            report = sf.pack(src, tmp_path / f"{most}", max_pixels=most, short_side=8, executor="serial", max_errors=1)
            assert report.packed == packed
            assert sf.open(tmp_path / f"{most}").manifest.recipe["max_pixels"] == most


def test_long_and_thin_images_are_not_enlarged_without_a_limit() -> None:
    """A line of pixels, whose short side would become 64 pixels and its long side millions, is too large."""
    line = memoryview(bytearray(encoded(Image.new("RGB", (65_000, 1)), "JPEG")))
    (error,) = sf.decoders.CenterCrop(64)([line], np.zeros((1, 2), np.int64), np.zeros(1, np.uint64)).failures.values()
    assert isinstance(error, TooLargeError)
    assert "would be resized to 4,810,000 x 74 pixels" in str(error)


def test_gigapixels_pass_pillow_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's own limit neither stops what `max_pixels` allows, nor warns of it."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    payload = memoryview(bytearray(encoded(picture(60, 40), "TIFF")))
    sizes, keys = np.zeros((1, 2), np.int64), np.zeros(1, np.uint64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sf.decoders.Image(max_pixels=2700)([payload], sizes, keys).failures == {}
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)  # Pillow warns from here on, and raises from 3000
        assert sf.decoders.Image(max_pixels=2700)([payload], sizes, keys).failures == {}
        assert Image.MAX_IMAGE_PIXELS == 1500
