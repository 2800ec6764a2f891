"""Datasets behind a URL: the store that reads and writes them, and what it is made of.

    store       the store: an ordered window of ranges, checked as they come
    address     a URL with its options, and which of that is secret
    transport   the requests a store is made of; `s3` and `anyscheme` have the two that there are
    attempts    the one loop that tries again, and how long anything is waited for
    refusals    foreign errors translated, once

Only `shardflow.store.open_store` leads here.
"""

from __future__ import annotations

from .store import RemoteStore

__all__ = ["RemoteStore"]
