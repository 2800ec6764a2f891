"""The files in a place that shardflow wrote: by their content, not only by their names.

Commands that delete or overwrite files do not touch others. A killed command has published whole files only, so its
leftovers are recognised too. Damage can make a file unrecognisable; the manifests that name it still tell.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from shardflow.errors import ConfigError, FormatError, IntegrityError, ManifestError, NotFoundError
from shardflow.formats import manifest, quarantine, receipt, shard_index, ustar
from shardflow.formats.columns import MAX_FILE_BYTES
from shardflow.formats.manifest import SPLITS, Manifest
from shardflow.storage.interface import Storage

from . import column_files

_JOB = re.compile(rf"({'|'.join(SPLITS)})/\d{{6,}}\.(tar|npy|json)")
_OTHER = re.compile(
    rf"({'|'.join(SPLITS)})/\d{{6,}}\.((tar\.)?idx|\w+(-\d+)?\.parquet)"
    r"|(manifests|removals)/[0-9a-f]{64}\.json|quarantine-[0-9a-f]{64}\.jsonl"
)
_KEY = re.compile(rb"\d{9,}\.")


def is_job_name(name: str) -> bool:
    """Return whether a name has the form of a tar, index or receipt."""
    return bool(_JOB.fullmatch(name))


def has_our_form(name: str) -> bool:
    """Return whether a name has the form of a dataset's file, other than the current manifest."""
    return is_job_name(name) or bool(_OTHER.fullmatch(name))


def job_files(name: str) -> list[str]:
    """Return the names of tar, index and receipt of the job of a name."""
    return [f"{name}.{kind}" for kind in ("tar", "npy", "json")]


def refuse_foreign(storage: Storage, names: Iterable[str]) -> None:
    """Raise a ConfigError if there is a file of one of these names that shardflow did not write, or that a version has.

    A version later than the current one is found after an older manifest was put back.
    """
    found = [name for name in names if storage.version(name) is not None]
    for name in found:
        if not is_own(storage, name):
            message = f"{storage.url(name)} exists, and shardflow did not write it, or it is damaged"
            raise ConfigError(f"{message}; move it away, and run the same command again")
    for kept, version in kept_manifests(storage, storage.listing() if found else ()):
        if taken := version.file_names().intersection(found):
            message = f"{storage.url(min(taken))} belongs to the version in {kept}, and would be replaced"
            raise ConfigError(
                f"{message}; `shardflow sync` the dataset to a new place and change it there, or delete {kept}"
            )


def withdraw(storage: Storage, names: Iterable[str]) -> None:
    """Remove files that were published too late, after a purge, unless a version has them: they must not come back."""
    current = manifest.from_bytes(storage.read(manifest.FILE_NAME))
    versions = [current, *dict(kept_manifests(storage, storage.listing())).values()]
    kept = {name for each in versions for name in (*each.file_names(), quarantine.version_name(each.fingerprint))}
    for name in sorted({*names} - kept - {quarantine.FILE_NAME}):
        storage.remove(name)


def is_own(storage: Storage, name: str) -> bool:
    """Return whether shardflow wrote a file whose name has our form. Indexes of other loaders count with their tars."""
    if name.endswith(".idx"):
        return is_own(storage, f"{name.removesuffix('.idx').removesuffix('.tar')}.tar")
    with contextlib.suppress(NotFoundError, FormatError, IntegrityError, ValueError, RecursionError):
        if name.endswith((".tar", ".npy")):
            head = storage.read_range(name, 0, ustar.BLOCK)
            if name.endswith(".npy"):
                return shard_index.is_index(head)
            return ustar.is_header(head) and bool(_KEY.match(head))
        if name.endswith(".parquet"):
            return column_files.is_ours(storage.read(name, most_bytes=MAX_FILE_BYTES))
        data = storage.read(name)
        if name.startswith("manifests/"):
            return manifest.kept_name(manifest.from_bytes(data).fingerprint) == name
        if name.startswith("removals/"):
            read_removal(data)
        elif name.endswith(".jsonl"):
            quarantine.from_bytes(data)
        else:
            receipt.from_bytes(data)
        return True
    return False


def read_removal(data: bytes) -> dict[str, Any]:
    """Return rule, files and samples of the record of a removal; FormatError if it is not one."""
    try:
        found = json.loads(data)
        return {"rule": found["rule"], "files": list(found["files"]), "samples": dict(found["samples"])}
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"it is not a record of a removal: {error}") from error


def kept_manifests(storage: Storage, names: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Yield names and content of the manifests of earlier versions among these files."""
    for name in names:
        if name.startswith("manifests/") and has_our_form(name):
            with contextlib.suppress(NotFoundError, ManifestError):
                found = manifest.from_bytes(storage.read(name))
                if manifest.kept_name(found.fingerprint) == name:
                    yield name, found
