#!/usr/bin/env python3
"""Draw the first minute with shardflow as docs/first-minute.svg: commands that run now, and what they print.

    .venv/bin/python tools/first_minute.py

Times are left out, because they are those of this machine.
"""

from __future__ import annotations

import code
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

PROJECT = Path(__file__).resolve().parents[1]
PICTURE = PROJECT / "docs/first-minute.svg"
COMMANDS = ("shardflow pack photos/ photos256/", "shardflow verify photos256/")
STATEMENTS = (
    "import shardflow",
    'loader = shardflow.Loader("photos256", split="train", batch_size=16)',
    "for images, labels in loader: pass  # the training step",
    "images.shape, images.dtype, labels.shape",
    "loader.epoch, loader.state_dict()['position']",
)
LEFT_OUT = ("time ", "next ", "not checked")

STYLE = """
  .window { fill: #fbfaf7; stroke: #c9c4b6; }
  text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #26241f; white-space: pre; }
  .typed { font-weight: 600; fill: #17614f; }
  @media (prefers-color-scheme: dark) {
    .window { fill: #24231f; stroke: #4b483f; }
    text { fill: #efece4; }
    .typed { fill: #8fd3be; }
  }
"""


def converse() -> None:
    """Run the statements as the interactive interpreter does, and print its prompts, too."""
    console = code.InteractiveConsole()
    for statement in STATEMENTS:
        print(f">>> {statement}")
        if console.push(statement):
            console.push("")  # the empty line that ends a block


def record() -> list[str]:
    """Return the lines of the terminal."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "PYTHONPATH": str(PROJECT), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}

        def run(*command: str) -> list[str]:
            done = subprocess.run(
                [sys.executable, *command], cwd=folder, env=settings, check=True, text=True, stdout=subprocess.PIPE
            )
            return [line for line in done.stdout.splitlines() if not line.startswith(LEFT_OUT)]

        run("-m", "shardflow", "demo", "--draw", "photos/")
        for command in COMMANDS:
            lines += [f"$ {command}", *run("-m", *command.split())]
        lines += ["$ python", *run(str(Path(__file__).resolve()), "--converse")]
    return lines


def draw(lines: list[str]) -> str:
    """Return the picture of a terminal."""
    width, height = 24 + max(860, *(9 * len(line) for line in lines)), 24 + 21 * len(lines)
    title = "shardflow packs 96 images, verifies them, and streams them as batches"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>\n<style>{STYLE}</style>',
        f'<rect class="window" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8"/>',
    ]
    for number, line in enumerate(lines):
        kind = ' class="typed"' if line.startswith(("$ ", ">>> ")) else ""
        parts.append(f'<text x="14" y="{30 + 21 * number}"{kind}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--converse"]:
        with contextlib.redirect_stderr(io.StringIO()):
            converse()
    else:
        PICTURE.write_text(draw(record()), encoding="utf-8")
