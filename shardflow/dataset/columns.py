"""Columns of a dataset: added from a table or a function, and dropped, each as a new version of the manifest.

As with an extension, only the manifest is replaced, see `write_lock`. The files of a dropped column stay, because
earlier versions have it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import did_you_mean, explain_unknown_arguments
from shardflow._wording import add_note, plural
from shardflow.errors import ConfigError, DecodeError, NotFoundError
from shardflow.formats import quarantine
from shardflow.formats.annotations import mask_field
from shardflow.formats.columns import COMPUTED_FIELDS, HAS, MAX_FILE_BYTES, NAME, TABLE_FIELDS, Column, stems_of
from shardflow.formats.labels import MAX_LABEL_BYTES
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import OnShard, Shard
from shardflow.storage.interface import Writer

from .column_files import FilesOfColumn, Table, Values, import_pyarrow, load_table, take
from .leftovers import remove_leftovers
from .open_dataset import Dataset, Split, open_dataset
from .own_files import refuse_foreign
from .sample_table import refuse_other_name
from .selection import image_checksums, selected_contents, shard_keys
from .virtual_dataset import SelectedRows, build_virtual_dataset
from .write_lock import WriteLock, acquire_to_extend, clean_up

logger = logging.getLogger(__name__)

ALLOWED = ("unmatched", "repeated")
_FILES_AT_A_TIME = 8
_NAMED = 3
_KEEP = -2
_FIELDS_OF_ANNOTATIONS = ("mask", "masks", "boxes", "keypoints", "images")
_BY_JSON = "columns.compute(URL, NAME, FUNCTION, field='json')"
_IS_THERE = "the dataset has it; replace=True or --replace replaces it in a new version"

_Rows = dict[str, npt.NDArray[np.int64]]
"""Split → for each of its samples the row of a table, -1 for none, `_KEEP` if it keeps its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsReport:
    """The result of adding columns.

    Attributes:
        fingerprint: Fingerprint of the new version, or of the new virtual dataset.
        columns: Column → the type of its values.
        rows: Number of rows of the table.
        unmatched: Number of rows that belong to no sample.
        repeated: Number of rows with the key of an earlier row; the first row of a key counts.
        matched: Split → number of samples that have a row.
        samples: Split → number of samples.
    """

    fingerprint: str
    columns: Mapping[str, str]
    rows: int
    unmatched: int
    repeated: int
    matched: Mapping[str, int]
    samples: Mapping[str, int]


@explain_unknown_arguments({"on": "use key= or path=", "index": "use key= or path="})
def add(
    url: str | os.PathLike[str],
    table: Any,
    *,
    key: str | None = None,
    path: str | None = None,
    only: Sequence[str] | None = None,
    split: str | None = None,
    allow: Collection[str] = (),
    replace: bool = False,
    to: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> ColumnsReport:
    """Add columns of a table to a dataset, as a new version. Its tars are not touched.

    A row belongs to the sample that its key names. Samples without a row get no value. After an error or a kill the
    dataset is unchanged, and the same call continues; if the columns were added already, nothing changes.

    >>> shardflow.columns.add("photos256", "scores.parquet", key="key")
    >>> shardflow.columns.add("photos256", frame, path="file", only=["caption"])

    Args:
        url: A dataset, a directory or a URL.
        table: Path or URL of a `.parquet`, `.csv`, `.tsv` or `.jsonl` file, or an object with Arrow's PyCapsule
            interface, such as a table of pyarrow, pandas, polars or DuckDB. Its columns have numbers, texts, or lists
            of numbers of one length.
        key: The column of the table with the keys of the samples: "000000042", or "train:000000042" if several splits
            have the key.
        path: Instead of `key`, the column with the paths of the images as they were packed, or without extension.
        only: The columns to add; by default all others.
        split: Add values only to the samples of this split; other splits keep theirs.
        allow: "unmatched" leaves out rows that belong to no sample; "repeated" takes the first row of each key.
            Otherwise such rows are refused.
        replace: Replace values in columns of the same names. Samples without a row keep theirs, as do earlier versions.
        to: Make a virtual dataset with the columns at this directory or URL, and leave the dataset unchanged.
        storage_options: Options of fsspec's file systems for `url`, `table` and `to`, if these are URLs.
        progress: Called with each shard after its columns were written.

    Raises:
        NotFoundError: The dataset or the table is missing; or, with `path`, a receipt.
        ConfigError: An argument is wrong, the table does not fit the dataset, or pyarrow is missing.
        DatasetExistsError: Another process made a new version meanwhile, or `to` is a dataset.
        StoreError: Storage cannot be read or written, or another process is writing there.
    """
    if (key is None) == (path is None):
        raise ConfigError("name the column of the table that identifies the samples with either key= or path=")
    allow, only = (allow,) if isinstance(allow, str) else allow, (only,) if isinstance(only, str) else only
    if unknown := set(allow) - {*ALLOWED}:
        raise ConfigError(f"allow has {sorted(unknown)}; it takes {', '.join(ALLOWED)}")
    dataset = open_dataset(url, storage_options=storage_options)
    loaded = load_table(table, key or path or "", only, storage_options, by_path=path is not None)
    _check_names(dataset, loaded, replace, to)
    rows, example = _join(dataset, loaded, by_path=path is not None, only_split=split)
    counts = _count(dataset, loaded, rows, allow, example, path is not None)
    if key is not None and all(root.fingerprint for root in dataset.manifest.roots.values()):  # keys made by `pack`
        _refuse_own_ids(dataset, loaded, rows, key)
    if replace:
        rows = {name: np.where(found < 0, _KEEP, found) for name, found in rows.items()}
    return _added(dataset, loaded, rows, counts, replace, to, storage_options, progress)


def compute(
    url: str | os.PathLike[str],
    name: str,
    function: Callable[[list[Any]], Sequence[Any]],
    *,
    field: str,
    split: str | None = None,
    replace: bool = False,
    to: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> ColumnsReport:
    """Add a column that a function computes from a part or column of each sample, such as the length of its text.

    Samples are read once, in order, in this process. After an error the dataset is unchanged.

    >>> def count(texts):
    ...     return [len(text.split()) for text in texts]
    >>> report = shardflow.columns.compute("photos256", "words", count, field="txt")

    Args:
        url: A dataset, a directory or a URL.
        name: The name of the new column.
        function: Takes a list with the values of a shard's samples: texts of a `.txt`, values of a `.json`, bytes of
            another part; numbers or texts of a column. Returns as many values, None for a sample without a value.
        field: The part, such as "txt", or the column. Samples that lack it are not in the list, and get no value. So it
            is for those whose text or JSON cannot be read, with a warning.
        split: Compute values only for this split; other splits keep theirs.
        replace, to, storage_options, progress: As for `add`.

    Raises:
        ConfigError: No sample has the field, the function returns another number of values, or as for `add`.
        IntegrityError: A sample is damaged.
        DatasetExistsError, NotFoundError, StoreError: As for `add`.
    """
    pa = import_pyarrow()
    dataset = open_dataset(url, storage_options=storage_options)
    chosen = dataset if split is None else {split: dataset[split]}
    values: list[Any] = []
    rows: _Rows = {each: np.full(len(dataset[each]), -1 if each in chosen else _KEEP) for each in dataset}
    for own, opened in chosen.items():
        for number, first in enumerate(opened.first_sample(np.arange(len(opened.shards))).tolist()):
            records, given = _field_values(opened, number, field)
            try:
                returned = function(given) if given else []
                made = list(returned)
            except Exception as error:
                got = f"a list of {plural(len(given), 'value')} of {field!r}, from {opened.shards[number].name}"
                if (at := _raising(function, given)) is not None:
                    got += f"; it also raises for sample {opened[int(first + records[at])]['__key__']} alone"
                add_note(error, f"shardflow: raised by the function for column {name!r}, which got {got}")
                raise
            if isinstance(returned, str | bytes | Mapping | Set):
                found = type(returned).__name__
                raise ConfigError(f"the function for column {name!r} must return a list, found a {found}")
            if len(made) != len(given):
                raise ConfigError(
                    f"the function for column {name!r} returned {len(made)} values for {len(given)} of {field!r}"
                )
            rows[own][first + records] = len(values) + np.arange(len(given))
            values += made
    if not values:
        raise ConfigError(f"{dataset.url}: no sample has the part or column {field!r}")
    keys = [str(number) for number in range(len(values))]
    try:
        given_table = pa.table({"": keys, name: values})
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        kinds = "numbers, texts, or lists of numbers, all of one type; the .numpy() of a tensor"
        raise ConfigError(f"the function for column {name!r} must return {kinds}: {error}") from error
    table = load_table(given_table, "", [name], None)
    _check_names(dataset, table, replace, to)
    counts = {"rows": len(values), "unmatched": 0, "repeated": 0, **_matched(rows)}
    return _added(dataset, table, rows, counts, replace, to, storage_options, progress)


def _raising(function: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any]) -> int | None:
    """Return which of the values makes a function raise by itself, found by halves; None if none is found."""

    def raises(low: int, high: int) -> bool:
        try:
            list(function([*values[low:high]]))
        except Exception:  # as the caller's
            return True
        return False

    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if raises(low, middle) else (middle, high)
    return low if raises(low, high) else None


def _field_values(split: Split, number: int, field: str) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Return the records of a shard that have a value of a part or column, and the values."""
    if field in split.columns.kinds:
        values, present = split.columns.read(field, number)
        return np.flatnonzero(present), values[present].tolist()
    found: dict[int, Any] = {}
    unread: list[DecodeError] = []
    for record in range(split.shards[number].samples):
        sample = split.reader.read(number, record, sequential=True)
        try:
            if field in sample.parts:
                found[record] = sample.value(field)
        except DecodeError as error:
            unread.append(error)
    if unread:
        logger.warning("no value for %s of %s: %s", plural(len(unread), "sample"), split.shards[number].name, unread[0])
    return np.array([*found], dtype=np.int64), [*found.values()]


def drop(url: str | os.PathLike[str], names: Sequence[str], *, storage_options: Mapping[str, Any] | None = None) -> str:
    """Make a version of a dataset without some columns; return its fingerprint. Earlier versions keep them.

    If they were dropped already, nothing changes.

    >>> fingerprint = shardflow.columns.drop("photos256", ["score"])

    Raises:
        NotFoundError: The dataset is missing.
        ConfigError: The dataset never had one of the columns, or `names` is empty.
        DatasetExistsError: Another process made a new version meanwhile.
        StoreError: The dataset cannot be read or written.
    """
    names = [names] if isinstance(names, str) else list(names)
    dataset = open_dataset(url, storage_options=storage_options)
    columns = dataset.manifest.columns
    past = {stem.partition("-")[0] for stem in dataset.manifest.past_columns}
    if lacking := [name for name in names if name not in {*columns, *past}]:
        hint = did_you_mean(lacking[0], columns)
        raise ConfigError(f"{dataset.url} has no column {lacking[0]!r}{hint}; it has {', '.join(columns) or 'none'}")
    if not names:
        raise ConfigError("names is empty; name one or more columns to drop")
    with dataset.storage.exclusive_writer() as writer:
        remove_leftovers(dataset.storage.local_path(""))
        if columns.keys().isdisjoint(names):
            clean_up(dataset.storage)
            return dataset.fingerprint
        lock = acquire_to_extend(dataset.storage, lambda: f"drop {sorted(names)}", dataset.fingerprint, writer)
        return _publish(dataset, lock, {name: column for name, column in columns.items() if name not in names})


def _check_names(dataset: Dataset, table: Table, replaces: bool, to: str | os.PathLike[str] | None) -> None:
    has_all = to is None and table.columns.keys() <= dataset.manifest.columns.keys()  # possibly the same columns
    parts = _first_parts(dataset)
    parts |= {mask_field(part) for part in dataset.manifest.annotations.masks}
    taken = {*COMPUTED_FIELDS, *parts, *_FIELDS_OF_ANNOTATIONS}
    for name in table.columns:
        if not NAME.fullmatch(name):
            problem = "a column's name must have at most 64 letters, digits and _"
        elif name in taken or name.startswith(("box_", HAS)):
            problem = f"the name is taken by a field of a batch: {', '.join(sorted({*COMPUTED_FIELDS, *parts}))}"
        elif name in TABLE_FIELDS:
            problem = f"the name has another meaning in conditions, like {', '.join(TABLE_FIELDS)}"
        elif name in dataset.manifest.columns and not replaces and not has_all:
            problem = _IS_THERE
        else:
            continue
        raise _refusal(name, problem)


def _first_parts(dataset: Dataset) -> set[str]:
    """Return the parts of the first shard of each split."""
    first = [split.reader.rows(0) for split in dataset.values() if len(split)]
    return {part for rows in first if rows for part in rows.parts()}


def _or_by_json(dataset: Dataset) -> str:
    """Return the remedy for ids that may stand in the samples' json; "" if the samples have none."""
    return f"; ids in the samples' json are joined by {_BY_JSON}" if "json" in _first_parts(dataset) else ""


def _refusal(name: str, problem: str) -> ConfigError:
    return ConfigError(f"column {name!r}: {problem}. Give it another name, or choose others with only= or --only")


def _refuse_other_values(dataset: Dataset, table: Table, rows: _Rows) -> None:
    """Refuse columns that the dataset has, unless an earlier call added the same values."""
    made = _NewFiles(dataset, table, rows, {name: dataset.manifest.columns[name].stem for name in table.columns})
    made.digest()
    for name, column in made.columns().items():
        if column != dataset.manifest.columns[name]:
            raise _refusal(name, _IS_THERE)


def _join(dataset: Dataset, table: Table, *, by_path: bool, only_split: str | None) -> tuple[_Rows, str]:
    """Return the row of each sample of a dataset, and the key of a sample; refuse ambiguous keys."""
    import pyarrow as pa
    from pyarrow import compute

    if only_split is not None:
        dataset[only_split]  # raises ConfigError if it does not exist
    rows: _Rows = {}
    example = ""
    for name, split in dataset.items():
        found = []
        for number, shard in enumerate(split.shards):
            if only_split not in (None, name):
                found.append(np.full(shard.samples, _KEEP, dtype=np.int64))
                continue
            keys = _paths(split, number) if by_path else shard_keys(split, number)
            example = example or keys[0]
            keys = [key.encode(errors="backslashreplace").decode() for key in keys]  # names of files may not be UTF-8
            choices = [pa.array(keys, pa.large_string())]
            if by_path:  # ids in a packed table may have had no extension
                choices.append(pa.array([os.path.splitext(key)[0] for key in keys], pa.large_string()))
            else:
                choices.insert(0, pa.array([f"{name}:{key}" for key in keys], pa.large_string()))
            matches = [compute.index_in(choice, value_set=table.keys) for choice in choices]
            found.append(compute.fill_null(compute.coalesce(*matches), -1).to_numpy().astype(np.int64))
        rows[name] = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    if by_path:
        _refuse_other_images(dataset, table, rows)
    else:
        _refuse_shared(table, rows)
    return rows, example


def _paths(split: Split, shard: int) -> Sequence[str]:
    try:
        return split.shard_sources(shard)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; or join by key, with key= or --key") from error


def _refuse_shared(table: Table, rows: _Rows) -> None:
    """Refuse keys of several samples, in one split or several."""
    used = np.concatenate([*rows.values()])
    numbers, counts = np.unique(used[used >= 0], return_counts=True)
    if len(shared := numbers[counts > 1]):
        example = table.keys[int(shared[0])].as_py()
        splits = [split for split, found in rows.items() if (found == shared[0]).any()]
        message = f"{plural(len(shared), 'key')} of the table, such as {example!r}, match several samples"
        if len(splits) > 1:
            remedy = f"write '{splits[0]}:{example}' into the table, or name the split with --split {splits[0]}"
        else:
            remedy = "join by path (--path), or add the columns to each dataset before they are merged"
        raise ConfigError(f"{message}, in {' and '.join(splits)}; {remedy}")


def _refuse_own_ids(dataset: Dataset, table: Table, rows: _Rows, field: str) -> None:
    """Refuse keys that match by accident: the part `json` of the last matched sample has another one."""
    split = next(split for name, split in dataset.items() if (rows[name] >= 0).any())
    number = int(np.flatnonzero(rows[split.name] >= 0)[-1])
    key = table.keys[int(rows[split.name][number])].as_py()
    shard, record = split.locate(number)
    if ":" in key or (index := split.reader.rows(shard)) is None:
        return
    refuse_other_name(split, number, key)
    for _, part, offset, size, *_ in index.of_record(record):
        if part != b"json" or size > MAX_LABEL_BYTES:
            continue
        found: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(dataset.storage.read_range(split.shards[shard].name, offset, offset + size))
        if isinstance(found, dict) and str(found.get(field, key)) != key:
            message = f"the sample with pack's key {key!r} has {field!r} {found[field]!r:.30} in its json"
            raise ConfigError(
                f"{message}; join by the json with {_BY_JSON}, or write '{split.name}:{key}' for pack's key"
            )


def _refuse_other_images(dataset: Dataset, table: Table, rows: _Rows) -> None:
    """Refuse paths from which different images were packed, as by `extend`; copies of an image get the same value."""
    used = np.concatenate([*rows.values()])
    if len(np.unique(used[used >= 0])) == (used >= 0).sum():
        return
    indexes = (split.reader.index(number) for split in dataset.values() for number in range(len(split.shards)))
    images = np.concatenate([image_checksums(index) for index in indexes])
    numbers, counts = np.unique(np.unique(np.stack([used, images])[:, used >= 0], axis=1)[0], return_counts=True)
    if len(shared := numbers[counts > 1]):
        example = table.keys[int(shared[0])].as_py()
        message = f"different images were packed from {example!r} and {len(shared) - 1} other paths"
        raise ConfigError(f"{message}; join by key (--key)")


def _count(
    dataset: Dataset, table: Table, rows: _Rows, allow: Collection[str], ours: str, by_path: bool
) -> dict[str, Any]:
    """Return the counts of a report; refuse rows that the caller does not allow."""
    from pyarrow import compute

    used = np.concatenate([*rows.values(), np.empty(0, dtype=np.int64)])
    total = len(table.keys)
    distinct = compute.unique(table.keys.drop_null())
    first = compute.index_in(distinct, value_set=table.keys).to_numpy(zero_copy_only=False)
    unused = np.setdiff1d(first, used)
    without_key = table.keys.null_count
    unmatched, repeated = len(unused) + without_key, total - len(distinct) - without_key
    if not (used >= 0).any():
        example = table.keys[0].as_py() if total else "nothing"
        remedy = "join by another column of the table, by key= or --key, or by path= or --path"
        if str(example).isdecimal():
            remedy += "; ids with leading zeros must be read as text (dtype=str)"
        raise ConfigError(
            f"no row belongs to a sample: the table has {'paths' if by_path else 'keys'} such as {example!r}, samples "
            f"such as {ours!r}; {remedy}{_or_by_json(dataset)}"
        )
    if unmatched and "unmatched" not in allow:
        some = ", ".join(repr(table.keys[int(row)].as_py()) for row in unused[:_NAMED]) or "null"
        message = f"{plural(unmatched, 'row')} of {total} belong to no sample, such as {some}"
        raise ConfigError(f"{message}; leave them out with allow= or --allow unmatched{_or_by_json(dataset)}")
    if repeated and "repeated" not in allow:
        keys = Counter(table.keys.drop_null().to_pylist()).most_common(1)
        message = f"{plural(repeated, 'row')} of {total} have the key of an earlier row, such as {keys[0][0]!r}"
        raise ConfigError(f"{message}; take the first row of each key with allow= or --allow repeated")
    return {"rows": total, "unmatched": unmatched, "repeated": repeated, **_matched(rows)}


def _matched(rows: _Rows) -> dict[str, dict[str, int]]:
    """Return the number of samples of each split that have a row, and of all its samples."""
    matched = {split: int((found >= 0).sum()) for split, found in rows.items()}
    return {"matched": matched, "samples": {split: len(found) for split, found in rows.items()}}


def _added(
    dataset: Dataset,
    table: Table,
    rows: _Rows,
    counts: Mapping[str, Any],
    replaces: bool,
    to: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    progress: OnShard,
) -> ColumnsReport:
    """Add the columns of a table, as a version of the dataset or a virtual one, and report them."""
    for split in (dataset[name] for name, found in rows.items() if _KEEP in found):
        for name, (kind, _) in table.columns.items():
            if split.columns.kinds.get(name, kind) != kind and split.columns.missing(name) < len(split):
                message = f"column {name!r} has values of type {split.columns.kinds[name]} in split {split.name!r}"
                raise ConfigError(f"{message}, the new ones have {kind}; add values of all samples, or of one type")
    if to is not None:
        fingerprint = _add_to_view(dataset, table, rows, to, storage_options, progress)
    else:
        with dataset.storage.exclusive_writer() as writer:
            remove_leftovers(dataset.storage.local_path(""))
            if replaces or dataset.manifest.columns.keys().isdisjoint(table.columns):
                fingerprint = _add_version(dataset, table, rows, writer, progress)
            else:
                _refuse_other_values(dataset, table, rows)
                clean_up(dataset.storage)
                fingerprint = dataset.fingerprint
    return ColumnsReport(
        fingerprint=fingerprint, columns={name: kind for name, (kind, _) in table.columns.items()}, **counts
    )


def _shard_values(dataset: Dataset, table: Table, rows: _Rows) -> Iterator[tuple[str, Shard, dict[str, Values]]]:
    """Yield split and entry of each shard, and the values of its samples in each column."""
    for name, split in dataset.items():
        ends = np.cumsum(split.shard_samples)
        for number, (shard, end) in enumerate(zip(split.shards, ends.tolist(), strict=True)):
            here = rows[name][end - shard.samples : end]
            values = {column: take(kind, array, here) for column, (kind, array) in table.columns.items()}
            for column, new in values.items() if (kept := here == _KEEP).any() else ():
                if split.columns.kinds.get(column) == table.columns[column][0]:
                    old = split.columns.read(column, number)
                    new.values[kept], new.present[kept] = old.values[kept], old.present[kept]
            yield name, shard, values


class _NewFiles:
    """The files of a table's columns: made once for the digest in the lock, and again to be written."""

    def __init__(self, dataset: Dataset, table: Table, rows: _Rows, stems: Mapping[str, str] | None = None) -> None:
        self._given, old = (dataset, table, rows), dataset.manifest
        taken = (*old.past_columns, *(column.stem for column in old.columns.values()))
        stems = stems_of(table.columns, taken) if stems is None else stems
        self._made = [FilesOfColumn(name, kind, stems[name]) for name, (kind, _) in table.columns.items()]

    def __iter__(self) -> Iterator[tuple[Shard, list[tuple[str, bytes]]]]:
        """Yield each shard, and the names and contents of its files."""
        for split, shard, values in _shard_values(*self._given):
            yield shard, [files.add(split, shard, values[files.name]) for files in self._made]

    def columns(self) -> dict[str, Column]:
        """Return the entries of the columns in the manifest, after all files were yielded."""
        return {files.name: files.column() for files in self._made}

    def digest(self) -> str:
        """Return a digest of all files."""
        for _ in self:
            pass
        entries = {name: column.to_json() for name, column in self.columns().items()}
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _add_version(dataset: Dataset, table: Table, rows: _Rows, writer: Writer, progress: OnShard) -> str:
    """Write the files of the columns, and publish the version that has them."""
    lock = acquire_to_extend(dataset.storage, _NewFiles(dataset, table, rows).digest, dataset.fingerprint, writer)
    if lock.blob is None:
        lock.read_version()  # another process may have made a version since the dataset was opened
    made, written = _NewFiles(dataset, table, rows), deque[Future[None]]()
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        for shard, files in made:
            written += [pool.submit(write_file, lock, name, data) for name, data in files]
            while len(written) > _FILES_AT_A_TIME:
                written.popleft().result()
            if progress is not None:
                progress(shard)
        for each in written:
            each.result()
    lock.check()
    return _publish(dataset, lock, {**dataset.manifest.columns, **made.columns()})


def write_file(lock: WriteLock, name: str, data: bytes) -> None:
    """Write the file of a column; the only file that may exist is that of an unfinished attempt."""
    storage = lock.storage
    if storage.version(name) is not None:
        if storage.read(name, most_bytes=MAX_FILE_BYTES) == data:
            return
        refuse_foreign(storage, [name])
    lock.put(name, data)


def _publish(dataset: Dataset, lock: WriteLock, columns: Mapping[str, Column]) -> str:
    """Publish a version with these columns; return its fingerprint."""
    old = dataset.manifest
    kept = {column.stem for column in columns.values()}
    gone = (column.stem for column in old.columns.values() if column.stem not in kept)
    return publish_version(dataset, lock, replace(old, columns=columns, past_columns=(*old.past_columns, *gone)))


def publish_version(dataset: Dataset, lock: WriteLock, new: Manifest) -> str:
    """Publish a version with the same quarantine; return its fingerprint."""
    name, bad = dataset.read_quarantine() or (quarantine.FILE_NAME, b"")
    shared = name == quarantine.FILE_NAME and not new.roots  # later versions find it too
    lock.replace_version(new.fingerprint, new.to_bytes(), None if shared or not bad else bad)
    lock.release()
    return new.fingerprint


def _add_to_view(
    dataset: Dataset,
    table: Table,
    rows: _Rows,
    to: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    progress: OnShard,
) -> str:
    """Make a virtual dataset of all samples, with the old columns and the new ones."""
    everything = {name: (name, np.ones(len(split), dtype=np.bool_)) for name, split in dataset.items()}
    contents = selected_contents(dataset, everything, f"columns {', '.join(table.columns)} of {dataset.fingerprint}")

    def selected() -> Iterator[SelectedRows]:
        added = _shard_values(dataset, table, rows)
        for one, (_, shard, values) in zip(contents.selected, added, strict=True):
            yield one._replace(columns={**one.columns, **values})
            if progress is not None:
                progress(shard)

    kinds = {**contents.kinds, **{name: kind for name, (kind, _) in table.columns.items()}}
    report = build_virtual_dataset(
        to, replace(contents, selected=selected(), kinds=kinds), storage_options=storage_options
    )
    return report.fingerprint
