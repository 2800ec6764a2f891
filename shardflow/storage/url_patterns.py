"""Patterns of tars: paths and URLs with braces and wildcards."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

import braceexpand

from shardflow.errors import ConfigError

from .urls import divide_query, strip_file_scheme

ALL = "*.tar"

_SPECIAL = re.compile(r"[{*?\[]")


class RootAndPattern(NamedTuple):
    """A directory or URL, and the pattern of the tars below it; None if all files below it are meant."""

    root: str
    pattern: str | None


def split_pattern(url: str | os.PathLike[str]) -> RootAndPattern:
    """Split a path or URL into its root and its pattern. The name of an existing file or directory is not a pattern.

    A `?` begins the query of a web URL, which stays with the root: it can be the signature of every request.
    """
    text, query = divide_query(strip_file_scheme(url))
    special = None if os.path.exists(text) else _SPECIAL.search(text)
    if special or text.endswith(".tar"):
        folder, slash, _ = text[: special.start() if special else None].rpartition("/")
        return RootAndPattern((folder or slash or ".") + query, text[len(folder + slash) :])
    return RootAndPattern((text.rstrip("/") or text) + query, None)


def expand_braces(pattern: str) -> list[str]:
    """Return the names, or patterns with wildcards alone, of a pattern with braces."""
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:  # UnbalancedBracesError is a subclass
        raise ConfigError(f"{pattern!r} is not a pattern: {error}; expected such as {{00000..00099}}.tar") from error


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern without braces has wildcards."""
    return _SPECIAL.search(pattern) is not None


def matching_tars(pattern: str, listing: Iterable[str]) -> list[str]:
    """Return the tars of a listing that match a pattern with wildcards."""
    return [name for name in fnmatch.filter(listing, pattern) if name.endswith(".tar")]
