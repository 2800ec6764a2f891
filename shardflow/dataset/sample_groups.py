"""Sample groups: which samples of a split stay together, as copies of one image or by a value such as the patient.

Groups that share a sample are one group: if two patients have the same image, none of the images of both is separated.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from numbers import Integral, Real
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from shardflow._validation import did_you_mean
from shardflow._wording import first_few, plural
from shardflow.errors import ConfigError, DecodeError, IntegrityError, ShardflowError
from shardflow.formats.coordinates import parse_json
from shardflow.formats.shard import OnShard, is_name
from shardflow.order.keyed_rng import U64

from .open_dataset import Split
from .selection import in_split_order, read_records

logger = logging.getLogger(__name__)

I64: TypeAlias = npt.NDArray[np.int64]


class ByPath(Protocol):
    """A dict or pandas Series with a value for each sample, by its path or its path without extension."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return the paths and their values."""


Group: TypeAlias = str | ByPath | None
"""An added column, or a field of the samples' `.json`; or values by path; or None."""

_PART = "json"
_SHOWN_FIELDS = 10


def sample_groups(split: Split, hashes: U64, group: Group, progress: OnShard = None) -> npt.NDArray[np.int64]:
    """Return the group of each sample of a split, numbered from 0: int64 [N].

    Samples with equal hashes are in one group, and those with equal values; a sample whose value is None, NaN or "" is
    grouped only with its copies.

    Raises:
        ConfigError: A sample has no value, or lacks the field.
        IntegrityError: A `.json` is damaged.
        StoreError: A shard cannot be read.
    """
    _, copies = np.unique(hashes, return_inverse=True)
    if group is None:
        return copies.astype(np.int64)
    found = np.fromiter(_numbers(_values(split, "group", group, progress)), dtype=np.int64)
    if missing := int((found < 0).sum()):
        where = f"{split.name!r} without a value of {repr(group) if isinstance(group, str) else 'the group'}"
        logger.warning("%s of split %s: each is a group with its copies", plural(missing, "sample"), where)
    return _joined(copies, np.unique(found, return_inverse=True)[1])


def sample_folds(
    split: Split, folds: str | ByPath, progress: OnShard = None
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names of the folds, and the number of each sample's fold in that list: int64 [N]. Errors: see above.

    A sample without a fold is a ConfigError too, and so is a fold whose name cannot name a folder.
    """
    values = map(_plain, _values(split, "folds", folds, progress))
    named = ["" if _is_missing(value) else str(value) for value in values]
    if all(name.removesuffix(".0").isdecimal() for name in named):  # pandas makes 0.0 of 0 in a column with gaps
        named = [name.removesuffix(".0") for name in named]
    for number, name in enumerate(named):
        if not is_name(name) or "/" in name:
            remedy = "give each a number, or a text of A-Z a-z 0-9 . _ -"
            where = ""
            with contextlib.suppress(ShardflowError):  # without its receipt
                where = f", {split.source(number)!r},"
            raise ConfigError(f"training sample {number}{where} is in the fold {name!r:.100}; {remedy}")
    names, fold_of = np.unique(named, return_inverse=True)
    order = sorted(range(len(names)), key=lambda place: (len(names[place]), names[place]))  # 2 before 10
    return [str(names[place]) for place in order], np.argsort(order)[fold_of]


def _values(split: Split, argument: str, given: Any, progress: OnShard) -> Iterable[Any]:
    """Return a value for each sample of a split: of a field, or given by path."""
    if isinstance(given, str):
        if given in split.columns.kinds:
            column = split.column(given)
            return [
                value if is_there else None
                for value, is_there in zip(column.values.tolist(), column.present, strict=True)
            ]
        return read_records(split, partial(_field, split, argument, given), progress)
    if hasattr(given, "items"):
        return in_split_order(split, argument, given)
    raise ConfigError(
        f"{argument} is of type {type(given).__name__}: give the name of a field, or a value for each path or id, in a "
        "dict or pandas Series; the values of a list or array could be in the order of a table or of the samples"
    )


def _field(split: Split, argument: str, name: str, shard: int, record: int) -> Any:
    reader = split.reader
    payload = reader.part(shard, record, _PART)
    try:
        content = {} if payload is None else parse_json(_PART, payload)
    except DecodeError as error:
        raise IntegrityError(str(error)).with_location(
            shard=reader.url(shard), key=reader.key(shard, record)
        ) from error
    if not isinstance(content, dict) or name not in content:
        names = list(content) if isinstance(content, dict) else []
        fields = first_few([*map(repr, names)], _SHOWN_FIELDS) or "none"
        raise ConfigError(
            f"{reader.url(shard)}, sample {reader.key(shard, record)} has no field {name!r} in its .json, which has "
            f"{fields}{did_you_mean(name, names)}; add it with `shardflow columns add`, pack a table with it, or pass "
            f"{argument}= in Python with a value for each path of Split.sources()"
        )
    return content[name]


def _numbers(values: Iterable[Any]) -> Iterator[int]:
    """Yield a number for each value: the same for equal values, another for each that is None, NaN or "".

    7, 7.0 and "7" are equal.
    """
    found: dict[Any, int] = {}
    for alone, value in enumerate(values, 1):
        value = _plain(value)
        if _is_missing(value):
            yield -alone
            continue
        try:
            if getattr(value, "ndim", 0):
                raise TypeError  # it may be a tensor, too
            yield found.setdefault(
                json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value, len(found)
            )
        except TypeError:
            raise ConfigError(f"a group is named by a text or a number, found {value!r:.100}") from None


def _plain(value: Any) -> Any:
    """Return a value, a whole number as its text: a patient 7 in some rows and "7" or 7.0 in others is the same."""
    if not isinstance(value, np.generic) and getattr(value, "ndim", None) == 0:
        value = value.item()  # a tensor, which is equal to no other as the key of a dict
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real) and float(value).is_integer():
        return str(int(float(value)))
    return value


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value):
        return True
    if getattr(value, "ndim", 0):
        return False
    try:
        return bool(value != value)  # NaN, and the missing times of numpy and pandas
    except TypeError:
        return True  # pandas' NA


def _joined(groups: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> I64:
    """Return the finest groups of which each group of both kinds is a part."""
    joined = groups.astype(np.int64)
    while True:
        lowest = np.full(int(others.max(initial=-1)) + 1, len(joined), dtype=np.int64)
        np.minimum.at(lowest, others, joined)
        parents = np.arange(len(joined))
        np.minimum.at(parents, joined, lowest[others])
        while not np.array_equal(grandparents := parents[parents], parents):
            parents = grandparents
        if np.array_equal(parents[joined], joined):
            return np.unique(joined, return_inverse=True)[1].astype(np.int64)
        joined = parents[joined]
