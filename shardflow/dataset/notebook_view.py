"""The view of a dataset in a notebook: its splits, its classes, and a strip of samples, as HTML.

Pictures are the stored bytes as they are, a few small ones of shards that are on this machine: nothing is decoded, and
nothing is downloaded to display a variable.
"""

from __future__ import annotations

import base64
import contextlib
import html
import itertools
from collections.abc import Iterator, Mapping, Sequence

from shardflow.errors import ShardflowError
from shardflow.formats.image_types import type_of_part

from .reader import ShardReader

_PICTURES = 8
_MOST_PICTURE_BYTES = 200_000
_MOST_CLASSES = 20
_HEIGHT = 96  # pixels of a picture


def dataset_html(url: str, fingerprint: str, classes: Sequence[str] | None, readers: Mapping[str, ShardReader]) -> str:
    """Return the HTML of a dataset, with a reader for each split; text, such as names of classes, is escaped."""
    rows = [
        _row("td", split, f"{reader.shards.samples.sum():,}", f"{len(reader.shards):,}")
        for split, reader in readers.items()
    ]
    lines = [
        f"<b>{html.escape(url)}</b> {html.escape(fingerprint[:19])}…",
        f"<table>{_row('th', 'split', 'samples', 'shards')}{''.join(rows)}</table>",
    ]
    if classes is not None:
        more = ", …" if len(classes) > _MOST_CLASSES else ""
        lines.append(f"classes ({len(classes):,}): {html.escape(', '.join(classes[:_MOST_CLASSES]))}{more}")
    strips = ("".join(_pictures(reader)) for reader in readers.values())
    lines += itertools.islice(filter(None, strips), 1)
    return "".join(f"<div>{line}</div>" for line in lines)


def _row(cell: str, *texts: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(text)}</{cell}>' for text in texts)}</tr>"


def _pictures(reader: ShardReader) -> Iterator[str]:
    if not reader.shards or not reader.is_local(0):
        return
    with contextlib.suppress(ShardflowError):  # a damaged sample must not keep a variable from being displayed
        for number in range(min(_PICTURES, reader.shards[0].samples)):
            sample = reader.read(0, number)
            for part, payload in sample.parts.items():
                kind = type_of_part(part)
                if kind is None or not kind.in_shards or len(payload) > _MOST_PICTURE_BYTES:
                    continue
                source = f"data:image/{kind.name.lower()};base64,{base64.b64encode(payload).decode()}"
                title = html.escape(sample.key, quote=True)
                yield f'<img src="{source}" title="{title}" style="height:{_HEIGHT}px;display:inline-block;margin:2px">'
                break
