"""A corpus of hostile inputs, as an unknown folder may hold them, each with its expected fate."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import random
import socket
import stat
import struct
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageOps, features

from tests.helpers.folders import encoded, photo, png16, png_chunk, write_tree

PACKED, READ, DECODE, ENCODE = "packed", "read", "decode", "encode"
EITHER = "packed, decode or encode"
"""A decoder may still make an image of it, of any size; its pixels are not checked."""

FORMATS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "TIFF": "tif", "BMP": "bmp", "PPM": "ppm"}
if features.version("avif"):
    FORMATS["AVIF"] = "avif"
Corpus = dict[str, tuple[bytes, str]]  # path below the source -> contents, and what must become of it


def picture(width: int = 24, height: int = 16, mode: str = "RGB") -> Image.Image:
    """Return a small image with shades and an edge."""
    image = Image.radial_gradient("L").resize((width, height)).convert("RGB")
    ImageDraw.Draw(image).rectangle((0, 0, width // 2, height // 3), fill=(250, 120, 10))
    return image.convert(mode)


FILES = {kind: encoded(picture(), kind) for kind in FORMATS}


def corpus(*, flips: int = 300) -> Corpus:
    """Return all inputs that are plain files. `flips` is how many damaged copies there are of each format."""
    return {
        **_damaged(flips),
        **_other_things(),
        **forged(),
        **_unusual(),
        **_names(),
        **{f"twins/{name}.jpg": (photo(5), PACKED) for name in "abc"},
    }


def _damaged(flips: int) -> Corpus:
    rng = random.Random(0)
    made: Corpus = {}
    for kind, extension in FORMATS.items():
        data = FILES[kind]
        for cut in range(0, len(data), max(1, len(data) // 40)):
            made[f"cut/{kind}{cut:05}.{extension}"] = (data[:cut], EITHER if cut > len(data) // 2 else DECODE)
        for number in range(flips):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            made[f"flipped/{kind}{number:05}.{extension}"] = (bytes(damaged), EITHER)
        hole = bytearray(data)
        hole[len(hole) // 2 :] = bytes(len(hole) - len(hole) // 2)
        made[f"zeroed/{kind}.{extension}"] = (bytes(hole), EITHER)
        made[f"tail/{kind}.{extension}"] = (data + b"trailing rubbish", PACKED)
    return made


def _other_things() -> Corpus:
    magics = {
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
        "avif": b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(100),
        "svg": b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        "svgz": b"\x1f\x8b\x08\0" + bytes(30),
        "pdf": b"%PDF-1.7\n%%EOF",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "psd": b"8BPS\0\1" + bytes(60),
        "icon": b"\0\0\1\0\1\0\x10\x10" + bytes(60),
        "zip": b"PK\x03\x04" + bytes(60),
        "program": b"\x7fELF\x02\x01\x01" + bytes(60),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
        "empty": b"",
        "one byte": b"\xff",
        "zeros": bytes(5000),
        "noise": random.Random(1).randbytes(5000),
    }
    others = {kind: "png" if extension == "jpg" else "jpg" for kind, extension in FORMATS.items()}
    return {
        **{f"other/{name}.jpg": (data, DECODE) for name, data in magics.items()},
        **{f"misnamed/{kind}.{other}": (FILES[kind], PACKED) for kind, other in others.items()},
    }


def forged() -> Corpus:
    """Return headers that announce images of gigabytes, which must not be allocated."""

    def put(kind: str, at: int, layout: str, *values: int) -> bytes:
        data = bytearray(FILES[kind])
        struct.pack_into(layout, data, at, *values)
        return bytes(data)

    frame = FILES["JPEG"].index(b"\xff\xc0") + 5
    png = put("PNG", 16, ">II", 60_000, 60_000)
    png = png[:29] + struct.pack(">I", zlib.crc32(png[12:29])) + png[33:]
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (65_000).to_bytes(3, "little") * 2
    body = FILES["WEBP"][12:]
    webp = b"RIFF" + struct.pack("<I", 4 + len(extended) + len(body)) + b"WEBP" + extended + body
    tiff = bytearray(FILES["TIFF"])
    (directory,) = struct.unpack_from("<I", tiff, 4)
    for entry in range(struct.unpack_from("<H", tiff, directory)[0]):
        at = directory + 2 + 12 * entry
        if struct.unpack_from("<H", tiff, at)[0] in (256, 257):  # ImageWidth, ImageLength
            struct.pack_into("<HII", tiff, at + 2, 4, 1, 60_000)
    bomb = _bomb()
    return {
        "forged/JPEG.jpg": (put("JPEG", frame, ">HH", 65_500, 65_500), DECODE),
        "forged/PNG.png": (png, DECODE),
        "forged/WEBP.webp": (webp, DECODE),
        "forged/WEBP frame.webp": (put("WEBP", 26, "<HH", 16_383, 16_383), DECODE),
        "forged/GIF.gif": (put("GIF", 6, "<HH", 65_535, 65_535), DECODE),
        "forged/TIFF.tif": (bytes(tiff), DECODE),
        "forged/BMP.bmp": (put("BMP", 18, "<ii", 60_000, 60_000), DECODE),
        "forged/BMP top down.bmp": (put("BMP", 18, "<ii", 60_000, -60_000), DECODE),
        "forged/PPM.ppm": (b"P6\n60000 60000\n255\n" + bytes(100), DECODE),
        "forged/text bomb.png": (_png_with(b"zTXt", bomb), EITHER),
        "forged/profile bomb.png": (_png_with(b"iCCP", bomb), EITHER),
    }


@functools.cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, strategy=zlib.Z_RLE)  # in a third of the time
    return b"a\0\0" + packer.compress(bytes(100 << 20)) + packer.flush()


def _png_with(kind: bytes, data: bytes) -> bytes:
    return FILES["PNG"][:33] + png_chunk(kind, data) + FILES["PNG"][33:]


def _unusual() -> Corpus:
    frames = [Image.new("RGB", (24, 16), colour) for colour in ("red", "green", "blue")]
    moving = {"save_all": True, "append_images": frames[1:], "duration": 50}
    deep = (np.arange(24 * 16, dtype=np.uint16) * 170).reshape(16, 24)
    noise = np.random.default_rng(0).integers(0, 1 << 16, (16, 24, 3), np.uint16)
    see_through = picture(mode="RGBA")
    see_through.putalpha(Image.radial_gradient("L").resize(see_through.size))
    cmyk = encoded(picture(mode="CMYK"), "JPEG")
    adobe = cmyk.index(b"Adobe") + 11  # the colour transform: 0 is CMYK, 2 is YCCK
    palette = picture().quantize(16)
    files = {
        **{f"1x1 {kind}.{extension}": encoded(picture(1, 1), kind) for kind, extension in FORMATS.items()},
        "long.png": encoded(Image.new("L", (65_000, 2)), "PNG"),
        "tall.png": encoded(Image.new("L", (2, 65_000)), "PNG"),
        "animated.gif": encoded(frames[0], "GIF", **moving),
        "animated.webp": encoded(frames[0], "WEBP", **moving),
        "animated.png": encoded(frames[0], "PNG", **moving),
        "pages.tif": encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]),
        "16 bits.png": encoded(Image.fromarray(deep), "PNG"),
        "16 bits.tif": encoded(Image.fromarray(deep), "TIFF"),
        "16 bits.pgm": encoded(Image.fromarray(deep), "PPM"),
        "16 bits of colour.png": png16(noise, 2),
        "1 bit.png": encoded(picture(mode="1"), "PNG"),
        "grey.jpg": encoded(picture(mode="L"), "JPEG"),
        "grey and alpha.png": encoded(see_through.convert("LA"), "PNG"),
        "alpha.png": encoded(see_through, "PNG"),
        "alpha.webp": encoded(see_through, "WEBP"),
        "palette.png": encoded(palette, "PNG"),
        "palette with a hole.png": encoded(palette, "PNG", transparency=3),
        "palette.gif": encoded(palette, "GIF"),
        "cmyk.jpg": cmyk,
        "ycck.jpg": cmyk[:adobe] + b"\2" + cmyk[adobe + 1 :],
        "cmyk.tif": encoded(picture(mode="CMYK"), "TIFF"),
        "progressive.jpg": encoded(picture(), "JPEG", progressive=True),
        "profile.jpg": encoded(picture(), "JPEG", icc_profile=b"no profile at all"),
        "exif.jpg": encoded(picture(), "JPEG", exif=b"Exif\0\0no exif at all"),
    }
    made = {f"unusual/{name}": (data, PACKED) for name, data in files.items()}
    made["unusual/too long.png"] = (encoded(Image.new("L", (70_000, 2)), "PNG"), ENCODE)
    made["unusual/floats.tif"] = (encoded(Image.fromarray(deep.astype(np.float32)), "TIFF"), DECODE)
    return made


def _names() -> Corpus:
    names = [
        *(
            "dots.in.the.name.jpg",
            "two words.jpg",
            " leading.jpg",
            "trailing .jpg",
            "line\nbreak.jpg",
            "carriage\r.jpg",
        ),
        *("tab\t.jpg", "grüße ✓ 写真 🖼.jpg", "e\u0301.jpg", "\u00e9.jpg", "Case.jpg", "case.jpg", "UPPER.JPG"),
        *("-rf.jpg", "--help.jpg", "%s{0}$HOME`id`.jpg", "*.jpg", "quo\"te's.jpg", "back\\slash.jpg", "#?&=.jpg"),
        *("\x1b[31mred.jpg", "con.jpg", "a.jpg.png.jpg", "\u202egpj.jpg", "n" * 251 + ".jpg"),
        os.fsdecode(b"not \xff\xfe utf-8.jpg"),
    ]
    made = {f"names/{name}": (photo(number, 24, 16), PACKED) for number, name in enumerate(names)}
    made["names \x1b/\n.jpg"] = (photo(1, 24, 16), PACKED)  # a class that a terminal would obey
    made[os.fsdecode(b"names/bad \xff.jpg")] = (b"bad", DECODE)
    return made


def write(root: Path, files: Mapping[str, tuple[bytes, str]]) -> dict[str, str]:
    """Write a corpus below `root`, and what no bytes can say: links, pipes, loops; return what must become of each."""
    plain = {
        "whole.jpg": photo(2),
        "folder.jpg/inside.jpg": photo(3),
        ".hidden.jpg": photo(4),
        "notes.txt": b"no image",
    }
    odd = write_tree(root / "odd", plain)
    write_tree(root, {name: data for name, (data, _) in files.items()})
    (odd / "link.jpg").symlink_to("whole.jpg")
    os.link(odd / "whole.jpg", odd / "hard link.jpg")
    (odd / "dangling.jpg").symlink_to("nothing")
    (odd / "itself.jpg").symlink_to("itself.jpg")
    (odd / "endless.jpg").symlink_to("/dev/zero")
    (odd / "io error.jpg").symlink_to("/proc/self/mem")  # a regular file that even root cannot read from its start
    os.mkfifo(odd / "pipe.jpg")
    _socket(odd / "socket.jpg")
    (odd / "above").symlink_to("..")
    fates = {
        **dict.fromkeys(("whole.jpg", "link.jpg", "hard link.jpg", "folder.jpg/inside.jpg"), PACKED),
        **dict.fromkeys(("dangling.jpg", "itself.jpg", "endless.jpg", "io error.jpg", "pipe.jpg", "socket.jpg"), READ),
    }
    return {name: fate for name, (_, fate) in files.items()} | {f"odd/{name}": fate for name, fate in fates.items()}


def _socket(path: Path) -> None:
    """Make a socket; its address may be longer than one can be, so it is made elsewhere."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{folder}/s")
        os.link(f"{folder}/s", path) if os.stat(folder).st_dev == os.stat(path.parent).st_dev else os.mkfifo(path)


def fingerprint(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, time and SHA-256 of everything below a folder, to detect changes."""
    paths = (Path(folder, name) for folder, below, names in os.walk(root) for name in (*below, *names))
    return {str(path): _state(path) for path in paths}


def _state(path: Path) -> tuple[int, int, str]:
    about = path.lstat()
    regular = stat.S_ISREG(about.st_mode)
    return about.st_mode, about.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if regular else ""


def reference(data: bytes, short_side: int) -> Image.Image:
    """Return what a packed image must look like: upright, on white, in sRGB, by Pillow's bicubic filter."""
    with Image.open(io.BytesIO(data)) as opened:
        image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.int64) * 255 // 65535).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    with contextlib.suppress(ImageCms.PyCMSError, OSError):  # no profile, or none that means anything
        profile = io.BytesIO(image.info.get("icc_profile", b""))
        intent, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, profile, srgb, intent, "RGB", flags=flags)
        image = converted or image
    image = image.convert("RGB")
    scale = min(1.0, short_side / min(image.size))
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)
