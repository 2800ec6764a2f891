"""Lettering: text in pictures, in the fonts of this machine.

Pillow's own font has only ASCII. A text is drawn in the font that lacks the fewest of its characters, the first if
several do. A character that this font lacks is drawn as its escape, such as \\u732b, instead of a meaningless box.
"""

from __future__ import annotations

import contextlib
import functools
import unicodedata

from PIL import ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKjp-Regular.otf",
    "NotoSansJP-Regular.otf",
    "SourceHanSans-Regular.ttc",
    "Arial Unicode.ttf",
    "Hiragino Sans GB.ttc",
    "AppleSDGothicNeo.ttc",
    "YuGothM.ttc",
    "msgothic.ttc",
    "msyh.ttc",
    "malgun.ttf",
    "fonts-japanese-gothic.ttf",
    "NanumGothic.ttf",
    "DroidSansFallbackFull.ttf",
    "DroidSansFallback.ttf",
    "wqy-microhei.ttc",
    "wqy-zenhei.ttc",
    "ipag.ttf",
    "unifont.otf",
    "unifont.ttf",
)
"""File names of fonts of Linux, macOS and Windows; the most legible come first."""

_NO_CHARACTER = "\U0010ffff"  # a Unicode noncharacter, for which every font draws its box


def write(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    colour: str,
    *,
    width: float | None = None,
    anchor: str | None = None,
    keeps_end: bool = False,
) -> None:
    """Draw a line of text, `size` pixels high; one wider than `width` pixels loses its end, or else its beginning."""
    text = unicodedata.normalize("NFC", text)
    best = min(_fonts(), key=lambda font: sum(not _has(font, character) for character in set(text)))
    font = best.font_variant(size=size) if isinstance(best, ImageFont.FreeTypeFont) else best
    shown = "".join(each if _has(best, each) else each.encode("unicode_escape").decode() for each in text)
    if width is not None and font.getlength(shown) > width:
        while shown and font.getlength(shown + "...") > width:
            shown = shown[1:] if keeps_end else shown[:-1]
        shown = f"...{shown}" if keeps_end else f"{shown}..."
    pen.text(place, shown, colour, font, anchor=anchor)


@functools.cache
def _has(font: Font, character: str) -> bool:
    """Return whether a font has a character."""
    if character == " ":
        return True
    if not character.isprintable():
        return False
    try:
        drawn, box = font.getmask(character), font.getmask(_NO_CHARACTER)
    except (UnicodeEncodeError, OSError):  # the font of a Pillow without FreeType has only Latin-1
        return character.isascii()
    return (drawn.size, bytes(drawn)) != (box.size, bytes(box))


@functools.cache
def _fonts() -> list[Font]:
    """Return Pillow's own font, and the fonts of `_FONTS` that this machine has."""
    fonts: list[Font] = [ImageFont.load_default(16)]
    for name in _FONTS:
        with contextlib.suppress(OSError, ImportError):
            fonts.append(ImageFont.truetype(name, 16))
    return fonts
