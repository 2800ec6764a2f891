"""Which libraries decode, convert and encode: other versions may make other bytes."""

from __future__ import annotations

import PIL
from PIL import features

from shardflow import native


def codecs() -> dict[str, str]:
    """Return the versions of the libraries that packed bytes depend on; "none" for what is missing."""
    names = {
        "libavif": ("avif",),
        "libjpeg": ("libjpeg_turbo", "jpg"),
        "littlecms": ("littlecms2",),
        "webp": ("webp",),
        "zlib": ("zlib_ng", "zlib"),
    }
    found = {library: next(filter(None, map(features.version, known)), "none") for library, known in names.items()}
    return {"pillow": PIL.__version__, **found, "kernel": native.version()}
