"""The mapping of clients' exceptions to the project's errors, and the decision which are worth a retry.

Exceptions are recognised by their names and attributes, so that no client has to be installed.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Callable, Mapping
from typing import Any

from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    DatasetExistsError,
    DeadlineError,
    NotFoundError,
    ShardflowError,
    StoreError,
    TransientError,
)

from .retry import ChangedError, Failure

_KEYS = (
    "check the access key and its secret (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or storage_options)"
)
_NO_KEYS = f"no credentials were found; {_KEYS}, or set storage_options={{'anon': True}} for a public bucket"
_EXPIRED = "the session token has expired; get new credentials and run the same command again"
_CLOCK = "the clocks of this machine and of the server differ too much; set the clock (NTP) and try again"
_RIGHTS = "the credentials do not allow this; have it granted, or use others"
_REGION = "the bucket is in another region, or not at this endpoint; set AWS_REGION and the endpoint URL"

# By the error code in the answer, which is more precise than the HTTP status.
_CODES: dict[str, tuple[type[ShardflowError], str]] = {
    "NoSuchBucket": (BucketNotFoundError, "there is no such bucket; check its name and the endpoint"),
    "NoSuchKey": (NotFoundError, "does not exist; check the path"),
    "NoSuchUpload": (ChangedError, "the upload is no longer open"),
    "PreconditionFailed": (ChangedError, "the blob has changed"),
    "ExpiredToken": (AccessDeniedError, _EXPIRED),
    "ExpiredTokenException": (AccessDeniedError, _EXPIRED),
    "TokenRefreshRequired": (AccessDeniedError, _EXPIRED),
    "RequestTimeTooSkewed": (AccessDeniedError, _CLOCK),
    "RequestExpired": (AccessDeniedError, _CLOCK),
    "InvalidAccessKeyId": (AccessDeniedError, f"the server does not know the access key; {_KEYS}"),
    "SignatureDoesNotMatch": (AccessDeniedError, f"the secret does not belong to the access key; {_KEYS}"),
    "InvalidToken": (AccessDeniedError, f"the session token is not valid; {_KEYS}"),
    "InvalidObjectState": (AccessDeniedError, "the object is archived; restore it first"),
    "AuthorizationHeaderMalformed": (ConfigError, _REGION),
    "PermanentRedirect": (ConfigError, _REGION),
    "InvalidBucketName": (ConfigError, "the bucket's name is not allowed; check the URL"),
    "SlowDown": (TransientError, "the server asks for fewer requests"),
    "RequestTimeout": (TransientError, "the connection was too slow for the server"),
    "OperationAborted": (TransientError, "another request was changing the same blob"),
    "ConditionalRequestConflict": (TransientError, "another request was writing the same blob"),
    "BadDigest": (TransientError, "bytes were damaged on the way to the server"),
    "InvalidDigest": (TransientError, "bytes were damaged on the way to the server"),
    "XAmzContentSHA256Mismatch": (TransientError, "bytes were damaged on the way to the server"),
    "IncompleteBody": (TransientError, "bytes were lost on the way to the server"),
}
# By the name of an exception's class or base class, "module.Class"; the first match counts.
_CLASSES: tuple[tuple[str, type[ShardflowError], str], ...] = (
    ("botocore.NoCredentialsError", AccessDeniedError, _NO_KEYS),
    ("botocore.PartialCredentialsError", AccessDeniedError, _KEYS),
    ("botocore.CredentialRetrievalError", AccessDeniedError, _KEYS),
    ("botocore.TokenRetrievalError", AccessDeniedError, _EXPIRED),
    ("botocore.SSOError", AccessDeniedError, _EXPIRED),
    ("botocore.ProfileNotFound", ConfigError, "check AWS_PROFILE and ~/.aws/config"),
    ("botocore.ConfigParseError", ConfigError, "check AWS_CONFIG_FILE and ~/.aws/config"),
    ("botocore.ParamValidationError", ConfigError, "check the URL: s3://bucket/prefix"),
    ("botocore.ConnectTimeoutError", DeadlineError, "connecting to the server took too long"),
    ("botocore.ReadTimeoutError", DeadlineError, "the server did not answer in time"),
    ("botocore.EndpointConnectionError", TransientError, "the server cannot be reached; check the endpoint URL"),
    ("aiohttp.ClientConnectorCertificateError", ConfigError, "the certificate is not trusted; check the endpoint URL"),
    ("builtins.TimeoutError", DeadlineError, "the server did not answer in time"),
    ("asyncio.TimeoutError", DeadlineError, "the server did not answer in time"),
    ("fsspec.FSTimeoutError", DeadlineError, "the server did not answer in time"),
    ("builtins.FileNotFoundError", NotFoundError, "does not exist; check the path"),
    (
        "builtins.KeyError",
        NotFoundError,
        "does not exist; check the path",
    ),  # from fsspec's memory when it removes a blob
    ("builtins.FileExistsError", DatasetExistsError, "exists already; nothing is ever overwritten"),
    ("builtins.PermissionError", AccessDeniedError, _RIGHTS),
    ("builtins.NotImplementedError", StoreError, "this kind of storage cannot do that; choose another place"),
    ("aiohttp.InvalidURL", ConfigError, "check the URL"),
    ("aiohttp.ClientError", TransientError, "the connection failed"),
    ("botocore.HTTPClientError", TransientError, "the connection failed"),
    ("botocore.IncompleteReadError", TransientError, "the answer was cut short"),
    ("botocore.ResponseParserError", TransientError, "the answer could not be read"),
    ("botocore.ChecksumError", TransientError, "the answer was damaged on the way"),
    ("builtins.ConnectionError", TransientError, "the connection failed"),
    ("builtins.EOFError", TransientError, "the connection ended"),
)
_STATUSES: dict[int, tuple[type[ShardflowError], str]] = {
    301: (ConfigError, _REGION),
    307: (ConfigError, _REGION),
    401: (AccessDeniedError, _KEYS),
    403: (AccessDeniedError, _RIGHTS),
    404: (NotFoundError, "does not exist; check the path"),
    408: (TransientError, "the connection was too slow for the server"),
    409: (TransientError, "another request was changing the same blob"),
    412: (ChangedError, "the blob has changed"),
    429: (TransientError, "the server asks for fewer requests"),
    501: (StoreError, "the server does not support this request; choose another place"),
}


def classify(error: Exception, url: str, leaks: Callable[[BaseException], bool]) -> Failure:
    """Return what an exception means.

    Args:
        error: Raised by a client.
        url: The blob or root of the request, for the message.
        leaks: Returns whether the text of an exception holds a secret; it is neither quoted nor attached then.
    """
    if isinstance(error, ShardflowError):
        if url not in str(error):
            error.args = (f"{url}: {error}",)
        return Failure(error=error, retry=isinstance(error, TransientError | DeadlineError))
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__, url, leaks)  # over HTTP, fsspec raises this for every error
    headers: Mapping[str, str] = {}
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        metadata = response.get("ResponseMetadata", {})
        headers = metadata.get("HTTPHeaders", {})
        code = "" if leaks(error) else str(response["Error"].get("Code", ""))
        kind, why = _by_answer(code, metadata.get("HTTPStatusCode", 0))
    elif isinstance(status := getattr(error, "status", None), int) and status >= 300:
        headers = getattr(error, "headers", None) or {}
        kind, why = _by_answer("", status)
    else:
        kind, why = _by_class(error)
    result = kind(f"{url}: {why} ({_describe(error, leaks)})")
    result.__cause__ = None if leaks(error) else error
    retry = issubclass(kind, TransientError | DeadlineError)
    return Failure(error=result, retry=retry, after_s=_retry_after_s(headers) if retry else 0.0)


def _by_answer(code: str, status: int) -> tuple[type[ShardflowError], str]:
    found = _CODES.get(code) or _STATUSES.get(status)
    if found is None and (status >= 500 or code == "InternalError"):
        found = (TransientError, "the server failed")
    return found or (StoreError, f"the server refused with {code or status}; see its documentation")


def _by_class(error: Exception) -> tuple[type[ShardflowError], str]:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConfigError, "the certificate is not trusted; check the endpoint URL"
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    found = ((kind, why) for name, kind, why in _CLASSES if name in names)
    return next(found, (StoreError, "the client failed; see the cause"))


def _describe(error: BaseException, leaks: Callable[[BaseException], bool]) -> str:
    if leaks(error):
        return type(error).__name__
    response = getattr(error, "response", None)
    details = response.get("Error", {}) if isinstance(response, Mapping) else {}
    name = details.get("Code") or type(error).__name__
    text = " ".join(str(details.get("Message") or error).split())
    return f"{name}: {text[:300]}" if text else str(name)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    if value.isdecimal():
        return float(value)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0
