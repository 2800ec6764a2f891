"""Lettering: text in pictures, in whichever fonts this machine has.

Pillow's own font has only ASCII. Text that it lacks is drawn in the first font found that has all of it; a character
that no font has is drawn as its escape, such as \\u732b, because a box in its place would say nothing.
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
"""Fonts of Linux, macOS and Windows, by the names of their files; first those with more beautiful letters."""

_NO_CHARACTER = "\U0010ffff"  # Unicode gives it to no character, so every font draws its box for it


def write(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    colour: str,
    *,
    width: float | None = None,
    anchor: str | None = None,
) -> None:
    """Draw a line of text, `size` pixels high, cut with an ellipsis where it is wider than `width` pixels."""
    text = unicodedata.normalize("NFC", text)
    best = min(_fonts(), key=lambda font: sum(not _has(font, character) for character in set(text)))
    font = best.font_variant(size=size) if isinstance(best, ImageFont.FreeTypeFont) else best
    shown = "".join(each if _has(best, each) else each.encode("unicode_escape").decode() for each in text)
    if width is not None and font.getlength(shown) > width:
        while shown and font.getlength(shown + "...") > width:
            shown = shown[:-1]
        shown += "..."
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
    """Return Pillow's own font, and those that this machine has."""
    fonts: list[Font] = [ImageFont.load_default(16)]
    for name in _FONTS:
        with contextlib.suppress(OSError, ImportError):
            fonts.append(ImageFont.truetype(name, 16))
    return fonts
