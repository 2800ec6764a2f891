"""The mapping of clients' exceptions to the project's errors, and the decision which are worth a retry.

Exceptions are recognised by their names and attributes, so that no client has to be installed.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from collections.abc import Callable, Mapping

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
from .urls import kind_of_store

_CREDENTIALS = {
    "s3": "the access key and its secret (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or storage_options)",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS, or storage_options={'token': ...}",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or storage_options",
    "hf": "HF_TOKEN, or storage_options={'token': ...}",
}
"""Kind of store → its credentials, which stand for {keys} in a message."""

_ANONYMOUS = {
    "s3": "storage_options={'anon': True}, for a command FSSPEC_S3='{\"anon\": true}' in the environment",
    "gcs": "storage_options={'token': 'anon'}, for a command FSSPEC_GS='{\"token\": \"anon\"}' in the environment",
}
"""Kind of store → how to read a public bucket, which stands for {anonymous} in a message."""

_KEYS = "check {keys}"
_NO_KEYS = f"no credentials were found; {_KEYS}, or for a public bucket set {{anonymous}}"
_EXPIRED = "the session token has expired; get new credentials and run the same command again"
_CLOCK = "the clocks of this machine and of the server differ too much; set the clock (NTP) and try again"
_RIGHTS = "the credentials do not allow this; have it granted, or use others"
_CERTIFICATE = "the certificate is not trusted; check the endpoint URL"
_ENDPOINT = "the endpoint must be a URL such as https://host:8333; check AWS_ENDPOINT_URL, or endpoint_url"
_LATE = "the server did not answer in time"
_REGION = "the bucket is in another region, or not at this endpoint; set AWS_REGION and the endpoint URL"

# An error and its message, for error codes of answers, HTTP statuses, and classes of exceptions (with a dot). A code is
# more precise than the status. Of the base classes of an exception, the one in the first row counts.
_OUTCOMES: tuple[tuple[type[ShardflowError], str, str], ...] = (
    (BucketNotFoundError, "there is no such bucket; check its name and the endpoint", "NoSuchBucket ContainerNotFound"),
    (BucketNotFoundError, f"there is no such repository, or it is private; {_KEYS}", "RepoNotFound"),
    (BucketNotFoundError, "the repository has no such revision; check the URL", "RevisionNotFound"),
    (AccessDeniedError, "the repository is gated; accept its conditions on its page first", "GatedRepo"),
    (ChangedError, "the upload is no longer open", "NoSuchUpload"),
    (ChangedError, "the blob has changed", "PreconditionFailed ConditionNotMet BlobAlreadyExists 412"),
    (AccessDeniedError, _NO_KEYS, "botocore.NoCredentialsError google.DefaultCredentialsError"),
    (AccessDeniedError, _NO_KEYS, "azure.CredentialUnavailableError NoAuthenticationInformation"),
    (AccessDeniedError, _KEYS, "AuthenticationFailed InvalidAuthenticationInfo google.RefreshError"),
    (AccessDeniedError, _KEYS, "401 botocore.PartialCredentialsError botocore.CredentialRetrievalError"),
    (AccessDeniedError, f"the server does not know the access key; {_KEYS}", "InvalidAccessKeyId"),
    (AccessDeniedError, f"the secret does not belong to the access key; {_KEYS}", "SignatureDoesNotMatch"),
    (AccessDeniedError, f"the session token is not valid; {_KEYS}", "InvalidToken"),
    (AccessDeniedError, _EXPIRED, "ExpiredToken ExpiredTokenException TokenRefreshRequired"),
    (AccessDeniedError, _EXPIRED, "botocore.TokenRetrievalError botocore.SSOError"),
    (AccessDeniedError, _CLOCK, "RequestTimeTooSkewed RequestExpired"),
    (AccessDeniedError, "the object is archived; restore it first", "InvalidObjectState"),
    (ConfigError, _REGION, "AuthorizationHeaderMalformed PermanentRedirect 301 307"),
    (ConfigError, "the bucket's name is not allowed; check the URL", "InvalidBucketName"),
    (ConfigError, "check AWS_PROFILE and ~/.aws/config", "botocore.ProfileNotFound"),
    (ConfigError, "check AWS_CONFIG_FILE and ~/.aws/config", "botocore.ConfigParseError"),
    (ConfigError, "check the URL: s3://bucket/prefix", "botocore.ParamValidationError"),
    (ConfigError, _CERTIFICATE, "aiohttp.ClientConnectorCertificateError"),
    (DeadlineError, "connecting to the server took too long", "botocore.ConnectTimeoutError"),
    (DeadlineError, _LATE, "botocore.ReadTimeoutError fsspec.FSTimeoutError"),
    (DeadlineError, _LATE, "builtins.TimeoutError asyncio.TimeoutError"),
    (DeadlineError, _LATE, "azure.ServiceRequestTimeoutError azure.ServiceResponseTimeoutError"),
    # A KeyError comes from fsspec's memory when it removes a blob.
    (NotFoundError, "does not exist; check the path", "NoSuchKey 404 builtins.FileNotFoundError builtins.KeyError"),
    (DatasetExistsError, "exists already; nothing is ever overwritten", "builtins.FileExistsError"),
    (AccessDeniedError, _RIGHTS, "403 builtins.PermissionError"),
    (StoreError, "this kind of storage cannot do that; choose another place", "builtins.NotImplementedError"),
    (StoreError, "the server does not support this request; choose another place", "501"),
    (ConfigError, "check the URL", "aiohttp.InvalidURL"),
    (TransientError, "the server asks for fewer requests", "SlowDown 429"),
    (TransientError, "the connection was too slow for the server", "RequestTimeout 408"),
    (TransientError, "another request was changing the same blob", "OperationAborted 409"),
    (TransientError, "another request was writing the same blob", "ConditionalRequestConflict"),
    (
        TransientError,
        "bytes were damaged on the way to the server",
        "BadDigest InvalidDigest XAmzContentSHA256Mismatch Md5Mismatch",
    ),
    (TransientError, "bytes were lost on the way to the server", "IncompleteBody"),
    (TransientError, "the server cannot be reached; check the endpoint URL", "botocore.EndpointConnectionError"),
    (TransientError, "the connection failed", "aiohttp.ClientError botocore.HTTPClientError builtins.ConnectionError"),
    (TransientError, "the connection failed", "azure.ServiceRequestError azure.ServiceResponseError"),
    (TransientError, "the connection failed", "httpx.TransportError httpx2.TransportError google.TransportError"),
    (TransientError, "the answer was cut short", "botocore.IncompleteReadError"),
    (TransientError, "the answer could not be read", "botocore.ResponseParserError"),
    (TransientError, "the answer was damaged on the way", "botocore.ChecksumError"),
    (TransientError, "the connection ended", "builtins.EOFError"),
)


class AnswerError(Exception):
    """An answer with an error status, to a request that a transport makes itself."""

    def __init__(self, status: int, headers: Mapping[str, str], code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.headers, self.error_code = status, headers, code


def classify(error: Exception, url: str, leaks: Callable[[BaseException], bool]) -> Failure:
    """Return the meaning of a client's exception for the blob or root at `url`.

    `leaks` returns whether the text of an exception holds a secret; it is neither quoted nor attached then.
    """
    if isinstance(error, ShardflowError):
        if url not in str(error):
            error.args = (f"{url}: {error}",)
        return Failure(error=error, retry=isinstance(error, TransientError | DeadlineError))
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__, url, leaks)  # over HTTP, fsspec raises this for every error
    headers: Mapping[str, str] = {}
    if isinstance(response := getattr(error, "response", None), Mapping) and "Error" in response:
        metadata = response.get("ResponseMetadata", {})
        headers = metadata.get("HTTPHeaders", {})
        code = "" if leaks(error) else str(response["Error"].get("Code", ""))
        kind, why = _by_answer(code, metadata.get("HTTPStatusCode", 0))
    elif (status := _status(error)) >= 300:
        headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
        code = getattr(error, "error_code", None) or headers.get("X-Error-Code") or ""  # the header is the Hub's
        code = str(getattr(code, "value", code))
        kind, why = _by_answer("" if leaks(ValueError(code)) else code, status)
    else:
        kind, why = _by_class(error)
    store = kind_of_store(url)
    why = why.replace("{keys}", _CREDENTIALS.get(store, "the credentials in storage_options"))
    why = why.replace("{anonymous}", _ANONYMOUS.get(store, "storage_options={'anon': True}"))
    result = kind(f"{url}: {why} ({_describe(error, leaks)})")
    result.__cause__ = None if leaks(error) else error
    retry = issubclass(kind, TransientError | DeadlineError)
    return Failure(error=result, retry=retry, after_s=_retry_after_s(headers) if retry else 0.0)


def _status(error: Exception) -> int:
    """Return the status of an answer, as aiohttp, the Hub, Azure's and our own errors hold it; 0 if there is none."""
    holders = (error, getattr(error, "response", None))
    found = (getattr(holder, name, None) for holder in holders for name in ("status", "status_code"))
    return next((status for status in found if isinstance(status, int)), 0)


def _by_answer(code: str, status: int) -> tuple[type[ShardflowError], str]:
    found = _outcome({code}) or _outcome({str(status)})
    if found is None and (status >= 500 or code == "InternalError"):
        return TransientError, "the server failed"
    return found or (StoreError, f"the server refused with {code or status}; see its documentation")


def _by_class(error: Exception) -> tuple[type[ShardflowError], str]:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConfigError, _CERTIFICATE
    if isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        return ConfigError, _ENDPOINT
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return _outcome(names) or (StoreError, "the client failed; see the cause")


def _outcome(keys: set[str]) -> tuple[type[ShardflowError], str] | None:
    return next(((kind, why) for kind, why, names in _OUTCOMES if not keys.isdisjoint(names.split())), None)


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
    if reset := re.search(
        r"\bt=(\d+)", by_name.get("ratelimit", "")
    ):  # of the Hub, draft-ietf-httpapi-ratelimit-headers
        return float(reset[1])
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0
