"""Geometry: where packing moved the pixels of an image, so that its annotations can follow.

    stored    as the pixels are in the file
    upright   turned as its orientation says (see `_orientation`)
    packed    upright, resized, and cropped to a window of the result

Coordinates of annotations are in pixels of the upright image, as browsers and annotation tools use them. They are
continuous: (0, 0) is the corner of the top left pixel, not its centre, and (width, height) the opposite corner.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardflow.geometry.crops import Crops

Size = tuple[int, int]
"""Width and height in pixels."""

Window = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the latter two excluded."""


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
        """Whether the packed image is another picture than the stored one: turned, resized or cropped."""
        return self.orientation != 1 or self.size != self.stored

    @property
    def crops(self) -> Crops:
        """The crop of the upright image, in a batch of one."""
        return Crops.of([self.upright], resized=self.resized, offset=self.window[:2], size=self.size)


def upright_size(stored: Size, orientation: int) -> Size:
    """Return the size of an image that was turned upright."""
    return (stored[1], stored[0]) if orientation >= 5 else stored
