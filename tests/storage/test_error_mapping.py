from __future__ import annotations

import email.utils
import time
import types
from typing import Any

import aiohttp
import pytest
from botocore import exceptions as botocore

from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    DatasetExistsError,
    DeadlineError,
    IntegrityError,
    NotFoundError,
    ShardflowError,
    StoreError,
    TransientError,
)
from shardflow.storage.error_mapping import AnswerError, classify
from shardflow.storage.stores import ChangedError

URL = "s3://bucket/train/000000.tar"
REFUSED = "the server refused with 418; see its documentation"
NEVER = "Fri, 31 Dec 99999999999 23:59:59 GMT"


def answer(status: int, code: str = "", headers: dict[str, str] | None = None, message: str = "said") -> Exception:
    """Return the exception that botocore raises for an answer."""
    about = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
    return botocore.ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": about}, "GetObject")


def web(status: int, headers: dict[str, str] | None = None) -> Exception:
    """Return the exception that aiohttp raises for an answer."""
    info: Any = aiohttp.RequestInfo(url=None, method="GET", headers={}, real_url="http://host/a")  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status, headers=headers)  # type: ignore[arg-type]


def with_attributes(**attributes: object) -> Exception:
    """Return an exception of another client, with attributes."""
    error = RuntimeError("said")
    vars(error).update(attributes)
    return error


HUB = types.SimpleNamespace(status_code=404, headers={"X-Error-Code": "RepoNotFound"})
AZURE = types.SimpleNamespace(value="ContainerNotFound")  # an enumeration


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an exception with a cause."""
    error.__cause__ = cause
    return error


def open_to_all(_: BaseException) -> bool:
    """No text holds a secret."""
    return False


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (answer(404, "NoSuchBucket"), BucketNotFoundError, "check its name and the endpoint"),
        (answer(404, "404"), NotFoundError, "check the path"),
        (answer(403, "403"), AccessDeniedError, "get the permission"),
        (answer(401), AccessDeniedError, "check the access key"),
        (answer(400, "ExpiredToken"), AccessDeniedError, "get new credentials"),
        (answer(403, "RequestTimeTooSkewed"), AccessDeniedError, "set the clock"),
        (answer(403, "InvalidObjectState"), AccessDeniedError, "restore it first"),
        (answer(301, "PermanentRedirect"), ConfigError, "set AWS_REGION"),
        (answer(412, "PreconditionFailed"), ChangedError, "has changed"),
        (answer(404, "NoSuchUpload"), ChangedError, "no longer open"),
        (answer(400, "XAmzOther"), StoreError, "refused with XAmzOther"),
        (answer(418, "Teapot"), StoreError, "refused with Teapot; see its documentation"),
        (answer(501), StoreError, "choose another place"),
        (web(404), NotFoundError, "check the path"),
        (web(403), AccessDeniedError, "get the permission"),
        (with_attributes(response=HUB), BucketNotFoundError, "is private"),
        (with_attributes(status_code=404, error_code=AZURE), BucketNotFoundError, "check its name"),
        (with_attributes(response={}), StoreError, "the client failed; see the cause (RuntimeError: said)"),
        (botocore.ClientError({"Error": {}}, "GetObject"), StoreError, "refused with 0;"),
        (botocore.NoCredentialsError(), AccessDeniedError, "FSSPEC_S3='{\"anon\": true}' in the environment"),
        (botocore.ProfileNotFound(profile="x"), ConfigError, "check AWS_PROFILE"),
        (botocore.ParamValidationError(report="x"), ConfigError, "s3://bucket/prefix"),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED]"), ConfigError, "certificate is not trusted"),
        (OSError("ssl:default [[SSL: WRONG_VERSION_NUMBER] wrong version number]"), ConfigError, "write http://"),
        (FileNotFoundError("x"), NotFoundError, "check the path"),
        (caused(FileNotFoundError("x"), web(403)), AccessDeniedError, "get the permission"),
        (FileExistsError("x"), DatasetExistsError, "nothing is ever overwritten"),
        (PermissionError("x"), AccessDeniedError, "get the permission"),
        (NotImplementedError("x"), StoreError, "choose another place"),
        (ValueError("Invalid endpoint: host:1"), ConfigError, "check AWS_ENDPOINT_URL"),
        (ValueError("x"), StoreError, "see the cause"),
        (
            TypeError("got an unexpected keyword argument 'endpoint'"),
            ConfigError,
            "there is no storage option 'endpoint' (did you mean 'endpoint_url'?)",
        ),
    ],
)
def test_permanent_failures(error: Exception, kind: type[ShardflowError], remedy: str) -> None:
    """A permanent failure has its type, the URL, the remedy and its cause; an error code overrides the status."""
    failure = classify(error, URL, open_to_all)
    assert type(failure.error) is kind
    assert str(failure.error).startswith(f"{URL}: ")
    assert remedy in str(failure.error)
    assert failure.error.__cause__ is (error.__cause__ or error)
    assert not failure.retry


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer(503, "SlowDown"), TransientError),
        (answer(500, "InternalError"), TransientError),
        (answer(200, "InternalError"), TransientError),
        (botocore.ClientError({"Error": {"Code": "SlowDown"}}, "GetObject"), TransientError),
        (answer(502), TransientError),
        (answer(429, "TooManyRequests"), TransientError),
        (answer(409, "ConditionalRequestConflict"), TransientError),
        (answer(400, "BadDigest"), TransientError),
        (answer(400, "XAmzContentSHA256Mismatch"), TransientError),
        (answer(400, "RequestTimeout"), TransientError),
        (web(503), TransientError),
        (caused(FileNotFoundError("x"), web(500)), TransientError),
        (botocore.EndpointConnectionError(endpoint_url="http://x"), TransientError),
        (botocore.ConnectTimeoutError(endpoint_url="http://x"), DeadlineError),
        (botocore.ReadTimeoutError(endpoint_url="http://x"), DeadlineError),
        (aiohttp.ClientPayloadError("x"), TransientError),
        (aiohttp.ServerDisconnectedError(), TransientError),
        (ConnectionResetError(104, "x"), TransientError),
        (BrokenPipeError(32, "x"), TransientError),
        (TimeoutError(), DeadlineError),
        (EOFError(), TransientError),
    ],
)
def test_failures_worth_a_retry(error: Exception, kind: type[ShardflowError]) -> None:
    """Failures of the network, and of a server that is busy or broken, are worth a retry."""
    failure = classify(error, URL, open_to_all)
    assert type(failure.error) is kind
    assert failure.retry


def test_servers_that_cannot_be_reached() -> None:
    """An unknown host and a refused connection are told from what a running server does."""
    for error in (botocore.EndpointConnectionError(endpoint_url="http://x"), ConnectionRefusedError(111, "x")):
        assert classify(error, URL, open_to_all).unreachable
    for failing in (TimeoutError(), ConnectionResetError(104, "x"), answer(503)):
        assert not classify(failing, URL, open_to_all).unreachable


def test_an_answer_to_a_request_of_a_transport() -> None:
    """The code of an answer overrides its status, and its text is quoted; one with neither is known by its status."""
    said = classify(AnswerError(403, {}, "InvalidObjectState", "said"), URL, open_to_all).error
    assert str(said) == f"{URL}: the object is archived; restore it first (AnswerError: said)"
    silent = classify(AnswerError(418, {"Retry-After": "7"}), URL, open_to_all).error
    assert str(silent) == f"{URL}: {REFUSED} (AnswerError)"


def test_a_store_without_known_variables() -> None:
    """Of a store whose credentials have no known names, the remedy is in storage_options."""
    failure = classify(answer(401), "memory://a", open_to_all)
    assert str(failure.error).startswith("memory://a: check the credentials in storage_options (")


def test_own_errors_are_kept() -> None:
    """An error of the project's tree stays the same object; the URL is put before its message once."""
    for error, retry in ((TransientError("short"), True), (DeadlineError("slow"), True), (IntegrityError("no"), False)):
        for _ in range(2):
            failure = classify(error, URL, open_to_all)
            assert failure.error is error
            assert failure.retry is retry
        assert str(error).count(URL) == 1


@pytest.mark.parametrize("error", [answer, web])
def test_retry_after(error: Any) -> None:
    """`Retry-After` is read in seconds and as a date, the Hub's header in seconds; all else means no pause."""
    soon = email.utils.formatdate(time.time() + 60, usegmt=True)
    for said, least, most in (
        ("7", 7, 7),
        (soon, 55, 61),
        ("Mon, 02 Jan 2006 15:04:05 GMT", 0, 0),
        ("soon", 0, 0),
        (NEVER, 0, 0),
    ):
        raised = error(503, headers={"Retry-After": said})
        assert least <= classify(raised, URL, open_to_all).after_s <= most
    assert classify(error(403, headers={"Retry-After": "7"}), URL, open_to_all).after_s == 0
    assert classify(error(429, headers={"RateLimit": '"api";r=0;t=30'}), URL, open_to_all).after_s == 30


def test_a_secret_in_an_answer_is_not_passed_on() -> None:
    """An exception with a secret in its text is neither quoted nor attached; its status still counts."""
    for status, said in ((403, "the credentials do not allow this; get the permission, or use others"), (418, REFUSED)):
        error = answer(status, "canary", message="canary")
        failure = classify(error, URL, lambda raised: "canary" in str(raised))
        assert str(failure.error) == f"{URL}: {said} (ClientError)"
        assert failure.error.__cause__ is None


def test_the_servers_message_is_quoted_in_short() -> None:
    """Code and message are quoted on one line, and cut when they are long."""
    said = str(classify(answer(500, "Oops", message="a\n  b" + "c" * 1000), URL, open_to_all).error)
    assert "(Oops: a bcc" in said
    assert len(said) < 400
