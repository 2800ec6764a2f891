from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from shardflow import native
from shardflow.packing.image import pipeline
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe, make_recipe
from tests.helpers.folders import encoded, photo, turned
from tests.helpers.kernel import without_kernel

ROUTES = ("transcode", "pack_opened", "pack_array")
RGB = Image.open(io.BytesIO(photo(1)))
GREY = Image.fromarray(np.asarray(RGB)[..., 0])


def routes(data: bytes, recipe: Recipe) -> list[str]:
    """Return the routes on which an image was sent, in their order."""
    taken: list[str] = []

    def noted(name: str) -> Any:
        route = getattr(pipeline, name)

        def take(*args: Any, **options: Any) -> Any:
            taken.append(name)
            return route(*args, **options)

        return take

    with patch.multiple(pipeline, **{name: noted(name) for name in ROUTES}):
        pack_image(data, recipe)
    return taken


ORIGINAL = make_recipe("original")
CASES: dict[str, tuple[bytes, Recipe, list[str]]] = {
    "a JPEG": (photo(1), Recipe(short_side=32), ["transcode"]),
    "a grey JPEG": (encoded(GREY, "JPEG"), Recipe(short_side=32), ["transcode"]),
    "a turned JPEG": (encoded(RGB, "JPEG", exif=turned(6)), Recipe(short_side=32), ["transcode"]),
    "a CMYK JPEG": (encoded(RGB.convert("CMYK"), "JPEG"), Recipe(short_side=32), ["transcode", "pack_opened"]),
    "a JPEG that becomes a PNG": (photo(1), Recipe(short_side=32, format="png"), ["pack_opened"]),
    "a PNG": (encoded(RGB, "PNG"), Recipe(short_side=32), ["pack_opened"]),
    "an array": (photo(1), Recipe(short_side=32, format="npy"), ["pack_array"]),
    "a JPEG that is copied": (photo(1), ORIGINAL, ["transcode", "pack_opened"]),
    "a JPEG that is turned": (encoded(RGB, "JPEG", exif=turned(3)), ORIGINAL, ["transcode"]),
    "a JPEG that is kept and resized": (photo(1), Recipe(short_side=32, format="keep"), ["transcode"]),
}


@pytest.mark.skipif(not native.available(), reason=native.describe())
@pytest.mark.parametrize("case", CASES)
def test_route(case: str) -> None:
    """Each image takes the first route that can pack it, and is opened by Pillow only where that is needed."""
    data, recipe, expected = CASES[case]
    assert routes(data, recipe) == expected


def test_without_the_kernel() -> None:
    """Where the kernel is missing, Pillow packs JPEGs as well."""
    with without_kernel():
        assert routes(photo(1), Recipe(short_side=32)) == ["transcode", "pack_opened"]
