"""Charts for docs/, as SVG in the colours of docs/architecture.svg, light and dark, readable at half their size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH = 880
STYLE = """<style>
  .paper { fill: #fbfaf7; stroke: #c9c4b6; }
  text { font: 15px system-ui, sans-serif; fill: #26241f; }
  .head { font-weight: 600; }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .own { fill: #4f8a78; stroke: #4f8a78; }
  .other { fill: #b9b3a3; stroke: #8d8779; }
  .third { fill: #c8702f; stroke: #c8702f; }
  .line { stroke: #8d8779; stroke-opacity: 0.4; }
  .dots { fill: none; stroke-width: 4; stroke-linecap: round; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #24231f; stroke: #4b483f; }
    text { fill: #efece4; }
    .own { fill: #6aa391; stroke: #6aa391; }
    .other { fill: #6d685c; stroke: #a39d8e; }
    .third { fill: #e39a5f; stroke: #e39a5f; }
  }
</style>"""
_ROW, _LABELS, _VALUE, _GAP = 28, 345, 62, 18
_LETTER = 8.6  # pixels, of a wide font


def bars(path: str | Path, title: str, names: Sequence[str], own: Sequence[bool], panels: list[dict[str, Any]]) -> None:
    """Draw panels side by side, with a bar per name, from the top down; `own` marks shardflow's bars.

    Each panel has a "title", "values", and "labels" that are their text.
    """
    room = (WIDTH - _LABELS - len(panels) * (_VALUE + _GAP)) / len(panels)
    parts = [_text(_LABELS - 10, 50 + _ROW * row, name, "end") for row, name in enumerate(names)]
    for number, panel in enumerate(panels):
        left = _LABELS + number * (room + _VALUE + _GAP)
        parts.append(_text(left, 24, panel["title"], "head"))
        for row, (value, label, mine) in enumerate(zip(panel["values"], panel["labels"], own, strict=True)):
            width, top = room * value / max(panel["values"]), 36 + _ROW * row
            kind = "own" if mine else "other"
            parts.append(f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="20" rx="2"/>')
            parts.append(_text(left + width + 7, top + 15, label))
    _write(path, title, 46 + _ROW * len(names), parts)


def dots(path: str | Path, title: str, series: dict[str, Sequence[int]], x_title: str) -> None:
    """Draw values over their numbers, from 1 on, on a logarithmic axis; three series at most."""
    left, top, right, bottom = 70, 44, WIDTH - 40, 350
    low, high = (math.log10(end(map(end, series.values()))) for end in (min, max))
    count = max(map(len, series.values()))

    def y_of(value: float) -> float:
        return bottom - 10 - (bottom - top - 20) * (math.log10(value) - low) / (high - low)

    parts = [_text(left, 25, title, "head"), _text((left + right) / 2, bottom + 48, x_title, "middle")]
    for power in range(math.ceil(low), math.floor(high) + 1):
        y = y_of(10**power)
        parts += [f'<path class="line" d="M{left} {y:.1f}H{right}"/>', _text(left - 10, y + 5, f"{10**power:,}", "end")]
    for place in range(0, count + 1, 200):
        parts.append(_text(left + (right - left) * place / count, bottom + 24, f"{place:,}", "middle"))
    legend = right - sum(len(name) * _LETTER + 30 for name in series)
    for (name, values), kind in zip(series.items(), ("other", "own", "third"), strict=False):
        points = (
            f"M{left + (right - left) * place / count:.1f} {y_of(value):.1f}h0" for place, value in enumerate(values, 1)
        )
        parts.append(f'<path class="dots {kind}" d="{"".join(points)}"/>')
        parts += [f'<circle class="{kind}" cx="{legend:.1f}" cy="20" r="6"/>', _text(legend + 12, 25, name)]
        legend += len(name) * _LETTER + 30
    _write(path, title, bottom + 62, parts)


def _text(x: float, y: float, content: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'


def _write(path: str | Path, title: str, height: float, parts: Sequence[str]) -> None:
    view = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title"'
    paper = f'<rect class="paper" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {view}>', f'<title id="title">{escape(title)}</title>']
    Path(path).write_text("\n".join([*head, STYLE, paper, *parts, "</svg>\n"]), encoding="utf-8")
