"""Sources: what can be packed, listed as one kind of thing.

    Folder      images below a directory or URL
    Table       images that a table names
    Shards      the samples of existing shards
    Collection  samples as objects

Each has a method `list`, which looks through all of it and returns a `Source`.
"""

from __future__ import annotations

from .collection import Collection
from .folder import Folder
from .reader import Input, Reader
from .resolve import described, list_source, listed, shared_options
from .shards import Shards
from .source import Source
from .table import Table

__all__ = [
    "Collection",
    "Folder",
    "Input",
    "Reader",
    "Shards",
    "Source",
    "Table",
    "described",
    "list_source",
    "listed",
    "shared_options",
]
