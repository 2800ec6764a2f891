"""The bench as a picture: the rates as bars, and the workers' time as one bar cut by stage."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image, ImageDraw

from shardflow.preview.drawing import FAINT, FRAME, INK, PAPER, font
from shardflow.storage.local_files import map_os_errors

from .bench import Bench

COLOURS = {
    "wait": "#c9c6bf",
    "plan": "#56b4e9",
    "read": "#0072b2",
    "decode": "#009e73",
    "augment": "#e69f00",
    "collate": "#cc79a7",
    "transfer": "#d55e00",
}
"""Okabe and Ito's, which people who see few colours can tell apart."""

_WIDTH, _MARGIN, _CAPTION = 1100, 40, 190
_BAR, _ROW = 34, 52
_NAMED = 0.005


def draw_bench(found: Bench, path: str | os.PathLike[str], heading: str) -> None:
    """Write what was measured as a PNG.

    Args:
        found: What was measured.
        path: The file to write.
        heading: A line about what it was measured of.

    Raises:
        StoreError: The file cannot be written.
    """
    rates = [
        ("this loader", found.images_per_s, COLOURS["decode"]),
        (f"{found.cores} cores, decoding only", found.limit.images_per_s, COLOURS["wait"]),
    ]
    if found.step_ms is not None:
        rates.append((f"a step of {found.step_ms:g} ms", 1000 * found.batch_size / found.step_ms, COLOURS["read"]))
    shares = {name: share for name, share in found.shares().items() if share >= _NAMED}
    legend_top = 118 + len(rates) * _ROW + 62 + _BAR + 18
    sheet = Image.new("RGB", (_WIDTH, legend_top + 26 * -(-len(shares) // 4) + _MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, 28), "What the loader reaches, and where its time goes", INK, font(28))
    note = "; other processes kept the cores busy" if found.disturbed else ""
    pen.text((_MARGIN, 68), heading + note, FAINT, font(16))
    left, width = _MARGIN + _CAPTION, _WIDTH - 2 * _MARGIN - _CAPTION - 150
    most = max(rate for _, rate, _ in rates)
    for row, (name, rate, colour) in enumerate(rates):
        top = 118 + row * _ROW
        pen.text((_MARGIN, top + 8), name, INK, font(16))
        pen.rectangle((left, top, left + width - 1, top + _BAR - 1), FRAME)
        pen.rectangle((left, top, left + max(1, round(width * rate / most)) - 1, top + _BAR - 1), colour)
        pen.text((left + width + 12, top + 8), f"{rate:,.0f} images/s", INK, font(16))
    top = 118 + len(rates) * _ROW + 34
    pen.text((_MARGIN, top - 30), "the workers' time" if found.workers else "this process's time", FAINT, font(16))
    begin, whole = float(_MARGIN), _WIDTH - 2 * _MARGIN
    for place, (name, share) in enumerate(shares.items()):
        end = begin + whole * share
        pen.rectangle((round(begin), top, round(end) - 2, top + _BAR - 1), COLOURS[name])
        x, y = _MARGIN + place % 4 * 250, legend_top + place // 4 * 26
        pen.rectangle((x, y + 2, x + 13, y + 15), COLOURS[name])
        pen.text((x + 22, y - 1), f"{name}  {share:.0%}", INK, font(16))
        begin = end
    with map_os_errors(Path(path)):
        sheet.save(path, "PNG")
