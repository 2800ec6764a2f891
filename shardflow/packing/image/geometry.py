"""Geometry: where each point of a source image went, so that annotations can follow.

    stored    as the pixels are in the file
    upright   turned as its orientation says (see `_orientation`)
    packed    upright, cropped to `box` and resized to `size`

Coordinates of annotations are in pixels of the upright image, as browsers and annotation tools use them. They are
continuous: (0, 0) is the corner of the top left pixel, not its centre, and (width, height) the opposite corner.
"""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int]
"""Width and height in pixels."""

Window = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the latter two excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Where packing moved the pixels."""

    stored: Size  # as in the file
    orientation: int  # 1 … 8, as in EXIF; 1 is upright
    box: tuple[float, float, float, float]  # of the crop, in the upright image: left, top, right, bottom
    size: Size  # of the packed image

    @classmethod
    def of(cls, stored: Size, orientation: int, resized: Size, window: Window) -> Geometry:
        """Return the geometry of an image that was turned, resized, and cropped to a window of the result."""
        width, height = upright_size(stored, orientation)
        left, top, right, bottom = window
        # Multiply first: products are exact, so no box ends beyond its image.
        across = (left * width / resized[0], right * width / resized[0])
        down = (top * height / resized[1], bottom * height / resized[1])
        box = (across[0], down[0], across[1], down[1])
        return cls(stored=stored, orientation=orientation, box=box, size=(right - left, bottom - top))

    @property
    def upright(self) -> Size:
        """Size of the upright image."""
        return upright_size(self.stored, self.orientation)

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the upright image is in the packed one; beyond its borders if it was cropped away."""
        left, top, right, bottom = self.box
        return (x - left) * self.size[0] / (right - left), (y - top) * self.size[1] / (bottom - top)

    def rectangle(self, x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float] | None:
        """Return the part of a rectangle that is in the packed image; None when it is outside.

        One without area, a line or a point, is in the image up to its borders.
        """
        (left, top), (right, bottom) = self.point(x1, y1), self.point(x2, y2)
        across, down = _overlap(left, right, self.size[0]), _overlap(top, bottom, self.size[1])
        return None if across is None or down is None else (across[0], down[0], across[1], down[1])


def _overlap(begin: float, end: float, length: int) -> tuple[float, float] | None:
    """Return the part of an interval that is within 0 … length; None where there is none."""
    if begin == end:
        return (begin, end) if 0 <= begin <= length else None
    begin, end = max(begin, 0.0), min(end, float(length))
    return (begin, end) if begin < end else None


def upright_size(stored: Size, orientation: int) -> Size:
    """Return the size of an image that was turned upright."""
    return (stored[1], stored[0]) if orientation >= 5 else stored
