"""Colour jitter on the device: each image has different factors in a different order."""

from __future__ import annotations

import math
from numbers import Real

import torch

from shardflow._validation import check_probability
from shardflow.errors import ConfigError

from . import rng
from .transform import KeyedTransform, to_dtype_of, to_float

_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601, rounded as torchvision rounds it
_CONTRAST, _SATURATION, _HUE = 1, 2, 3


class ColorJitter(KeyedTransform):
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Factors and order have the distribution of `torchvision.transforms.v2.ColorJitter` for one image, and are applied
    like torchvision's to floating-point images.

    Args:
        brightness, contrast, saturation: Spread x of the factor, 0 or more; the factor is in [max(0, 1 - x), 1 + x].
        hue: Spread of the rotation, 0 … 0.5; the rotation is in [-hue, hue], in full circles.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
    ) -> None:
        spreads = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        for name, value in spreads.items():
            if not isinstance(value, Real) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be 0 or more, found {value}")
        check_probability("hue", hue, most=0.5)
        self._ranges = [(max(0.0, 1 - value), 1 + value) for value in spreads.values()] + [(-hue, hue)]
        self._active = [number for number, value in enumerate((*spreads.values(), hue)) if value]

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images [B, 3, H, W] in their dtype, with other colours.

        Raises:
            ConfigError: The images do not have three channels.
        """
        if images.shape[1] != 3:
            raise ConfigError(f"ColorJitter takes RGB images, found {images.shape[1]} channels")
        factors, order = self.make_params(keys)
        return jitter(images, factors, order, hue=_HUE in self._active)

    def make_params(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the four factors, float32 [B, 4], and the numbers of the active ones in order, int64 [B, active]."""
        uniforms = rng.uniforms(keys, 4 + len(self._active))
        factors = [rng.between(uniforms[:, number], *self._ranges[number]) for number in range(4)]
        # Sorting uniform numbers shuffles uniformly, and leaving some out of a shuffle leaves the rest shuffled.
        places = uniforms[:, 4:].argsort(dim=1)
        # Python numbers, because copying a tensor to a GPU would wait for its queued work.
        order = sum((places == place) * number for place, number in enumerate(self._active))
        return torch.stack(factors, dim=1), order if isinstance(order, torch.Tensor) else places


def jitter(images: torch.Tensor, factors: torch.Tensor, order: torch.Tensor, *, hue: bool) -> torch.Tensor:
    """Return the images, changed by the factors in the order from `ColorJitter.make_params`.

    Brightness, contrast and saturation are one formula: a blend of the image with black, its mean grey, or its greys,
    so each of these steps costs the same. Hue is computed only if `hue` is True, which must be set if `order` has it.
    """
    pixels = to_float(images)
    for step in order.unbind(1):
        factor = factors.gather(1, step[:, None])[:, :, None, None]
        kind = step[:, None, None, None]
        grey = sum(weight * pixels[:, channel : channel + 1] for channel, weight in enumerate(_GREY))
        assert isinstance(grey, torch.Tensor)
        other = torch.where(
            kind == _CONTRAST, grey.mean((2, 3), keepdim=True), torch.where(kind == _SATURATION, grey, 0.0)
        )
        blended = (pixels * factor + other * (1 - factor)).clamp(0, 1)
        pixels = torch.where(kind == _HUE, _rotate_hue(pixels, factor), blended) if hue else blended
    return to_dtype_of(pixels, images)


def _rotate_hue(pixels: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Return floating-point pixels [B, 3, H, W] with the hue rotated by [B, 1, 1, 1], in full circles.

    A colour is its greatest channel (value), the spread of its channels (chroma), and an angle (hue). Each channel of
    the result is value - chroma · a trapezoid of its distance on the circle (A. R. Smith, "Color gamut transform
    pairs", 1978, in closed form).
    """
    red, green, blue = pixels.unbind(1)
    value, least = pixels.amax(1), pixels.amin(1)
    chroma = value - least
    spread = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(
        value == red,
        (green - blue) / spread,
        torch.where(value == green, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    hue = sixth[:, None] + 6 * rotation
    shift = 5 - 2 * torch.arange(3, dtype=pixels.dtype, device=pixels.device)[None, :, None, None]
    angle = (hue + shift).remainder(6)
    return value[:, None] - chroma[:, None] * torch.minimum(angle, 4 - angle).clamp(0, 1)
