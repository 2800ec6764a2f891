"""A tile: a picture with two lines about it, or the reason why there is none."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from .sample_reader import Peeked

SIDE = 176


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What is shown of one sample or file.

    Attributes:
        title, detail: Two lines about it.
        picture: RGB, about `SIDE` pixels or larger; None where it cannot be shown.
        problem: Why something was refused; "" where nothing was.
    """

    title: str
    detail: str
    picture: Image.Image | None
    problem: str = ""


def tiles_of(samples: Iterable[Peeked], classes: Sequence[str] | None) -> Iterator[Tile]:
    """Yield the tile of each sample."""
    for sample in samples:
        payload = sample.image
        opened = opened_picture(payload) if payload is not None else None
        if sample.problem:
            detail = "damaged or missing"
        elif payload is None:
            detail = f"no image: {', '.join(sample.parts)}"
        elif opened is None:
            detail = f"{size_of(payload)} that do not decode"
        else:
            detail = f"{opened[1][0]} x {opened[1][1]}, {size_of(payload)}"
        named = [classes[label] for label in sample.labels if label < len(classes)] if classes is not None else []
        title = ", ".join(named) or f"sample {sample.number}"
        yield Tile(title=title, detail=detail, picture=None if opened is None else opened[0], problem=sample.problem)


def size_of(payload: bytes) -> str:
    """Return the size of bytes as people read it."""
    return f"{len(payload):,} bytes" if len(payload) < 1000 else f"{len(payload) / 1000:,.0f} kB"


def opened_picture(payload: bytes) -> tuple[Image.Image, tuple[int, int]] | None:
    """Return an encoded image, decoded no larger than tiles need, and its size; None when it does not decode."""
    try:
        with Image.open(io.BytesIO(payload)) as image:
            size = image.size
            image.draft("RGB", (SIDE, SIDE))
            picture = image.convert("RGB")
    except Exception:  # Pillow raises nearly anything, SyntaxError included
        return None
    picture.thumbnail((2 * SIDE, 2 * SIDE), Image.Resampling.LANCZOS)
    return picture, size
