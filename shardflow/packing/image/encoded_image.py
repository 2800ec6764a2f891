"""The encoded image: a packed image, the operations on its source, and where packing moved the pixels.

    stored    the pixels as in the file
    upright   turned according to the orientation (see `_orientation`)
    packed    upright, resized, and cropped to a window of the result

Coordinates of annotations are in pixels of the upright image, as browsers and annotation tools use them. They are
continuous: (0, 0) is the corner of the top left pixel, not its centre, and (width, height) the opposite corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardflow.formats.image_types import ImageType
from shardflow.formats.statistics import PixelSums
from shardflow.geometry.crops import Crops

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
