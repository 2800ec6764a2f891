"""The HTML elements and SVG charts of the page. All text from a dataset is escaped."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from .contact_sheet import SIDE, Tile

_JPEG_QUALITY = 82
_WIDTH, _HEIGHT, _AXIS_HEIGHT = 360, 110, 20
_BINS_PER_DOUBLING = 4

_GALLERY_SIDES = (120, 2 * SIDE), (1200, SIDE), (math.inf, SIDE // 2)
"""(most samples, longest side of a picture in pixels): so a browser can show the page, 30 MB with 10,000 samples."""


def section(title: str, content: str) -> str:
    """Return a section with a heading; `content` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(rows: Iterable[tuple[str, str]], style: str = "") -> str:
    """Return a table of two columns; `style` is a class of the style sheet; "" without rows."""
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<table{f' class={style}' if style else ''}>{lines}</table>" if lines else ""


def note(text: str) -> str:
    """Return a paragraph of secondary text."""
    return f'<p class="faint">{escape(text)}</p>'


def gallery(split: str, tiles: Iterable[Tile], count: int) -> str:
    """Return about `count` samples of a split as data for `page.js`, and the controls that the script handles."""
    side = next(side for most, side in _GALLERY_SIDES if count <= most)
    samples = []
    for tile in tiles:
        if tile.picture is not None:
            tile.picture.thumbnail((side, side))
        picture = "" if tile.picture is None else data_url(tile.picture, "JPEG")
        samples.append({**tile._asdict(), "picture": picture})
    data = json.dumps({"split": split, "samples": samples}, separators=(",", ":"))
    for mark in "<>&":  # only these could end a script element, or begin a comment in it
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    return f'{_asset("gallery.html")}<script type="application/json" id="samples">{data}</script>'


def page(title: str, body: str) -> str:
    """Return a page with a title and an HTML body. The page needs no other file, and its policy forbids requests."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def sheet(tiles: Iterable[Tile]) -> str:
    """Return tiles as a grid of figures."""
    return f'<div class="sheet">{"".join(map(_figure, tiles))}</div>'


def _figure(tile: Tile) -> str:
    title, detail = escape(tile.title), escape(tile.detail)
    text = f'<span class="caption">{escape(tile.caption)}</span>' if tile.caption else ""
    caption = f'<figcaption>{title}<br><span class="faint">{detail}</span>{text}</figcaption>'
    if tile.picture is None:
        return f'<figure><div class="none">no picture</div>{caption}</figure>'
    return f'<figure><img src="{data_url(tile.picture, "JPEG")}" alt="{title}">{caption}</figure>'


def data_url(picture: Image.Image, encoding: str) -> str:
    """Return a picture as a data URL; `encoding` is "JPEG" or "PNG"."""
    file = io.BytesIO()
    picture.save(file, encoding, **({"quality": _JPEG_QUALITY} if encoding == "JPEG" else {"optimize": True}))
    return f"data:image/{encoding.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def bar_chart(rows: Sequence[tuple[str, int]]) -> str:
    """Return a bar for each row, with its name on the left and its number on the right."""
    most = max(1, *(number for _, number in rows))
    cells = (
        f'<li><span class="name">{escape(name)}</span><span class="bar">'
        f'<span style="width:{100 * number / most:.1f}%"></span></span><span class="number">{number:,}</span></li>'
        for name, number in rows
    )
    return f'<ul class="bars">{"".join(cells)}</ul>'


def size_histogram(before: Mapping[int, int], after: Mapping[int, int], label: str) -> str:
    """Return two histograms of sides in pixels on one logarithmic axis: `before` as an outline, `after` filled."""
    drawn = [(_binned(each), style) for each, style in ((after, "fill"), (before, "line")) if each]
    bins = [place for counts, _ in drawn for place in counts]
    first, last = min(bins) - 1, max(bins) + 2
    step = _WIDTH / (last - first)
    shapes = ""
    for counts, style in drawn:
        most = max(counts.values())
        points = []
        for place in range(first, last):
            y = _HEIGHT - (_HEIGHT - 4) * counts.get(place, 0) / most
            points += [f"{(place - first) * step:.1f},{y:.1f}", f"{(place + 1 - first) * step:.1f},{y:.1f}"]
        shapes += f'<polygon class="{style}" points="0,{_HEIGHT} {" ".join(points)} {_WIDTH},{_HEIGHT}"/>'
    every = max(1, math.ceil((last - first) / _BINS_PER_DOUBLING / 6))
    for doubling in range(math.ceil(first / _BINS_PER_DOUBLING), last // _BINS_PER_DOUBLING + 1):
        if doubling % every == 0 and first < doubling * _BINS_PER_DOUBLING < last:
            x = (doubling * _BINS_PER_DOUBLING - first) * step
            shapes += f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}"/>'
            shapes += _axis_text(x, f"{2**doubling:,}", "middle")
    return _svg(shapes, label)


def _binned(sides: Mapping[int, int]) -> Counter[int]:
    counts = Counter[int]()
    for side, number in sides.items():
        counts[math.floor(_BINS_PER_DOUBLING * math.log2(side))] += number
    return counts


def _axis_text(x: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(content: str, label: str) -> str:
    box = f"0 0 {_WIDTH} {_HEIGHT + _AXIS_HEIGHT}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{content}</svg>'
