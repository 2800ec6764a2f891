"""Wording shared by messages and output: numbers with nouns and units, and escaped text from data."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 shard", "2,048 shards", "3 batches"."""
    ending = "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def first_few(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, with an ellipsis if there are more; a name with a comma is quoted."""
    shown = ", ".join(repr(name) if "," in name or name != name.strip() else name for name in names[:most])
    return shown + ", ..." * (len(names) > most)


STOPPED = "shardflow: stopped; finished work is kept: run the same %s again to resume"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, if Python supports notes (3.11)."""
    if hasattr(error, "add_note"):
        error.add_note(note)


def size_text(count: int) -> str:
    """Return a number of bytes with the unit that suits it: "812 bytes", "36 kB", "7.2 MB", "12.5 GB"."""
    if count < 1000:
        return plural(count, "byte")
    if count < 1e5:
        return f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 10e9 else f"{count / 1e9:,.1f} GB"


def printable(text: str) -> str:
    """Return a text with unprintable characters escaped as in a Python string: "\\x1b", "\\n", "\\u202e"."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
