"""The outcome of a conditional write: done, refused, or done although the answer was lost."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

from shardflow.errors import BucketNotFoundError, DatasetExistsError, NotFoundError, ShardflowError, StoreError

from .transport import ChangedError, Head


def blob_metadata(sha256: str) -> dict[str, str]:
    """Return the metadata of a blob: the SHA-256 of its content, and a mark of the call that wrote it."""
    return {"sha256": sha256, "writer": secrets.token_hex(8)}


async def has_metadata(head: Awaitable[Head | None], metadata: Mapping[str, str]) -> bool:
    """Return whether a blob is the one with this mark; False too if the store does not answer."""
    try:
        found = await head
    except ShardflowError:
        return False
    return found is not None and found.metadata == metadata


async def write(
    send: Callable[[], Awaitable[object]],
    head: Callable[[], Awaitable[Head | None]],
    metadata: Mapping[str, str],
    url: str,
    *,
    new: bool,
    tag: str | None,
) -> None:
    """Publish a blob by `send`, which repeats its request; see `Transport.put`.

    The request may have succeeded although its answer was lost, and its repetition is refused then. The blob's `head`
    with the `metadata` of this call tells.
    """
    try:
        await send()
    except StoreError as error:
        if await has_metadata(head(), metadata):
            return
        is_gone = tag is not None and isinstance(error, NotFoundError) and not isinstance(error, BucketNotFoundError)
        if not is_gone and not isinstance(error, ChangedError):
            raise
        changed = "was changed by another process meanwhile; run the same command again"
        message = f"{url} {'exists already; nothing is ever overwritten' if new else changed}"
        raise DatasetExistsError(message) from error.__cause__
