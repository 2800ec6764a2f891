"""The geometry of one packed image: where each point of its source went, so that annotations can follow.

Three pictures are meant by "the picture", and two of them can differ in a photograph that was taken upright:

    stored    as the file's pixels lie
    upright   stored, turned as the EXIF orientation says: what viewers and annotation tools show
    packed    upright, cut to `box` and resized to `size`

Coordinates of annotations are in pixels of the upright picture, because browsers and annotation tools hand out those.
They are continuous: (0, 0) is the corner of the top left pixel, not its centre, and (width, height) the far corner.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from shardflow.errors import DecodeError
from shardflow.formats.image_types import IMAGE_TYPES

from .colour import BITS_TAG
from .safe_open import map_codec_errors, safe_open

Size = tuple[int, int]
"""Width and height in pixels."""

Window = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the latter two excluded."""

MASK_FORMATS = tuple(each.name for each in IMAGE_TYPES if each.for_masks)
MASK_MODES = ("1", "L", "P", "I;16", "RGB")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What became of the pixels' places.

    Args:
        stored: Size of the picture as its file stores it.
        orientation: EXIF orientation, 1 … 8; 1 is upright.
        box: Left, top, right and bottom of what was kept, in pixels of the upright picture; a crop may end inside one.
        size: Of the packed picture.
    """

    stored: Size
    orientation: int
    box: tuple[float, float, float, float]
    size: Size

    @classmethod
    def of(cls, stored: Size, orientation: int, resized: Size, window: Window) -> Geometry:
        """Return the geometry of a picture that was turned, resized as a whole, and cut to a window of the result."""
        width, height = upright_size(stored, orientation)
        left, top, right, bottom = window
        # Products first: they are exact, and so no box ends beyond its picture.
        across = (left * width / resized[0], right * width / resized[0])
        down = (top * height / resized[1], bottom * height / resized[1])
        box = (across[0], down[0], across[1], down[1])
        return cls(stored=stored, orientation=orientation, box=box, size=(right - left, bottom - top))

    @property
    def upright(self) -> Size:
        """Size of the upright picture."""
        return upright_size(self.stored, self.orientation)

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the upright picture is in the packed one; beyond its borders if it was cut off."""
        left, top, right, bottom = self.box
        return (x - left) * self.size[0] / (right - left), (y - top) * self.size[1] / (bottom - top)

    def rectangle(self, x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float] | None:
        """Return what is left of a rectangle in the packed picture; None when nothing is."""
        (left, top), (right, bottom) = self.point(x1, y1), self.point(x2, y2)
        left, top = max(left, 0.0), max(top, 0.0)
        right, bottom = min(right, float(self.size[0])), min(bottom, float(self.size[1]))
        return (left, top, right, bottom) if left < right and top < bottom else None

    def mask(self, data: bytes) -> bytes:
        """Return a mask, drawn on the upright picture, as the PNG that fits the packed one.

        Each pixel takes the value of the nearest one: labels are never mixed. Bilevel, 8 and 16 bits of grey, palette
        indexes (with their palette) and RGB codes are kept as they are.

        Args:
            data: A file in one of `MASK_FORMATS`, as large as the upright picture.

        Raises:
            DecodeError: It is not such a file, or of another size.
        """
        with map_codec_errors(DecodeError), safe_open(data, MASK_FORMATS) as image:
            if image.size != self.upright:
                found, wanted = ("{}x{}".format(*size) for size in (image.size, self.upright))
                raise DecodeError(f"a mask of {found} pixels for a picture of {wanted}, upright; make them the same")
            if image.mode not in MASK_MODES or _is_scaled(image, data):
                kinds = "1, 8 or 16 bits of grey, a palette, or 8 bits of RGB"
                raise DecodeError(f"a mask in mode {image.mode} has no plain label values; save it with {kinds}")
            image.load()
            resized = image.resize(self.size, Image.Resampling.NEAREST, box=self.box)
            resized.info = {}  # what else the file says about itself
            buffer = io.BytesIO()
            resized.save(buffer, "PNG")
            return buffer.getvalue()


def upright_size(stored: Size, orientation: int) -> Size:
    """Return the size of a picture after it was turned."""
    return (stored[1], stored[0]) if orientation >= 5 else stored


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return a stored picture upright."""
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _is_scaled(image: Image.Image, data: bytes) -> bool:
    """Whether Pillow hands out other values than the file has: 2 or 4 bits of grey, 16 of colour (W3C PNG 11.2.2)."""
    if image.format == "PNG":
        return data[24:26] in (b"\x02\x00", b"\x04\x00", b"\x10\x02")
    return getattr(image, "tag_v2", {}).get(BITS_TAG, (8,))[0] in (2, 4)
