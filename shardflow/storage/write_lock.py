"""The claim: whose a place without locks is, until a manifest is there.

Object stores have no locks. So whoever is about to write a dataset first leaves a claim, create-only, that says what
will be written. Who finds the claim of something else stays away. Who finds one of the same thing goes on: it is the
same run resumed, or a twin, which writes the same bytes under the same names and does no harm.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping

from shardflow.errors import ConfigError, DatasetExistsError, ManifestError, NotFoundError, StoreError
from shardflow.formats import manifest

from .local import LocalStorage
from .storage import TEMPORARY, Storage

FILE_NAME = "unfinished.json"


def acquire(storage: Storage, content: str) -> None:
    """Claim a store for a content, named by a digest; may be repeated with the same one.

    Raises:
        DatasetExistsError: It holds a dataset.
        ConfigError: It is claimed for another content.
    """
    put_lock(storage, {"content": content})
    # After the claim, because whoever finished meanwhile has written the manifest before letting go of theirs.
    if storage.size(manifest.FILE_NAME) is not None:
        clean_up(storage)
        raise DatasetExistsError(f"{storage} already holds a dataset; choose another destination or remove it")


def put_lock(storage: Storage, content: Mapping[str, str]) -> None:
    """Leave a claim, or find one of the same content; may be repeated.

    Args:
        store: The place.
        content: What tells this claim from others. One for the extension of a dataset has the fingerprint of what is
            extended, as "extends": it means nothing any more once that has been done.

    Raises:
        ConfigError: It is claimed for another content.
    """
    ours = json.dumps(content, indent=1).encode() + b"\n"
    try:
        storage.put_new(FILE_NAME, ours)
    except DatasetExistsError:
        try:
            found = storage.read(FILE_NAME)
        except NotFoundError:  # just given up: its owner has ended, with a manifest or without
            found = ours
        if found != ours:
            raise ConfigError(
                f"{storage} is being written to with other inputs or settings, or was and is unfinished; finish it "
                "with the command that began it, choose another destination, or remove all that is below it"
            ) from None


def extends(storage: Storage) -> str | None:
    """Return the fingerprint of the dataset for whose extension the place is claimed; None if it is not."""
    try:
        found = json.loads(storage.read(FILE_NAME)).get("extends")
    except (NotFoundError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def release(storage: Storage) -> None:
    """Give the claim up: the manifest is there."""
    storage.remove(FILE_NAME)


def clean_up(storage: Storage) -> None:
    """Remove what a writer that was killed at its commit has left beside the manifest, if that can be done."""
    with contextlib.suppress(StoreError, ManifestError):  # such as a read-only disk
        found = extends(storage)
        if found is not None and found == manifest.from_bytes(storage.read(manifest.FILE_NAME)).fingerprint:
            return  # somebody is adding to the dataset
        release(storage)
        if isinstance(storage, LocalStorage):  # other stores have no halves of files
            for left in storage.root.glob(f"{TEMPORARY}{manifest.FILE_NAME}.*"):
                storage.remove(left.name)


def close_uploads(storage: Storage, names: Collection[str]) -> None:
    """Before the commit, give up the uploads of shards that writers which were killed have left open.

    A twin that is still at such an upload fails by it: it has lost. Whoever may not list uploads leaves them to the
    bucket's lifecycle rule.
    """
    with contextlib.suppress(StoreError):
        storage.close_uploads(names)
