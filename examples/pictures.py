"""The images of the packing examples: one coloured disc each, drawn from a number."""

from __future__ import annotations

from PIL import Image, ImageDraw

COLOURS = ("crimson", "gold", "navy")
"""The colour of picture n is number n % 3: its class, where an example needs one."""

SIZE = (240, 160)


def disc(number: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the disc in picture `number`, in pixels."""
    left, top = 20 + 13 * number % 120, 15 + 7 * number % 60
    return left, top, left + 60, top + 60


def picture(number: int) -> Image.Image:
    """Return picture `number`."""
    image = Image.new("RGB", SIZE, "ivory")
    ImageDraw.Draw(image).ellipse(disc(number), fill=COLOURS[number % 3])
    return image


def mask(number: int) -> Image.Image:
    """Return the mask of picture `number`: 1 where the disc is, 0 elsewhere."""
    image = Image.new("L", SIZE)
    ImageDraw.Draw(image).ellipse(disc(number), fill=1)
    return image
