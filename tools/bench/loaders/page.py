"""The pages that results are published in, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def fill(page: Path, contents: Mapping[str, str]) -> None:
    """Put contents into a Markdown page, each between the two comments that mark its place by name."""
    text = page.read_text()
    for mark, content in contents.items():
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + content + end + rest.partition(end)[2]
    page.write_text(text)
