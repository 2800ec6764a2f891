"""Every error that shardflow raises on purpose.

    ShardflowError
    ├── ConfigError              wrong arguments                              (ValueError)
    │   └── ResumeMismatchError  a saved state belongs to something else
    ├── FormatError              bytes that are not what the format says      (ValueError)
    │   ├── ManifestError
    │   ├── IndexError_
    │   └── TarError
    ├── IntegrityError           well-formed bytes that are not the packed ones
    ├── StoreError               the place that holds the bytes failed        (OSError)
    │   ├── NotFoundError                                                     (FileNotFoundError)
    │   │   └── BucketNotFoundError
    │   ├── AccessDeniedError                                                 (PermissionError)
    │   ├── TransientError       worth another try
    │   └── DeadlineError                                                     (TimeoutError)
    ├── SampleError              one sample, the others are fine              (ValueError)
    │   ├── DecodeError
    │   └── EncodeError
    ├── WorkerError              a worker process died                        (RuntimeError)
    ├── PackIncompleteError      packing stopped before the commit            (RuntimeError)
    └── DatasetExistsError       nothing is ever overwritten                  (FileExistsError)

Messages say what was expected, what was found and what to do. Errors cross process borders, so each is built from its
message alone and carries anything else as plain attributes. `exit_code` is what the command line exits with.
"""

from __future__ import annotations


class ShardflowError(Exception):
    """Base of all errors below. `shard` and `key` name the place, where one is known."""

    exit_code = 1

    shard: str | None = None
    key: str | None = None

    def at(self, *, shard: str, key: str | None = None) -> ShardflowError:
        """Attach where it happened, once, and return the error."""
        if self.shard is None:
            place = shard if key is None else f"{shard}, sample {key}"
            self.args = (f"{place}: {self.args[0]}",)
            self.shard, self.key = shard, key
        return self

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(ShardflowError, ValueError):
    """An argument is wrong; the message names it and the values allowed."""

    exit_code = 2


class ResumeMismatchError(ConfigError):
    """A saved loader state was made with another dataset, seed, lanes or window."""


class FormatError(ShardflowError, ValueError):
    """Bytes do not follow the format they claim."""


class ManifestError(FormatError):
    """`shardflow.json` cannot be read as a manifest."""


class IndexError_(FormatError):  # noqa: N801, N818 - IndexError is Python's
    """An `.npy` index cannot be read, or contradicts its shard."""


class TarError(FormatError):
    """A shard is not a plain ustar archive in the WebDataset convention."""


class IntegrityError(ShardflowError):
    """Bytes are well formed but differ from those that were packed."""


class StoreError(ShardflowError, OSError):
    """Reading or writing storage failed."""

    exit_code = 4


class NotFoundError(StoreError, FileNotFoundError):
    """Nothing is there."""


class BucketNotFoundError(NotFoundError):
    """There is no such bucket, so whatever was looked for in it may exist elsewhere."""


class AccessDeniedError(StoreError, PermissionError):
    """The storage refuses."""


class TransientError(StoreError):
    """A failure that another attempt may not meet."""


class DeadlineError(StoreError, TimeoutError):
    """A wait reached its deadline."""


class SampleError(ShardflowError, ValueError):
    """One sample cannot be used."""


class DecodeError(SampleError):
    """The bytes of an image (or another part) cannot be decoded."""


class EncodeError(SampleError):
    """An image cannot be encoded as the recipe asks."""


class WorkerError(ShardflowError, RuntimeError):
    """A worker process ended without finishing its work."""


class PackIncompleteError(ShardflowError, RuntimeError):
    """Packing ended before the dataset was committed; what was packed stays for a resume."""


class DatasetExistsError(ShardflowError, FileExistsError):
    """The destination already holds a dataset."""

    exit_code = 3
