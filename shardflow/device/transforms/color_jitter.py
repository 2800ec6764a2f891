"""Colour jitter on the device, every image with factors and an order of its own."""

from __future__ import annotations

import math
from numbers import Real

import torch

from shardflow._validation import check_probability
from shardflow.errors import ConfigError

from . import rng
from .transform import KeyedStage, to_dtype_of, to_float

_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as torchvision rounds it
_HUE = 3


class ColorJitter(KeyedStage):
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Factors and order are distributed as `torchvision.transforms.v2.ColorJitter` draws them for one image, and applied
    as it does to floating-point images.

    Args:
        brightness, contrast, saturation: Spread of the factor, which lies in [max(0, 1 - x), 1 + x]; 0 leaves it alone.
        hue: Spread of the turn, which lies in [-hue, hue], as a share of the full circle, 0 … 0.5.

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
        """Return the images, [B, 3, H, W], in other colours.

        Raises:
            ConfigError: They have not three channels.
        """
        if images.shape[1] != 3:
            raise ConfigError(
                f"ColorJitter works on red, green and blue, and the images have {images.shape[1]} channels"
            )
        factors, order = self.draw(keys)
        return jitter(images, factors, order, hue=_HUE in self._active)

    def draw(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the four factors, float32 [B, 4], and the numbers of the active ones in order, int64 [B, active]."""
        drawn = rng.uniforms(keys, 4 + len(self._active))
        factors = [rng.between(drawn[:, number], *self._ranges[number]) for number in range(4)]
        # Sorting uniform numbers shuffles uniformly, and leaving some out of a shuffle leaves the rest shuffled.
        places = drawn[:, 4:].argsort(dim=1)
        # Numbers and no tensor of them: bringing one to a GPU would wait for all that is queued there.
        order = sum((places == place) * number for place, number in enumerate(self._active))
        return torch.stack(factors, dim=1), order if isinstance(order, torch.Tensor) else places


def jitter(images: torch.Tensor, factors: torch.Tensor, order: torch.Tensor, *, hue: bool) -> torch.Tensor:
    """Return the images, changed in each one's own order by its own factors, as `ColorJitter.draw` returns them.

    Brightness, contrast and saturation are one formula, a blend of the image with black, with its mean grey, or with
    its greys, so that a round of three costs what one of them does; hue is computed only where `hue` says it occurs.
    """
    pixels = to_float(images)
    for chosen in order.unbind(1):
        factor = factors.gather(1, chosen[:, None])[:, :, None, None]
        which = chosen[:, None, None, None]
        grey = sum(weight * pixels[:, channel : channel + 1] for channel, weight in enumerate(_GREY))
        assert isinstance(grey, torch.Tensor)
        other = torch.where(which == 1, grey.mean((2, 3), keepdim=True), torch.where(which == 2, grey, 0.0))
        blended = (pixels * factor + other * (1 - factor)).clamp(0, 1)
        pixels = torch.where(which == _HUE, _turned(pixels, factor), blended) if hue else blended
    return to_dtype_of(pixels, images)


def _turned(pixels: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Return the colours turned around the hue circle by a share of it.

    A colour is its greatest channel (value), the spread below it (chroma), and a place on the circle; each channel of
    the turned colour is value - chroma · a trapezoid of its distance on the circle (A. R. Smith, "Color gamut transform
    pairs", 1978, in the closed form without cases).
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
    hue = sixth[:, None] + 6 * turn
    shift = 5 - 2 * torch.arange(3, dtype=pixels.dtype, device=pixels.device)[None, :, None, None]
    place = (hue + shift).remainder(6)
    return value[:, None] - chroma[:, None] * torch.minimum(place, 4 - place).clamp(0, 1)
