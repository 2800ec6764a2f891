"""The sample adapter: turns an object of any usual form into an image, a label, and other parts.

Image objects become lossless files, so that recipes treat them like any other image.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from shardflow._orientation import upright
from shardflow._pillow import map_codec_errors
from shardflow.dataset.label_numbering import Named
from shardflow.errors import ConfigError, DecodeError, SampleError
from shardflow.formats.image_types import IMAGE_TYPES

logger = logging.getLogger(__name__)

IMAGE_KEYS = ("image", "img", *(part for each in IMAGE_TYPES if each.in_shards for part in each.parts))
LABEL_KEYS = ("label", "cls")
LIKE_LABEL = ("label", "labels", "class", "class_name", "category", "target", "class_id", "category_id", "label_id")
LIKE_CAPTION = {"text", "title", "description", "prompt", "alt", "alt_text"}
MASK_PART = "mask.png"

_PLAIN_MODES = ("L", "RGB")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class AdaptedSample(NamedTuple):
    """A sample in the uniform form."""

    image: Any  # the image, in any form
    label: Named
    parts: Mapping[str, Any]  # part name → text, bytes, or image
    mask: str | None = None  # the part that is known to be a mask; None if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAdapter:
    """Adapts samples. Each field is a key of samples that are mappings; None for the usual keys, if there are any."""

    image: str | None
    label: str | None
    caption: str | None
    mask: str | None

    def adapt(self, sample: Any) -> AdaptedSample:
        """Return a sample in the uniform form; SampleError if its form is not supported."""
        if isinstance(sample, Mapping) and not is_image(sample):
            return self._mapping(sample)
        if isinstance(sample, tuple | list) and not is_image(sample):
            if not 1 <= len(sample) <= 2:
                raise SampleError(f"expected (image, target), found {len(sample)} values; use a mapping instead")
            return _pair(*sample)
        return AdaptedSample(sample, None, {})

    def _mapping(self, sample: Mapping[str, Any]) -> AdaptedSample:
        image = self.image or next((key for key in IMAGE_KEYS if key in sample), None)
        label = self.label or next((key for key in LABEL_KEYS if key in sample), None)
        for key in (image, self.label, self.caption, self.mask):
            if key is not None and key not in sample:
                raise SampleError(f"has no {key!r}, but {', '.join(map(str, sample))}")
        if image is None:
            raise SampleError(f"has none of {', '.join(IMAGE_KEYS)}, but {', '.join(map(str, sample))}; name the image")
        parts: dict[str, Any] = {}
        if self.caption is not None:
            parts["txt"] = caption_text(sample[self.caption])
        if self.mask is not None:
            mask_image = sample[self.mask]
            parts[MASK_PART] = Path(mask_image) if isinstance(mask_image, str) else mask_image
        others: dict[str, Any] = {}
        for key, value in sample.items():
            if key in (image, label, self.caption, self.mask):
                continue
            if is_image(value):
                raise SampleError(f"has a second image, {key!r}; name it as the mask, or leave it out")
            if isinstance(value, bytes):
                if key in parts:
                    raise SampleError(f"has a part {key!r} and {self.caption or self.mask!r}; leave one of them out")
                parts[key] = value
            elif not key.startswith("__"):
                others[key] = value
        if text := to_json(others):
            if "json" in parts:
                raise SampleError(f"has a part 'json' and {', '.join(others)}, which become one; put them into it")
            parts["json"] = text
        mask = None if self.mask is None else MASK_PART
        return AdaptedSample(sample[image], None if label is None else _label(sample[label]), parts, mask)


def _pair(image: Any, target: Any = None) -> AdaptedSample:
    if is_image(target) or isinstance(target, Path):
        return AdaptedSample(image, None, {MASK_PART: target}, MASK_PART)
    annotations = isinstance(target, list | tuple) and any(isinstance(one, Mapping) for one in target)
    if annotations or isinstance(target, Mapping):
        return AdaptedSample(image, None, {"json": to_json({"annotations": target} if annotations else target)})
    if isinstance(target, tuple) and len(target) > 1:
        remedy = "give a dict, {'image': …, 'label': …, 'species': …}, or a list for several classes of an image"
        raise SampleError(f"has the target {target!r:.60}, and a tuple holds several targets; {remedy}")
    return AdaptedSample(image, _label(target), {})


def _label(value: Any) -> Named:
    """Return a label as the number or the name of a class, or a list of these; None for -1, which means no class."""
    if value is None or isinstance(value, str | bool):  # a bool is refused, as in any source
        return value
    if isinstance(value, bytes):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"expected the number or the name of a class as JSON, found {value[:40]!r}") from error
        return _label(content)
    with contextlib.suppress(TypeError):
        return None if (number := operator.index(value)) == -1 else number
    if shape := getattr(value, "shape", ()):
        raise SampleError(
            f"has a label of shape {tuple(shape)}, which may be a one-hot vector, scores or coordinates; expected the "
            "number or the name of a class, or a list of these, such as v.nonzero()[0].tolist()"
        )
    if not isinstance(value, list | tuple | set | frozenset):
        raise SampleError(f"expected the number or the name of a class, found {type(value).__name__}")
    several = [_label(one) for one in value]
    if any(isinstance(one, list) for one in several):
        raise SampleError(
            f"has the label {value!r:.60}; expected the number or the name of a class, or a list of these"
        )
    return [one for one in several if isinstance(one, str | int)]


def label_column(given: str | None, names: Collection[str], classes: Collection[str], where: object) -> str | None:
    """Return the label column among `names`, of which `classes` have class names; None if there is none.

    Raises:
        ConfigError: Several columns have class names, and the label is neither given nor one of `LABEL_KEYS`.
    """
    label = given or next((key for key in LABEL_KEYS if key in names), None)
    if label is None and len(classes) > 1:
        raise ConfigError(f"{where} has several columns with classes: {', '.join(classes)}; name one with label=")
    label = label or next(iter(classes), None)
    if label is None and (likely := [name for name in names if name.lower() in LIKE_LABEL]):
        logger.warning("%s: the images have no labels; if %r was meant, name it with label=", where, likely[0])
    return label


def caption_text(value: Any) -> str:
    """Return a caption; raise a SampleError for a value that is not text, such as None or NaN."""
    if isinstance(value, str):
        return value
    with contextlib.suppress(UnicodeDecodeError):
        if isinstance(value, bytes):
            return value.decode()
    raise SampleError(f"has the caption {value!r:.60}; expected text")


def unfit_caption(source: object, column: str, kind: str, *, is_named: bool) -> str:
    """Return a warning that a caption column without text goes to `.json`; raise ConfigError if the user named it."""
    values = f"{source}: column {column!r} has values of type {kind}"
    if is_named:
        message = f"{values}; a caption is one text"
        raise ConfigError(f"{message}. Name another; the part 'json' of each sample keeps this one as it is")
    return f"{values}, so it goes to .json, not to .txt"


def to_json(values: Mapping[str, Any]) -> str:
    """Return values as a JSON object, "" without values. Types that JSON lacks become text; NaN and infinities null."""
    try:
        return json.dumps(_in_json(dict(values)), ensure_ascii=False, default=_as_text) if values else ""
    except RecursionError as error:
        raise SampleError("has values that are nested too deeply") from error


def _as_text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview | Image.Image):
        raise SampleError(f"has {type(value).__name__} inside of another value, where it would be lost: name it apart")
    return str(value)


def _in_json(value: Any) -> Any:
    """Return a value with None for NaN and infinities, and with arrays and scalars of numpy and torch as Python's."""
    if isinstance(value, Mapping):
        return {name: _in_json(each) for name, each in value.items()}
    is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")  # `tolist` would give numbers
    if isinstance(value, list | tuple) or (is_time and value.ndim):
        return [_in_json(each) for each in value]
    if hasattr(value, "tolist") and not is_time:
        return _in_json(value.tolist())
    if isinstance(value, float) and math.isinf(value):  # pandas writes null too; other readers refuse Infinity
        return None
    with contextlib.suppress(TypeError):  # pandas' NA raises it
        return value if value == value else None
    return None


def is_image(value: object) -> bool:
    """Return whether a value is an image: Pillow's, an array or tensor, or a file as in Hugging Face datasets."""
    if isinstance(value, Mapping):
        return {"bytes", "path"} == value.keys()
    return isinstance(value, Image.Image) or len(getattr(value, "shape", ())) in (2, 3)


def image_file(value: Any, *, as_png: bool = False) -> bytes | Path:
    """Return an image as the bytes or the path of a file: in the cheapest format to write, or as PNG for masks.

    `value` is bytes, a path, {"bytes": ..., "path": ...}, a Pillow image, or an array or tensor of uint8 (or uint16 for
    grey): [height, width], [height, width, channels], or, for torch, [channels, height, width].
    """
    if isinstance(value, Mapping) and is_image(value):
        value = value["bytes"] if value["bytes"] is not None else value["path"]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str | Path):
        return Path(value).absolute()
    if not isinstance(value, Image.Image):
        value = Image.fromarray(_pixels(value))
    with map_codec_errors(DecodeError):
        return _encode(value, as_png)


def _pixels(value: Any) -> npt.NDArray[Any]:
    if not hasattr(value, "shape"):
        raise SampleError(f"expected an image, found {type(value).__name__}")
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 and not (pixels.dtype == np.uint16 and pixels.ndim == 2):
        expected = "uint8, or uint16 for grey; a dataset's own ToTensor or Normalize must go"
        raise SampleError(f"an array of {pixels.dtype} has no defined range; expected {expected}")
    if pixels.ndim == 3 and type(value).__module__.startswith("torch"):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        message = f"an array of shape {pixels.shape} is not an image"
        raise SampleError(f"{message}; expected [height, width, 1, 3 or 4 channels]")
    return np.ascontiguousarray(pixels)


def _encode(image: Image.Image, as_png: bool) -> bytes:
    """Return a file in the lossless format that is cheapest to write and to read and can hold the image."""
    profile = image.info.get("icc_profile")
    # An image that was only opened is like its file. Code that changes one keeps the EXIF, and may have turned it.
    image = (upright(image) if isinstance(image, ImageFile.ImageFile) else image).copy()
    # Metadata would be written too, and turn the image once more.
    image.info = {name: value for name, value in image.info.items() if name == "transparency"}
    buffer = io.BytesIO()
    if image.mode in _PLAIN_MODES and not (profile or image.info or as_png):
        image.save(buffer, "PPM")
    elif image.mode in _PNG_MODES:
        image.save(buffer, "PNG", compress_level=1, icc_profile=profile)
    else:
        image.save(buffer, "TIFF", icc_profile=profile)
    return buffer.getvalue()
