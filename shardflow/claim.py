"""The claim: whose a place without locks is, until a manifest is there.

Object stores have no locks. So whoever is about to write a dataset first leaves a claim, create-only, that says what
will be written. Who finds the claim of something else stays away. Who finds one of the same thing goes on: it is the
same run resumed, or a twin, which writes the same bytes under the same names and does no harm.
"""

from __future__ import annotations

import json

from . import manifest
from .errors import ConfigError, DatasetExistsError, NotFoundError
from .store import Store

FILE_NAME = "unfinished.json"


def claim(store: Store, content: str) -> None:
    """Claim a store for a content, named by a digest; may be repeated with the same one.

    Raises:
        DatasetExistsError: It holds a dataset.
        ConfigError: It is claimed for another content.
    """
    ours = json.dumps({"content": content}, indent=1).encode() + b"\n"
    try:
        store.put_new(FILE_NAME, ours)
    except DatasetExistsError:
        try:
            found = store.read(FILE_NAME)
        except NotFoundError:  # just given up: its owner has ended, with a manifest or without
            found = ours
        if found != ours:
            raise ConfigError(
                f"{store} is being written to with other inputs or settings, or was and is unfinished; finish it with "
                "the command that began it, choose another destination, or remove all that is below it"
            ) from None
    # After the claim, because whoever finished meanwhile has written the manifest before letting go of theirs.
    if store.size(manifest.FILE_NAME) is not None:
        release(store)
        raise DatasetExistsError(f"{store} already holds a dataset; choose another destination or remove it")


def release(store: Store) -> None:
    """Give the claim up: the manifest is there."""
    store.remove(FILE_NAME)
