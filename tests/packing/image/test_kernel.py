from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow import native
from shardflow.errors import SampleError
from shardflow.formats import seek_table
from shardflow.formats.manifest import Manifest
from shardflow.packing.image.encoded_image import EncodedImage
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe, codec_versions, recipe_of
from tests.helpers import seek_tables
from tests.helpers.examples import examples
from tests.helpers.folders import encoded, photo
from tests.helpers.kernel import without_kernel
from tests.helpers.reference import decoded, psnr_db, resized

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

FINE = Recipe(short_side=32, quality=100, subsampling="4:4:4")  # what differs is then not the codec's doing
LEVELS = 8  # two, and what YCbCr makes of them
PHOTO = Image.open(io.BytesIO(photo(7)))


def _difference(one: EncodedImage, other: EncodedImage) -> npt.NDArray[np.float64]:
    return np.abs(decoded(one.image).astype(float) - decoded(other.image))


def _outcome(recipe: Recipe, data: bytes) -> EncodedImage | str:
    try:
        return pack_image(data, recipe)
    except SampleError as error:
        return f"{type(error).__name__}: {error}"


def _outcomes(recipe: Recipe, data: bytes) -> tuple[EncodedImage | str, EncodedImage | str]:
    """What becomes of a file with the kernel, and what without it."""
    with_kernel = _outcome(recipe, data)
    with without_kernel():
        return with_kernel, _outcome(recipe, data)


@pytest.mark.parametrize("size", [(96, 64), (300, 400), (640, 480), (641, 479), (1603, 1205)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_kernel_and_pillow_agree(size: tuple[int, int], mode: str) -> None:
    """With the kernel the same picture is packed as without it, and as near to a resize in floating point."""
    data = encoded(Image.open(io.BytesIO(photo(5, *size))).convert(mode), "JPEG", quality=92)
    for recipe in (FINE, Recipe(short_side=700, quality=100, subsampling="4:4:4", enlarge=True)):
        one, other = _outcomes(recipe, data)
        assert isinstance(one, EncodedImage)
        assert isinstance(other, EncodedImage)
        difference = _difference(one, other)
        assert difference.max() <= LEVELS
        assert difference.mean() < (0.1 if mode == "L" else 0.9)  # colours are rounded in YCbCr and in RGB
        wanted = resized(decoded(data), *difference.shape[1::-1])
        found, without = (psnr_db(decoded(outcome.image), wanted) for outcome in (one, other))
        assert found > without - 0.3  # dB; chroma that is resized half a sample off its place loses 1 or more
        assert one.pixels.mean == pytest.approx(other.pixels.mean, abs=0.0002 if mode == "L" else 0.0006)


JPEGS = [
    photo(3),
    encoded(PHOTO, "JPEG", progressive=True),
    encoded(PHOTO, "JPEG", restart_marker_blocks=2),
    encoded(PHOTO.convert("L"), "JPEG"),
    encoded(PHOTO.convert("CMYK"), "JPEG"),
    encoded(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),  # a second picture behind the first, as phones do
]


@examples(150)
@given(
    st.sampled_from(JPEGS),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    st.integers(0, 1 << 16),
)
def test_damaged_files_fare_the_same(data: bytes, flips: list[tuple[int, int]], end: int) -> None:
    """A damaged or shortened JPEG is packed or refused, with the same reason, whether there is a kernel or not."""
    damaged = bytearray(data)
    for position, value in flips:
        damaged[position % len(damaged)] = value
    one, other = _outcomes(FINE, bytes(damaged[: 1 + end % (2 * len(damaged))]))
    if isinstance(one, EncodedImage) and isinstance(other, EncodedImage):
        # The mean, because damage makes YCbCr that is no RGB, which is cut off before the resize or after it.
        assert _difference(one, other).mean() <= LEVELS
    else:
        assert one == other


def test_kernel_is_part_of_the_digest() -> None:
    """The two round differently, so the recipe's digest and the tools' versions tell them apart."""
    one, other = zip(*(_outcomes(Recipe(short_side=128), photo(n, 341, 256)) for n in range(4)), strict=True)
    assert one != other
    with_kernel, digest = codec_versions(), Recipe().digest
    with without_kernel():
        assert codec_versions() == {**with_kernel, "kernel": "none", "transcoding": "none"}
        assert Recipe().digest != digest
    assert with_kernel["kernel"].startswith("libjpeg-turbo ")
    assert with_kernel["kernel"] in native.describe()
    assert Recipe().digest == digest


def test_seek_tables() -> None:
    """Encoded JPEGs get the table of their scan and stay else the same; copied ones when asked; without kernel none."""
    data = photo(5, 400, 300)
    recipe = Recipe(short_side=200)
    packed, plain = pack_image(data, recipe), pack_image(data, replace(recipe, seek_tables="none"))
    segment = native.seek_table(plain.image)
    assert segment is not None
    assert packed.image == seek_table.insert(plain.image, segment)
    assert _outcomes(recipe, data)[1] == _outcomes(replace(recipe, seek_tables="none"), data)[1]
    assert recipe.digest != replace(recipe, seek_tables="none").digest
    keep = Recipe(short_side=None, format="keep")
    assert pack_image(data, keep).image == data
    copied = pack_image(data, replace(keep, seek_tables="all"))
    assert copied.image == seek_table.insert(data, native.seek_table(data) or b"")
    assert copied.done == ("kept",)
    assert pack_image(copied.image, replace(keep, seek_tables="all")).image == copied.image


def test_a_table_that_came_in_from_outside_never_stays() -> None:
    """A copied file has the table that is made here, or none, and never the one of its source."""
    data = photo(5, 400, 300)
    deceiving = seek_tables.deceiving(data)
    keep = Recipe(short_side=None, format="keep")
    for setting in ("encoded", "none"):
        copied = pack_image(deceiving, replace(keep, seek_tables=setting))
        assert (copied.image, copied.done) == (data, ("kept",))
    made = replace(keep, seek_tables="all")
    assert pack_image(deceiving, made).image == pack_image(data, made).image != data
    with without_kernel():
        assert pack_image(deceiving, made).image == data
    has_none = encoded(Image.open(io.BytesIO(data)), "JPEG", restart_marker_rows=1)
    foreign = seek_table.insert(has_none, seek_table.find(deceiving) or b"")
    assert foreign != has_none
    assert pack_image(foreign, made).image == has_none


def test_recipe_without_seek_tables() -> None:
    """A dataset that was packed before there were tables keeps its recipe, and is extended without them."""
    for recipe in (
        Recipe(seek_tables="none"),
        Recipe(),
        Recipe(format="png"),
        Recipe(format="keep", seek_tables="all"),
    ):
        assert recipe_of(Manifest(splits={"train": ()}, classes=None, recipe=recipe.describe())) == recipe
    assert "seek_tables" not in Recipe(seek_tables="none").describe()
