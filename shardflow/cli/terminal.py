"""The terminal: all text that commands print goes through this module, which escapes unprintable characters.

Names of files and classes, keys and messages of servers come from data: an escape sequence could hide or forge lines.
"""

from __future__ import annotations

import logging
import os

import click

from shardflow._wording import printable


def say(text: str, *, label: str = "", colour: str = "", bold: bool = False, err: bool = False) -> None:
    """Print one line, escaped, after an optional coloured label."""
    shown = f"{click.style(label, fg=colour, bold=bold or None)} " if label else ""
    click.echo(f"{shown}{printable(text)}", err=err, color=use_colours())


def escape_log() -> None:
    """Escape log records if logging is not configured."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Escaping())


def use_colours() -> bool | None:
    """Return False if NO_COLOR is set (https://no-color.org), else None: click uses colours in a terminal only."""
    return False if os.environ.get("NO_COLOR") else None


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))
