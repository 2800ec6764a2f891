"""The options of commands that pack, about what they read."""

from __future__ import annotations

from typing import Any

import click

from shardflow.packing.sources.resolve import describe_source

from .options import together

COLUMNS = ("image", "label", "split", "caption", "mask")
source_options = together(
    click.option("--image-column", metavar="NAME", help="Of a table: paths or URLs.  [default: image, path, url, …]"),
    click.option("--label-column", metavar="NAME", help="Of a table: classes.  [default: label]"),
    click.option("--split-column", metavar="NAME", help="Of a table: train, val, ….  [default: split]"),
    click.option("--caption-column", metavar="NAME", help="Of a table: texts for .txt; other columns go to .json."),
    click.option("--mask-column", metavar="NAME", help="Of a table: paths or URLs of masks for .mask.png."),
    click.option("--parts", metavar="PARTS", help="What lies beside the images of a folder: txt,json,mask.png."),
    click.option("--classes", type=click.Path(), help="File with the class names, one a line, in their order."),
)
"""`source_from` takes them out of the command's settings."""


def source_from(src: str, settings: dict[str, Any]) -> Any:
    """Return the source that the options describe, and leave the other settings behind."""
    given = {name: settings.pop(f"{name}_column") for name in COLUMNS}
    columns = {name: column for name, column in given.items() if column is not None}
    parts = settings.pop("parts") or ""
    names = tuple(part.strip().lstrip(".") for part in parts.split(",") if part.strip())
    return describe_source(src, columns=columns, parts=names, classes=settings.pop("classes"))
