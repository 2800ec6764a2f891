"""One sample of a collection, taken apart: whatever its form, an image, a label, a mask, and what is known besides."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardflow.dataset.label_numbering import Named
from shardflow.errors import SampleError
from shardflow.formats.image_types import IMAGE_TYPES

from .image_objects import is_image
from .rows import rest_of

IMAGE_KEYS = ("image", "img", *(part for each in IMAGE_TYPES if each.in_shards for part in each.parts))
LABEL_KEYS = ("label", "cls")


class Taken(NamedTuple):
    """A sample taken apart. `parts` are texts, bytes, or images (masks), by the names of the parts they become."""

    image: Any
    label: Named
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Which entries of samples that are mappings are what; None where the samples decide."""

    image: str | None
    label: str | None
    caption: str | None
    mask: str | None

    def take(self, sample: Any) -> Taken:
        """Take a sample apart.

        Raises:
            SampleError: It has no image, or something in it is not understood.
        """
        if isinstance(sample, Mapping) and not is_image(sample):
            return self._mapping(sample)
        if isinstance(sample, tuple | list) and not is_image(sample):
            if not 1 <= len(sample) <= 2:
                raise SampleError(f"expected (image, target), found {len(sample)} values; make a mapping of them")
            return _pair(*sample)
        return Taken(sample, None, {})

    def _mapping(self, sample: Mapping[str, Any]) -> Taken:
        image = self.image or next((key for key in IMAGE_KEYS if key in sample), None)
        label = self.label or next((key for key in LABEL_KEYS if key in sample), None)
        for key in (image, self.label, self.caption, self.mask):
            if key is not None and key not in sample:
                raise SampleError(f"has no {key!r}, but {', '.join(map(str, sample))}")
        if image is None:
            raise SampleError(f"has none of {', '.join(IMAGE_KEYS)}, but {', '.join(map(str, sample))}; name the image")
        parts: dict[str, Any] = {}
        if self.caption is not None:
            parts["txt"] = str(sample[self.caption])
        if self.mask is not None:
            parts["mask.png"] = sample[self.mask]
        rest = {key: value for key, value in sample.items() if key not in (image, label, self.caption, self.mask)}
        for key, value in rest.items():
            if is_image(value):
                raise SampleError(f"has a second image, {key!r}; name it as the mask, or leave it out")
        parts |= {key: value for key, value in rest.items() if isinstance(value, bytes)}
        others = {key: value for key, value in rest.items() if not (isinstance(value, bytes) or key.startswith("__"))}
        if text := rest_of(others, frozenset()):
            parts["json"] = text
        return Taken(sample[image], None if label is None else label_of(sample[label]), parts)


def _pair(image: Any, target: Any = None) -> Taken:
    if is_image(target):
        return Taken(image, None, {"mask.png": target})
    annotations = isinstance(target, list | tuple) and any(isinstance(one, Mapping) for one in target)
    if annotations or isinstance(target, Mapping):
        return Taken(image, None, {"json": rest_of({"annotations": target} if annotations else target, frozenset())})
    return Taken(image, label_of(target), {})


def label_of(value: Any) -> Named:
    """Return a label as the number or the name of a class, or a list of those; -1 stands for none.

    Raises:
        SampleError: It is none.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"expected the number or the name of a class as JSON, found {value[:40]!r}") from error
        return label_of(content)
    try:
        number = operator.index(value)
    except TypeError:
        pass
    else:
        return None if number == -1 else number
    try:
        several = [label_of(one) for one in value]
    except TypeError as error:
        raise SampleError(f"expected the number or the name of a class, found {type(value).__name__}") from error
    return [one for one in several if isinstance(one, str | int)]
