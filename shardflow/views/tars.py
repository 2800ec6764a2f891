"""Which tars a path, a URL or a pattern means, and to which split each belongs."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import braceexpand

from shardflow.errors import ConfigError
from shardflow.manifest import is_name
from shardflow.store import Store, is_remote, open_store

_SPECIAL = re.compile(r"[{*?\[]")


class Found(NamedTuple):
    """A tar to be read: its store, the root of that, its name there, and its split."""

    store: Store
    root: str
    name: str
    split: str


def found_tars(
    url: str | os.PathLike[str], splits: tuple[str, ...], storage_options: Mapping[str, Any] | None
) -> Iterator[Found]:
    """Yield the tars that are meant, in the order of their names.

    They are of the split after which their folder is named, and of the first one where it is named otherwise. A pattern
    with braces alone is expanded without a listing, which not every server gives.

    Raises:
        ConfigError: There are none, the pattern is none, or a name has other characters than A-Z a-z 0-9 . _ - in it.
        StoreError: The place is out of reach.
    """
    text = os.fspath(url)
    special = None if os.path.exists(text) else _SPECIAL.search(text)
    if special or text.endswith(".tar"):
        folder, slash, _ = text[: special.start() if special else None].rpartition("/")
        root, pattern = folder or slash or ".", text[len(folder + slash) :]
    else:
        root, pattern = text.rstrip("/") or text, "*.tar"
    store = open_store(root, storage_options if is_remote(root) else None)
    names = sorted(_names(store, pattern))
    for name in names:
        if not is_name(name):
            raise ConfigError(f"{store.url(name)}: names may have A-Z a-z 0-9 . _ - alone, rename it")
    tops = {name.partition("/")[0].lower() if "/" in name else root.rpartition("/")[2].lower() for name in names}
    for name in names:
        top = name.partition("/")[0] if "/" in name else root.rpartition("/")[2]
        yield Found(store, str(store), name, top.lower() if tops <= {*splits} else splits[0])


def _names(store: Store, pattern: str) -> set[str]:
    try:
        patterns = list(braceexpand.braceexpand(pattern))
    except ValueError as error:  # UnbalancedBracesError is one
        raise ConfigError(f"{pattern!r} is no pattern: {error}; expected one such as {{00000..00099}}.tar") from error
    names = {one for one in patterns if not _SPECIAL.search(one)}
    wild = [one for one in patterns if _SPECIAL.search(one)]
    if wild:
        listing = store.names()
        for one in wild:
            matching = {name for name in fnmatch.filter(listing, one) if name.endswith(".tar")}
            if not matching:
                raise ConfigError(f"{store} has no tar {one!r} among its {len(listing)} files")
            names |= matching
    return names
