"""Transforms of torchvision and Albumentations that do not fit a decoded image, found before workers start.

Only transforms that certainly fail, or convert nothing, are refused: after a transform of another package, the input
type is unknown. Classes are recognised by name, so that the packages need not be imported.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from shardflow.errors import ConfigError

from .transform_parts import parts_of

logger = logging.getLogger(__name__)

_FLOATS = "v2.ToDtype(torch.float32, scale=True) before v2.Normalize, or device.Normalize() in a device.Prefetcher"
_MAY_CHANGE_TYPE = {"ConvertImageDtype", "Lambda", "LinearTransformation", "RandomApply", "RandomChoice", "RandomOrder"}
_MAY_CHANGE_TYPE |= {"ImageClassification", "ObjectDetection", "SemanticSegmentation", "ToDtype", "ToPILImage"}

_MOVING_CHANNELS = {"ToPILImage", "einsum", "moveaxis", "movedim", "permute", "rearrange", "swapaxes", "to_pil_image"}
_MOVING_CHANNELS |= {"transpose"}
"""The names in code that turns an image [3, H, W] into [H, W, 3]."""


def refuse_unfit(decoder: object, transform: object, annotated: Sequence[str]) -> None:
    """Refuse transforms that fail for each image, and warn of wrong values and axes; a list has one per view.

    Args:
        decoder: The loader's decoder. Only decoders of shardflow are known to return uint8 or uint16 tensors.
        transform: The loader's transform.
        annotated: The fields that the transform gets in a dict, together with the image.

    Raises:
        ConfigError: A transform fails; the message has the remedy.
    """
    if not type(decoder).__module__.startswith("shardflow."):
        return
    for each in transform if isinstance(transform, list | tuple) else [transform]:
        for one, other in itertools.pairwise(_of_torchvision(each)):
            names = type(one).__name__, type(other).__name__
            if names == ("ToDtype", "Normalize") and not one.scale and max(other.mean) <= 1:
                logger.warning("ToDtype without scale=True leaves values up to 255, and Normalize has a mean below 1")
        for first in _of_torchvision(each):
            name, is_v1 = type(first).__name__, ".v2." not in type(first).__module__
            if name in _MAY_CHANGE_TYPE:
                break
            if is_v1 and annotated:
                raise ConfigError(
                    f"{name} of torchvision.transforms takes only an image, and with {annotated[0]!r} among the "
                    "fields a transform gets a dict; use the one of torchvision.transforms.v2"
                )
            if name == "ToTensor" or (is_v1 and name == "PILToTensor"):  # v2's leaves tensors as they are
                raise ConfigError(
                    f"{name} converts PIL images, and images come as uint8 tensors [3, H, W]: leave it out, and for "
                    f"floats write {_FLOATS}"
                )
            if name == "Normalize":
                raise ConfigError(f"Normalize takes floats, and images come as uint8 tensors: write {_FLOATS}")
        _check_albumentations(each)


def _check_albumentations(transform: object) -> None:
    """Refuse Albumentations as the transform; warn if the code around it does not move the channels, or seeds nothing.

    Since version 2 it has its own generators.
    """
    theirs, words, has_generators = "", set[str](), False
    for part in parts_of(transform, _is_albumentations):
        words.add(type(part).__name__)
        for function in (part, *(getattr(type(part), name, None) for name in ("__call__", "forward"))):
            words.update(getattr(getattr(function, "__code__", None), "co_names", ()))
        theirs = theirs or type(part).__name__ * _is_albumentations(part)
        has_generators |= _is_albumentations(part) and hasattr(part, "set_random_seed")
    if theirs and words.isdisjoint(_MOVING_CHANNELS):
        message = f"{theirs} of Albumentations takes arrays [H, W, 3], and images come as tensors [3, H, W]"
        message += "; wrap it as `Keyed` in examples/albumentations_transform.py does, which seeds it too"
        if _is_albumentations(transform):
            raise ConfigError(message)
        logger.warning("%s, or move the axes before and after it", message)
    elif has_generators and not any("seed" in word for word in words):
        message = f"{theirs} of Albumentations draws from its own generators, which repeat in workers"
        logger.warning("%s; seed it for each image, as `Keyed` in examples/albumentations_transform.py does", message)


def _is_albumentations(value: object) -> bool:
    return any(base.__module__.startswith("albumentations.") for base in type(value).__mro__)


def _of_torchvision(transform: Any) -> Iterator[Any]:
    """Yield the transforms in the order of application, up to the first that is not torchvision's."""
    module, name = type(transform).__module__, type(transform).__name__
    if name == "Compose" and module.startswith("torchvision.transforms."):
        transform = transform.transforms
    elif not (name == "Sequential" and module.startswith("torch.nn.")):
        if module.startswith("torchvision.transforms."):
            yield transform
        return
    for each in transform:
        found = list(_of_torchvision(each))
        yield from found
        if not found:
            return
