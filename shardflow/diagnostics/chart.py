"""The chart of a benchmark: bars for the throughput, and one bar for the workers' time by stage."""

from __future__ import annotations

import os

from PIL import Image, ImageDraw

from shardflow.preview.contact_sheet import FAINT, FRAME, INK, PAPER, save_picture
from shardflow.preview.lettering import write

from .bench import BenchReport

COLOURS = {
    "wait": "#c9c6bf",
    "plan": "#56b4e9",
    "read": "#0072b2",
    "decode": "#009e73",
    "annotate": "#f0e442",
    "augment": "#e69f00",
    "collate": "#cc79a7",
    "transfer": "#d55e00",
}
"""The palette of Okabe and Ito, which readers with colour blindness can distinguish."""

_WIDTH, _MARGIN, _CAPTION = 1100, 40, 210
_BAR, _ROW = 34, 52
_SMALLEST_SHARE = 0.005


def draw_bench(report: BenchReport, path: str | os.PathLike[str], heading: str) -> None:
    """Draw the result of a benchmark as PNG or JPEG, with a heading that describes the loader."""
    rates = [
        ("this loader", report.loader.images_per_s, COLOURS["decode"]),
        (f"decode baseline, {report.cores} cores", report.baseline.images_per_s, COLOURS["wait"]),
    ]
    if report.step_ms is not None:
        rates.append((f"a step of {report.step_ms:g} ms", 1000 * report.batch_size / report.step_ms, COLOURS["read"]))
    shares = {name: share for name, share in report.shares().items() if share >= _SMALLEST_SHARE}
    legend_top = 118 + len(rates) * _ROW + 62 + _BAR + 18
    sheet = Image.new("RGB", (_WIDTH, legend_top + 26 * -(-len(shares) // 4) + _MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    write(pen, (_MARGIN, 28), "Throughput of the loader, and where its time goes", 28, INK)
    note = "; other processes kept the cores busy" if report.disturbed else ""
    write(pen, (_MARGIN, 68), heading + note, 16, FAINT, width=_WIDTH - 2 * _MARGIN)
    left, width = _MARGIN + _CAPTION, _WIDTH - 2 * _MARGIN - _CAPTION - 150
    most = max(rate for _, rate, _ in rates)
    for row, (name, rate, colour) in enumerate(rates):
        top = 118 + row * _ROW
        write(pen, (_MARGIN, top + 8), name, 16, INK)
        pen.rectangle((left, top, left + width - 1, top + _BAR - 1), FRAME)
        pen.rectangle((left, top, left + max(1, round(width * rate / most)) - 1, top + _BAR - 1), colour)
        write(pen, (left + width + 12, top + 8), f"{rate:,.0f} images/s", 16, INK)
    top = 118 + len(rates) * _ROW + 34
    write(pen, (_MARGIN, top - 30), "time of the workers" if report.workers else "time of this process", 16, FAINT)
    begin, whole = float(_MARGIN), _WIDTH - 2 * _MARGIN
    for number, (name, share) in enumerate(shares.items()):
        end = begin + whole * share
        pen.rectangle((round(begin), top, round(end) - 2, top + _BAR - 1), COLOURS[name])
        x, y = _MARGIN + number % 4 * 250, legend_top + number // 4 * 26
        pen.rectangle((x, y + 2, x + 13, y + 15), COLOURS[name])
        write(pen, (x + 22, y - 1), f"{name}  {share:.0%}", 16, INK)
        begin = end
    save_picture(sheet, path)
