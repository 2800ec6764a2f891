"""Tars that a virtual dataset lacks because the dataset in a root was changed and its old versions were purged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from shardflow.errors import BucketNotFoundError, NotFoundError, ShardflowError
from shardflow.formats import manifest
from shardflow.storage.interface import Storage


def purged_tars(storage: Storage, names: Iterable[str]) -> dict[str, str]:
    """Return which of these tars are gone and no longer named by the dataset in their root, each with the reason."""
    bases, found = dict[str, tuple[set[str], str] | None](), dict[str, str]()
    remedy = "make it again (`shardflow subset`, `split`, `merge`)"
    for split, root, path in (name.split("/", 2) for name in names if name.count("/") > 1):
        name = f"{split}/{root}/{path}"
        with contextlib.suppress(ShardflowError):  # a root may have tars alone, or be out of reach
            if root not in bases:
                bases[root] = None
                base = manifest.from_bytes(storage.read(f"{split}/{root}/{manifest.FILE_NAME}"))
                cause = "`remove --purge` ran there" if base.removals else "that was packed again"
                bases[root] = None if base.roots else (base.file_names(), cause)  # an index next to its tars owns none
            if (known := bases[root]) is not None and path not in known[0] and storage.version(name) is None:
                reason = f"{storage.url(name)} is gone: since {storage} was made from its dataset, {known[1]}"
                found[name] = f"{reason}; {remedy}"
    return found


@contextlib.contextmanager
def opening_tar(storage: Storage, name: str) -> Iterator[None]:
    """Give the NotFoundError of a tar the remedy, and the reason if the dataset that owned it was purged."""
    try:
        yield
    except BucketNotFoundError:
        raise
    except NotFoundError as error:
        if reason := purged_tars(storage, [name]).get(name):
            raise NotFoundError(reason) from error
        remedy = "if the dataset was moved, open it at its new place; else `shardflow verify --repair` restores the tar"
        if name.count("/") > 1:
            remedy = f"restore it, or make the dataset {storage} again without it"
        raise NotFoundError(f"{storage.url(name)} does not exist; {remedy}") from error
