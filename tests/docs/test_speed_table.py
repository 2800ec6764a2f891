"""README's table of speeds, and the ratios that texts repeat, against the measurements in docs/performance.md."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.helpers.pages import PAGES

README, PERFORMANCE = (PAGES[page].read_text(encoding="utf-8") for page in ("README.md", "docs/performance.md"))


class Row(NamedTuple):
    """A loader, how its batches arrive, and what was measured."""

    loader: str  # without the version, and without the settings that were the fastest
    version: str
    batches: str
    rate: int  # images/s
    cpu_ms: float


def cells(text: str) -> list[list[str]]:
    """Return the cells of all lines of tables, without the marks of bold text."""
    lines = re.findall(r"^\| (.*) \|$", text.replace("**", ""), re.MULTILINE)
    return [line.split(" | ") for line in lines]


def measured() -> list[Row]:
    """Return the rows of docs/performance.md."""
    rows = []
    for name, version, rate, cpu_ms, *_ in cells(PERFORMANCE.split("<!-- loaders -->")[1].split("<!--")[0])[2:]:
        batches = "uint8" if name.endswith(", uint8") else "float32"
        loader = name if name == "shardflow, no kernel" else name.split(",")[0]
        rows.append(Row(loader, version, batches, int(rate.replace(",", "")), float(cpu_ms)))
    return rows


def best() -> dict[tuple[str, str], Row]:
    """Return the fastest row of each loader for each kind of batches."""
    return {(row.loader, row.batches): row for row in sorted(measured(), key=lambda row: row.rate)}


def test_the_table_has_the_best_row_of_each_loader() -> None:
    """Like stands beside like: the rows of README are the best ones, floats first, sorted by speed, bold if ours."""
    section = README.split("\n## Speed\n")[1].split("\n## ")[0]
    expected = sorted(best().values(), key=lambda row: (row.batches, row.rate))
    found = [(batches, int(rate.replace(",", "")), float(cpu)) for _, batches, rate, cpu in cells(section)[1:]]
    assert found == [(row.batches, row.rate, row.cpu_ms) for row in expected]
    for (name, *_), row in zip(cells(section)[1:], expected, strict=True):
        assert name.startswith(row.loader)
        assert row.version in name or "shardflow" in row.loader
    assert len({row.loader for row in expected}) == 12


def test_texts_repeat_the_ratios_of_the_table() -> None:
    """ "N times as fast as the next loader" and "N times the CPU time", wherever they stand, are what the rows say."""
    rows = best()
    ours, slow = rows["shardflow", "float32"], rows["shardflow, no kernel", "float32"]
    peers = [row.rate for row in rows.values() if "shardflow" not in row.loader and row.batches == "float32"]
    expected = {"fast": f"{ours.rate / max(peers):.1f}", "the CPU time": f"{slow.cpu_ms / ours.cpu_ms:.1f}"}
    said = [
        (what, number)
        for text in (README, PERFORMANCE.split("\n## Streaming")[0])
        for number, what in re.findall(
            r"(\d+(?:\.\d+)?) times (?:as )?\s*(fast|the CPU time)\b", " ".join(text.split())
        )
    ]
    assert {what for what, _ in said} == set(expected)
    assert all(number == expected[what] for what, number in said), said
