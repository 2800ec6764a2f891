"""Patterns: the tars that a path or URL means, which may have braces and wildcards in it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

import braceexpand

from shardflow.errors import ConfigError

from .urls import strip_file_scheme

ALL = "*.tar"

_SPECIAL = re.compile(r"[{*?\[]")


class Rooted(NamedTuple):
    """A path or URL, cut in two: a directory or URL, and which tars below it are meant; None where nothing says it."""

    root: str
    pattern: str | None


def rooted(url: str | os.PathLike[str]) -> Rooted:
    """Return what a path or URL means; the name of what is there has no wildcards in it, whatever it looks like."""
    text = strip_file_scheme(url)
    special = None if os.path.exists(text) else _SPECIAL.search(text)
    if special or text.endswith(".tar"):
        folder, slash, _ = text[: special.start() if special else None].rpartition("/")
        return Rooted(folder or slash or ".", text[len(folder + slash) :])
    return Rooted(text.rstrip("/") or text, None)


def expanded(pattern: str) -> list[str]:
    """Return the names, or patterns with wildcards alone, that a pattern with braces stands for.

    Raises:
        ConfigError: It is none.
    """
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:  # UnbalancedBracesError is one
        raise ConfigError(f"{pattern!r} is no pattern: {error}; expected one such as {{00000..00099}}.tar") from error


def is_wild(pattern: str) -> bool:
    """Whether a pattern without braces has wildcards."""
    return _SPECIAL.search(pattern) is not None


def tars_like(pattern: str, listing: Iterable[str]) -> list[str]:
    """Return the tars of a listing that a pattern with wildcards means."""
    return [name for name in fnmatch.filter(listing, pattern) if name.endswith(".tar")]
