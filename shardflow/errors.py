"""Errors: every exception that shardflow raises on purpose. All of them are public, as `shardflow.errors`.

    ShardflowError
    ├── ConfigError                wrong arguments                                  (ValueError)
    │   └── ResumeMismatchError    a saved state belongs to something else
    ├── FormatError                a file violates its format                       (ValueError)
    │   ├── ManifestError          shardflow.json
    │   ├── ShardIndexError        the index of a shard
    │   └── TarError               a shard
    ├── IntegrityError             well-formed bytes differ from the packed ones
    ├── StoreError                 reading or writing storage failed                (OSError)
    │   ├── NotFoundError          a file, object or directory does not exist       (FileNotFoundError)
    │   │   └── BucketNotFoundError
    │   ├── AccessDeniedError      the storage refuses access                       (PermissionError)
    │   ├── TransientError         another attempt may succeed
    │   └── DeadlineError          a wait reached its limit                         (TimeoutError)
    ├── SampleError                one sample cannot be used; the others can        (ValueError)
    │   ├── DecodeError            it cannot be decoded
    │   ├── EncodeError            it cannot be encoded
    │   └── TooLargeError          decoding it would take too much memory or time
    ├── WorkerError                a worker process died                            (RuntimeError)
    ├── PackIncompleteError        packing stopped before the commit                (RuntimeError)
    └── DatasetExistsError         the destination already holds a dataset          (FileExistsError)

An error can also be caught as the builtin in brackets. Its message says what was expected, what was found and what to
do about it.

>>> try:
...     dataset = shardflow.open("s3://bucket/photos256")
... except shardflow.errors.NotFoundError as error:
...     print(error)
"""

from __future__ import annotations


# Errors cross process borders, so each is built from its message alone; everything else is a plain attribute.
class ShardflowError(Exception):
    """Base of all errors of shardflow.

    Attributes:
        shard: Path or URL of the shard concerned; None if unknown.
        key: Key of the sample concerned; None if unknown.
        exit_code: Exit code of the command line.
    """

    exit_code = 1

    shard: str | None = None
    key: str | None = None

    def with_location(self, *, shard: str, key: str | None = None) -> ShardflowError:
        """Attach the place to the error and its message, unless it has one already. Return the error."""
        if self.shard is None:
            place = shard if key is None else f"{shard}, sample {key}"
            self.args = (f"{place}: {self.args[0]}",)
            self.shard, self.key = shard, key
        return self

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(ShardflowError, ValueError):
    """An argument or an option is wrong, or does not fit the others.

    The message names it and the values that are allowed. Correct the call.
    """

    exit_code = 2


class ResumeMismatchError(ConfigError):
    """A saved state of a loader belongs to another dataset or other settings, or is damaged.

    The message names each difference. Restore the settings, or start a new run.
    """


class FormatError(ShardflowError, ValueError):
    """A file violates its format. Restore it from a copy."""


class ManifestError(FormatError):
    """`shardflow.json` is damaged, was edited, or was written by a newer shardflow; the message says which."""


class ShardIndexError(FormatError):
    """The `.npy` index of a shard cannot be read, or contradicts its shard.

    An index that is missing is rebuilt from the shard, so the damaged file can be deleted.
    """


class TarError(FormatError):
    """A tar is damaged, or is not one in the WebDataset convention. The message says at which byte."""


class IntegrityError(ShardflowError):
    """Bytes are well formed but differ from the packed ones: a checksum or a size does not match.

    `shardflow verify` lists all damage; `shardflow verify --repair` repairs it.
    """


class StoreError(ShardflowError, OSError):
    """Reading or writing storage failed, and another attempt would fail as well."""

    exit_code = 4


class NotFoundError(StoreError, FileNotFoundError):
    """A file, an object or a directory does not exist. Check the path or URL."""


class BucketNotFoundError(NotFoundError):
    """The bucket does not exist. Check its name, and the endpoint in the storage options."""


class AccessDeniedError(StoreError, PermissionError):
    """The storage refuses access. Check the credentials and their permissions, or the owner and mode of the file."""


class TransientError(StoreError):
    """A failure that may pass: a slow or overloaded store, a broken connection.

    It is raised after all attempts of the retry policy have failed. Make the same call again later.
    """


class DeadlineError(StoreError, TimeoutError):
    """A wait for storage or another process reached its limit. The message names the server or file."""


class SampleError(ShardflowError, ValueError):
    """One sample cannot be used; the others can. `pack` quarantines it, up to `max_errors` of them."""


class DecodeError(SampleError):
    """An image, or another part of a sample, cannot be decoded."""


class EncodeError(SampleError):
    """An image cannot be encoded as the recipe asks. Change the recipe, or leave the image out."""


class TooLargeError(SampleError):
    """An image exceeds the limit of pixels, memory or scans, and was not decoded.

    The message names its size and the limit. If you trust the image, raise `max_pixels` of the decoder or of `pack`.
    """


class WorkerError(ShardflowError, RuntimeError):
    """A worker process died, usually for lack of memory. The message names the samples in progress."""


class PackIncompleteError(ShardflowError, RuntimeError):
    """Packing or indexing stopped before the commit, so there is no dataset yet.

    Finished shards stay: run the same command again to continue from them.
    """


class DatasetExistsError(ShardflowError, FileExistsError):
    """The destination already holds a dataset, which is never overwritten. Choose another, or extend it."""

    exit_code = 3
