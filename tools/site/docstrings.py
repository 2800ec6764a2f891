"""Extension of griffe, which reads the docstrings: examples in them become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^\1(?:>>>|\.\.\.).*\n?)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts a fence around each example."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    indent, example = match[1], match[0].rstrip("\n")
    return f"{indent}```pycon\n{example}\n{indent}```\n"
