"""The transport for S3. It takes configuration and connections from s3fs, and makes the requests itself.

The calls of s3fs send no `If-Match`, so they can mix an object's bytes with its replacement's. They return
no byte before a body is complete. And they have their own retries.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import functools
import hashlib
import math
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from fsspec.asyn import get_loop

from shardflow.errors import ConfigError, NotFoundError, ShardflowError, StoreError, TransientError

from .fsspec_transport import file_system
from .interface import BlobVersion
from .local_files import file_sha256
from .stores import ChangedError
from .transport import Answer, Connection, Transport, Write, blob_metadata, no_bytes, range_size

LEAST_PART_BYTES = 5 << 20  # S3 accepts smaller parts only as the last one
_MOST_PARTS = 10_000  # in one upload
_CLOCK_DIFFERENCE = timedelta(minutes=1)


class _Services:
    """The names of AWS's services: botocore's loader would list 400 folders to learn that S3 is one."""

    def __contains__(self, name: object) -> bool:
        return True  # loading the description of an unknown service fails later


@functools.cache
def _api_loader(path: str | None) -> Any:
    """Return botocore's loader of API descriptions, shared by all clients: reading S3's takes 0.2 CPU-s."""
    from botocore.loaders import create_loader

    loader = create_loader(path)
    loader.list_available_services = lambda type_name: _Services()  # noqa: ARG005
    return loader


@functools.cache
def _event_hooks() -> Any:
    """Return botocore's event handlers, to be copied: registering them takes as long as the rest of a session."""
    from aiobotocore.hooks import AioHierarchicalEmitter
    from aiobotocore.session import AioSession

    hooks = AioHierarchicalEmitter()
    AioSession(event_hooks=hooks)
    return hooks


class _Client:
    """The part of s3fs that is used: this is the only place for its private attributes."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self._connecting = asyncio.Lock()  # otherwise requests that begin together would each open a session
        if fs.session is None:
            from aiobotocore.session import AioSession

            hooks = {"event_hooks": copy.copy(_event_hooks()), "include_builtin_handlers": False}
            fs.session = AioSession(**{**hooks, **fs.kwargs})
            data_path = fs.session.get_config_variable("data_path")
            fs.session.register_component("data_loader", _api_loader(data_path))

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Make one request, with the arguments that the storage_options add to each request."""
        async with self._connecting:
            await self.fs.set_session()
        function = getattr(await self.fs.get_s3(arguments["Bucket"]), method)
        complete = self.fs._get_s3_method_kwargs(function, self.fs.req_kw, **arguments)
        if missing := arguments.keys() - complete.keys():  # s3fs drops arguments that botocore does not know
            raise ConfigError(f"botocore is too old for {', '.join(sorted(missing))}; upgrade s3fs")
        return await function(**complete)

    async def close(self) -> None:
        if self.fs._s3 is not None:
            await self.fs._s3.__aexit__(None, None, None)


class S3Transport(Transport):
    """The objects below a prefix of a bucket; see Transport."""

    _heads_by_range = True  # not by a HEAD: only the answer to a GET has a body with the reason of a refusal

    def __init__(self, connection: Connection, fs: Any, path: str) -> None:
        super().__init__(connection, path)
        self._client = _Client(fs)
        self._classify = connection.classify
        self._part_bytes = max(connection.piece_bytes, LEAST_PART_BYTES)

    async def close(self) -> None:
        await self._client.close()

    @contextlib.asynccontextmanager
    async def _ask(self, name: str, start: int, stop: int, tag: str) -> AsyncIterator[Answer]:
        condition = {"IfMatch": tag} if tag else {}
        try:
            answer = await self._call("get_object", name, Range=f"bytes={start}-{stop - 1}", **condition)
        except Exception as error:
            if _status(error) != 416:
                raise
            head = await self._describe(name)
            if head.size > start:
                raise TransientError(f"{self._url(name)}: the server refuses a range that the blob has") from error
            yield Answer(head=head, read=no_bytes)
            return
        body = answer["Body"]
        try:
            size = range_size(str(answer.get("ContentRange", "")), start)
            yield Answer(head=_head(answer, size), read=body.read)
        finally:
            body.close()

    async def _describe(self, name: str) -> BlobVersion:
        answer = await self._call("head_object", name)
        return _head(answer, int(answer["ContentLength"]))

    async def _send(self, write: Write) -> None:
        condition = {"IfNoneMatch": "*"} if write.new else {} if write.replaces is None else {"IfMatch": write.replaces}
        await self._send_bytes("put_object", write.name, write.data, Metadata=write.metadata, **condition)

    async def _page(self, token: str) -> tuple[dict[str, BlobVersion], str]:
        next_page = {"ContinuationToken": token} if token else {}
        page = await self._call("list_objects_v2", "", Prefix=self._prefix, **next_page)
        found = {}
        for item in page.get("Contents", ()):
            modified = item.get("LastModified")
            modified_ns = None if modified is None else int(modified.timestamp() * 1e9)
            found[item["Key"]] = BlobVersion(item["Size"], item.get("ETag") or "", modified_ns)
        return found, page["NextContinuationToken"] if page.get("IsTruncated") else ""

    async def _delete(self, name: str) -> None:
        await self._call("delete_object", name)

    async def upload(self, name: str, source: Path) -> None:
        """Publish a file, in parts if it is large. A failed upload is aborted."""
        size = (await asyncio.to_thread(source.stat)).st_size
        if size <= self._part_bytes:
            await self.put(name, await asyncio.to_thread(source.read_bytes))
            return
        metadata = blob_metadata(await asyncio.to_thread(file_sha256, source))
        upload = await self._open_upload(name, metadata)
        try:
            parts = await self._parts(name, source, size, upload)
            await self._complete(name, upload, parts, metadata)
        except BaseException:
            await asyncio.shield(self._abort(name, upload))
            raise

    async def abort_uploads(self, names: Collection[str]) -> None:
        async for upload in self._uploads(""):
            if (name := upload["Key"].removeprefix(self._prefix)) in names:
                await self._abort(name, upload["UploadId"])

    async def _request(self, method: str, name: str, **arguments: Any) -> Any:
        return await self._retry(lambda: self._call(method, name, **arguments), name)

    async def _call(self, method: str, name: str, **arguments: Any) -> Any:
        place = {"Bucket": self._bucket, **({"Key": self._prefix + name} if name else {})}
        work = self._client.call(method, {**place, **arguments})
        return await self._in_time(work, name, len(arguments.get("Body", b"")))

    async def _send_bytes(self, method: str, name: str, data: bytes, **arguments: Any) -> str:
        """Send bytes with their checksum, and return the ETag, which confirms that they arrived."""
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        answer = await self._call(method, name, Body=data, ContentMD5=checksum, **arguments)
        if "ETag" not in answer:
            raise TransientError(f"{self._url(name)}: the answer has no ETag")
        return str(answer["ETag"])

    async def _open_upload(self, name: str, metadata: dict[str, str]) -> str:
        """Open a multipart upload and return its identifier; abort uploads whose answers were lost."""
        start, lost = datetime.now(timezone.utc), False

        async def request() -> str:
            nonlocal lost
            try:
                answer = await self._call("create_multipart_upload", name, Metadata=metadata)
            except Exception as error:
                lost = lost or self._classify(error, self._url(name)).retry
                raise
            return str(answer["UploadId"])

        own = ""
        try:
            own = await self._retry(request, name)
        finally:
            if lost:
                # An upload of the same object by another writer looks the same. That writer has to start again.
                with contextlib.suppress(ShardflowError):  # the credentials may not allow listing uploads
                    async for upload in self._uploads(name):
                        is_new = upload["Initiated"] >= start - _CLOCK_DIFFERENCE
                        if upload["Key"] == self._prefix + name and upload["UploadId"] != own and is_new:
                            await self._abort(name, upload["UploadId"])
        return own

    async def _uploads(self, beginning: str) -> AsyncIterator[Mapping[str, Any]]:
        next_page: dict[str, str] = {}
        while True:
            page = await self._request("list_multipart_uploads", "", Prefix=self._prefix + beginning, **next_page)
            for item in page.get("Uploads", ()):
                yield item
            if not page.get("IsTruncated"):
                return
            next_page = {marker: page[f"Next{marker}"] for marker in ("KeyMarker", "UploadIdMarker")}

    async def _parts(self, name: str, source: Path, size: int, upload: str) -> list[dict[str, Any]]:
        part_bytes = max(self._part_bytes, math.ceil(size / _MOST_PARTS))
        slots = asyncio.Semaphore(4)

        def read(number: int) -> bytes:
            with open(source, "rb") as file:
                file.seek(number * part_bytes)
                return file.read(part_bytes)

        async def send(number: int) -> dict[str, Any]:
            async with slots:
                data = await asyncio.to_thread(read, number)
                arguments = {"UploadId": upload, "PartNumber": number + 1}
                try:
                    tag = await self._retry(lambda: self._send_bytes("upload_part", name, data, **arguments), name)
                except ChangedError as error:
                    raise TransientError(f"{error}: another process aborted it; run the same command again") from error
                return {"ETag": tag, "PartNumber": number + 1}

        tasks = [asyncio.ensure_future(send(number)) for number in range(math.ceil(size / part_bytes))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _complete(self, name: str, upload: str, parts: list[dict[str, Any]], metadata: dict[str, str]) -> None:
        try:
            await self._request("complete_multipart_upload", name, UploadId=upload, MultipartUpload={"Parts": parts})
        except StoreError as error:
            # The request may have succeeded, and closed the upload, although its answer was lost.
            if not await self._has_metadata(name, metadata):
                message = f"{self._url(name)}: the upload could not be completed; run the same command again ({error})"
                raise (TransientError(message) if isinstance(error, ChangedError) else error) from error.__cause__

    async def _abort(self, name: str, upload: str) -> None:
        with contextlib.suppress(ChangedError, NotFoundError):  # it is closed already
            await self._request("abort_multipart_upload", name, UploadId=upload)


def connect(connection: Connection) -> S3Transport:
    """Return the transport for a URL of s3fs. The caller's `config_kwargs` override ours, which turn off retries."""
    timeout_s = connection.policy.request_timeout_s
    config = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "max_pool_connections": 32,
        "tcp_keepalive": True,
        "connect_timeout": min(5.0, timeout_s),
        "read_timeout": timeout_s,
        **connection.options.get("config_kwargs", {}),
    }
    # `asynchronous`: the file system must not close itself in the process that drops it last.
    ours = {"config_kwargs": config, "use_listings_cache": False, "asynchronous": True, "loop": get_loop()}
    return S3Transport(connection, *file_system(connection, "s3fs", **ours))


def _head(answer: Mapping[str, Any], size: int) -> BlobVersion:
    return BlobVersion(size=size, tag=answer.get("ETag") or "", metadata=answer.get("Metadata", {}))


def _status(error: Exception) -> int:
    answer = getattr(error, "response", None) or {}
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
