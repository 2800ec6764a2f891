"""Options that several commands share."""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.packing.executors import EXECUTORS
from shardflow.packing.recipe import settings
from shardflow.packing.sources.coco import Coco
from shardflow.packing.sources.resolve import describe_source
from shardflow.packing.sources.table import Table
from shardflow.preview.contact_sheet import picture_format
from shardflow.storage.urls import url_text

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_COLUMNS = ("image", "label", "split", "caption", "mask")


def option_group(*options: Decorator) -> Decorator:
    """Return a decorator that adds these options to a command; its help lists them in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


class PathOrUrl(click.Path):
    """A path or a URL; `~` is the home directory even if the shell leaves it, as in `--output=~/x.png`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or URL, after the checks of `click.Path`."""
        return super().convert(url_text(value), param, ctx)


def _split_names(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> list[str] | None:  # noqa: ARG001 - click's
    try:
        rows = list(csv.reader(texts, quotechar="'", skipinitialspace=True))
    except csv.Error:  # a name with a line break
        rows = [text.split(",") for text in texts]
    return [name.strip() for row in rows for name in row if name.strip()] if texts else None


names_option = functools.partial(click.option, multiple=True, metavar="NAMES", callback=_split_names)
"""An option for names, separated by commas or in several such options; a name with a comma is in 'quotes'."""


def _read_keys(ctx: click.Context, param: click.Parameter, file: Path | None) -> list[str] | None:  # noqa: ARG001 - click's
    lines = [] if file is None else file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return None if file is None else [line.strip() for line in lines if line.strip()]


keys_option = click.option(
    "--keys",
    metavar="FILE",
    type=PathOrUrl(exists=True, dir_okay=False, path_type=Path),
    callback=_read_keys,
    help="File with the samples' keys, one per line; train:000000042 for a key in several splits.",
)


def writable_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001 - click's
    """Check that the folder of an output file exists, before the command starts its work."""
    if value is not None and not Path(value).parent.is_dir():
        raise click.BadParameter(f"the folder {str(Path(value).parent)!r} does not exist")
    if value is not None and Path(value).is_dir():
        raise click.BadParameter(f"{value!r} is a folder; give the name of a file, such as {param.metavar}")
    return value


def picture_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check that a picture can be written to an output file, by its suffix and its folder."""
    if value is not None:
        picture_format(value)
    return writable_file(ctx, param, value)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

column_options = option_group(
    click.option(
        "--image-column",
        metavar="NAME",
        help="Column with image paths or URLs (tables only).  [default: image, path, url, …]",
    ),
    click.option("--label-column", metavar="NAME", help="Column with classes (tables only).  [default: label]"),
    click.option("--split-column", metavar="NAME", help="Column with train, val, … (tables only).  [default: split]"),
    click.option("--caption-column", metavar="NAME", help="Column with captions (tables only).  [default: caption]"),
    click.option("--mask-column", metavar="NAME", help="Column with mask paths or URLs, for .mask.png (tables only)."),
    click.option(
        "--image-folder",
        type=PathOrUrl(),
        metavar="DIR",
        help="Folder of the paths in a table or COCO set.  [default: the table's folder, or COCO's layout]",
    ),
)
"""The columns of a table, and the images of a COCO set; `with_columns` reads them."""

source_options = option_group(
    column_options,
    names_option(
        "--parts",
        help="Extensions of parts next to each image, such as txt,json; none packs each file by itself (folders only).",
    ),
    click.option(
        "--classes",
        type=PathOrUrl(),
        help="File with the class names in order, one per line; none packs a folder of any depth without labels.",
    ),
)
"""The options about the source of a pack; `source_of` reads them."""

annotation_options = option_group(
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="PART",
        help="Part that is a further image of a sample, such as img1.jpg; samples may lack it.",
    ),
    click.option(
        "--mask",
        "masks",
        multiple=True,
        metavar="PART",
        help="Part that holds a mask, such as mask.png; it follows the image.",
    ),
    click.option(
        "--boxes",
        metavar="PART:PATH:FORMAT",
        help="PART:PATH:FORMAT of boxes, such as json:objects[].bbox:xywh; also xyxy, cxcywh, and :normalized.",
    ),
    click.option(
        "--box-field",
        "box_fields",
        multiple=True,
        metavar="NAME=PATH",
        help="Integer per box, such as labels=objects[].category; any number with :float, polygons or RLE with :mask.",
    ),
    click.option(
        "--keypoints",
        metavar="PART:PATH:FORMAT",
        help="PART:PATH:FORMAT of keypoints, such as json:points:xyv; also xy, and :flip=1-2,3-4 for left and right.",
    ),
)
"""The annotations of a dataset; `annotations_of` reads them."""


def _recipe_option(name: str) -> Decorator:
    """Return the option of a setting, whose value is None unless given."""
    field, setting = settings()[name]
    option = f"--{name.replace('_', '-')}"
    if isinstance(field.default, bool):
        return click.option(f"{option}/--no-{option[2:]}", default=None, help=setting.help)
    return click.option(option, type=click.Choice(setting.choices) if setting.choices else int, help=setting.help)


recipe_options = option_group(*map(_recipe_option, settings()))
"""The settings of a recipe."""

executor_options = option_group(
    click.option("--workers", type=int, help="Number of processes.  [default: one per core]"),
    click.option(
        "--executor",
        type=click.Choice(EXECUTORS),
        default="processes",
        show_default=True,
        help="Where to run: here, on Ray, or serially.",
    ),
    click.option(
        "--ray-address", help="Address of the Ray cluster, such as auto.  [default: a new one on this machine]"
    ),
)


def annotations_of(settings: dict[str, Any]) -> Annotations | None:
    """Return the annotations from `annotation_options`, or None, and remove the options from the settings."""
    names = ("images", "masks", "boxes", "box_fields", "keypoints")
    images, masks, boxes, fields, points = (settings.pop(name) for name in names)
    for field in fields:
        if not all(field.partition("=")):
            raise click.UsageError(f"--box-field {field}: expected NAME=PATH, such as labels=objects[].category")
    if fields and boxes is None:
        raise click.UsageError("--box-field requires --boxes")
    declared = Annotations(
        images=images,
        masks=masks,
        boxes=None if boxes is None else Boxes.parse(boxes, dict(field.split("=", 1) for field in fields)),
        keypoints=None if points is None else Keypoints.parse(points),
    )
    return declared or None


def joined_files(sources: Sequence[str]) -> str:
    """Return a single source, or a pattern for several Parquet files, such as the shell's expansion of a pattern."""
    if len(sources) == 1:
        return sources[0]
    if not all(each.endswith(".parquet") and "://" not in each for each in sources):
        raise click.UsageError("only .parquet files can be several SRC; quote patterns, such as '{a,b}/*.tar'")
    paths = [os.path.abspath(each).removesuffix(".parquet") for each in sources]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    names = (re.sub(r"([\\{},])", r"\\\1", os.path.relpath(path, folder)) for path in paths)
    return f"{folder}/{{{','.join(names)}}}.parquet"


def source_of(src: str, settings: dict[str, Any]) -> Any:
    """Return the source from `source_options`, and remove the options from the settings."""
    columns = _columns(settings)
    parts = settings.pop("parts")
    names = None if parts is None else tuple(part.lstrip(".") for part in parts if part != "none")
    images, classes = settings.pop("image_folder"), settings.pop("classes")
    return describe_source(
        src, columns=columns, parts=names, images=images, classes=() if classes == "none" else classes
    )


def with_columns(sources: Sequence[str], settings: dict[str, Any]) -> list[Any]:
    """Return the sources of a dataset, with the `column_options` applied to tables and COCO sets."""
    columns, images = _columns(settings), settings.pop("image_folder")
    tables = [Table.recognizes(source, None) for source in sources]
    listings = [table or Coco.recognizes(source, None) for source, table in zip(sources, tables, strict=True)]
    if images is not None and not any(listings):
        raise click.UsageError("--image-folder needs a table or a COCO set as source")
    if columns and not any(tables):
        raise click.UsageError(f"--{next(iter(columns))}-column needs a table as source")
    return [
        describe_source(source, columns=columns if table else {}, images=images) if listing else source
        for source, table, listing in zip(sources, tables, listings, strict=True)
    ]


def _columns(settings: dict[str, Any]) -> dict[str, Any]:
    """Return argument of `Table` → named column, and remove the options from the settings."""
    return {name: column for name in _COLUMNS if (column := settings.pop(f"{name}_column")) is not None}


where_option = click.option(
    "--where",
    metavar="CONDITION",
    help="SQL over source (path), key, class, width, height, bytes, split and the columns.",
)
