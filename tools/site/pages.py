"""Hooks of the website's build: pages that are not in docs/, and links to files that are not on the website.

README.md is the start page, CHANGELOG.md and each example are pages, and the reference is made of the docstrings of all
public names. A link to any other file of the repository becomes its path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import shardflow
from shardflow import errors

PROJECT = Path(__file__).resolve().parents[2]
MORE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Page of the website → the file of the repository that it shows."""


class Reference(NamedTuple):
    """A page of the reference.

    Attributes:
        title: Its heading.
        modules: Beginnings of the names of the modules, below `shardflow`, whose public names it has.
        first: The names that come first; the others follow by the alphabet.
    """

    title: str
    modules: tuple[str, ...]
    first: tuple[str, ...]


REFERENCE = {
    "packing": Reference("Packing", ("packing.", "formats."), ("pack", "extend", "repair", "verify")),
    "decoders": Reference("Decoders", ("loading.decoders", "geometry."), ("decoders",)),
    "loading": Reference("Loading", ("loading.", "storage.", "interop.", "diagnostics."), ("Loader", "Mix")),
    "device": Reference("On the device", ("device.",), ("DevicePrefetcher",)),
    "datasets": Reference("Datasets", ("dataset.",), ("open", "Dataset", "Split")),
}
"""Page → what it has. A name stands on the first page with its module."""

_USE = re.compile(r"^(```python) (?:peer|script)$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    pages = {page: (PROJECT / name).read_text(encoding="utf-8") for page, name in MORE.items()}
    pages |= {f"reference/{page}.md": reference(page) for page in REFERENCE}
    pages["reference/errors.md"] = f"# Errors\n\n::: {errors.__name__}\n    options:\n      show_root_heading: false\n"
    for path in sorted((PROJECT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        pages[f"examples/{path.stem}.md"] = f"# {path.name}\n\n```python\n{code}```\n"
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - the signature of a hook
    """Lead links to pages of the website, and replace those to other files by their paths."""
    name = page.file.src_uri
    folder = (PROJECT / MORE.get(name, f"docs/{name}")).parent

    def lead(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path:
            return match[0]
        path = folder.joinpath(path).resolve().relative_to(PROJECT).as_posix()
        if (address := _address(path)) is not None:
            return f"{image}[{text}]({'../' * name.count('/')}{address}{hash_}{anchor})"
        return f"`{path}`" if text in (path, Path(path).name) else f"{text} (`{path}`)"

    parts = _FENCED.split(_USE.sub(r"\1", markdown))
    parts[::2] = (_LINK.sub(lead, part) for part in parts[::2])  # the others are code
    return "".join(parts)


def _address(path: str) -> str | None:
    """Return the file of the website that shows a file of the repository; None if there is none."""
    for page, name in MORE.items():
        if name == path:
            return page
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def page_of(name: str) -> str:
    """Return the page of the reference that has a public name."""
    module = shardflow._LAZY[name][0]
    return next(page for page, content in REFERENCE.items() if module.startswith(content.modules))


def reference(page: str) -> str:
    """Return a page of the reference."""
    title, _, first = REFERENCE[page]
    names = [name for name in shardflow.__all__ if name in shardflow._LAZY and page_of(name) == page]
    lines = [f"# {title}", "", "All names are attributes of `shardflow`.", ""]
    for name in sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name.lower())):
        module, attribute = shardflow._LAZY[name]
        lines += [f"::: shardflow.{module}.{attribute}", "    options:"]
        lines += [f"      heading: shardflow.{name}", f"      toc_label: {name}", ""]
    return "\n".join(lines)
