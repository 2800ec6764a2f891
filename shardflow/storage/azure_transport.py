"""The transport for Azure Blob Storage. It takes configuration and credentials from adlfs.

The calls of adlfs set no conditions, return no byte before a body is complete, and repeat requests after pauses of 15 s
and more. The transport makes the requests that read blobs itself; if the credential is an account key, it signs them
with a shared access signature. All other requests use Azure's client, with its retries turned off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import yarl

from .fsspec_transport import file_system
from .http_answer import RANGE_HEADERS, answer_to, close_session, range_answer, web_file_system
from .interface import BlobVersion
from .transport import Answer, Connection, Transport, Write

_API_VERSION = "2021-08-06"  # of the requests that read blobs
_BLOCK_BYTES = 16 << 20  # per request
_SCOPE = "https://storage.azure.com/.default"
_SIGNATURE_S = 3600.0


class AzureTransport(Transport):
    """The blobs below a prefix of a container; see Transport.

    Azure removes the blocks of an unfinished upload after a week, and their names are unique to the upload.
    """

    def __init__(self, connection: Connection, fs: Any, path: str) -> None:
        super().__init__(connection, path)
        self._service, self._web = fs.service_client, web_file_system()
        self._signature, self._signed = "", -_SIGNATURE_S

    async def close(self) -> None:
        await close_session(self._web)
        await self._service.close()

    def _ask(self, name: str, start: int, stop: int, tag: str) -> AbstractAsyncContextManager[Answer]:
        headers = {"Range": f"bytes={start}-{stop - 1}", **({"If-Match": tag} if tag else {})}
        answering = answer_to(self._get(name, headers), self._policy.answer_timeout_s(), self._url(name), _code)
        return range_answer(answering, start, _head, lambda: self._describe(name))

    async def _describe(self, name: str) -> BlobVersion:
        async with self._blob(name) as blob:
            found = await self._in_time(blob.get_blob_properties(**self._limits), name)
        return BlobVersion(size=found.size, tag=_quoted(found.etag), metadata=found.metadata or {})

    async def _publish(self, write: Write) -> None:
        name, data = write.name, write.data
        if len(data) <= _BLOCK_BYTES:
            await super()._publish(write)
            return
        # Blocks of a blob that have the same name replace each other, even from different uploads. All block names of a
        # blob must have one length: that of the names which the client gives.
        blocks = {
            f"{write.metadata['writer']}-{start:031d}": data[start : start + _BLOCK_BYTES]
            for start in range(0, len(data), _BLOCK_BYTES)
        }
        for block, content in blocks.items():
            await self._retry(partial(self._write, name, "stage_block", block, content), name)
        commit = partial(self._write, name, "commit_block_list", list(blocks), metadata=write.metadata)
        await self._retry(partial(commit, **_condition(write)), name)

    async def _send(self, write: Write) -> None:
        arguments = {"metadata": write.metadata, "overwrite": not write.new, **_condition(write)}
        await self._write(write.name, "upload_blob", write.data, **arguments)

    async def _page(self, token: str) -> tuple[dict[str, BlobVersion], str]:
        found = {}
        async with self._service.get_container_client(self._bucket) as container:
            pages = container.list_blobs(name_starts_with=self._prefix, include=["metadata"], **self._limits)
            pages = pages.by_page(continuation_token=token or None)
            blobs = aiter(await self._in_time(anext(pages)))
            while (blob := await self._in_time(anext(blobs, None))) is not None:
                if (blob.metadata or {}).get("hdi_isfolder") != "true":
                    modified_ns = int(blob.last_modified.timestamp() * 1e9)
                    found[blob.name] = BlobVersion(blob.size, _quoted(blob.etag), modified_ns)
            return found, pages.continuation_token or ""

    async def _delete(self, name: str) -> None:
        async with self._blob(name) as blob:
            await self._in_time(blob.delete_blob(**self._limits), name)

    @property
    def _limits(self) -> dict[str, Any]:
        """Arguments of each request of Azure's client."""
        timeout_s = self._policy.answer_timeout_s()
        return {"retry_total": 0, "connection_timeout": min(5.0, timeout_s), "read_timeout": timeout_s}

    def _blob(self, name: str) -> Any:
        return self._service.get_blob_client(self._bucket, self._prefix + name)

    async def _write(self, name: str, method: str, *content: Any, **arguments: Any) -> None:
        """Make a write request with a checksum of its body, which the server checks."""
        async with self._blob(name) as blob:
            work = getattr(blob, method)(*content, **arguments, validate_content=True, **self._limits)
            await self._in_time(work, name, _BLOCK_BYTES)

    async def _get(self, name: str, headers: Mapping[str, str]) -> Any:
        url, credential = yarl.URL(self._blob(name).url, encoded=True), self._service.credential
        own = {**RANGE_HEADERS, **headers, "x-ms-version": _API_VERSION}
        if hasattr(credential, "get_token"):
            own["Authorization"] = f"Bearer {(await credential.get_token(_SCOPE)).token}"
        elif hasattr(credential, "account_key"):
            url = yarl.URL(f"{url}?{self._sign(credential)}", encoded=True)
        session = await self._web.set_session()
        return await session.get(url, headers=own)

    def _sign(self, credential: Any) -> str:
        """Return a signature that allows reading the blobs of this container for one to two hours."""
        from azure.storage.blob import generate_container_sas

        if time.monotonic() - self._signed >= _SIGNATURE_S:
            expiry = datetime.now(timezone.utc) + timedelta(seconds=2 * _SIGNATURE_S)
            account, key = credential.account_name, credential.account_key
            self._signature = generate_container_sas(
                account, self._bucket, account_key=key, permission="r", expiry=expiry
            )
            self._signed = time.monotonic()
        return self._signature


def connect(connection: Connection) -> AzureTransport:
    """Return the transport for a URL of adlfs."""
    return AzureTransport(connection, *file_system(connection, "adlfs"))


def _condition(write: Write) -> dict[str, Any]:
    """Return the arguments of Azure's client for the condition of a write."""
    from azure.core import MatchConditions

    if write.new:
        return {"match_condition": MatchConditions.IfMissing}
    if write.replaces is not None:
        return {"etag": write.replaces, "match_condition": MatchConditions.IfNotModified}
    return {}


def _quoted(tag: str) -> str:
    """Return an ETag in quotes, as in headers: listings omit the quotes."""
    return f'"{tag.strip(chr(34))}"'


def _head(size: int, headers: Mapping[str, str]) -> BlobVersion:
    mark = "x-ms-meta-"
    metadata = {name[len(mark) :].lower(): value for name, value in headers.items() if name.lower().startswith(mark)}
    return BlobVersion(size=size, tag=_quoted(headers.get("ETag", "")), metadata=metadata)


def _code(headers: Mapping[str, str], text: str) -> str:  # noqa: ARG001 - as of answer_to
    return headers.get("x-ms-error-code", "")
