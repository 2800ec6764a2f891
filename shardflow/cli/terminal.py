"""The terminal: all text that commands print goes through here, and cannot control the terminal.

Names of files and classes, keys and the messages of servers come from data: an escape sequence in one could hide or
forge lines. So unprintable characters are shown as Python writes them in a string.
"""

from __future__ import annotations

import logging
import os

import click

from shardflow._wording import printable


def say(text: str, *, label: str = "", colour: str = "", bold: bool = False, err: bool = False) -> None:
    """Print one line, escaped; in front of it a label of the program's own in a colour."""
    shown = f"{click.style(label, fg=colour, bold=bold or None)} " if label else ""
    click.echo(f"{shown}{printable(text)}", err=err, color=use_colours())


def escape_log() -> None:
    """Escape log records where logging is not configured."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Escaping())


def use_colours() -> bool | None:
    """Return False where the user wants no colours, and None where click decides: in a terminal, but not in a pipe.

    Source: https://no-color.org.
    """
    return False if os.environ.get("NO_COLOR") else None


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))
