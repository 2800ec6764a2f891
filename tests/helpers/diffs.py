"""The diffs in the project's pages: what they make of the file that they change, and what they add."""

from __future__ import annotations

import re

from tests.helpers.pages import PAGES


def diff_below(page: str, heading: str) -> list[str]:
    """Return the hunks of the first diff below a heading of a page; a line `@@` separates them."""
    section = PAGES[page].read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    return re.split(r"^@@\n", re.findall(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0], flags=re.M)


def side(hunk: str, sign: str) -> str:
    """Return the text of a hunk before ("-") or after ("+") its change."""
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in f" {sign}")


def patched(source: str, hunks: list[str]) -> str:
    """Return a file with all hunks applied, each of which must fit one place exactly."""
    for hunk in hunks:
        assert source.count(side(hunk, "-")) == 1, hunk
        source = source.replace(side(hunk, "-"), side(hunk, "+"))
    return source
