"""Functions that users give to a packer, called for each file: short side 256, quality 90, 4:2:0, RGB."""

from __future__ import annotations

import io

from PIL import Image

from . import QUALITY, SHORT_SIDE


def pillow(path: str) -> bytes:
    """Decode, resize, encode: the recipe of most documentation."""
    with Image.open(path) as image:
        return _encoded(image.convert("RGB"))


def pillow_draft(path: str) -> bytes:
    """Let libjpeg decode at a reduced scale as well, with twice the target's size left for the filter."""
    with Image.open(path) as image:
        width, height = _target(*image.size)
        image.draft("RGB", (2 * width, 2 * height))
        return _encoded(image.convert("RGB"), (width, height))


def torchvision(path: str) -> bytes:
    """Decode, resize (bicubic) and encode with torchvision's operators, on one thread per process."""
    return _by_torchvision(path, "bicubic")


def torchvision_bilinear(path: str) -> bytes:
    """Resize as torchvision does by default, which is the function that most would write by hand."""
    return _by_torchvision(path, "bilinear")


def _by_torchvision(path: str, interpolation: str) -> bytes:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg, read_file
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)
    image = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    width, height = _target(image.shape[2], image.shape[1])
    resized = functional.resize(image, [height, width], functional.InterpolationMode(interpolation), antialias=True)
    return encode_jpeg(resized, quality=QUALITY).numpy().tobytes()


RESIZERS = {
    "pillow": pillow,
    "pillow-draft": pillow_draft,
    "torchvision": torchvision,
    "torchvision-bilinear": torchvision_bilinear,
}


def _target(width: int, height: int) -> tuple[int, int]:
    scale = SHORT_SIDE / min(width, height)
    return round(width * scale), round(height * scale)


def _encoded(image: Image.Image, size: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    resized = image.resize(size or _target(*image.size), Image.Resampling.BICUBIC)
    resized.save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()
