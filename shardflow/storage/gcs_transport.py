"""The transport for Google Cloud Storage. It takes configuration, credentials and connections from gcsfs.

The transport makes the requests itself, with the JSON API (https://cloud.google.com/storage/docs/json_api): gcsfs
returns no byte before a body is complete, replaces objects only unconditionally, and has its own retries. A tag is the
object's generation, in quotes like an ETag.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any
from urllib.parse import quote

import yarl
from fsspec.asyn import get_loop

from shardflow.errors import TransientError

from .fsspec_transport import file_system
from .http_answer import RANGE_HEADERS, answer_to, close_session, range_answer
from .interface import BlobVersion
from .transport import Answer, Connection, Transport, Write

_CODES = {"bucket does not exist": "NoSuchBucket", "doesn't match calculated": "BadDigest"}
"""A part of an error message → S3's code of the same error."""
_NO_GENERATION = "1"  # matches no object; 0 would mean that the object does not exist


class _Client:
    """The part of gcsfs that is used: this is the only place for its private attributes."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    async def request(self, method: str, path: str, query: Mapping[str, str], headers: Any, data: Any) -> Any:
        """Make a request with the credentials and parameters of the file system."""
        session = await self.fs._set_session()
        url = yarl.URL(self.fs._location + path, encoded=True).update_query(self.fs._get_params(dict(query)))
        return await session.request(method, url, data=data, headers=self.fs._get_headers(dict(headers)))


class GcsTransport(Transport):
    """The objects below a prefix of a bucket; see Transport. Each object is sent in one request."""

    def __init__(self, connection: Connection, fs: Any, path: str) -> None:
        super().__init__(connection, path)
        self._client = _Client(fs)

    async def close(self) -> None:
        await close_session(self._client.fs)

    def _ask(self, name: str, start: int, stop: int, tag: str) -> AbstractAsyncContextManager[Answer]:
        query = {"alt": "media", **({"ifGenerationMatch": tag.strip('"')} if tag else {})}
        headers = {**RANGE_HEADERS, "Range": f"bytes={start}-{stop - 1}"}
        answering = self._call("GET", f"/download{self._object(name)}", query, headers=headers)
        return range_answer(answering, start, _head, lambda: self._describe(name))

    async def _describe(self, name: str) -> BlobVersion:
        found = await self._json("GET", self._object(name), {})
        if "size" not in found or "generation" not in found:
            raise TransientError("the answer does not describe an object")
        return BlobVersion(size=int(found["size"]), tag=f'"{found["generation"]}"', metadata=found.get("metadata", {}))

    async def _send(self, write: Write) -> None:
        """Send an object with its metadata and checksum, which the server compares."""
        name, data, metadata = write.name, write.data, write.metadata
        condition = {"ifGenerationMatch": "0"} if write.new else {}
        if write.replaces is not None:
            condition = {"ifGenerationMatch": write.replaces.strip('"').lstrip("0") or _NO_GENERATION}
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        described = json.dumps({"name": self._prefix + name, "metadata": metadata, "md5Hash": checksum})
        boundary = f"shardflow-{metadata['writer']}"
        parts = (("application/json; charset=UTF-8", described.encode()), ("application/octet-stream", data))
        body = b"".join(
            f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + part + b"\r\n" for kind, part in parts
        )
        answer = await self._json(
            "POST",
            f"/upload/storage/v1/b/{self._bucket}/o",
            {"uploadType": "multipart", "name": self._prefix + name, **condition},
            data=body + f"--{boundary}--\r\n".encode(),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        )
        if "generation" not in answer:
            raise TransientError(f"{self._url(name)}: the answer has no generation")

    async def _page(self, token: str) -> tuple[dict[str, BlobVersion], str]:
        query = {"prefix": self._prefix, "fields": "items(name,size,generation,updated),nextPageToken"}
        page = await self._json(
            "GET", f"/storage/v1/b/{self._bucket}/o", query | ({"pageToken": token} if token else {})
        )
        found = {
            item["name"]: BlobVersion(
                int(item["size"]),
                f'"{item["generation"]}"',
                int(datetime.fromisoformat(item["updated"].replace("Z", "+00:00")).timestamp() * 1e9),
            )
            for item in page.get("items", ())
        }
        return found, page.get("nextPageToken", "")

    async def _delete(self, name: str) -> None:
        await self._json("DELETE", self._object(name), {})

    def _object(self, name: str) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{quote(self._prefix + name, safe='')}"

    def _call(
        self, method: str, path: str, query: Mapping[str, str], *, data: bytes = b"", headers: Any = ()
    ) -> AbstractAsyncContextManager[Any]:
        request = self._client.request(method, path, query, headers, io.BytesIO(data) if data else None)
        return answer_to(request, self._policy.answer_timeout_s(len(data)), self._url(""), _code)

    async def _json(self, method: str, path: str, query: Mapping[str, str], **arguments: Any) -> Any:
        async with self._call(method, path, query, **arguments) as answer:
            text = await self._in_time(answer.read())
        try:
            return json.loads(text or b"{}")
        except ValueError:
            raise TransientError("the answer is not JSON") from None


def connect(connection: Connection) -> GcsTransport:
    """Return the transport for a URL of gcsfs."""
    # `asynchronous`: the file system must not close itself in the process that drops it last.
    return GcsTransport(connection, *file_system(connection, "gcsfs", asynchronous=True, loop=get_loop()))


def _head(size: int, headers: Mapping[str, str]) -> BlobVersion:
    if (generation := headers.get("x-goog-generation", "")).isdecimal():
        return BlobVersion(size=size, tag=f'"{generation}"')
    raise TransientError("the answer has no generation")


def _code(headers: Mapping[str, str], text: str) -> str:  # noqa: ARG001 - as of answer_to
    return next((code for part, code in _CODES.items() if part in text), "")
