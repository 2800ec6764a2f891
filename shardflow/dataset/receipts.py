"""The receipts of a dataset, which say from which inputs its shards were packed."""

from __future__ import annotations

import contextlib

from shardflow.errors import FormatError, IntegrityError, NotFoundError
from shardflow.formats.receipt import MAX_BYTES, Receipt, from_bytes
from shardflow.formats.shard import Shard
from shardflow.storage.interface import Storage


def read_receipt(storage: Storage, name: str, shard: Shard | None) -> Receipt:
    """Return the receipt of a name, next to the tar of `shard`; `shard` is None for a job without a tar.

    Raises:
        NotFoundError: The receipt is missing: another tool wrote the tar, or the receipt was not copied.
        FormatError: The receipt is damaged.
        IntegrityError: The receipt is that of another tar.
    """
    url = storage.url(name)
    try:
        receipt = from_bytes(storage.read(name, most_bytes=MAX_BYTES))
    except NotFoundError as error:
        lack = f"{url} does not exist, and only it names the files that the samples were packed from"
        raise NotFoundError(f"{lack}; copy it from the packed dataset; tars of other tools have none") from error
    except FormatError as error:
        raise error.with_location(shard=url) from error
    # A dataset over the same tar has another entry for it, so only the tar's digest is compared.
    if (receipt.shard and receipt.shard.sha256) != (shard and shard.sha256):
        raise IntegrityError(f"{url} is not the receipt of the tar next to it; copy it from the packed dataset")
    return receipt


def find_receipt(storage: Storage, name: str, shard: Shard | None) -> Receipt | None:
    """Return the receipt as `read_receipt` does; None if it is missing, damaged, or of another tar."""
    with contextlib.suppress(NotFoundError, FormatError, IntegrityError):
        return read_receipt(storage, name, shard)
    return None
