"""Existing shards: the samples of WebDataset tars, or of a shardflow dataset, packed again.

The manifest and indexes of a shardflow dataset give its splits, classes and the locations of all parts, and each part
is checked by its CRC-32 when it is read; its tars are opened only for labels, for the keys of a selection of a tar's
samples, or if an index is lost. Its receipts give the paths from which the samples were packed. For other tars, the
listing reads the headers; a remote tar is read as a whole, and then again, sample by sample, for packing.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardflow._wording import first_few, plural
from shardflow.dataset.finding_tars import find_tars, matching, split_pattern, splits_of_files
from shardflow.dataset.label_numbering import Named
from shardflow.dataset.receipts import find_receipt
from shardflow.dataset.shard_rows import ShardRows, read_index
from shardflow.dataset.tar_file import open_tar
from shardflow.errors import ConfigError, DecodeError, FormatError, IntegrityError, NotFoundError, SampleError
from shardflow.formats import manifest, shard_index
from shardflow.formats.coordinates import parse_json
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.labels import CLASS_PART, LABEL_PARTS, MAX_LABEL_BYTES, parse_labels
from shardflow.formats.shard import Shard
from shardflow.formats.tar_members import TarBytes, crc32
from shardflow.formats.tar_samples import read_samples
from shardflow.formats.virtual_roots import name_of_other_tar, split_shard_name
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import is_remote, join_name
from shardflow.storage.virtual import root_url, virtual_storage

from .items import Item, Items, encode_more, identity_of
from .labelling import NUMBER, number_labels, refuse_renumbering, unlabelled_input
from .reader import Reader, file_state, too_many_bytes
from .sample_adapter import LIKE_LABEL
from .source import Source, SourceKind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards(SourceKind):
    """The samples of existing shards.

    The image of a sample is its first part with an image extension (`jpg`, `png`, ...); `.cls` is its label; all other
    parts are kept. A sample is named by tar and key: "03.tar/17"; in a shardflow dataset by the path in its receipt,
    `Split.source`, or without receipts by shard and record: "train/000003.tar#17".

    Args:
        url: A shardflow dataset; or a directory or URL with tars; or a pattern with braces or wildcards:
            "s3://bucket/{00000..00099}.tar". A name such as `photos-val-000.tar`, or else a folder such as `val`, gives
            the split of a tar; otherwise the name of the directory does, or all tars are for training.
        classes: Class names in the order of their labels, or a file with one per line. A number in `.cls` is an index
            into these names, even if the names are numbers. The labels of a shardflow dataset, which has class names,
            are renumbered to this order.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack(shardflow.sources.Shards("laion/{00000..00099}.tar"), "laion256/")
    """

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:
        """Return whether a path or URL names tars, or a dataset."""
        return split_pattern(url).pattern is not None or _is_dataset(open_storage(url, storage_options))

    def list(self) -> Source:
        """List the samples, in the order of the shards' names."""
        root, pattern = split_pattern(self.url)
        storage = open_storage(root, self.storage_options)
        reader = Reader.at(storage, root, self.storage_options)
        if pattern is None and _is_dataset(storage):
            return replace(self._list_dataset(storage, root, reader), is_dataset=True)
        return self._list_tars(storage, reader, find_tars(storage, pattern, self.storage_options, tagged=True))

    def _list_dataset(self, storage: Storage, url: str, reader: Reader) -> Source:
        dataset = manifest.from_bytes(storage.read(manifest.FILE_NAME))
        tars = virtual_storage(storage, url, dataset.roots, self.storage_options)
        _warn_of_more_tars(storage, dataset)
        if dataset.columns:
            columns = ", ".join(dataset.columns)
            logger.warning("%s: the columns %s are not packed; add them to the new dataset", storage, columns)
        unlabelled = Items.of(
            each
            for split, shards in dataset.splits.items()
            for shard in shards
            for each in _indexed_samples(tars, dataset, shard, split, _place(url, dataset, shard))
        )
        if self.classes is None:
            source = number_labels(unlabelled, dataset.classes, storage, reader)
            return replace(source, annotations=dataset.annotations)
        names: dict[Any, Any] = dict(enumerate(dataset.classes or ()))

        def name(label: Named) -> Named:
            several: tuple[Any, ...] | None = label if isinstance(label, tuple) else None
            return names.get(label, label) if several is None else tuple(names.get(one, one) for one in several)

        source = number_labels(unlabelled.relabelled(lambda key: (key[0], name(key[1]))), self.classes, storage, reader)
        numbers = {name: number for number, name in enumerate(source.classes or ())}
        moved = {number: numbers[name] for number, name in names.items() if name in numbers}
        refuse_renumbering(dataset.annotations, moved, "--classes")
        return replace(source, annotations=dataset.annotations)

    def _list_tars(self, storage: Storage, reader: Reader, tags: Mapping[str, str]) -> Source:
        repeated: list[str] = []
        unlabelled = Items.of(
            each
            for name, split in splits_of_files(str(storage), tags).items()
            for each in _tar_samples(storage, name, tags[name], split, repeated)
        )
        if repeated:
            message = "%s: %s with a repeated key in their tar, such as %r; each is packed separately"
            logger.warning(message, storage, plural(len(repeated), "sample"), repeated[0])
        if not unlabelled:
            message = f"{storage}: no sample in {plural(len(tags), 'tar')}, such as {next(iter(tags))!r}"
            raise ConfigError(f"{message}; a sample is files of one key, with an image among them: 17.jpg, 17.cls")
        if all(label is None for _, label in unlabelled.labels):
            _warn_of_label_in_json(unlabelled[0], reader, storage)
        return number_labels(unlabelled, self.classes, storage, reader)


def _is_dataset(storage: Storage) -> bool:
    return storage.version(manifest.FILE_NAME) is not None


def _warn_of_more_tars(storage: Storage, dataset: manifest.Manifest) -> None:
    """Warn of tars that were added to the folder of an in-place index since it was made."""
    here = {name for name, root in dataset.roots.items() if root.url == "."}
    named = (split_shard_name(shard.name) for shards in dataset.splits.values() for shard in shards) if here else ()
    indexed = {path for name, path in named if name in here}
    if indexed and (more := sorted({*matching(storage.listing(), "**/*.tar")} - indexed)):
        few, tars = first_few(more, 3), plural(len(more), "tar")
        logger.warning("%s has %s outside its index: %s; index again", storage, tars, few)


def _warn_of_label_in_json(first: Item, reader: Reader, where: object) -> None:
    """Warn if the `.json` of the first sample of tars without `.cls` has a class."""
    with contextlib.suppress(ValueError, OSError, IntegrityError):  # it is read again for packing
        content = parse_json("json", reader.read(first).parts.get("json", b"{}"))
        if name := next((name for name in LIKE_LABEL if isinstance(content, dict) and name in content), None):
            remedy = "pack samples of a pipeline with that entry, shardflow.pack(samples, dst)"
            message = "%s has no .cls, so there are no labels; to make classes of %r in the .json, %s"
            logger.warning(message, where, name, remedy)


def _tar_samples(storage: Storage, name: str, tag: str, split: str, repeated: list[str]) -> Iterator[Item]:
    """Yield the samples of a tar; add the paths of those with a repeated key to `repeated`."""
    keys = set[str]()
    local = storage.local_path(name)
    identity = file_state(local)[1] if local is not None else identity_of(tag) if tag else 0
    with open_tar(storage, name) as tar:
        for sample in read_samples(tar, storage.url(name)):
            path = f"{name}/{sample.key}" if sample.key else name
            if sample.key in keys:
                repeated.append(path)
            keys.add(sample.key)
            if sample.problem:
                yield unlabelled_input(split, None, path, -1, identity, encode_more(bad=sample.problem))
                continue
            # Samples that are too large are refused without reading them.
            has_crc = local is None and not too_many_bytes(sum(size for _, size in sample.parts.values()))
            locations = {
                part: [name, *span, *([crc32(tar, *span)] if has_crc else [])] for part, span in sample.parts.items()
            }
            yield _unlabelled_input(tar, split, path, locations, identity)


def _place(url: str, dataset: manifest.Manifest, shard: Shard) -> str:
    """Return the place of a shard's tar for the reader, given the dataset's URL and roots."""
    if not dataset.roots:
        return shard.name
    name, path = split_shard_name(shard.name)
    root = dataset.roots[name]
    return join_name(root_url(url, root) if is_remote(url) else root.url, path)


def _indexed_samples(
    storage: Storage, dataset: manifest.Manifest, shard: Shard, split: str, place: str
) -> Iterator[Item]:
    """Yield the samples of a shard of a dataset, whose tar is at `place`."""
    made, tar_name = find_receipt(storage, shard.receipt_name, shard), name_of_other_tar(dataset.roots, shard.name)
    paths = made.sources if made is not None and len(made.sources) == shard.samples else ()
    # A virtual dataset may have only some of the tar's samples.
    by_key = {} if made is None or paths else dict(zip(made.keys(), made.sources, strict=True))
    index: shard_index.Index | None
    try:
        index = read_index(storage, shard)
        has_labels = bool(np.isin(index["part"], [part.encode() for part in LABEL_PARTS]).any())
        tar_is_read = has_labels or bool(by_key) or tar_name is not None
    except (NotFoundError, IntegrityError):
        index, tar_is_read = None, True
    with open_tar(storage, shard.name) if tar_is_read else contextlib.nullcontext() as tar:
        if index is None:
            assert tar is not None
            index = _rebuilt(storage, shard, tar)
        rows = ShardRows.from_index(index, shard.samples)
        for record in range(shard.samples):
            path = paths[record] if paths else f"{shard.name}#{record}"
            if by_key or tar_name is not None:
                assert tar is not None
                begin, end = rows.key_span(record)
                with contextlib.suppress(IntegrityError):
                    key = rows.key(record, tar.read(begin, end - begin), begin)
                    path = by_key.get(key, path) if tar_name is None else f"{tar_name}/{key}"
            locations = {row[1].decode(): [place, *row[2:5]] for row in rows.of_record(record)}
            yield _unlabelled_input(tar, split, path, locations, 0, own=True)


def _rebuilt(storage: Storage, shard: Shard, tar: TarBytes) -> shard_index.Index:
    try:
        data = shard_index.rebuild(tar, shard.index_sha256)
    except (FormatError, IntegrityError) as error:
        raise error.with_location(shard=storage.url(shard.name)) from None
    return shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)


def _unlabelled_input(
    tar: TarBytes | None, split: str, path: str, locations: dict[str, Any], identity: int, *, own: bool = False
) -> Item:
    """Return a sample, given the locations of its parts in a tar, which must be open if one is a label.

    `own` says that the tar belongs to a shardflow dataset.
    """
    try:
        if problem := too_many_bytes(sum(location[2] for location in locations.values())):
            raise SampleError(problem)
        label = _pop_label(tar, locations, own=own)
        image = next((part for part in locations if part in SOURCE_PARTS), None)
    except SampleError as error:
        return unlabelled_input(split, None, path, -1, identity, encode_more(bad=str(error)))
    if image is None:  # it may have declared images, which are unknown here
        return unlabelled_input(split, label, path, -1, identity, encode_more(image=False, parts=locations))
    location = locations.pop(image)
    more = encode_more(image=location, parts=locations)
    return unlabelled_input(split, label, path, location[2], identity, more)


def _pop_label(tar: TarBytes | None, locations: dict[str, Any], *, own: bool) -> Named:
    """Remove the label from the parts of a sample and return it; "007" is a number in `own` tars, a name in others."""
    part = next((part for part in LABEL_PARTS if part in locations), None)
    if part is None:
        return None
    _, offset, size, *checksum = locations.pop(part)
    if size > MAX_LABEL_BYTES:
        raise SampleError(f"its part {part!r} has {size:,} bytes; the limit for labels is {MAX_LABEL_BYTES:,}")
    assert tar is not None
    payload = bytes(tar.read(offset, size))
    if checksum not in ([], [zlib.crc32(payload)]):
        raise SampleError(f"its part {part!r} is damaged: its CRC-32 differs")
    text = payload.decode(errors="surrogateescape").strip()
    if part == CLASS_PART and not own and not NUMBER.fullmatch(text):
        return text  # refused later if it is not UTF-8
    try:
        found = parse_labels(part, payload)
    except DecodeError as error:
        raise SampleError(f"its part {part!r} cannot be read: {error}") from error
    return found[0] if part == CLASS_PART else found
