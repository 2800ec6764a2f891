"""The mapping of clients' exceptions to `shardflow.errors`, and which of them are worth a retry.

Exceptions are recognised by names and attributes, so that no client needs to be installed. The records of `stores` have
the refusals of one store.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from collections.abc import Callable, Mapping

from shardflow._validation import did_you_mean
from shardflow.errors import (
    AccessDeniedError,
    ConfigError,
    DatasetExistsError,
    DeadlineError,
    NotFoundError,
    ShardflowError,
    StoreError,
    TransientError,
)

from .retry import Failure
from .stores import STORES, ChangedError, Refusal, Store, store_of

_CERTIFICATE = "the certificate is not trusted; check the endpoint URL"
_ENDPOINT = "the endpoint must be a URL such as https://host:8333; check AWS_ENDPOINT_URL, or endpoint_url"
_NO_TLS = "the server does not answer in https; write http:// in the URL or in the endpoint, such as AWS_ENDPOINT_URL"
_NO_TLS_CODES = "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"  # the code depends on the version of OpenSSL
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
_ELSEWHERE = "choose another place"

# The first row that matches an exception or one of its base classes counts.
_REFUSALS: tuple[Refusal, ...] = (
    (ChangedError, "the blob has changed", "412"),
    (AccessDeniedError, "check {keys}", "401"),
    (
        AccessDeniedError,
        "the credentials do not allow this; get the permission, or use others",
        "403 builtins.PermissionError",
    ),
    (ConfigError, _CERTIFICATE, "aiohttp.ClientConnectorCertificateError"),
    (ConfigError, "check the URL", "aiohttp.InvalidURL"),
    (
        DeadlineError,
        "the server did not answer in time",
        "fsspec.FSTimeoutError builtins.TimeoutError asyncio.TimeoutError",
    ),
    # A KeyError comes from fsspec's memory when it removes a blob.
    (NotFoundError, "does not exist; check the path", "NoSuchKey 404 builtins.FileNotFoundError builtins.KeyError"),
    (DatasetExistsError, "exists already; nothing is ever overwritten", "builtins.FileExistsError"),
    (StoreError, f"this kind of storage does not support this; {_ELSEWHERE}", "builtins.NotImplementedError"),
    (StoreError, f"the server does not support this request; {_ELSEWHERE}", "501"),
    (TransientError, "the server asks for fewer requests", "429"),
    (TransientError, "the connection was too slow for the server", "408"),
    (TransientError, "another request was changing the same blob", "409"),
    (TransientError, "the server cannot be reached; check the URL and the network", "aiohttp.ClientConnectorError"),
    (TransientError, "the connection failed", "aiohttp.ClientError builtins.ConnectionError"),
    (TransientError, "the connection ended", "builtins.EOFError"),
)
"""The refusals and exceptions with one meaning in all stores."""

_UNREACHABLE = {
    "aiohttp.ClientConnectorError",
    "botocore.EndpointConnectionError",
    "builtins.ConnectionRefusedError",
    "httpx.ConnectError",
    "socket.gaierror",
}
"""Exceptions of connections that failed."""


class AnswerError(Exception):
    """An error status in the answer to a transport's own request."""

    def __init__(self, status: int, headers: Mapping[str, str], code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.headers, self.error_code = status, headers, code


def classify(error: Exception, url: str, leaks: Callable[[BaseException], bool]) -> Failure:
    """Return the meaning of a client's exception for the blob or root at `url`.

    `leaks` returns whether the text of an exception contains a secret; such an exception is neither quoted nor
    attached.
    """
    if isinstance(error, ShardflowError):
        if url not in str(error):
            error.args = (f"{url}: {error}",)
        return Failure(error=error, retry=isinstance(error, TransientError | DeadlineError))
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__, url, leaks)  # over HTTP, fsspec raises this for every error
    store = store_of(url)
    headers: Mapping[str, str] = {}
    if isinstance(response := getattr(error, "response", None), Mapping) and "Error" in response:
        metadata = response.get("ResponseMetadata", {})
        headers = metadata.get("HTTPHeaders", {})
        code = "" if leaks(error) else str(response["Error"].get("Code", ""))
        kind, why = _by_answer(store, code, metadata.get("HTTPStatusCode", 0))
    elif (status := _status(error)) >= 300:
        headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
        code = getattr(error, "error_code", None) or headers.get("X-Error-Code") or ""  # the header is the Hub's
        code = str(getattr(code, "value", code))
        kind, why = _by_answer(store, "" if leaks(ValueError(code)) else code, status)
    elif "CERTIFICATE_VERIFY_FAILED" in str(error):
        kind, why = ConfigError, _CERTIFICATE
    elif any(f"[SSL: {code}]" in str(error) for code in _NO_TLS_CODES):
        kind, why = ConfigError, _NO_TLS
    elif isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        kind, why = ConfigError, _ENDPOINT
    elif isinstance(error, TypeError) and (found := _UNKNOWN_OPTION.search(str(error))) and not leaks(error):
        hint = did_you_mean(found[1], store.harmless_options)
        kind, why = ConfigError, f"there is no storage option {found[1]!r}{hint}"
    else:
        kind, why = _meaning(store, _class_names(error)) or (StoreError, "the client failed; see the cause")
    why = why.replace("{keys}", store.credentials).replace("{anonymous}", store.anonymous)
    result = kind(f"{url}: {why} ({_describe(error, leaks)})")
    result.__cause__ = None if leaks(error) else error
    retry = issubclass(kind, TransientError | DeadlineError)
    return Failure(
        error=result,
        retry=retry,
        after_s=_retry_after_s(headers) if retry else 0.0,
        unreachable=not _UNREACHABLE.isdisjoint(_class_names(error)),
    )


def _status(error: Exception) -> int:
    """Return the HTTP status in an exception of aiohttp, the Hub, Azure or our own; 0 if there is none."""
    holders = (error, getattr(error, "response", None))
    found = (getattr(holder, name, None) for holder in holders for name in ("status", "status_code"))
    return next((status for status in found if isinstance(status, int)), 0)


def _by_answer(store: Store, code: str, status: int) -> tuple[type[ShardflowError], str]:
    found = _meaning(store, {code}) or _meaning(store, {str(status)})
    if found is None and (status >= 500 or code == "InternalError"):  # S3 sends that with 200 too
        return TransientError, "the server failed"
    return found or (StoreError, f"the server refused with {code or status}; see its documentation")


def _class_names(error: Exception) -> set[str]:
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}


def _meaning(store: Store, keys: set[str]) -> tuple[type[ShardflowError], str] | None:
    """Return the meaning of a code, a status or an exception: in its store, or in all stores, or in another store.

    A scheme without a record may use any store, as in `zip://FILE::s3://bucket/x.zip`.
    """
    tables = (store.refusals, _REFUSALS, *(other.refusals for other in STORES))
    rows = (row for table in tables for row in table)
    return next(((kind, why) for kind, why, names in rows if not keys.isdisjoint(names.split())), None)


def _describe(error: BaseException, leaks: Callable[[BaseException], bool]) -> str:
    if leaks(error):
        return type(error).__name__
    response = getattr(error, "response", None)
    details = response.get("Error", {}) if isinstance(response, Mapping) else {}
    name = details.get("Code") or type(error).__name__
    text = " ".join(str(details.get("Message") or error).split())
    return f"{name}: {text[:300]}" if text else str(name)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    by_name = {name.lower(): value for name, value in headers.items()}
    value = by_name.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    # Of the Hub: draft-ietf-httpapi-ratelimit-headers.
    if reset := re.search(r"\bt=(\d+)", by_name.get("ratelimit", "")):
        return float(reset[1])
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0
