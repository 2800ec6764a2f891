"""Hooks of the website's build: pages that are not in docs/, and links to files that are not on the website.

README.md is the start page, CHANGELOG.md and each example are pages, and the reference is made of the docstrings of all
public names. A link to any other file of the repository becomes its path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
