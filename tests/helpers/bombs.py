"""Bombs: small files that ask for gigabytes or for hours, and what keeps a process from paying for them."""

from __future__ import annotations

import functools
import random
import resource
import struct
import zlib
from pathlib import Path

from PIL import features

from tests.helpers import huffman, jpegs
from tests.helpers.folders import encoded, png_chunk
from tests.helpers.hostile import FILES, forged, picture

MEMORY_BYTES = 1_000_000_000
CPU_S = 60


@functools.cache
def bombs() -> dict[str, bytes]:
    """Return files that no decoder may decode, by the names of members of a tar."""
    baseline, progressive = jpegs.make(1), jpegs.make(1, progressive=True)
    cmyk = encoded(picture(64, 48, "CMYK"), "JPEG", progressive=True)
    last = progressive.rindex(b"\xff\xda")
    scans = progressive[:last] + progressive[last:-2] * 3000 + progressive[-2:]
    many = progressive[:last] + progressive[last:-2] * 30 + progressive[-2:]
    files = {
        "baseline.jpg": jpegs.set_size(baseline, 20_000, 20_000),
        "largest.jpg": jpegs.set_size(baseline, 65_500, 65_500),
        "just-too-large.jpg": jpegs.set_size(baseline, 11_000, 10_001),
        "progressive.jpg": jpegs.set_size(progressive, 20_000, 20_000),
        "grey.jpg": jpegs.set_size(jpegs.make(1, mode="L"), 20_000, 20_000),
        "memory.jpg": jpegs.set_size(progressive, 10_400, 10_400),
        "memory-of-four.jpg": jpegs.set_size(cmyk, 9_500, 9_500),
        "one-by-one.jpg": jpegs.set_size(_one_by_one(), 10_400, 10_400),
        "scans.jpg": scans,
        "pixels-of-scans.jpg": jpegs.set_size(many, 9_000, 9_000),
        "garbage.jpg": baseline[:2] + b"garbage" + jpegs.set_size(baseline, 20_000, 20_000)[2:],
        "segments.jpg": _with_segments(jpegs.set_size(progressive, 20_000, 20_000), 0xE5, 4 << 20),
        "lossless.webp": _webp_lossless(16_383, 16_383),
        "frame.gif": _gif_frame(65_535, 65_535),
        "tile.tif": _tiff_tile(32_768, 16_384),
    }
    files |= {f"forged-{name.removeprefix('forged/').replace(' ', '-')}": data for name, (data, _) in forged().items()}
    del files["forged-text-bomb.png"], files["forged-profile-bomb.png"]
    if features.version("avif"):
        avif = FILES["AVIF"]
        at = avif.index(b"ispe") + 8
        files["forged-AVIF.avif"] = avif[:at] + struct.pack(">II", 16_000, 16_000) + avif[at + 8 :]
    return files


@functools.cache
def burdens() -> dict[str, bytes]:
    """Return files that are heavy with metadata; they may be decoded, or be damaged."""
    jpeg, png = jpegs.make(2), FILES["PNG"]
    return {
        "icc.jpg": encoded(picture(), "JPEG", icc_profile=bytes(1 << 20)),
        "app.jpg": _with_segments(jpeg, 0xE7, 1 << 20),
        "exif.jpg": _with_segments(jpeg, 0xE1, 1 << 20, b"Exif\0\0MM\0*\0\0\0\x08\x1f\xff"),
        "comments.jpg": _with_segments(jpeg, 0xFE, 1 << 20, most=200),
        "text.png": forged()["forged/text bomb.png"][0],
        "profile.png": forged()["forged/profile bomb.png"][0],
        "chunks.png": png[:33] + png_chunk(b"tEXt", b"a\0b") * 5_000 + png[33:],
        "exif.webp": encoded(picture(), "WEBP", exif=b"Exif\0\0MM\0*" + bytes(1 << 20)),
    }


def enter_limits(memory_bytes: int = MEMORY_BYTES) -> None:
    """Allow this process so much memory, and a minute, more than it has used so far."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory_bytes, resource.RLIM_INFINITY))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _one_by_one() -> bytes:
    """Return a baseline JPEG whose components come one after the other."""
    rng = random.Random(0)
    components = huffman.random_components(rng, (32, 32), [(2, 2), (1, 1), (1, 1)])
    return huffman.encode_components(components, (32, 32), *huffman.random_tables(rng), interleaved=False)


def _with_segments(jpeg: bytes, marker: int, size: int, start: bytes = b"", most: int = 65_533) -> bytes:
    content = start + bytes(most - len(start))
    segment = struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content
    return jpeg[:2] + segment * (size // len(segment)) + jpeg[2:]


def _webp_lossless(width: int, height: int) -> bytes:
    data = bytearray(encoded(picture(), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, bits >> 28 << 28 | (height - 1) << 14 | (width - 1))
    return bytes(data)


def _gif_frame(width: int, height: int) -> bytes:
    """Return a GIF of a small screen with a huge frame, which is to be disposed of."""
    data = bytearray(FILES["GIF"])
    at = data.index(b",", 13 + 3 * 256)
    struct.pack_into("<HH", data, at + 5, width, height)
    return bytes(data[:at]) + b"!\xf9\x04\x08\0\0\0\0" + bytes(data[at:])


def _tiff_tile(width: int, height: int) -> bytes:
    """Return a small grey TIFF in one huge tile, compressed (TIFF 6.0, section 15)."""
    data = zlib.compress(bytes(1000))
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height, 324: 0, 325: len(data)}
    tags[324] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data
