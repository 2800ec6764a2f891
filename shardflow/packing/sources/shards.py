"""Existing shards: the samples of tars in the WebDataset convention, or of a dataset of ours, packed anew.

Of our own datasets the splits, the classes and the places of all parts are known from the manifest and the indexes,
and each part is checked by its CRC-32 as it is read; the tars are looked at for labels, and where an index is lost. Of
other tars the headers are read first. A tar behind a URL is read through once for all that, whole in memory, one after
the other, and a second time, sample by sample, to be packed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import IO, Any

import numpy as np

from shardflow.dataset.label_numbering import Classes, Named
from shardflow.dataset.shard_rows import read_index
from shardflow.errors import ConfigError, DecodeError, FormatError, IntegrityError, NotFoundError, SampleError
from shardflow.formats import manifest, shard_index
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.labels import CLASS_PART, LABEL_PARTS, parse_labels
from shardflow.formats.manifest import SPLITS
from shardflow.formats.roots import split_shard_name
from shardflow.formats.tar_samples import read_samples
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.url_patterns import ALL, expand_braces, has_wildcards, matching_tars, split_pattern
from shardflow.storage.virtual import root_url, virtual_storage

from .items import Item, Items, more
from .labelling import draft, numbered
from .reader import Reader
from .source import Source

_NUMBER = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Shards:
    """The samples of existing shards.

    The image of a sample is its first part that is named like one (`jpg`, `png`, ...); `.cls` is its label; all other
    parts go along. A sample that is damaged or has no image is quarantined by its key, which of our own datasets is
    the shard and the number of the record in it: "train/000003.tar#17".

    Args:
        url: A dataset of ours; or a directory or URL with tars, below folders named like splits or all for training;
            or a pattern with braces or wildcards: "s3://bucket/{00000..00099}.tar".
        classes: Class names in the order of their labels, or a file with one a line. Without them, numbers in `.cls`
            are their own names. A dataset of ours has names already: its labels get the numbers that these have here.
        storage_options: What fsspec's file system takes.

    Example:
        >>> shardflow.pack(shardflow.Shards("laion/{00000..00099}.tar"), "laion256/")  # doctest: +SKIP
    """

    url: str | os.PathLike[str]
    _: KW_ONLY
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def list(self) -> Source:
        """List the samples, in the order of the shards' names.

        Raises:
            ConfigError: There are no such shards, or a label is not among the classes given.
            StoreError: A shard cannot be read.
        """
        root, pattern = split_pattern(self.url)
        storage = open_storage(root, self.storage_options)
        reader = Reader.at(storage, root, self.storage_options)
        if pattern is None and storage.size(manifest.FILE_NAME) is not None:
            return replace(self._ours(storage, reader), sealed=True)
        return self._foreign(storage, reader, _matching(storage, pattern or ALL))

    def _ours(self, storage: Storage, reader: Reader) -> Source:
        about = manifest.from_bytes(storage.read(manifest.FILE_NAME))
        tars = virtual_storage(storage, about.roots, self.storage_options)
        drafts = Items.of(
            item
            for split, shards in about.splits.items()
            for shard in shards
            for item in _indexed(tars, shard, split, _place(storage, about, shard))
        )
        if self.classes is None:
            return numbered(drafts, about.classes, storage, reader)
        names = dict(enumerate(about.classes or ()))

        def named(draft: Any) -> Any:
            split, label = draft
            several = isinstance(label, tuple)
            return split, tuple(names.get(one, one) for one in label) if several else names.get(label, label)

        return numbered(drafts.relabelled(named), self.classes, storage, reader)

    def _foreign(self, storage: Storage, reader: Reader, tags: Mapping[str, str]) -> Source:
        folders = {name.partition("/")[0].lower() if "/" in name else "" for name in tags}
        in_splits = folders <= {*SPLITS}
        drafts = Items.of(
            item
            for name, tag in tags.items()
            for item in _listed(storage, name, tag, name.partition("/")[0].lower() if in_splits else "train")
        )
        if not drafts:
            raise ConfigError(f"{storage}: no samples in {len(tags)} shards, such as {next(iter(tags))!r}")
        return numbered(drafts, self.classes, storage, reader)


def _matching(storage: Storage, pattern: str) -> dict[str, str]:
    """Return the names of the shards that a pattern means, sorted, each with what tells it from another content."""
    patterns = expand_braces(pattern)
    # A bucket's listing tells contents apart. Elsewhere it may be long, and not every server gives one.
    paths = [path for one in patterns if (path := storage.local_path(one)) is not None]
    if paths:
        named = all(path.is_file() for path in paths)
    else:
        named = str(storage).startswith(("http:", "https:")) and not any(map(has_wildcards, patterns))
    if named:
        return dict.fromkeys(sorted(patterns, key=os.fsencode), "")
    listing = storage.listing()
    found: dict[str, str] = {}
    for one in patterns:
        names = [one] if one in listing else matching_tars(one, listing)
        if not names:
            if not listing:
                raise NotFoundError(f"{storage} does not exist, or is empty; check the path")
            tars = sum(name.endswith(".tar") for name in listing)
            raise ConfigError(
                f"{storage} has no shard {one!r}; it holds {tars} tars and {len(listing) - tars} other files"
            )
        found |= {name: listing[name].tag for name in names}
    return {name: found[name] for name in sorted(found, key=os.fsencode)}


@contextlib.contextmanager
def _opened(storage: Storage, name: str) -> Iterator[IO[bytes]]:
    """Open a tar; one that is far away is read whole, into memory."""
    path = storage.local_path(name)
    if path is None:
        yield io.BytesIO(storage.read(name))
        return
    with map_os_errors(path), open(path, "rb") as file:
        yield file


def _listed(storage: Storage, name: str, tag: str, split: str) -> Iterator[Item]:
    """Yield the samples of a tar as drafts."""
    with _opened(storage, name) as file:
        is_here = storage.local_path(name) is not None
        changed_ns = os.fstat(file.fileno()).st_ctime_ns if is_here else 0
        for sample in list(read_samples(file)):
            path = f"{name}/{sample.key}" if sample.key else name
            if sample.problem:
                yield draft(split, None, path, -1, changed_ns, more(bad=sample.problem, tag=tag))
                continue
            places = {
                part: [name, *root_url, *(() if is_here else (zlib.crc32(_payload(file, *root_url)),))]
                for part, root_url in sample.parts.items()
            }
            yield _drafted(file, split, path, places, changed_ns, tag)


def _place(storage: Storage, about: manifest.Manifest, shard: manifest.Shard) -> str:
    """Return where the reader finds a tar of ours: of a view, relative to the base where that is possible."""
    if not about.roots:
        return shard.name
    name, path = split_shard_name(shard.name)
    base = about.roots[name]
    is_here = storage.local_path("") is not None
    return f"{base.url if is_here else root_url(str(storage), base)}/{path}"


def _indexed(storage: Storage, shard: manifest.Shard, split: str, where: str) -> Iterator[Item]:
    """Yield the samples of a shard of ours, whose tar is in some place, as drafts."""
    index: shard_index.Index | None
    try:
        index = read_index(storage, shard)
        tar_is_read = bool(np.isin(index["part"], [part.encode() for part in LABEL_PARTS]).any())
    except (NotFoundError, IntegrityError):
        index, tar_is_read = None, True
    with _opened(storage, shard.name) if tar_is_read else contextlib.nullcontext(io.BytesIO()) as file:
        if index is None:
            index = _rebuilt(storage, shard, file.read())
        rows = (shard_index.Row(*row) for row in index[index["part"] != shard_index.KEY_PART].tolist())
        for record, parts in itertools.groupby(rows, key=lambda row: row.record):
            places = {row.part.decode(): [where, row.offset, row.size, row.crc32] for row in parts}
            yield _drafted(file, split, f"{shard.name}#{record}", places, 0, "", ours=True)


def _rebuilt(storage: Storage, shard: manifest.Shard, tar: bytes) -> shard_index.Index:
    try:
        data = shard_index.rebuild(memoryview(tar), shard.index_sha256)
    except (FormatError, IntegrityError) as error:
        raise error.at(shard=storage.url(shard.name)) from None
    return shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)


def _drafted(
    file: IO[bytes], split: str, path: str, places: dict[str, Any], changed_ns: int, tag: str, *, ours: bool = False
) -> Item:
    """Return a sample as a draft, from the places of its parts."""
    try:
        label = _label(file, places, ours=ours)
        image = next((part for part in places if part in SOURCE_PARTS), None)
        if image is None:
            raise SampleError(f"has no image among its parts: {', '.join(places)}")
    except SampleError as error:
        return draft(split, None, path, -1, changed_ns, more(bad=str(error), tag=tag))
    place = places.pop(image)
    return draft(split, label, path, place[2], changed_ns, more(image=place, parts=places, tag=tag))


def _label(file: IO[bytes], places: dict[str, Any], *, ours: bool) -> Named:
    """Take the label out of the parts of a sample, if there is one; of ours it is a number, of others "007" a name."""
    part = next((part for part in LABEL_PARTS if part in places), None)
    if part is None:
        return None
    _, offset, size, *crc32 = places.pop(part)
    payload = _payload(file, offset, size)
    if crc32 not in ([], [zlib.crc32(payload)]):
        raise SampleError(f"its part {part!r} is damaged: its CRC-32 is another")
    text = payload.decode(errors="replace").strip()
    if part == CLASS_PART and not ours and not _NUMBER.fullmatch(text):
        return text
    try:
        found = parse_labels(part, payload)
    except DecodeError as error:
        raise SampleError(f"its part {part!r} cannot be read: {error}") from error
    return found[0] if part == CLASS_PART else found


def _payload(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
