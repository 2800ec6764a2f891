"""The transport for Google Cloud Storage. It takes configuration, credentials and connections from gcsfs.

The requests are its own, of the JSON API (https://cloud.google.com/storage/docs/json_api): those of gcsfs return no
byte before a body is complete, replace an object only unconditionally, and have retries of their own. A tag is the
object's generation, in quotes like an ETag.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yarl

from shardflow.errors import NotFoundError, TransientError

from .conditional_write import blob_metadata, write
from .http_answer import RANGE_HEADERS, answer_to, close_session, range_answer
from .ranged_read import Answer, read_range
from .retry import Failure, Retries, RetryPolicy, with_timeout
from .storage import ListedBlob
from .transport import Head, blob_url, if_found

_CODES = {"bucket does not exist": "NoSuchBucket", "doesn't match calculated": "BadDigest"}
"""What the message of an answer says → the code of the same in S3."""
_NO_GENERATION = "1"  # 0 would stand for an object that does not exist


class GcsTransport:
    """The objects below a prefix of a bucket; see Transport."""

    def __init__(
        self, fs: Any, path: str, url: str, classify: Callable[[Exception, str], Failure], retry_policy: RetryPolicy
    ) -> None:
        self._fs, self._root = fs, url
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._retry_policy = retry_policy
        self._url = partial(blob_url, url)
        self._retry = Retries(classify, retry_policy, self._url)

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, on_head: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or to the end of the object."""

        def request(begin: int, end: int, tag: str | None) -> AbstractAsyncContextManager[Answer]:
            query = {"alt": "media", **({"ifGenerationMatch": tag.strip('"')} if tag else {})}
            headers = {**RANGE_HEADERS, "Range": f"bytes={begin}-{end - 1}"}
            answering = self._call("GET", f"/download{self._object(name)}", query, headers=headers)
            return range_answer(answering, begin, _head, lambda: self._describe(name))

        retry = self._retry.of_range(name, start)
        return await read_range(request, retry, self._retry_policy, start, stop, head, on_head)

    async def head(self, name: str) -> Head | None:
        """Return the head of an object, None if it does not exist."""
        return await if_found(self._retry(lambda: self._describe(name), name))

    async def put(self, name: str, data: bytes, *, new: bool = False, tag: str | None = None) -> None:
        """Publish an object: one that must be `new`, or that replaces the one with this tag, or whatever is there."""
        metadata = blob_metadata(hashlib.sha256(data).hexdigest())
        condition = {"ifGenerationMatch": "0"} if new else {}
        if tag is not None:
            generation = tag.strip('"').lstrip("0")
            condition = {"ifGenerationMatch": generation or _NO_GENERATION}

        async def send() -> None:
            await self._retry(lambda: self._send(name, data, metadata, condition), name)

        await write(send, lambda: self.head(name), metadata, self._url(name), new=new, tag=tag)

    async def upload(self, name: str, source: Path) -> None:
        """Publish a file, in one request: none is ever unfinished."""
        await self.put(name, await asyncio.to_thread(source.read_bytes))

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all objects below the prefix by name."""
        found: dict[str, ListedBlob] = {}
        query = {"prefix": self._prefix, "fields": "items(name,size,generation,updated),nextPageToken"}
        while True:
            page = await self._retry(lambda: self._json("GET", f"/storage/v1/b/{self._bucket}/o", query), "")
            for item in page.get("items", ()):
                name = item["name"].removeprefix(self._prefix)
                if name and not name.endswith("/"):  # the others are folders
                    updated_ns = int(datetime.fromisoformat(item["updated"].replace("Z", "+00:00")).timestamp() * 1e9)
                    found[name] = ListedBlob(int(item["size"]), f'"{item["generation"]}"', updated_ns)
            if not page.get("nextPageToken"):
                return found
            query["pageToken"] = page["nextPageToken"]

    async def remove(self, name: str) -> None:
        """Delete an object. A missing one is no error."""
        with contextlib.suppress(NotFoundError):
            await self._retry(lambda: self._json("DELETE", self._object(name), {}), name)

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Do nothing: each object is sent in one request."""

    async def close(self) -> None:
        """Close the connections."""
        await close_session(self._fs)

    def _object(self, name: str) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{quote(self._prefix + name, safe='')}"

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        async def send() -> Any:
            session = await self._fs._set_session()
            url = yarl.URL(self._fs._location + path, encoded=True).update_query(self._fs._get_params(dict(query)))
            own = self._fs._get_headers(dict(headers or {}))
            return await session.request(method, url, data=io.BytesIO(data) if data else None, headers=own)

        return answer_to(send(), self._retry_policy.transfer_s(len(data)), self._root, _code)

    async def _json(self, method: str, path: str, query: Mapping[str, str], **arguments: Any) -> Any:
        async with self._call(method, path, query, **arguments) as answer:
            text = await with_timeout(answer.read(), self._retry_policy.answer_s, "expected the rest of an answer")
        try:
            return json.loads(text or b"{}")
        except ValueError:
            raise TransientError("the answer is not JSON") from None

    async def _describe(self, name: str) -> Head:
        found = await self._json("GET", self._object(name), {})
        if "size" not in found or "generation" not in found:
            raise TransientError("the answer does not describe an object")
        return Head(size=int(found["size"]), tag=f'"{found["generation"]}"', metadata=found.get("metadata", {}))

    async def _send(self, name: str, data: bytes, metadata: Mapping[str, str], condition: Mapping[str, str]) -> None:
        """Send an object with its metadata and checksum, which the server compares."""
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        described = json.dumps({"name": self._prefix + name, "metadata": metadata, "md5Hash": checksum})
        boundary = f"shardflow-{metadata['writer']}"
        parts = (("application/json; charset=UTF-8", described.encode()), ("application/octet-stream", data))
        body = b"".join(
            f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + part + b"\r\n" for kind, part in parts
        )
        query = {"uploadType": "multipart", "name": self._prefix + name, **condition}
        answer = await self._json(
            "POST",
            f"/upload/storage/v1/b/{self._bucket}/o",
            query,
            data=body + f"--{boundary}--\r\n".encode(),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        )
        if "generation" not in answer:
            raise TransientError(f"{self._url(name)}: the answer has no generation")


def _head(size: int, headers: Mapping[str, str]) -> Head:
    if (generation := headers.get("x-goog-generation", "")).isdecimal():
        return Head(size=size, tag=f'"{generation}"')
    raise TransientError("the answer has no generation")


def _code(headers: Mapping[str, str], text: str) -> str:  # noqa: ARG001 - as of answer_to
    return next((code for part, code in _CODES.items() if part in text), "")
