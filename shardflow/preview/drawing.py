"""Colours and fonts of the pictures that shardflow draws."""

from __future__ import annotations

from PIL import ImageFont

PAPER, INK, FAINT, FRAME = "#f7f6f3", "#1d1d1f", "#6b6a6f", "#e6e4df"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def font(size: int) -> Font:
    """Return the font of a height in pixels."""
    return ImageFont.load_default(size)


def shorten(text: str, lettering: Font, width: float) -> str:
    """Return a line of text, cut with an ellipsis where it is wider than `width` pixels."""
    if lettering.getlength(text) <= width:
        return text
    while text and lettering.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
