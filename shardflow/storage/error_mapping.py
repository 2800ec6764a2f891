"""Refusals: what an exception of a store's client means, decided once.

Clients are recognised by the names of their exceptions and by what those carry, so that none has to be installed.
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
_NO_KEYS = f"no credentials were found; {_KEYS}, or say storage_options={{'anon': True}} for a public bucket"
_EXPIRED = "the session token has expired; get new credentials and run the same command again"
_CLOCK = "this machine's clock and the store's differ too much; set the clock (NTP) and try again"
_RIGHTS = "the credentials have no right to do this; have it granted, or use others"
_REGION = "the bucket is in another region, or the endpoint is another's; set AWS_REGION and the endpoint URL"

# By the store's own code, which says more than the HTTP status.
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
    "InvalidAccessKeyId": (AccessDeniedError, f"the store does not know the access key; {_KEYS}"),
    "SignatureDoesNotMatch": (AccessDeniedError, f"the secret does not belong to the access key; {_KEYS}"),
    "InvalidToken": (AccessDeniedError, f"the session token is not valid; {_KEYS}"),
    "InvalidObjectState": (AccessDeniedError, "the object is archived; restore it first"),
    "AuthorizationHeaderMalformed": (ConfigError, _REGION),
    "PermanentRedirect": (ConfigError, _REGION),
    "InvalidBucketName": (ConfigError, "the bucket's name is not allowed; check the URL"),
    "SlowDown": (TransientError, "the store asks for fewer requests"),
    "RequestTimeout": (TransientError, "the connection was too slow for the store"),
    "OperationAborted": (TransientError, "another request was changing the same thing"),
    "ConditionalRequestConflict": (TransientError, "another request was writing the same blob"),
    "BadDigest": (TransientError, "bytes were damaged on the way to the store"),
    "InvalidDigest": (TransientError, "bytes were damaged on the way to the store"),
    "XAmzContentSHA256Mismatch": (TransientError, "bytes were damaged on the way to the store"),
    "IncompleteBody": (TransientError, "bytes were lost on the way to the store"),
}
# By the name of an exception's class, or of one that it inherits from; the first that fits. "module.Class".
_CLASSES: tuple[tuple[str, type[ShardflowError], str], ...] = (
    ("botocore.NoCredentialsError", AccessDeniedError, _NO_KEYS),
    ("botocore.PartialCredentialsError", AccessDeniedError, _KEYS),
    ("botocore.CredentialRetrievalError", AccessDeniedError, _KEYS),
    ("botocore.TokenRetrievalError", AccessDeniedError, _EXPIRED),
    ("botocore.SSOError", AccessDeniedError, _EXPIRED),
    ("botocore.ProfileNotFound", ConfigError, "check AWS_PROFILE and ~/.aws/config"),
    ("botocore.ConfigParseError", ConfigError, "check AWS_CONFIG_FILE and ~/.aws/config"),
    ("botocore.ParamValidationError", ConfigError, "check the URL: s3://bucket/prefix"),
    ("botocore.ConnectTimeoutError", DeadlineError, "the store could not be connected to in time"),
    ("botocore.ReadTimeoutError", DeadlineError, "the store did not answer in time"),
    ("botocore.EndpointConnectionError", TransientError, "the store cannot be connected to; check the endpoint URL"),
    ("aiohttp.ClientConnectorCertificateError", ConfigError, "the certificate is not trusted; check the endpoint URL"),
    ("builtins.TimeoutError", DeadlineError, "the store did not answer in time"),
    ("asyncio.TimeoutError", DeadlineError, "the store did not answer in time"),
    ("fsspec.FSTimeoutError", DeadlineError, "the store did not answer in time"),
    ("builtins.FileNotFoundError", NotFoundError, "does not exist; check the path"),
    ("builtins.KeyError", NotFoundError, "does not exist; check the path"),  # fsspec's memory, of what it removes
    ("builtins.FileExistsError", DatasetExistsError, "exists already; nothing is ever overwritten"),
    ("builtins.PermissionError", AccessDeniedError, _RIGHTS),
    ("builtins.NotImplementedError", StoreError, "this kind of store cannot do that; choose another place"),
    ("aiohttp.InvalidURL", ConfigError, "check the URL"),
    ("aiohttp.ClientError", TransientError, "the connection failed"),
    ("botocore.HTTPClientError", TransientError, "the connection failed"),
    ("botocore.IncompleteReadError", TransientError, "the answer was cut short"),
    ("botocore.ResponseParserError", TransientError, "the answer could not be read"),
    ("botocore.ChecksumError", TransientError, "the answer was damaged on its way"),
    ("builtins.ConnectionError", TransientError, "the connection failed"),
    ("builtins.EOFError", TransientError, "the connection ended"),
)
_STATUSES: dict[int, tuple[type[ShardflowError], str]] = {
    301: (ConfigError, _REGION),
    307: (ConfigError, _REGION),
    401: (AccessDeniedError, _KEYS),
    403: (AccessDeniedError, _RIGHTS),
    404: (NotFoundError, "does not exist; check the path"),
    408: (TransientError, "the connection was too slow for the store"),
    409: (TransientError, "another request was changing the same thing"),
    412: (ChangedError, "the blob has changed"),
    429: (TransientError, "the store asks for fewer requests"),
    501: (StoreError, "the store does not know this request; choose another place"),
}


def classify(error: Exception, url: str, tells: Callable[[BaseException], bool]) -> Failure:
    """Return what an exception means for the blob or root that a message calls `url`.

    Args:
        error: What a client raised.
        url: The place.
        tells: Whether an exception's text holds a secret; such a one is never attached.
    """
    if isinstance(error, ShardflowError):
        if url not in str(error):
            error.args = (f"{url}: {error}",)
        return Failure(error=error, again=isinstance(error, TransientError | DeadlineError))
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__, url, tells)  # over HTTP, fsspec says so of every answer that it does not like
    headers: Mapping[str, str] = {}
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        about = response.get("ResponseMetadata", {})
        headers = about.get("HTTPHeaders", {})
        code = "" if tells(error) else str(response["Error"].get("Code", ""))
        kind, why = _by_answer(code, about.get("HTTPStatusCode", 0))
    elif isinstance(status := getattr(error, "status", None), int) and status >= 300:
        headers = getattr(error, "headers", None) or {}
        kind, why = _by_answer("", status)
    else:
        kind, why = _by_class(error)
    result = kind(f"{url}: {why} ({_said(error, tells)})")
    result.__cause__ = None if tells(error) else error
    again = issubclass(kind, TransientError | DeadlineError)
    return Failure(error=result, again=again, after_s=_retry_after_s(headers) if again else 0.0)


def _by_answer(code: str, status: int) -> tuple[type[ShardflowError], str]:
    found = _CODES.get(code) or _STATUSES.get(status)
    if found is None and (status >= 500 or code == "InternalError"):
        found = (TransientError, "the store failed")
    return found or (StoreError, f"the store refused with {code or status}; see its documentation")


def _by_class(error: Exception) -> tuple[type[ShardflowError], str]:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConfigError, "the certificate is not trusted; check the endpoint URL"
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    found = ((kind, why) for name, kind, why in _CLASSES if name in names)
    return next(found, (StoreError, "the store's client failed; the cause says how"))


def _said(error: BaseException, tells: Callable[[BaseException], bool]) -> str:
    if tells(error):
        return type(error).__name__
    answer = getattr(error, "response", None)
    about = answer.get("Error", {}) if isinstance(answer, Mapping) else {}
    name = about.get("Code") or type(error).__name__
    text = " ".join(str(about.get("Message") or error).split())
    return f"{name}: {text[:300]}" if text else str(name)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    said = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    if said.isdecimal():
        return float(said)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    return 0.0
