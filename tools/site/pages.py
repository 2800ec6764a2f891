"""Write the pages of the website to a new folder, as the plain Markdown that any generator reads.

    python tools/site/pages.py FOLDER       # FOLDER/mkdocs.yml is the configuration, FOLDER/docs/ has the pages

README.md is the start page, CHANGELOG.md and each example are pages, and the reference is made of the docstrings of all
public names. A link to any other file of the repository becomes its path.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import shardflow
from shardflow import errors
from shardflow._imports import named_places

PROJECT = Path(__file__).resolve().parents[2]
MORE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Page of the website → the file of the repository that it shows."""


REFERENCE = {
    "packing": ("Packing", ("pack", "extend", "verify", "repair", "tune"), ("sources", "annotations")),
    "loading": ("Loading", ("Loader", "Mix", "Shuffle", "Cache", "samples"), ("samplers", "metrics")),
    "decoders": ("Decoders", (), ("decoders",)),
    "device": ("On the device", (), ("device",)),
    "datasets": ("Datasets", (), ("columns", "reports")),
}
"""Page → its heading, names of `shardflow`, and namespaces; "datasets" has the names of `shardflow` that are left."""

_USE = re.compile(r"^(```python) (?:peer|script)$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def write(folder: Path) -> None:
    """Write all pages, and the configuration of the generator."""
    shutil.copytree(PROJECT / "docs", folder / "docs")
    pages = {page: (PROJECT / name).read_text(encoding="utf-8") for page, name in MORE.items()}
    pages |= {f"reference/{page}.md": reference(page) for page in REFERENCE}
    pages["reference/errors.md"] = f"# Errors\n\n::: {errors.__name__}\n    options:\n      show_root_heading: false\n"
    listed = "# Examples\n\n"
    for path in sorted((PROJECT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        pages[f"examples/{path.stem}.md"] = f"# {path.name}\n\n```python\n{code}```\n"
        summary = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
        listed += f"- [{path.name}](../../examples/{path.name}): {summary}\n"
    pages["examples/index.md"] = listed
    pages |= {path.name: path.read_text(encoding="utf-8") for path in (PROJECT / "docs").glob("*.md")}
    for page, text in pages.items():
        (folder / "docs" / page).parent.mkdir(exist_ok=True)
        (folder / "docs" / page).write_text(linked(page, text), encoding="utf-8")
    for name in ("mkdocs.yml", "docstrings.py"):
        shutil.copy(Path(__file__).with_name(name), folder)


def linked(name: str, text: str) -> str:
    """Return a page with its links leading to pages, and the paths of other files in place of links to them."""
    folder = (PROJECT / MORE.get(name, f"docs/{name}")).parent

    def lead(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path:
            return match[0]
        path = folder.joinpath(path).resolve().relative_to(PROJECT).as_posix()
        if (address := _address(path)) is not None:
            return f"{image}[{words}]({'../' * name.count('/')}{address}{hash_}{anchor})"
        return f"`{path}`" if words in (path, Path(path).name) else f"{words} (`{path}`)"

    parts = _FENCED.split(_USE.sub(r"\1", text))
    parts[::2] = (_LINK.sub(lead, part) for part in parts[::2])  # the others are code
    return "".join(parts)


def _address(path: str) -> str | None:
    """Return the file of the website that shows a file of the repository; None if there is none."""
    for page, name in MORE.items():
        if name == path:
            return page
    if path == "examples":
        return "examples/index.md"
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def reference(page: str) -> str:
    """Return a page of the reference."""
    title, names, namespaces = REFERENCE[page]
    lines = [f"# {title}", ""]
    if page == "datasets":
        elsewhere = {"errors", *(name for _, *lists in REFERENCE.values() for each in lists for name in each)}
        names = tuple(name for name in shardflow.__all__ if name not in elsewhere)
    for name in names:
        lines += _description("shardflow", name)
    for namespace in namespaces:
        module = getattr(shardflow, namespace)
        lines += [f"{(module.__doc__ or '').splitlines()[0]}", ""]
        for name in module.__all__:
            lines += _description(module.__name__, name)
    return "\n".join(lines)


def _description(namespace: str, name: str) -> list[str]:
    """Return the lines that describe a public name, whose docstring is where it is defined."""
    module, attribute = named_places(namespace)[name]
    heading = f"      heading: {namespace}.{name}"
    return [f"::: {module}.{attribute}", "    options:", heading, f"      toc_label: {name}", ""]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
