from __future__ import annotations

import pickle

import pytest

from shardflow import errors
from shardflow.errors import ShardflowError

BUILTIN = {
    **dict.fromkeys(("ConfigError", "ResumeMismatchError", "SampleError", "DecodeError", "EncodeError"), ValueError),
    **dict.fromkeys(("FormatError", "ManifestError", "ShardIndexError", "TarError"), ValueError),
    **dict.fromkeys(("StoreError", "TransientError"), OSError),
    **dict.fromkeys(("NotFoundError", "BucketNotFoundError"), FileNotFoundError),
    **dict.fromkeys(("WorkerError", "PackIncompleteError"), RuntimeError),
    "AccessDeniedError": PermissionError,
    "DeadlineError": TimeoutError,
    "DatasetExistsError": FileExistsError,
}
EXIT_CODE = {
    **dict.fromkeys(("ConfigError", "ResumeMismatchError"), 2),
    "DatasetExistsError": 3,
    **dict.fromkeys(("StoreError", "NotFoundError", "BucketNotFoundError", "AccessDeniedError"), 4),
    **dict.fromkeys(("TransientError", "DeadlineError"), 4),
}
CLASSES = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ShardflowError)),
    key=lambda cls: cls.__name__,
)
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@every_class
def test_tree_in_the_docstring_is_complete(cls: type[ShardflowError]) -> None:
    """Every class stands in the tree that the module's docstring draws."""
    assert errors.__doc__ is not None
    assert f" {cls.__name__} " in f" {errors.__doc__} ".replace("\n", " ")


@every_class
def test_builtin_parent(cls: type[ShardflowError]) -> None:
    """Each error can be caught as the builtin that it resembles."""
    assert issubclass(cls, BUILTIN.get(cls.__name__, Exception))


@every_class
def test_exit_code(cls: type[ShardflowError]) -> None:
    """Each error carries the command line's exit code: 1 unless the class is one of those named here."""
    assert cls.exit_code == cls("x").exit_code == EXIT_CODE.get(cls.__name__, 1)


@every_class
def test_message_is_the_text(cls: type[ShardflowError]) -> None:
    """`str` of an error is its message alone, whichever builtin it inherits from."""
    assert str(cls("expected this, found that")) == "expected this, found that"
    assert str(cls()) == ""


@every_class
def test_survives_pickling(cls: type[ShardflowError]) -> None:
    """An error keeps its class, message and place on the way to another process."""
    error = cls("is damaged").with_location(shard="train/000001.tar", key="000000042")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error) == "train/000001.tar, sample 000000042: is damaged"
    assert (copy.shard, copy.key) == ("train/000001.tar", "000000042")


@every_class
def test_place_is_attached_once(cls: type[ShardflowError]) -> None:
    """The first place wins, also after a pickle: no caller can name another or repeat it."""
    error = cls("is damaged")
    assert error.with_location(shard="a.tar") is error
    again = pickle.loads(pickle.dumps(error)).with_location(shard="b.tar", key="7").with_location(shard="a.tar")
    assert str(again) == "a.tar: is damaged"
    assert (again.shard, again.key) == ("a.tar", None)


def test_place_is_unknown_at_first() -> None:
    """An error without a place says None for both, and does not share its place with others."""
    error = errors.DecodeError("x")
    errors.DecodeError("y").with_location(shard="a.tar")
    assert (error.shard, error.key) == (None, None)
