"""The transport for Azure Blob Storage. It takes configuration and credentials from adlfs.

The calls of adlfs neither read nor write under a condition, return no byte before a body is complete, and repeat
requests after pauses of 15 s and more. Blobs are read by requests of our own, which a shared access signature allows
where the credential is an account key; for everything else Azure's client is used, with its retries turned off.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yarl

from shardflow.errors import NotFoundError

from .conditional_write import blob_metadata, write
from .http_answer import RANGE_HEADERS, answer_to, close_session, range_answer, web_file_system
from .ranged_read import Answer, read_range
from .retry import Failure, Retries, RetryPolicy, with_timeout
from .storage import ListedBlob
from .transport import Head, blob_url, if_found

T = TypeVar("T")

_API_VERSION = "2021-08-06"  # of the requests of our own; it knows all that they need
_BLOCK_BYTES = 16 << 20  # that are sent at once
_SCOPE = "https://storage.azure.com/.default"
_SIGNATURE_S = 3600.0


class AzureTransport:
    """The blobs below a prefix of a container; see Transport."""

    def __init__(
        self, fs: Any, path: str, url: str, classify: Callable[[Exception, str], Failure], retry_policy: RetryPolicy
    ) -> None:
        self._service, self._root = fs.service_client, url
        self._container, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._web = web_file_system()
        self._retry_policy = retry_policy
        self._url = partial(blob_url, url)
        self._retry = Retries(classify, retry_policy, self._url)
        self._signature, self._signed = "", -_SIGNATURE_S

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, on_head: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or to the end of the blob."""

        def request(begin: int, end: int, tag: str | None) -> AbstractAsyncContextManager[Answer]:
            headers = {"Range": f"bytes={begin}-{end - 1}", **({"If-Match": tag} if tag else {})}
            answering = answer_to(self._get(name, headers), self._retry_policy.answer_s, self._url(name), _code)
            return range_answer(answering, begin, _head, lambda: self._describe(name))

        retry = self._retry.of_range(name, start)
        return await read_range(request, retry, self._retry_policy, start, stop, head, on_head)

    async def head(self, name: str) -> Head | None:
        """Return the head of a blob, None if it does not exist."""
        return await if_found(self._retry(lambda: self._describe(name), name))

    async def put(self, name: str, data: bytes, *, new: bool = False, tag: str | None = None) -> None:
        """Publish a blob: one that must be `new`, or that replaces the one with this ETag, or whatever is there."""
        from azure.core import MatchConditions

        metadata = blob_metadata(hashlib.sha256(data).hexdigest())
        condition: dict[str, Any] = {}
        if new:
            condition = {"match_condition": MatchConditions.IfMissing}
        elif tag is not None:
            condition = {"etag": tag, "match_condition": MatchConditions.IfNotModified}
        # Blocks of one blob that have the same name replace each other, whichever upload sent them. All names of them
        # must have one length, and this is the one of those that the client gives.
        blocks = {
            f"{metadata['writer']}-{start:031d}": data[start : start + _BLOCK_BYTES]
            for start in range(0, len(data), _BLOCK_BYTES)
        }

        async def send() -> None:
            if len(blocks) <= 1:
                await self._send(name, "upload_blob", data, metadata=metadata, **condition, overwrite=not new)
                return
            for block, content in blocks.items():
                await self._send(name, "stage_block", block, content)
            await self._send(name, "commit_block_list", list(blocks), metadata=metadata, **condition)

        await write(
            send,
            lambda: self.head(name),
            metadata,
            self._url(name),
            new=new,
            tag=tag,
        )

    async def upload(self, name: str, source: Path) -> None:
        """Publish a file. Azure itself removes the blocks of an upload that was not finished, after a week."""
        await self.put(name, await asyncio.to_thread(source.read_bytes))

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all blobs below the prefix by name."""

        async def request() -> dict[str, ListedBlob]:
            found = {}
            async with self._service.get_container_client(self._container) as container:
                pages = container.list_blobs(name_starts_with=self._prefix, include=["metadata"], **self._limits)
                blobs = aiter(pages)
                while (blob := await self._in_time(anext(blobs, None))) is not None:
                    if (blob.metadata or {}).get("hdi_isfolder") != "true":
                        modified_ns = int(blob.last_modified.timestamp() * 1e9)
                        found[blob.name.removeprefix(self._prefix)] = ListedBlob(
                            blob.size, _quoted(blob.etag), modified_ns
                        )
            return found

        return await self._retry(request, "")

    async def remove(self, name: str) -> None:
        """Delete a blob. A missing one is no error."""

        async def request() -> None:
            async with self._blob(name) as blob:
                await self._in_time(blob.delete_blob(**self._limits))

        with contextlib.suppress(NotFoundError):
            await self._retry(request, name)

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Do nothing: Azure removes the blocks of unfinished uploads, and no other upload has their names."""

    async def close(self) -> None:
        """Close the connections."""
        await close_session(self._web)
        await self._service.close()

    @property
    def _limits(self) -> dict[str, Any]:
        """Arguments of each request of Azure's client."""
        answer_s = self._retry_policy.answer_s
        return {"retry_total": 0, "connection_timeout": min(5.0, answer_s), "read_timeout": answer_s}

    def _blob(self, name: str) -> Any:
        return self._service.get_blob_client(self._container, self._prefix + name)

    async def _in_time(self, work: Awaitable[T], size: int = 0) -> T:
        return await with_timeout(work, self._retry_policy.transfer_s(size), f"{self._root}: expected an answer")

    async def _send(self, name: str, method: str, *content: Any, **arguments: Any) -> None:
        """Make a request that writes, with a checksum of its body, which the server compares."""

        async def request() -> None:
            async with self._blob(name) as blob:
                work = getattr(blob, method)(*content, **arguments, validate_content=True, **self._limits)
                await self._in_time(work, _BLOCK_BYTES)

        await self._retry(request, name)

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
        """Return the signature that allows reading blobs of this container for some hours."""
        from azure.storage.blob import generate_container_sas

        if time.monotonic() - self._signed >= _SIGNATURE_S:
            expiry = datetime.now(timezone.utc) + timedelta(seconds=2 * _SIGNATURE_S)
            account, key = credential.account_name, credential.account_key
            self._signature = generate_container_sas(
                account, self._container, account_key=key, permission="r", expiry=expiry
            )
            self._signed = time.monotonic()
        return self._signature

    async def _describe(self, name: str) -> Head:
        async with self._blob(name) as blob:
            found = await self._in_time(blob.get_blob_properties(**self._limits))
        return Head(size=found.size, tag=_quoted(found.etag), metadata=found.metadata or {})


def _quoted(tag: str) -> str:
    """Return an ETag as a header has it: in listings it has no quotes."""
    return f'"{tag.strip(chr(34))}"'


def _head(size: int, headers: Mapping[str, str]) -> Head:
    mark = "x-ms-meta-"
    metadata = {name[len(mark) :].lower(): value for name, value in headers.items() if name.lower().startswith(mark)}
    return Head(size=size, tag=_quoted(headers.get("ETag", "")), metadata=metadata)


def _code(headers: Mapping[str, str], text: str) -> str:  # noqa: ARG001 - as of answer_to
    return headers.get("x-ms-error-code", "")
