"""Folders to pack, and recipes that end their process."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, TiffTags

from shardflow.formats.labels import Label
from shardflow.formats.quarantine import FILE_NAME as QUARANTINE_NAME
from shardflow.packing.sample_recipe import PackedSample, SampleRecipe
from shardflow.packing.sources.reader import Input
from tests.helpers.making import jpeg
from tests.helpers.processes import parents


def photo(number: int, width: int = 96, height: int = 64) -> bytes:
    """Return a photo-like JPEG that depends on `number`."""
    return jpeg(number % 24, width, height)


def encoded(image: Image.Image, format_name: str, **options: object) -> bytes:
    """Return an image as a file of some format."""
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    """Return metadata that say how to turn the stored picture: from 1, as it is, to 8 (TIFF 6.0, section 8)."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def stored(upright: Image.Image, orientation: int) -> Image.Image:
    """Return an upright picture as a camera that was held otherwise stores it."""
    turn = Image.Transpose
    flips = (None, turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM)
    turns = (*flips, turn.TRANSPOSE, turn.ROTATE_90, turn.TRANSVERSE, turn.ROTATE_270)
    return upright if (how := turns[orientation - 1]) is None else upright.transpose(how)


XMP_FORMS = (
    'tiff:Orientation="{}"/>',
    "tiff:Orientation = '{}' />",
    "><tiff:Orientation>{}</tiff:Orientation></rdf:Description>",
)
"""The forms in which XMP may state an orientation."""


def xmp_file(format_name: str, image: Image.Image, orientation: int, form: str = XMP_FORMS[0], **options: Any) -> bytes:
    """Return an image as a file whose XMP metadata say how to turn it (XMP specification, parts 2 and 3)."""
    packet = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" {form.format(orientation)}
</rdf:RDF></x:xmpmeta>""".encode()
    if format_name == "PNG":
        data = encoded(image, "PNG", **options)
        end = data.rindex(b"IEND") - 4  # behind the pixels, where a reader that stops at them misses it
        return data[:end] + png_chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + packet) + data[end:]
    if format_name == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[700] = packet
        tags.tagtype[700] = TiffTags.BYTE
        for tag, value in options.pop("exif", {}).items():
            tags[tag] = value
        return encoded(image, "TIFF", tiffinfo=tags, **options)
    return encoded(image, format_name, xmp=packet, **options)


def png16(pixels: npt.NDArray[np.uint16], colour_type: int) -> bytes:
    """Return a 16-bit PNG, which Pillow does not write in colour (W3C PNG, 11.2.2)."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(itertools.starmap(png_chunk, chunks.items()))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG (W3C PNG, 5.3)."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_tree(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below `root`, and return it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def image_folder(root: Path, count: int = 40, width: int = 96, height: int = 64) -> Path:
    """Write an ImageFolder tree of `count` photos in three classes."""
    return write_tree(root, {f"{'abc'[n % 3]}/{n:04}.jpg": photo(n, width, height) for n in range(count)})


def contents(root: Path) -> dict[str, bytes]:
    """Return every file below `root`."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def cached_bytes(cache: Path) -> int:
    """Return the bytes of the shards in a cache at one moment, while processes may still fetch and remove some."""
    while True:
        names = set(cache.glob("blobs/*"))
        with contextlib.suppress(FileNotFoundError):
            held = sum(path.stat().st_size for path in names)
            if set(cache.glob("blobs/*")) == names:
                return held


def quarantined(dst: Path) -> list[dict[str, str]]:
    """Return the lines of a dataset's quarantine: path, stage and reason of each input that was not packed."""
    return [json.loads(line) for line in (dst / QUARANTINE_NAME).read_text().splitlines()]


def workers_of(pid: int) -> list[int]:
    """Return the process ids of the packing workers that a process has."""
    return sorted(child for child, parent in parents().items() if parent == pid and _is_worker(child))


def _is_worker(pid: int) -> bool:
    try:
        return b"shardflow.packing.executors.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Drop the rights of root, which may read and write anything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


class Deadly(SampleRecipe):
    """A recipe under which some inputs end or stop their process, as a decoder with a bug does."""

    __slots__ = ()

    def pack(self, found: Input, label: Label) -> PackedSample:
        """Die of b"segfault", wait for ever on b"hang", and behave otherwise."""
        if found.image == b"segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if found.image == b"hang":
            time.sleep(3600)
        return super().pack(found, label)


class Doomed(SampleRecipe):
    """A recipe under which every process dies at every input."""

    __slots__ = ()

    def pack(self, found: Input, label: Label) -> PackedSample:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)
        return super().pack(found, label)
