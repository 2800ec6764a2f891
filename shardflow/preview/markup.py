"""The page's building blocks: HTML of plain values, everything that comes from a dataset escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape

from PIL import Image

from .tile import Tile

_QUALITY = 82


def section(title: str, content: str) -> str:
    """Return a part of the page with its heading; the content is HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(rows: Iterable[tuple[str, str]], kind: str = "") -> str:
    """Return two columns, of a kind that the style knows; nothing for no rows."""
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<table{f' class={kind}' if kind else ''}>{lines}</table>" if lines else ""


def note(text: str) -> str:
    """Return a line that explains."""
    return f'<p class="faint">{escape(text)}</p>'


def sheet(tiles: Iterable[Tile]) -> str:
    """Return tiles side by side, in as many rows as it takes."""
    return f'<div class="sheet">{"".join(map(figure, tiles))}</div>'


def figure(tile: Tile) -> str:
    """Return a tile with its caption."""
    title, detail = escape(tile.title), escape(tile.detail)
    caption = f'<figcaption>{title}<br><span class="faint">{detail}</span></figcaption>'
    if tile.picture is None:
        return f'<figure><div class="none">no picture</div>{caption}</figure>'
    return f'<figure><img src="{data_url(tile.picture, "JPEG")}" alt="{title}">{caption}</figure>'


def data_url(picture: Image.Image, kind: str) -> str:
    """Return a picture as the URL that holds all of it; `kind` is "JPEG" or "PNG"."""
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": _QUALITY} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
