"""The annotation overlay: the declared masks, boxes and keypoints of a sample, drawn over its picture.

Classes of a mask and labels of boxes have the colours of one palette. A mask with many values, such as depth, has one
colour in many strengths.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from shardflow._masks import load_mask, open_mask
from shardflow._pillow import map_codec_errors
from shardflow._wording import plural
from shardflow.errors import DecodeError
from shardflow.formats.annotations import Annotations
from shardflow.formats.coordinates import Array, Coordinates, read_coordinates
from shardflow.geometry.crops import Crops
from shardflow.geometry.segment_masks import segment_mask

PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#7fdb4c", "#b07aff", "#ff5a5f")
"""Okabe and Ito's colours, which most colour-blind people can distinguish, and three more."""

_MASK_STRENGTH = 0.5
_MOST_CLASSES = 64  # values of a mask up to which each has its own colour
_LINE, _POINT = 3, 4  # pixels, on a picture that is drawn at half its size


class Overlay(NamedTuple):
    """A picture with its annotations, and their description, such as "2 boxes"."""

    picture: Image.Image
    detail: str


def draw_annotations(
    picture: Image.Image, size: tuple[int, int], parts: Mapping[str, bytes], annotations: Annotations
) -> Overlay:
    """Draw the annotations of a sample over its picture in RGB; `size` is that of the image, (width, height).

    Raises:
        DecodeError: The sample lacks a declared part, or the part differs from its declaration.
        TooLargeError: A mask exceeds the default limit for decoding.
    """
    if missing := annotations.missing(parts):
        raise DecodeError(missing)
    for mask in annotations.masks:
        with map_codec_errors(DecodeError), open_mask(parts[mask], size) as image:
            load_mask(image)  # refuses invalid values
            picture = _with_mask(picture, image)
    found, whole = read_coordinates(annotations, parts.get, size), Crops.of([size])
    for segments in found.box_fields.values():
        if segments.dtype == object and len(segments):
            numbered = (segment_mask(each, whole, 0) * np.int32(number) for number, each in enumerate(segments, 1))
            picture = _with_mask(picture, Image.fromarray(functools.reduce(np.maximum, numbered)))
    return _with_coordinates(picture, found, size)


def draw_arrays(picture: Image.Image, masks: Sequence[Array], found: Coordinates) -> Overlay:
    """Draw masks [1 or 3, H, W] and coordinates in pixels over an RGB picture of size [H, W]."""
    of_boxes = [values for values in found.box_fields.values() if values.ndim == 3 and len(values)]
    numbered = [(values * np.arange(1, len(values) + 1)[:, None, None]).max(0, keepdims=True) for values in of_boxes]
    for mask in [*masks, *numbered]:
        if len(mask) in (1, 3):
            values = mask[0].astype(np.int32) if len(mask) == 1 else mask.astype(np.uint8).transpose(1, 2, 0)
            picture = _with_mask(picture, Image.fromarray(np.ascontiguousarray(values)))
    return _with_coordinates(picture, found, picture.size)


def _with_coordinates(picture: Image.Image, found: Coordinates, size: tuple[int, int]) -> Overlay:
    picture = picture.copy()
    scale = np.array(picture.size, np.float64) / size
    return Overlay(picture, _draw_coordinates(ImageDraw.Draw(picture), found, scale))


def _with_mask(picture: Image.Image, image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return Image.blend(picture, image.resize(picture.size, Image.Resampling.NEAREST), _MASK_STRENGTH)
    values = np.asarray(image.resize(picture.size, Image.Resampling.NEAREST)).astype(np.int64)
    different = np.unique(values)
    if len(different) <= _MOST_CLASSES:
        colours = np.array([_rgb(value) for value in different.tolist()], np.float64)[
            np.searchsorted(different, values)
        ]
        strength = _MASK_STRENGTH * (values > 0)[..., None]
    else:
        colours = np.full((*values.shape, 3), _rgb(1), np.float64)
        strength = (_MASK_STRENGTH + 0.3) * (values / different[-1])[..., None]
    pixels = np.asarray(picture, np.float64)
    return Image.fromarray((pixels + (colours - pixels) * strength).round().astype(np.uint8))


def _draw_coordinates(pen: ImageDraw.ImageDraw, found: Coordinates, scale: npt.NDArray[np.float64]) -> str:
    """Draw boxes and keypoints; return the number of boxes, such as "2 boxes", or of keypoints without boxes."""
    boxes = np.empty((0, 4)) if found.boxes is None else found.boxes * np.tile(scale, 2)
    labels = found.box_fields.get("labels", np.arange(len(boxes)))
    shown = (boxes[:, :2] < boxes[:, 2:]).all(1)  # a box that packing cut off is all zeros
    for box, label in zip(boxes[shown].tolist(), labels[shown].tolist(), strict=True):
        left, top, right, bottom = box
        outline = (left, top, max(left, right - 1), max(top, bottom - 1))
        pen.rectangle(outline, outline="black", width=_LINE + 1)
        pen.rectangle(outline, outline=_colour(label + 1), width=_LINE)
    points = 0
    lists = np.empty((0, 0, 2)) if found.keypoints is None else found.keypoints
    lists = lists if lists.ndim == 3 else lists[None]
    for number, each in enumerate(lists):
        label = int(labels[number]) if len(labels) == len(lists) else number
        for x, y, *visibility in each.tolist():
            if visibility != [0]:
                left, top = x * scale[0] - _POINT, y * scale[1] - _POINT
                circle = (left, top, left + 2 * _POINT, top + 2 * _POINT)
                pen.ellipse(circle, fill=_colour(label + 1), outline="black")
                points += 1
    if found.boxes is not None:
        return plural(int(shown.sum()), "box")
    return "" if found.keypoints is None else plural(points, "keypoint")


def _colour(value: int) -> str:
    """Return the colour of a class of a mask, where 0 is the background; label n has the colour of n + 1."""
    return PALETTE[(value - 1) % len(PALETTE)]


def _rgb(value: int) -> tuple[int, ...]:
    colour = _colour(value)
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
