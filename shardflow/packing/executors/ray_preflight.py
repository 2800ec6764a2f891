"""Preflight checks: every node that runs jobs of one pack must agree with the planning machine.

A path that exists on every node need not be the same disk, and other codecs make other bytes. So each job first checks
that its node sees the same source and the same destination as the planning machine, with the same codecs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from shardflow.errors import ConfigError, NotFoundError, SampleError, StoreError
from shardflow.packing.image.codec_versions import codec_versions
from shardflow.packing.jobs import Job
from shardflow.packing.sources.items import Item
from shardflow.storage.interface import TEMPORARY
from shardflow.storage.resolve import open_storage

_TRIED_INPUTS = 8
_REACH = "a cluster needs a source and a destination that every node reaches by the same name: a shared disk, or s3://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The state of the planning machine."""

    host: str
    folder: str  # its working directory, which relative paths start from
    mark: tuple[str, bytes]  # name and content of a blob in the destination
    probe: tuple[Item, str] | None  # an input and its SHA-256; None when the first inputs cannot be read there either
    codecs: dict[str, str]
    recipe_sha256: str

    def check(self, job: Job) -> None:
        """Check this node for a job."""
        with contextlib.suppress(OSError):  # if it is missing, relative paths are found missing below
            os.chdir(self.folder)
        here = f"node {socket.gethostname()}"
        if job.recipe.digest != self.recipe_sha256:
            raise ConfigError(
                f"{here} has the codecs {codec_versions()}, {self.host} has {self.codecs}, and other codecs make other "
                "bytes; install the same versions on every node"
            )
        name, content = self.mark
        storage = open_storage(job.dst, job.storage_options)
        try:
            same = storage.read(name) == content
        except NotFoundError:
            same = False
        if not same:
            raise ConfigError(f"{here} does not see the same {storage} as {self.host}; {_REACH}")
        if self.probe is not None:
            item, sha256 = self.probe
            found = _read_sha256(job, item)
            if found != sha256:
                problem = "has other bytes there" if found else "cannot be read there"
                raise ConfigError(f"{here} does not see the source of {self.host}: {item.path!r} {problem}; {_REACH}")


@contextlib.contextmanager
def preflight(job: Job) -> Iterator[Preflight]:
    """Put a mark into the destination while the context lasts, and describe this machine."""
    storage = open_storage(job.dst, job.storage_options)
    mark = (f"{TEMPORARY}ray.{secrets.token_hex(4)}", secrets.token_bytes(16))
    readable = ((item, sha256) for item in job.items[:_TRIED_INPUTS] if (sha256 := _read_sha256(job, item)))
    checks = Preflight(
        host=socket.gethostname(),
        folder=os.getcwd(),
        mark=mark,
        probe=next(readable, None),
        codecs=codec_versions(),
        recipe_sha256=job.recipe.digest,
    )
    storage.put(*mark)
    try:
        yield checks
    finally:
        with contextlib.suppress(StoreError):  # the next attempt removes it
            storage.remove(mark[0])


def _read_sha256(job: Job, item: Item) -> str | None:
    try:
        return hashlib.sha256(job.reader.read(item).image).hexdigest()
    except SampleError:
        return None
