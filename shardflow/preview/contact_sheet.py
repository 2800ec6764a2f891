"""The contact sheet: tiles in rows, each with what there is to say about it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from shardflow.storage.local_files import map_os_errors

from .drawing import FAINT, FRAME, INK, PAPER, fitted, font, put_tile
from .tile import SIDE, Tile

COLUMNS = 6

_GAP, _MARGIN, _HEADER, _LINES = 14, 36, 104, 44
_PROBLEM_WIDTH, _PROBLEM_LINES, _PROBLEM_STEP = 24, 4, 16
_LEAST_COLUMNS = 4


def draw_sheet(tiles: Sequence[Tile], path: str | os.PathLike[str], *, title: str, subtitle: str) -> None:
    """Write tiles as a PNG.

    Raises:
        StoreError: The file cannot be written.
    """
    problems = _PROBLEM_STEP * _PROBLEM_LINES if any(tile.problem for tile in tiles) else 0
    row = SIDE + _LINES + problems + _GAP
    columns = min(COLUMNS, max(_LEAST_COLUMNS, len(tiles)))
    width = 2 * _MARGIN + columns * (SIDE + _GAP) - _GAP
    sheet = Image.new("RGB", (width, _HEADER + -(-len(tiles) // columns) * row + _MARGIN - _GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, 26), fitted(title, font(26), width - 2 * _MARGIN), INK, font(26))
    pen.text((_MARGIN, 62), fitted(subtitle, font(16), width - 2 * _MARGIN), FAINT, font(16))
    for place, tile in enumerate(tiles):
        left, top = _MARGIN + place % columns * (SIDE + _GAP), _HEADER + place // columns * row
        if tile.picture is not None:
            put_tile(sheet, tile.picture, left, top, SIDE)
        else:
            pen.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), FRAME)
            pen.text((left + SIDE // 2, top + SIDE // 2), "no picture", FAINT, font(15), anchor="mm")
        pen.text((left, top + SIDE + 4), fitted(tile.title, font(16), SIDE), INK, font(16))
        pen.text((left, top + SIDE + 25), fitted(tile.detail, font(13), SIDE), FAINT, font(13))
        lines = textwrap.wrap(tile.problem, _PROBLEM_WIDTH, max_lines=_PROBLEM_LINES, placeholder=" ...")
        for number, line in enumerate(lines):
            pen.text((left, top + SIDE + _LINES + number * _PROBLEM_STEP), fitted(line, font(13), SIDE), INK, font(13))
    with map_os_errors(Path(path)):
        sheet.save(path, "PNG")
