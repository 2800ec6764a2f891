"""The encoded image: a packed image, the operations on its source, and where packing moved the pixels.

    stored    the pixels as in the file
    upright   turned according to the orientation (see `_orientation`)
    packed    upright, resized, and cropped to a window of the result

Coordinates of annotations are in pixels of the upright image, as browsers and annotation tools use them. They are
continuous: (0, 0) is the corner of the top left pixel, not its centre, and (width, height) the opposite corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shardflow.errors import EncodeError
from shardflow.formats.image_types import ImageType
from shardflow.formats.statistics import PixelSums
from shardflow.geometry.crops import Crops
from shardflow.packing.recipe import Recipe

Size = tuple[int, int]
"""Width and height in pixels."""

Window = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels; right and bottom are excluded."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where packing moved the pixels."""

    stored: Size  # as in the file
    orientation: int  # 1 … 8, as in EXIF; 1 is upright
    resized: Size  # of the whole upright image
    window: Window  # of the packed image in the resized one

    @classmethod
    def of(cls, stored: Size, orientation: int, recipe: Recipe, target: ImageType) -> Geometry:
        """Return the geometry of an image by a recipe; raise EncodeError if the packed image would be too large."""
        resized = _resized(upright_size(stored, orientation), recipe)
        if resized[0] * resized[1] > recipe.max_pixels:
            raise EncodeError(f"would be enlarged to {resized[0]}x{resized[1]} pixels, more than {recipe.max_pixels}")
        width, height = size = (min(resized),) * 2 if recipe.square else resized
        if max(size) > target.longest:
            raise EncodeError(f"would have {width}x{height} pixels; {target.longest} a side is {target.name}'s limit")
        left, top = (resized[0] - width) // 2, (resized[1] - height) // 2
        return cls(stored, orientation, resized, (left, top, left + width, top + height))

    @property
    def upright(self) -> Size:
        """Size of the upright image."""
        return upright_size(self.stored, self.orientation)

    @property
    def size(self) -> Size:
        """Size of the packed image."""
        left, top, right, bottom = self.window
        return right - left, bottom - top

    @property
    def is_change(self) -> bool:
        """Whether packing turns, resizes or crops the image."""
        return self.orientation != 1 or self.size != self.stored

    @property
    def crops(self) -> Crops:
        """The crop of the upright image, in a batch of one."""
        return Crops.of([self.upright], resized=self.resized, offset=self.window[:2], size=self.size)


def upright_size(stored: Size, orientation: int) -> Size:
    """Return the upright size of an image, from its stored size and orientation."""
    return (stored[1], stored[0]) if orientation >= 5 else stored


def _resized(size: Size, recipe: Recipe) -> Size:
    """Return the resized size of an image, by the side limit of a recipe that makes it smallest."""
    sides = (recipe.short_side, min(size)), (recipe.long_side, max(size))
    limits = [(most, side) for most, side in sides if most is not None]
    if not limits or not min(size):
        return size
    most, side = min(limits, key=lambda limit: Fraction(*limit))
    if most >= side and not recipe.enlarge:
        return size
    width, height = (max(1, (2 * own * most + side) // (2 * side)) for own in size)
    return width, height


class EncodedImage(NamedTuple):
    """A packed image, with the facts that statistics and annotations need."""

    image: bytes
    part: str  # its name in the sample: "jpg", "webp", "png" or "image.npy"
    pixels: PixelSums  # before encoding; empty for arrays
    geometry: Geometry
    bytes_before: int  # size of the source
    done: tuple[str, ...]  # what was done to it, as names of `Statistics.counts`, sorted


def describe(
    image: bytes, target: ImageType, source: bytes, geometry: Geometry, pixels: PixelSums, **done: bool
) -> EncodedImage:
    """Return a packed image with the operations on its source: those of its geometry, and `done`."""
    done = {"enlarged": geometry.resized > geometry.upright, "turned": geometry.orientation != 1, **done}
    names = sorted(name for name, was in done.items() if was)
    return EncodedImage(image, target.parts[0], pixels, geometry, len(source), tuple(names))
