"""Warnings about crops: transforms that crop, resize or flip again after the decoder, and crops that enlarge images.

Pipelines that are written for torchvision's ImageFolder crop by themselves; a loader's decoder crops too, while it
decodes. Known classes are recognised by their names, wherever they are nested; their packages are not imported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from types import FunctionType
from typing import Any

from shardflow.errors import ConfigError
from shardflow.formats.columns import COMPUTED_FIELDS
from shardflow.loading.transform_parts import parts_of

from .decoder import Decoder
from .standard_crops import CenterCrop, Cover, RandomResizedCrop

logger = logging.getLogger(__name__)

_PACKAGES = ("torchvision.", "timm.", "albumentations.", "kornia.", "shardflow.device.")

_RANDOM_RESIZED_CROPS = {"RandomResizedCrop", "RandomResizedCropAndInterpolation"}
_CROPS = {*_RANDOM_RESIZED_CROPS, "CenterCrop", "ImageClassification", "RandomSizedCrop"}
"""They choose the part of the image that is seen, as decoders do: no decoder that crops goes with them."""

_SIZES = {"CenterCropOrPad", "LongestMaxSize", "RandomCrop", "RandomCropOrPad", "RandomIoUCrop", "RandomResize"}
_SIZES |= {"RandomScale", "RandomShortestSize", "Resize", "ResizeKeepRatio", "ScaleJitter", "SmallestMaxSize"}
_SIZES |= {"FiveCrop", "TenCrop"}
"""They need images of a certain size. After a decoder that the user has chosen for them they are right."""

_FLIPS = {"HorizontalFlip", "RandomHorizontalFlip"}

_OTHER_MOVES = {"Affine", "AugMix", "AutoAugment", "D4", "ElasticTransform", "GridDistortion", "OpticalDistortion"}
_OTHER_MOVES |= {"Perspective", "RandAugment", "RandomAffine", "RandomCrop", "RandomElasticTransform", "RandomFisheye"}
_OTHER_MOVES |= {"RandomPerspective", "RandomRotate90", "RandomRotation", "RandomRotation90", "RandomShear"}
_OTHER_MOVES |= {"RandomThinPlateSpline", "RandomTranslate", "RandomVerticalFlip", "RandomZoomOut", "Rotate"}
_OTHER_MOVES |= {"SafeRotate", "ShiftScaleRotate", "Transpose", "TrivialAugmentWide", "VerticalFlip"}
"""They move pixels, as crops and flips do, without a decoder that does the same."""

_MIXING = {"CutMix", "Mixup", "MixUp"}


def warn_of_repeated_crops(decoder: object, *, is_default: bool = False, **arguments: object) -> None:
    """Log a warning for each argument whose transform repeats the crop or flip of the decoder, if it is one.

    A list as `transform` has one for each view.
    """
    if not isinstance(decoder, Decoder):
        return
    views = decoder.views or (decoder,)
    for argument, given in arguments.items():
        values = given if argument == "transform" and isinstance(given, Sequence) else [given] * len(views)
        for view, value in zip(views, values, strict=True):
            known = _known_transforms(value, _CROPS | _SIZES | _FLIPS)
            if repeated := _repeated(view, known, is_default=is_default):
                done = "flipped" if _FLIPS.issuperset(repeated) else "cropped"
                remedies = [f"leave {' and '.join(repeated)} out of {argument}"]
                if done == "flipped":
                    remedies.append(f"give {type(view).__name__} hflip=0")
                elif not (decoder.views or decoder.needs_shape or decoder.patch):  # else the decoder stays
                    if same := _same_decoder(known):
                        remedies[0] += f" and pass decoder=shardflow.decoders.{same}"
                    if argument == "transform":
                        remedies.append("keep it and decode whole images with decoder=shardflow.decoders.Image()")
                message = "images are %s twice: by the decoder, %s, and again by %s in %s; %s"
                named = type(view).__name__, " and ".join(repeated), argument
                logger.warning(message, done, *named, ", or ".join(remedies))
                break


def warn_of_enlarging(decoder: Decoder, transform: object, recipe: Mapping[str, Any]) -> None:
    """Log a warning for sizes that are larger than the short side to which images were packed."""
    if (packed := recipe.get("short_side")) is None:
        return
    found: list[tuple[str, Any]] = [
        (type(view).__name__, view)
        for view in decoder.views or (decoder,)
        if isinstance(view, (CenterCrop, RandomResizedCrop))
    ]
    if not (found or isinstance(decoder, Cover)):
        found = [*_known_transforms(transform, {*_RANDOM_RESIZED_CROPS, "Resize"}).items()]
    for name, each in found:
        size = getattr(each, "resize", None) or getattr(each, "size", None)
        sides = [max(size.values())] if isinstance(size, dict) else size if isinstance(size, Sequence) else [size]
        if all(isinstance(side, int) and side > packed for side in sides):
            message = "%s resizes to a short side of %d, which enlarges images that were packed to %d: pack with "
            logger.warning(message + "--short-side %d or more", name, min(sides), packed, min(sides))


def moving_transforms(transform: object) -> list[str]:
    """Return the names of the known transforms in an object that move pixels, so that annotations should follow."""
    return [*_known_transforms(transform, _CROPS | _FLIPS | _OTHER_MOVES)]


def check_mixing(batch_transform: object, fields: Sequence[str], *, pad: bool) -> None:
    """Refuse to mix padded batches, and warn of targets that stay unmixed; a function of the user may do it right."""
    is_own = isinstance(batch_transform, FunctionType)
    known = {} if is_own and (not pad or "valid" in fields) else _known_transforms(batch_transform, _MIXING)
    if known and pad:
        raise ConfigError(
            f"{' and '.join(known)} would mix the padding of tail='pad' into other samples; use tail='drop' or "
            "'short', or shardflow.device.MixUp with the field 'valid'"
        )
    computed = {*COMPUTED_FIELDS} - {"label", "labels"}
    if known and (unmixed := [field for field in fields[2:] if field not in computed]):
        message = "%s as batch_transform mixes the images and %r, but not %s; mix them in a function, or leave them out"
        logger.warning(message, " and ".join(known), fields[1], " and ".join(map(repr, unmixed)))


def _repeated(decoder: Decoder, known: Mapping[str, object], *, is_default: bool) -> list[str]:
    """Return the names of those transforms that repeat what a decoder does."""
    if not isinstance(decoder, (CenterCrop, Cover, RandomResizedCrop)):
        return []
    flips, crops = getattr(decoder, "hflip", 0) > 0, is_default or bool(known.keys() & _CROPS)
    return [name for name in known if (flips if name in _FLIPS else crops)]


def _same_decoder(known: Mapping[str, Any]) -> str | None:
    """Return the decoder that does the same as these transforms, as code; None where there is none."""
    crops, flips = known.keys() - _FLIPS, known.keys() & _FLIPS
    with contextlib.suppress(AttributeError, ConfigError, TypeError, ValueError):  # settings that no decoder has
        if len(crops) == 1 and crops <= _RANDOM_RESIZED_CROPS:
            crop = known[min(crops)]
            hflip = known[min(flips)].p if flips else getattr(crop, "hflip", 0)
            given = {"scale": tuple(crop.scale), "ratio": tuple(crop.ratio), "hflip": hflip}
            return _code(RandomResizedCrop, _side(crop.size), given)
        if crops == {"Resize", "CenterCrop"} and not flips:
            short_side = known["Resize"].size
            if isinstance(short_side, int) or len(short_side) == 1:
                return _code(CenterCrop, _side(known["CenterCrop"].size), {"resize": _side(short_side)})
    return None


def _code(kind: Callable[..., Decoder], side: int, given: Mapping[str, Any]) -> str:
    """Return the call that makes a decoder, without the arguments that are the default."""
    decoder, default = kind(side, **given), kind(side)
    changed = (f", {name}={value!r}" for name, value in given.items() if getattr(default, name) != value)
    return f"{type(decoder).__name__}({side}{''.join(changed)})"


def _side(size: int | Sequence[int]) -> int:
    """Return the side of a square; ValueError if it is not one."""
    (side,) = {size} if isinstance(size, int) else {*size}
    return int(side)


def _known_transforms(root: object, names: Set[str]) -> dict[str, object]:
    """Return the transforms of these names in an object, by the names of their classes; of several, the last."""
    parts = parts_of(root, lambda each: _known_name(each, names) is not None)
    return {name: each for each in parts if (name := _known_name(each, names))}


def _known_name(value: object, names: Set[str]) -> str | None:
    for base in type(value).__mro__:
        if base.__module__.startswith(_PACKAGES) and base.__name__ in names:
            return base.__name__
    return None
