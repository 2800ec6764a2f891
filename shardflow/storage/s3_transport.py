"""S3, one request at a time: s3fs brings the configuration and the connections, the requests are made here.

s3fs's own calls send no `If-Match`, so they can mix an object with the one that took its place; they read to the end of
a body before a caller sees a byte; and they try again on their own account.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError, ShardflowError, StoreError, TransientError

from .local_files import file_sha256
from .retry import ChangedError, Failure, RetryPolicy, retry, with_timeout
from .storage import ListedBlob
from .transport import Head

T = TypeVar("T")

LEAST_PART_BYTES = 5 << 20  # S3 takes no smaller part but the last
_PARTS = 10_000  # S3 takes no more in one upload
_IN_FLIGHT = 4
_CLOCKS_DIFFER = timedelta(minutes=1)
_DIGEST = "sha256"  # the name of the metadata in which an object that was written here says what it holds


def s3_options(given: Mapping[str, Any], patience: RetryPolicy) -> dict[str, Any]:
    """Return the arguments of s3fs's file system: the caller's over ours, and no retries but our own."""
    config = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "max_pool_connections": 32,
        "tcp_keepalive": True,
        "connect_timeout": min(5.0, patience.answer_s),
        "read_timeout": patience.answer_s,
    }
    return {**given, "config_kwargs": {**config, **given.get("config_kwargs", {})}, "use_listings_cache": False}


@functools.cache
def _descriptions(path: str | None) -> Any:
    """Return what reads botocore's descriptions of S3, and remembers them.

    Reading them is two thirds of what a client costs, 0.1 CPU-s without. The clients of a process share what was read,
    and processes forked from it find it read.
    """
    from botocore.loaders import create_loader

    return create_loader(path)


class _Piece:
    """What has come of what a request asks for, as it came: putting it together would be one more copy."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.held = 0


class S3Transport:
    """The objects below a prefix of a bucket."""

    def __init__(
        self, fs: Any, path: str, judge: Callable[[Exception, str], Failure], patience: RetryPolicy, part_bytes: int
    ) -> None:
        self._fs = fs
        if fs.session is None:
            from aiobotocore.session import AioSession

            fs.session = AioSession(**fs.kwargs)
            data_path = fs.session.get_config_variable("data_path")
            fs.session.register_component("data_loader", _descriptions(data_path))
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._judge = judge
        self._patience = patience
        self._part_bytes = max(part_bytes, LEAST_PART_BYTES)
        self._opening = asyncio.Lock()  # or requests that begin together would open a session each

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, heard: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or as far as the object goes; see Transport."""
        piece = _Piece()

        async def request() -> None:
            nonlocal head, stop
            condition = {"IfMatch": head.tag} if head and head.tag else {}
            asked = f"bytes={start + piece.held}-{stop - 1}"
            try:
                answer = await self._call("get_object", name, Range=asked, **condition)
            except Exception as error:
                if _status(error) != 416:
                    raise
                head = await self._ended(name, start, error)
                heard(head)
                return
            body = answer["Body"]
            try:
                found = _head(answer, start + piece.held)
                if head is None or head.tag is None:
                    head = found
                    heard(head)
                stop = min(stop, head.size)
                await self._receive(body, piece, stop - start)
            finally:
                body.close()

        await self._persist(request, name, lambda: piece.held)
        return piece.chunks

    async def head(self, name: str) -> Head | None:
        """Return what is known of an object, None when there is none."""

        # A ranged GET and not a HEAD: only the answer to a GET has a body that says why it was refused.
        async def request() -> Head | None:
            try:
                answer = await self._call("get_object", name, Range="bytes=0-0")
            except Exception as error:
                if _status(error) == 416:
                    return await self._ended(name, 0, error)
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise
            try:
                found = _head(answer, 0)
                await self._receive(answer["Body"], _Piece(), 1)  # a body read to its end frees the connection
                return found
            finally:
                answer["Body"].close()

        return await self._persist(request, name)

    async def put(self, name: str, data: bytes, *, new: bool) -> None:
        """Publish an object, in place of another or, where it must be new, of none."""
        mark = _mark(hashlib.sha256(data).hexdigest())
        condition = {"IfNoneMatch": "*"} if new else {}
        try:
            await self._persist(lambda: self._send("put_object", name, data, Metadata=mark, **condition), name)
        except StoreError as error:
            # An answer that never came may have been a success, also where the HTTP client below tried again unasked.
            if await self._is(name, mark):
                return
            if not isinstance(error, ChangedError):
                raise
            message = f"{self._url(name)} exists already; nothing is ever overwritten"
            raise DatasetExistsError(message) from error.__cause__

    async def upload(self, name: str, source: Path) -> None:
        """Publish a file, in parts when it is large; whatever happens, no upload is left open."""
        size = (await asyncio.to_thread(source.stat)).st_size
        if size <= self._part_bytes:
            await self.put(name, await asyncio.to_thread(source.read_bytes), new=False)
            return
        mark = _mark(await asyncio.to_thread(file_sha256, source))
        upload = ""
        try:
            upload = await self._open_upload(name, mark)
            parts = await self._parts(name, source, size, upload)
            await self._complete(name, upload, parts, mark)
            upload = ""
        finally:
            if upload:
                await asyncio.shield(self._abort(name, upload))

    async def listing(self) -> dict[str, ListedBlob]:
        """Return the names of all objects below the prefix, with size and tag."""
        found: dict[str, ListedBlob] = {}
        more: dict[str, str] = {}
        while True:
            page = await self._request("list_objects_v2", "", Prefix=self._prefix, **more)
            for item in page.get("Contents", ()):
                modified_ns = _modified_ns(item.get("LastModified"))
                listed = ListedBlob(item["Size"], item.get("ETag") or "", modified_ns)
                found[item["Key"].removeprefix(self._prefix)] = listed
            if not page.get("IsTruncated"):
                return {name: listed for name, listed in found.items() if name and not name.endswith("/")}
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def remove(self, name: str) -> None:
        """Delete an object, if there is one."""
        await self._request("delete_object", name)

    async def close_uploads(self, names: Collection[str]) -> None:
        """Abort the uploads of these objects."""
        async for upload in self._uploads(""):
            name = upload["Key"].removeprefix(self._prefix)
            if name in names:
                await self._abort(name, upload["UploadId"])

    async def close(self) -> None:
        """Close the connections."""
        if self._fs._s3 is not None:
            await self._fs._s3.__aexit__(None, None, None)

    def _url(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    async def _persist(self, request: Callable[[], Awaitable[T]], name: str, held: Callable[[], int] = lambda: 0) -> T:
        url = self._url(name)
        return await retry(request, lambda error: self._judge(error, url), self._patience, held)

    async def _request(self, method: str, name: str, **arguments: Any) -> Any:
        return await self._persist(lambda: self._call(method, name, **arguments), name)

    async def _call(self, method: str, name: str, **arguments: Any) -> Any:
        """Make one request, with what the caller's storage_options add to each."""
        url = self._url(name)
        limit_s = self._patience.transfer_s(len(arguments.get("Body", b"")))

        async def call() -> Any:
            async with self._opening:
                await self._fs.set_session()
            function = getattr(await self._fs.get_s3(self._bucket), method)
            place = {"Bucket": self._bucket, **({"Key": self._prefix + name} if name else {})}
            complete = self._fs._get_s3_method_kwargs(function, self._fs.req_kw, **place, **arguments)
            if missing := arguments.keys() - complete.keys():  # s3fs drops what its botocore does not know
                raise ConfigError(f"{url}: botocore is too old for {', '.join(sorted(missing))}; upgrade s3fs")
            return await function(**complete)

        return await with_timeout(call(), limit_s, f"{url}: expected an answer")

    async def _send(self, method: str, name: str, data: bytes, **arguments: Any) -> str:
        """Send bytes with their checksum, and return the ETag that says that they arrived."""
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        answer = await self._call(method, name, Body=data, ContentMD5=checksum, **arguments)
        if "ETag" not in answer:
            raise TransientError(f"{self._url(name)}: the answer does not say what was stored")
        return str(answer["ETag"])

    async def _receive(self, body: Any, piece: _Piece, want: int) -> None:
        """Receive until a piece has `want` bytes; what came before an error stays in it."""

        async def read_to(goal: int) -> None:
            while piece.held < goal:
                chunk = await body.read(goal - piece.held)
                if not chunk:
                    raise TransientError("the body of an answer ended early")
                piece.chunks.append(chunk)
                piece.held += len(chunk)

        while piece.held < want:
            goal = min(want, piece.held + self._patience.pace_bytes)
            await with_timeout(
                read_to(goal), self._patience.pace_s, f"expected {goal - piece.held} more bytes of an answer"
            )

    async def _ended(self, name: str, start: int, error: Exception) -> Head:
        """Make sure that an object of which no range from `start` on can be read has ended there."""
        answer = await self._call("head_object", name)
        size = int(answer["ContentLength"])
        if size > start:
            raise TransientError(f"{self._url(name)}: the store refuses a range that the blob has") from error
        return Head(size=size, tag=answer.get("ETag"), metadata=answer.get("Metadata", {}))

    async def _open_upload(self, name: str, mark: dict[str, str]) -> str:
        """Open a multipart upload and return its identifier; what an answer that was lost has opened is closed."""
        began, lost = datetime.now(timezone.utc), False

        async def request() -> str:
            nonlocal lost
            try:
                answer = await self._call("create_multipart_upload", name, Metadata=mark)
            except Exception as error:
                lost = lost or self._judge(error, self._url(name)).again
                raise
            return str(answer["UploadId"])

        mine = ""
        try:
            mine = await self._persist(request, name)
        finally:
            if lost:
                with contextlib.suppress(ShardflowError):  # those who list uploads may have no right to
                    await self._abort_others(name, mine, began)
        return mine

    async def _uploads(self, beginning: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the open uploads of all objects whose names begin so."""
        more: dict[str, str] = {}
        while True:
            page = await self._request("list_multipart_uploads", "", Prefix=self._prefix + beginning, **more)
            for upload in page.get("Uploads", ()):
                yield upload
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def _abort_others(self, name: str, mine: str, began: datetime) -> None:
        """Abort the uploads of an object that were opened since, save one.

        They cannot be told from those of another writer of the same object, who then has to start again.
        """
        async for upload in self._uploads(name):
            is_new = upload["Initiated"] >= began - _CLOCKS_DIFFER
            if upload["Key"] == self._prefix + name and upload["UploadId"] != mine and is_new:
                await self._abort(name, upload["UploadId"])

    async def _parts(self, name: str, source: Path, size: int, upload: str) -> list[dict[str, Any]]:
        part_bytes = max(self._part_bytes, math.ceil(size / _PARTS))
        slots = asyncio.Semaphore(_IN_FLIGHT)

        async def send(number: int) -> dict[str, Any]:
            async with slots:
                data = await asyncio.to_thread(_file_part, source, number * part_bytes, part_bytes)
                place = {"UploadId": upload, "PartNumber": number + 1}
                tag = await self._persist(lambda: self._send("upload_part", name, data, **place), name)
                return {"ETag": tag, "PartNumber": number + 1}

        tasks = [asyncio.ensure_future(send(number)) for number in range(math.ceil(size / part_bytes))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _complete(self, name: str, upload: str, parts: list[dict[str, Any]], mark: dict[str, str]) -> None:
        try:
            place = {"UploadId": upload, "MultipartUpload": {"Parts": parts}}
            await self._request("complete_multipart_upload", name, **place)
        except StoreError as error:
            # An answer that never came may have been a success, after which the upload is closed.
            if not await self._is(name, mark):
                message = f"{self._url(name)}: the upload could not be completed; run the same command again ({error})"
                raise (TransientError(message) if isinstance(error, ChangedError) else error) from error.__cause__

    async def _abort(self, name: str, upload: str) -> None:
        with contextlib.suppress(ChangedError, NotFoundError):  # it is closed already
            await self._request("abort_multipart_upload", name, UploadId=upload)

    async def _is(self, name: str, mark: dict[str, str]) -> bool:
        """Whether an object is the one that was to be written, and by this very call."""
        try:
            head = await self.head(name)
        except ShardflowError:
            return False
        return head is not None and head.metadata == mark


def _mark(digest: str) -> dict[str, str]:
    """Return the metadata of an object: what it holds, and which call of which process wrote it."""
    return {_DIGEST: digest, "writer": secrets.token_hex(8)}


def _head(answer: Mapping[str, Any], start: int) -> Head:
    """Return what the answer to a ranged request says of the whole object."""
    unit, _, of = str(answer.get("ContentRange", "")).partition("/")
    if unit.partition("-")[0] != f"bytes {start}" or not of.isdecimal():
        raise TransientError("the answer is not the range that was asked for")
    return Head(
        size=int(of),
        tag=answer.get("ETag"),
        metadata=answer.get("Metadata", {}),
        modified_ns=_modified_ns(answer.get("LastModified")),
    )


def _modified_ns(modified: Any) -> int | None:
    return None if modified is None else int(modified.timestamp() * 1e9)


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    answer = getattr(error, "response", None) or {}
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _file_part(source: Path, start: int, size: int) -> bytes:
    with open(source, "rb") as file:
        file.seek(start)
        return file.read(size)
