"""The page's charts: inline SVG and HTML, coloured by the page's style, and described for those who do not see them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _FOOT = 360, 110, 20
_PER_DOUBLING = 4


def bars(rows: Sequence[tuple[str, int]]) -> str:
    """Return a bar per row, with its name before and its number after it."""
    most = max(1, *(number for _, number in rows))
    cells = (
        f'<li><span class="name">{escape(name)}</span><span class="bar">'
        f'<span style="width:{100 * number / most:.1f}%"></span></span><span class="number">{number:,}</span></li>'
        for name, number in rows
    )
    return f'<ul class="bars">{"".join(cells)}</ul>'


def curve(numbers: Sequence[int], label: str) -> str:
    """Return the numbers, the largest first, as a filled curve: for more of them than there is room for bars."""
    ordered = sorted(numbers, reverse=True)
    most, last = max(1, *ordered), max(1, len(ordered) - 1)
    points = " ".join(
        f"{_WIDTH * place / last:.1f},{_HEIGHT - _HEIGHT * number / most:.1f}" for place, number in enumerate(ordered)
    )
    shape = f'<polygon class="fill" points="0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}"/>'
    foot = _text(0, f"most: {most:,}", "start") + _text(_WIDTH, f"fewest: {ordered[-1]:,}", "end")
    return _svg(shape + foot, label)


def sizes(before: Mapping[int, int], after: Mapping[int, int], label: str) -> str:
    """Return two histograms of sides in pixels over each other: before as an outline, after filled; logarithmic."""
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
    every = max(1, math.ceil((last - first) / _PER_DOUBLING / 6))
    for doubling in range(math.ceil(first / _PER_DOUBLING), last // _PER_DOUBLING + 1):
        if doubling % every == 0 and first < doubling * _PER_DOUBLING < last:
            x = (doubling * _PER_DOUBLING - first) * step
            shapes += f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}"/>'
            shapes += _text(x, f"{2**doubling:,}", "middle")
    return _svg(shapes, label)


def _binned(sides: Mapping[int, int]) -> Counter[int]:
    """Return the counts by quarters of a doubling."""
    counts: Counter[int] = Counter()
    for side, number in sides.items():
        counts[math.floor(_PER_DOUBLING * math.log2(side))] += number
    return counts


def _text(x: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(content: str, label: str) -> str:
    box = f"0 0 {_WIDTH} {_HEIGHT + _FOOT}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{content}</svg>'
