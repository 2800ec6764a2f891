"""The code in the project's pages: found between fences, and run as a reader would, block after block.

```python           run, all blocks of a page in one namespace; saved as well if it begins with `# NAME.py`
```python peer      code for another library: it must compile
```python script    a file of its own: saved, see below, and must compile
```console          lines with `$ shardflow ...` are run, and the output shown must be what they print, see `is_shown`;
                    of other commands, whatever they name of the project must exist
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.helpers.command import exit_code

PROJECT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(PROJECT).as_posix(): path
    for path in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md")))
}
_ONE_PROCESS = ("--executor", "serial")
SHORTER = {"bench": ("--seconds", "0.5"), "tune": ("--seconds", "1"), "pack": _ONE_PROCESS, "extend": _ONE_PROCESS}
"""Options that shorten long commands, or spare them processes, in place of those that the page gives them."""


def _shorter(arguments: Sequence[str]) -> list[str]:
    option, value = SHORTER.get(arguments[0], ("", ""))
    if option in arguments:
        at = arguments.index(option) + 1
        return [*arguments[:at], value, *arguments[at + 1 :]]
    return [*arguments, *filter(None, (option, value))]


_FENCED = re.compile(r"^```(\w+)( peer| script)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """The text between two fences, and the line of the opening fence, from 1."""

    kind: str
    code: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order; the kind is a language, "peer" or "script"."""
    for match in _FENCED.finditer(text):
        language, use, code = match.groups()
        yield Block(use.strip() if use else language, code, text[: match.start()].count("\n") + 1)


def run_page(path: Path, names: Mapping[str, Any], translated: Callable[[str], str]) -> dict[str, Any]:
    """Run all blocks of a page in the current directory, with these names defined, and translated to this machine.

    Return the names that are defined at the end.
    """
    namespace = dict(names)
    for kind, code, line in blocks(path.read_text(encoding="utf-8")):
        if kind in ("python", "peer", "script"):
            # Blank lines before it, so that a traceback shows the line of the page.
            compiled = compile("\n" * line + translated(code), str(path), "exec")
            if kind != "peer" and (file := re.match(r"# (\w+\.py)\n", code)):
                Path(file[1]).write_text(translated(code))
            if kind == "python":
                exec(compiled, namespace)
        elif kind == "console":
            for command, shown in commands(code):
                run_command(translated(command), shown, f"{path.name}:{line}")
    return namespace


def alternatives(code: str) -> Iterator[tuple[str, str]]:
    """Yield each option that a comment offers in a block, with the block in which it is in the place of the one shown.

    Such a line is `name=shown,  # or this, or that`: each alternative is an expression.
    """
    for match in re.finditer(r"^( +\w+=).*,  # (.*)\n", code, re.MULTILINE):
        for option in re.split(r"(?:^|, )or ", match[2])[1:]:
            yield option, f"{code[: match.start()]}{match[1]}{option},\n{code[match.end() :]}"


def commands(code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block, without its comment, and the lines of output that are shown below it."""
    for part in re.split(r"^\$ ", code.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield re.sub(r"\s+#.*", "", command), [line for line in shown if line.strip()]


def run_command(command: str, shown: list[str], where: str) -> None:
    """Run a command of shardflow, and compare its output with that shown; of other commands, check the files."""
    program, *arguments = shlex.split(command)
    if program != "shardflow":
        for word in (program, *arguments):
            if word.startswith(("tools/", "examples/", "tests/")):
                assert (PROJECT / word).exists(), f"{where}: there is no {word}"
        return
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = exit_code(*_shorter(arguments))
    assert code == 0, f"{where}: {command}: exit code {code}\n{errors.getvalue()}"
    lines = printed.getvalue().splitlines()
    assert not shown or is_shown(lines, shown), "\n".join(
        [f"{where}: {command} printed", *lines, "in place of", *shown]
    )


def is_shown(printed: list[str], shown: list[str]) -> bool:
    """Return whether a page shows what a command printed.

    Figures that differ from machine to machine are the same: numbers with a point, images/s, and digests. "…" is the
    rest of a line, or as a line of its own any number of lines.
    """
    patterns = [re.escape(_comparable(line)).replace("…", ".*") for line in shown]
    pattern = "".join("(.*\n)*" if line == ".*" else f"{line}\n" for line in patterns)
    return re.fullmatch(pattern, "".join(f"{_comparable(line)}\n" for line in printed)) is not None


def _comparable(line: str) -> str:
    line = re.sub(r"sha256:\S+", "DIGEST", line)
    line = re.sub(r"\d[\d,]*\.\d+|[\d,]+(?= images/s)", "N", line)
    return " ".join(line.split())


def few(*bounds: int) -> range:
    """Replace `range` in the pages: of many epochs, two are enough."""
    return range(*bounds)[:2]


def on_this_machine(code: str) -> str:
    """Return code with a device that this machine has."""
    return code if torch.cuda.is_available() else code.replace('"cuda"', '"cpu"')
