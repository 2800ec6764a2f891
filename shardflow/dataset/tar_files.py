"""Which tars a path, a URL or a pattern means, and to which split each belongs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.manifest import is_name
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.url_patterns import ALL, expand_braces, has_wildcards, matching_tars, split_pattern
from shardflow.storage.urls import remote_options


class TarFile(NamedTuple):
    """A tar to be read: its store, the root of that, its name there, and its split."""

    storage: Storage
    root: str
    name: str
    split: str


def find_tars(
    url: str | os.PathLike[str], splits: tuple[str, ...], storage_options: Mapping[str, Any] | None
) -> Iterator[TarFile]:
    """Yield the tars that are meant, in the order of their names.

    They are of the split after which their folder is named, and of the first one where it is named otherwise. A pattern
    with braces alone is expanded without a listing, which not every server gives.

    Raises:
        ConfigError: There are none, the pattern is none, or a name has other characters than A-Z a-z 0-9 . _ - in it.
        NotFoundError: The place does not exist, or is empty.
        StoreError: It is out of reach.
    """
    root, pattern = split_pattern(url)
    storage = open_storage(root, remote_options(root, storage_options))
    names = sorted(_names(storage, pattern or ALL))
    for name in names:
        if not is_name(name):
            raise ConfigError(f"{storage.url(name)}: names may have A-Z a-z 0-9 . _ - alone, rename it")
    tops = {name.partition("/")[0].lower() if "/" in name else root.rpartition("/")[2].lower() for name in names}
    for name in names:
        top = name.partition("/")[0] if "/" in name else root.rpartition("/")[2]
        yield TarFile(storage, str(storage), name, top.lower() if tops <= {*splits} else splits[0])


def _names(storage: Storage, pattern: str) -> set[str]:
    patterns = expand_braces(pattern)
    names = {one for one in patterns if not has_wildcards(one)}
    wild = [one for one in patterns if has_wildcards(one)]
    if wild:
        listing = storage.listing()
        if not listing:
            raise NotFoundError(f"{storage} does not exist, or is empty; check the path")
        for one in wild:
            matching = matching_tars(one, listing)
            if not matching:
                raise ConfigError(f"{storage} has no tar {one!r} among its {len(listing)} files")
            names.update(matching)
    return names
