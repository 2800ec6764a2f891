"""Column fields: the fields of a batch that come from added columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shardflow._wording import plural
from shardflow.dataset.column_files import Values, import_pyarrow
from shardflow.dataset.open_dataset import Split
from shardflow.errors import ConfigError
from shardflow.formats.columns import HAS, TEXT, parse_kind

from .batch import Batch


@dataclass(frozen=True, slots=True)
class Filled:
    """A field of a `Loader`, a column or a part such as "txt", with a default for samples without a value.

    >>> fields = ("image", shardflow.columns.Filled("caption", ""))
    >>> loader = shardflow.Loader("photos256", batch_size=256, fields=fields)

    Args:
        name: The column or part.
        default: The value; for a column of lists, a list or a number for all places; for a part, any value.
    """

    name: str
    default: Any


class ColumnFields:
    """The fields of a batch that come from the columns of a split: NAME, and has_NAME, whether there is a value.

    Args:
        fields: All fields of a batch.
        split: The split.
        filled: Column or part → default.
        parts: The parts of the samples; None if unknown.
        drawn: Returns the numbers of the samples that an epoch can have; called if a column has gaps.

    Attributes:
        kinds: Field → its kind; samples of one batch have equal kinds.
        of_parts: Part → default.

    Raises:
        ConfigError: Samples lack a value in a column without a default; a default does not fit its column; or pyarrow
            is missing.
    """

    def __init__(
        self,
        fields: Sequence[str],
        split: Split,
        filled: Mapping[str, Any],
        parts: Collection[str] | None,
        drawn: Callable[[], npt.NDArray[np.int64]],
    ) -> None:
        self._columns, kinds = split.columns, split.columns.kinds
        self.kinds = {name: kinds[name] for name in fields if name in kinds}
        self.kinds |= {name: "mask" for name in fields if name not in kinds and name.removeprefix(HAS) in kinds}
        split.columns.used = tuple(dict.fromkeys(self._column_of(name) for name in self.kinds))
        if self.kinds:
            import_pyarrow()
        self.of_parts = {name: default for name, default in filled.items() if name not in kinds}
        for name in self.of_parts:
            if parts is not None and name not in parts:
                raise ConfigError(
                    f"Filled({name!r}, ...) names neither a column ({', '.join(kinds) or 'none'}) nor a part "
                    f"({', '.join(sorted(parts))}); in a mix, make a loader without it for this source"
                )
        self._defaults = {name: _default(name, kinds[name], filled[name]) for name in filled if name in kinds}
        said = {name for name, kind in self.kinds.items() if name in filled or HAS + name in fields or kind == "mask"}
        self._needed = [name for name in self.kinds if name not in said]
        for name in self._needed:
            if split.columns.missing(name) and (missing := _missing(split, name, drawn())):
                raise ConfigError(
                    f"column {name!r}: {plural(missing, 'sample')} of split {split.name!r} have no value; use "
                    f"columns.Filled({name!r}, default) in fields, or add the field {HAS + name!r} to get 0 or '' and "
                    "a mask, or add values with `shardflow columns add --replace`"
                )

    def __contains__(self, field: object) -> bool:
        return field in self.kinds

    def values(self, field: str, shard: int, records: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a field of some records of a shard."""
        name = self._column_of(field)
        found = self._columns.read_often(name, shard)
        if name != field:
            return found.present[records]
        values, present = Values(*found).take(records)
        if name in self._defaults:
            values[~present] = self._defaults[name]
        elif name in self._needed and not present.all():
            message = f"column {name!r}: a sample outside the loader's epochs has no value"
            raise ConfigError(f"{message}; use columns.Filled({name!r}, default)")
        return values

    def _column_of(self, field: str) -> str:
        return field if field in self._columns.kinds else field.removeprefix(HAS)


def collate_column(field: str, batch: Batch, sources: Sequence[ColumnFields]) -> Any:
    """Return a field of a batch: a tensor [B], [B, D] for lists, or a list of str."""
    for sample in batch.samples:
        if field in sample.parts:
            message = f"{field!r} is a column and a part of the sample; drop the column, and add it under another name"
            raise sample.with_sample(ConfigError(message))
    places = np.array(
        [(source, sample.shard, sample.record) for source, sample in zip(batch.sources, batch.samples, strict=True)]
    )
    parts, order = [], []
    for source, shard in np.unique(places[:, :2], axis=0).tolist():
        here = np.flatnonzero((places[:, 0] == source) & (places[:, 1] == shard))
        parts.append(sources[source].values(field, shard, places[here, 2]))
        order.append(here)
    values = np.concatenate(parts)[np.argsort(np.concatenate(order))]
    return values.tolist() if values.dtype == object else torch.from_numpy(values)


def _missing(split: Split, name: str, drawn: npt.NDArray[np.int64]) -> int:
    """Return how many of these samples have no value in a column."""
    comes = np.zeros(len(split), dtype=np.bool_)
    comes[drawn] = True
    if comes.all():
        return split.columns.missing(name)  # without reading
    by_shard = np.split(comes, np.cumsum(split.shard_samples)[:-1])
    return sum(
        int((here & ~split.columns.read(name, shard).present).sum())
        for shard, here in enumerate(by_shard)
        if here.any()
    )


def _default(name: str, kind: str, default: Any) -> Any:
    """Return a default in the type of a column; ConfigError if it does not fit."""
    scalar, width = parse_kind(kind)
    if scalar == TEXT and isinstance(default, str):
        return default
    with contextlib.suppress(TypeError, ValueError):
        value = np.asarray(default)
        if scalar != TEXT and value.shape in ((), (width,)) and np.can_cast(value.dtype, scalar, "same_kind"):
            return value.astype(scalar)
    raise ConfigError(f"Filled({name!r}, {default!r:.40}): column {name!r} has values of type {kind}")
