"""Lettering: text in pictures, in whichever fonts this machine has.

Pillow's own font has ASCII alone. Text that it lacks is drawn in the first font found that has all of it; a character
that no font has is drawn as its escape, such as \\u732b, because a box in its place would say nothing.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterator

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
    shown, font = _drawable(text, size)
    if width is not None and font.getlength(shown) > width:
        while shown and font.getlength(shown + "...") > width:
            shown = shown[:-1]
        shown += "..."
    pen.text(place, shown, colour, font, anchor=anchor)


def _drawable(text: str, size: int) -> tuple[str, Font]:
    """Return a font and the text that it draws: a character that it lacks is escaped."""
    text = unicodedata.normalize("NFC", text)
    best: tuple[int, int] | None = None
    for number in range(len(_loaders())):
        missing = sum(not _has(number, character) for character in set(text))
        if best is None or missing < best[0]:
            best = missing, number
        if not missing:
            break
    assert best is not None  # the first is Pillow's own
    shown = "".join(
        character if _has(best[1], character) else character.encode("unicode_escape").decode() for character in text
    )
    return shown, _load(best[1], size)


@functools.cache
def _has(number: int, character: str) -> bool:
    """Return whether a font has a character."""
    if character == " ":
        return True
    if not character.isprintable():
        return False
    font = _load(number, 16)
    try:
        drawn, box = font.getmask(character), font.getmask(_NO_CHARACTER)
    except (UnicodeEncodeError, OSError):  # the font of a Pillow without FreeType has Latin-1 alone
        return character.isascii()
    return (drawn.size, bytes(drawn)) != (box.size, bytes(box))


@functools.cache
def _load(number: int, size: int) -> Font:
    return _loaders()[number](size)


@functools.cache
def _loaders() -> tuple[Callable[[int], Font], ...]:
    """Return for each font a function from a size to the font; the first is Pillow's own."""
    return ImageFont.load_default, *(functools.partial(ImageFont.truetype, name) for name in _found())


def _found() -> Iterator[str]:
    for name in _FONTS:
        try:
            ImageFont.truetype(name)
        except (OSError, ImportError):
            continue
        yield name
