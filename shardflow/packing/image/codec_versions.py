"""Codec versions: those of the libraries that the packed bytes depend on."""

from __future__ import annotations

import PIL
from PIL import features

from shardflow import native
from shardflow._pillow import PLUGIN_VERSIONS

_LIBRARIES = {
    "libavif": ("avif",),
    "libjpeg": ("libjpeg_turbo", "jpg"),
    "littlecms": ("littlecms2",),
    "webp": ("webp",),
    "zlib": ("zlib_ng", "zlib"),
}
"""Libraries of Pillow → its names of them, the first that is there counts."""


def codec_versions() -> dict[str, str]:
    """Return library → version; "none" for a missing one of Pillow."""
    found = {library: next(filter(None, map(features.version, names)), "none") for library, names in _LIBRARIES.items()}
    transcoding = native.TRANSCODING if native.available() else "none"
    versions = {"pillow": PIL.__version__, **found, **PLUGIN_VERSIONS}
    return {**versions, "kernel": native.version(), "transcoding": transcoding}
