"""The stores: a record per kind of store with its particulars.

To add a store, add a record to `STORES`, and a module with its transport if it makes its own requests. Schemes without
a record are served by fsspec.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import cast

from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    DeadlineError,
    ShardflowError,
    StoreError,
    TransientError,
)


class ChangedError(StoreError):
    """The condition of a request does not hold. Never leaves the storage."""


Refusal = tuple[type[ShardflowError], str, str]
"""An error, its message, and what maps to it: error codes, HTTP statuses, classes of exceptions (with a dot). In a
message, {keys} and {anonymous} are replaced by the store's `credentials` and `anonymous`."""

_KEYS = "check {keys}"
_NO_KEYS = f"no credentials were found; {_KEYS}, or for a public bucket set {{anonymous}}"
_EXPIRED = "the session token has expired; get new credentials and run the same command again"
_NO_BUCKET = "the bucket does not exist; check its name and the endpoint"
_CHANGED = "the blob has changed"
_LATE = "the server did not answer in time"
_FAILED = "the connection failed"
_DAMAGED = "bytes were damaged on the way to the server"

_HARMLESS = "anon config_kwargs endpoint_url profile region_name requester_pays use_ssl verify"


class Rights(enum.IntEnum):
    """The operations that a store supports; each includes those before."""

    READ = enum.auto()
    WRITE = enum.auto()
    REPLACE = enum.auto()  # a blob, on the condition that it is unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The particulars of one kind of store."""

    schemes: tuple[str, ...]
    # The module in this package whose `connect` returns a transport, and imports the client, which may be missing;
    # `install` is the argument of `pip install` for it, "" if the ImportError names it.
    transport: str = "fsspec_transport"
    install: str = ""
    rights: Rights = Rights.WRITE
    remedy: str = ""  # if it is read-only: how to publish files otherwise
    # The storage_options that are never secret. All others count as secret.
    harmless_options: frozenset[str] = frozenset(_HARMLESS.split())
    credentials: str = "the credentials in storage_options"  # where they come from
    anonymous: str = "storage_options={'anon': True}"  # how to read public data
    bucket_alone: bool = False  # whether a URL begins with a bucket, without user, query or fragment
    root: str = "[^/]*"  # regular expression of the bucket, host or repository in a URL
    has_query: bool = False  # whether a URL has a query, which may be a signature
    keys_may_have_queries: bool = False  # whether a `?` in a URL of a table belongs to the key of an object
    user_is_container: bool = False  # whether the name before the `@` of a URL is a container
    may_be_signed: bool = False  # whether URLs, also of redirections, contain signatures
    refusals: tuple[Refusal, ...] = ()  # of the store and its client; `error_mapping` has those of all stores

    def match_root(self, rest: str) -> str:
        """Return the bucket, host or repository that follows a URL's scheme."""
        return cast(re.Match[str], re.match(self.root, rest))[0]


STORES = (
    Store(
        schemes=("s3", "s3a"),
        transport="s3_transport",
        rights=Rights.REPLACE,
        credentials="the access key and its secret (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
        "storage_options)",
        anonymous="storage_options={'anon': True}, for a command FSSPEC_S3='{\"anon\": true}' in the environment",
        bucket_alone=True,
        keys_may_have_queries=True,
        refusals=(
            (BucketNotFoundError, _NO_BUCKET, "NoSuchBucket"),
            (ChangedError, "the upload is no longer open", "NoSuchUpload"),
            (ChangedError, _CHANGED, "PreconditionFailed"),
            (AccessDeniedError, _NO_KEYS, "botocore.NoCredentialsError"),
            (AccessDeniedError, _KEYS, "botocore.PartialCredentialsError botocore.CredentialRetrievalError"),
            (AccessDeniedError, f"the server does not know the access key; {_KEYS}", "InvalidAccessKeyId"),
            (AccessDeniedError, f"the secret does not belong to the access key; {_KEYS}", "SignatureDoesNotMatch"),
            (AccessDeniedError, f"the session token is not valid; {_KEYS}", "InvalidToken"),
            (AccessDeniedError, _EXPIRED, "ExpiredToken ExpiredTokenException TokenRefreshRequired"),
            (AccessDeniedError, _EXPIRED, "botocore.TokenRetrievalError botocore.SSOError"),
            (
                AccessDeniedError,
                "the clocks of this machine and the server differ too much; set the clock (NTP) and try again",
                "RequestTimeTooSkewed RequestExpired",
            ),
            (AccessDeniedError, "the object is archived; restore it first", "InvalidObjectState"),
            (
                ConfigError,
                "the bucket is in another region, or not at this endpoint; set AWS_REGION and the endpoint URL",
                "AuthorizationHeaderMalformed PermanentRedirect 301 307",
            ),
            (ConfigError, "the bucket's name is not allowed; check the URL", "InvalidBucketName"),
            (ConfigError, "check AWS_PROFILE and ~/.aws/config", "botocore.ProfileNotFound"),
            (ConfigError, "check AWS_CONFIG_FILE and ~/.aws/config", "botocore.ConfigParseError"),
            (ConfigError, "check the URL: s3://bucket/prefix", "botocore.ParamValidationError"),
            (DeadlineError, "connecting to the server took too long", "botocore.ConnectTimeoutError"),
            (DeadlineError, _LATE, "botocore.ReadTimeoutError"),
            (TransientError, "the server asks for fewer requests", "SlowDown"),
            (TransientError, "the connection was too slow for the server", "RequestTimeout"),
            (
                TransientError,
                "another request was changing the same blob",
                "OperationAborted ConditionalRequestConflict",
            ),
            (TransientError, _DAMAGED, "BadDigest InvalidDigest XAmzContentSHA256Mismatch IncompleteBody"),
            (
                TransientError,
                "the server cannot be reached; check the network and the endpoint (AWS_ENDPOINT_URL, or endpoint_url)",
                "botocore.EndpointConnectionError",
            ),
            (TransientError, _FAILED, "botocore.HTTPClientError"),
            (
                TransientError,
                "the answer was damaged on the way",
                "botocore.IncompleteReadError botocore.ResponseParserError botocore.ChecksumError",
            ),
        ),
    ),
    Store(
        schemes=("gs", "gcs"),
        transport="gcs_transport",
        keys_may_have_queries=True,
        install="'shardflow[gcs]'",
        rights=Rights.REPLACE,
        credentials="GOOGLE_APPLICATION_CREDENTIALS, or storage_options={'token': ...}",
        anonymous="storage_options={'token': 'anon'}, for a command FSSPEC_GS='{\"token\": \"anon\"}' in the "
        "environment",
        refusals=(
            (BucketNotFoundError, _NO_BUCKET, "NoSuchBucket"),
            (AccessDeniedError, _NO_KEYS, "google.DefaultCredentialsError"),
            (AccessDeniedError, _KEYS, "google.RefreshError"),
            (TransientError, _DAMAGED, "BadDigest"),
            (TransientError, _FAILED, "google.TransportError"),
        ),
    ),
    Store(
        schemes=("az", "abfs", "abfss"),
        transport="azure_transport",
        install="'shardflow[azure]'",
        rights=Rights.REPLACE,
        credentials="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or storage_options",
        user_is_container=True,
        may_be_signed=True,
        refusals=(
            (BucketNotFoundError, _NO_BUCKET, "ContainerNotFound"),
            (ChangedError, _CHANGED, "ConditionNotMet BlobAlreadyExists"),
            (AccessDeniedError, _NO_KEYS, "azure.CredentialUnavailableError NoAuthenticationInformation"),
            (AccessDeniedError, _KEYS, "AuthenticationFailed InvalidAuthenticationInfo"),
            (DeadlineError, _LATE, "azure.ServiceRequestTimeoutError azure.ServiceResponseTimeoutError"),
            (TransientError, _DAMAGED, "Md5Mismatch"),
            (TransientError, _FAILED, "azure.ServiceRequestError azure.ServiceResponseError"),
        ),
    ),
    Store(
        schemes=("hf",),
        transport="hub_transport",
        root="((buckets|datasets|spaces)/)?[^/]*(/[^/]*)?",
        install="'shardflow[hf]'",
        rights=Rights.READ,
        remedy="upload it in one commit: hf upload REPOSITORY DIRECTORY --repo-type dataset",
        credentials="HF_TOKEN, or storage_options={'token': ...}",
        may_be_signed=True,
        refusals=(
            (BucketNotFoundError, f"the repository does not exist, or is private; {_KEYS}", "RepoNotFound"),
            (BucketNotFoundError, "the repository has no such revision; check the URL", "RevisionNotFound"),
            (AccessDeniedError, "the repository is gated; accept its conditions on its page first", "GatedRepo"),
            (TransientError, _FAILED, "httpx.TransportError httpx2.TransportError"),
        ),
    ),
    Store(
        schemes=("https", "http"),
        transport="http_transport",
        install="requests aiohttp",
        rights=Rights.READ,
        remedy="copy it to the server",
        has_query=True,
        may_be_signed=True,
    ),
    Store(
        schemes=("sftp", "ssh"),
        install="paramiko",
        credentials="username, password or pkey in storage_options",
        refusals=(
            (AccessDeniedError, _KEYS, "paramiko.AuthenticationException"),
            (TransientError, _FAILED, "paramiko.SSHException"),
        ),
    ),
)
"""All records of stores."""

_BY_SCHEME = {scheme: store for store in STORES for scheme in store.schemes}


def store_of(url: str) -> Store:
    """Return the record of the store of a URL."""
    scheme = url.partition("://")[0]
    return _BY_SCHEME.get(scheme) or Store(schemes=(scheme,))


def has_record(scheme: str) -> bool:
    """Return whether URLs of a scheme have a record."""
    return scheme in _BY_SCHEME
