"""The origin of a dataset: the receipts and the sources from which its shards can be packed again.

`verify --source` packs some samples again and compares them; a repair packs whole shards and replaces the damaged ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.virtual_dataset import refuse_virtual
from shardflow.errors import ConfigError, IntegrityError, NotFoundError
from shardflow.formats.labels import are_ids, are_numbers
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import Shard

from .jobs import Job, content_now, identity_digits
from .sample_recipe import SampleRecipe
from .sources.items import Item
from .sources.labelling import append_classes, is_moved
from .sources.resolve import list_source
from .sources.source import Source

NOT_IN_SOURCES = "the source has no"
"""The beginning of messages about a shard or a sample whose input is gone."""

FoundInputs: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[Source, Item]]]
"""Split and path → the inputs of the sources."""


@contextlib.contextmanager
def open_sources(
    dataset: Dataset, sources: Sequence[Any], source_options: Mapping[str, Any] | None = None
) -> Iterator[list[Source]]:
    """Open the sources of a dataset, with the dataset's class numbers; see `verify` for arguments and errors."""
    if sources:
        remedy_of_index = "there is nothing to compare them with; without sources, verify finds damage"
        refuse_virtual(dataset, "receipts", "compare", remedy_of_index)
    if sources and dataset.manifest.sharding is None:
        raise ConfigError(f"{dataset.url} was not made by packing: nothing says which input became which sample")
    parts, labels = dataset.manifest.annotations.parts, dataset.classes is not None
    names = dataset.classes or ()
    ids = names if are_ids(names) or any(is_moved(name, number) for number, name in enumerate(names)) else None
    with contextlib.ExitStack() as stack:
        listed = (
            stack.enter_context(list_source(source, source_options, parts=parts, labels=labels, ids=ids))
            for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)
        )
        labelled = {split: bool(each.classes) for split, each in (dataset.manifest.statistics or {}).items()}
        yield [append_classes(_as_numbers(source, dataset), dataset.manifest.classes, labelled) for source in listed]


def _as_numbers(source: Source, dataset: Dataset) -> Source:
    """Return a source whose labels are numbers with the names that the dataset gave them, as by --classes."""
    known = dataset.manifest.classes or ()
    if source.has_own_classes and are_numbers(source.classes or ()) and len(source.classes or ()) <= len(known):
        return replace(source, classes=known)
    return source


def find_inputs(sources: Iterable[Source], wanted: Iterable[tuple[Shard, Receipt, Sequence[int]]]) -> FoundInputs:
    """Return the inputs of sources with the paths of the `wanted` ones: shards, receipts, and slots in the receipts."""
    paths = ((_split(shard), receipt.inputs(), slots) for shard, receipt, slots in wanted)
    names = {(split, inputs[slot]) for split, inputs, slots in paths for slot in slots}
    found: dict[tuple[str, str], list[tuple[Source, Item]]] = {}
    for source in sources:
        for split, items in source.splits.items():
            for item in items:
                if (split, item.path) in names:
                    found.setdefault((split, item.path), []).append((source, item))
    return found


def job_again(
    shard: Shard, receipt: Receipt, slots: Sequence[int], found: FoundInputs, recipe: SampleRecipe, dst: str = ""
) -> tuple[Source, Job]:
    """Return the source of consecutive inputs of a shard, given by `slots`, and the job to pack them again.

    Raises:
        NotFoundError: An input is not in `found`.
        IntegrityError: Several inputs in `found` have its path, and none is the packed one.
    """
    paths, split = receipt.inputs(), _split(shard)
    chosen = [_choose(shard, paths[slot], receipt, slot, found.get((split, paths[slot]), ())) for slot in slots]
    source = chosen[0][0]
    job = Job(
        name=shard.name.removesuffix(".tar"),
        first=receipt.first + slots[0],
        items=[item for _, item in chosen],
        reader=source.reader,
        dst=dst,
        recipe=recipe,
    )
    return source, job


def not_in_sources(path: str, shard: Shard) -> str:
    """Return the problem of a sample whose input is gone."""
    return f"{NOT_IN_SOURCES} {path!r}, from which {shard.name} was packed"


def _split(shard: Shard) -> str:
    return shard.name.partition("/")[0]


def _choose(
    shard: Shard, path: str, receipt: Receipt, slot: int, candidates: Sequence[tuple[Source, Item]]
) -> tuple[Source, Item]:
    """Return which of the inputs with a path is the packed one. A single candidate is returned without a check."""
    if not candidates:
        raise NotFoundError(not_in_sources(path, shard))
    if len(candidates) == 1:
        return candidates[0]
    record = receipt.record(slot)
    for source, item in candidates:
        if record.identity == identity_digits(item):
            return source, item
        if item.size in (-1, record.size) and record.content == content_now(item, source.reader):
            return source, item
    found = f"the source has {len(candidates)} inputs {path!r}"
    raise IntegrityError(f"{found}, and {shard.name} was packed from none of them")
