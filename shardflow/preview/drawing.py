"""What the pictures have in common: colours, lettering, and a picture fitted into a tile."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

PAPER, INK, FAINT, FRAME = "#f7f6f3", "#1d1d1f", "#6b6a6f", "#e6e4df"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def font(size: int) -> Font:
    """Return the lettering of a height in pixels."""
    return ImageFont.load_default(size)


def fitted(text: str, lettering: Font, width: float) -> str:
    """Return a line of text, cut with dots where it is wider than `width` pixels."""
    if lettering.getlength(text) <= width:
        return text
    while text and lettering.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def put_tile(sheet: Image.Image, picture: Image.Image, left: int, top: int, side: int) -> None:
    """Put a picture into the middle of a square tile, made smaller where it does not fit."""
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((left, top, left + side - 1, top + side - 1), FRAME)
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    sheet.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
