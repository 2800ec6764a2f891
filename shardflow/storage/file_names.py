"""File names: UTF-8 in any locale.

Python decodes the names of files by the locale: under `LC_ALL=C` the same file has another name. So a *name*, which is
stored, compared and sorted, has the bytes of the file's name as UTF-8, with a surrogate for each byte that is not
UTF-8. The *path* that the functions of Python take is made from the name. Under a UTF-8 locale both are the same text.
"""

from __future__ import annotations

import os
import re
import sys
from urllib.parse import unquote

from shardflow.errors import ConfigError

_IS_UTF8 = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name, which names are sorted by. UnicodeEncodeError for half of a surrogate pair."""
    return name.encode("utf-8", "surrogateescape")


def name_of(path: str | bytes) -> str:
    """Return the name of a path that Python, the user or the file system gave."""
    if isinstance(path, bytes):
        return path.decode("utf-8", "surrogateescape")
    if _IS_UTF8 or path.isascii():
        return path
    try:
        return name_of(os.fsencode(path))
    except UnicodeEncodeError:  # at least a part is not from the system, but a text in a program or a table
        return name_of(name_bytes(path))


def path_of(name: str) -> str:
    """Return the path by which Python finds the file of a name."""
    return name if _IS_UTF8 or name.isascii() else os.fsdecode(name_bytes(name))


def is_below(name: str) -> bool:
    """Return whether a name stays below its root: it neither begins with a slash nor has a component `..`.

    Servers and clients undo quoting and take backslashes for slashes, so neither may hide such a component.
    """
    while True:
        parts = re.split(r"[/\\]", name)
        if name.startswith("/") or ".." in parts:
            return False
        unquoted = unquote(name)
        if unquoted == name:
            return True
        name = unquoted


def is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders begins with a dot: sources leave it out.

    A name that leads elsewhere is not hidden, so that it is refused.
    """
    return is_below(name) and any(part.startswith(".") and part != "." for part in name.split("/"))


def given_path(path: str) -> str:
    """Return the path that the user gave as one that Python finds; ConfigError if it can name no file."""
    try:
        if b"\0" not in os.fsencode(path):
            return path
    except UnicodeEncodeError:
        try:
            return os.fsdecode(name_bytes(path))
        except UnicodeEncodeError:  # half of a surrogate pair
            pass
    raise ConfigError(f"{path!a} is not the name of a file or directory; check the path")
