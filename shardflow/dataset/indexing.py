"""Index: tars in the WebDataset convention that somebody else wrote, made a dataset without copying them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardflow.errors import ConfigError, DatasetExistsError, PackIncompleteError
from shardflow.formats import shard_index
from shardflow.formats.manifest import FILE_NAME, SPLITS
from shardflow.formats.receipt import Quarantined
from shardflow.storage.resolve import open_storage
from shardflow.storage.transfers import TransferPool
from shardflow.storage.urls import canonical_root

from .builder import SelectedRows, TarLocation, build_virtual_dataset
from .label_numbering import Classes, LabelNumbering
from .tar_files import TarFile, find_tars
from .tar_scan import Scanned, scan, without_end

_AT_ONCE = 4
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What was found in existing tars.

    Attributes:
        url: Where the manifest is.
        fingerprint: Of the dataset.
        samples, shards: Numbers, by split.
        bad: The samples that were left out, with their reasons, as `quarantine.jsonl` has them.
    """

    url: str
    fingerprint: str
    samples: Mapping[str, int]
    shards: Mapping[str, int]
    bad: tuple[Quarantined, ...]


def index(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    *,
    classes: Classes = None,
    max_bad: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IndexReport:
    """Make existing tars readable: each is read through once, and what is in it is sealed by a manifest.

    A sample is what stands together in a tar under one key, and has an image. Samples that are incomplete, there twice,
    torn apart, or of a damaged part of a tar are left out and named. Tars in folders named like splits (`train`, `val`,
    `test`, …) are of these splits, all others are for training. Files whose names are not KEY.PART are passed over.
    Tars behind a URL are read into memory whole, four at a time.

    >>> shardflow.index("laion/{00000..00099}.tar")                                       # doctest: +SKIP
    >>> shardflow.index("https://host/tars/{00000..00099}.tar", "laion-index")            # doctest: +SKIP

    Args:
        urls: Directories, tars, or patterns with braces or wildcards; on a disk, in a bucket, behind https.
        to: A directory or URL for the manifest and the indexes; by default beside the tars.
        classes: Class names in the order of their labels, or a file with one a line. Without them, the numbers in
            `.cls` are their own names.
        max_bad: Samples that may be left out before nothing is written.
        src_options, dst_options: What fsspec's file systems take, where these are URLs.
        progress: Called at first and after each tar with how many are done, and how many there are.

    Raises:
        ConfigError: There are no such tars, a label has no class, only some tars have labels, or `to` must be said.
        DatasetExistsError: There is a dataset already.
        PackIncompleteError: More than `max_bad` samples cannot be used.
        StoreError: A tar cannot be read, or the manifest not be written.
    """
    given = [urls] if isinstance(urls, str | os.PathLike) else urls
    tars = [tar for url in given for tar in find_tars(url, SPLITS, src_options)]
    if len({(tar.root, tar.name) for tar in tars}) < len(tars):
        raise ConfigError(f"{' '.join(map(str, given))}: these name a tar twice")
    dst = _destination(tars) if to is None else to
    if open_storage(dst, dst_options if to is not None else src_options).size(FILE_NAME) is not None:
        raise DatasetExistsError(f"{dst} already holds a dataset; choose another destination with --to")
    scanned = _scanned(tars, progress)
    indexes, bad = _whole(tars, scanned)
    labels = {number for one in scanned for number in one.labels}
    _refuse_half_labelled(tars, scanned)
    if len(bad) > max_bad:
        named = "; ".join(f"{entry.path}: {entry.reason}" for entry in bad[:_NAMED])
        more = f"; {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise PackIncompleteError(
            f"samples that cannot be used: {len(bad)}, allowed are {max_bad}: {named}{more}. "
            f"Leave them out with --max-bad {len(bad)}"
        )
    report = build_virtual_dataset(
        dst,
        (chosen for split in SPLITS for chosen in _chosen(tars, scanned, indexes, split)),
        splits=SPLITS,
        classes=LabelNumbering(classes, labels, " ".join(map(str, given))).classes,
        recipe={},
        made_by="index of existing tars",
        bad=[entry._asdict() for entry in bad],
        storage_options=dst_options if to is not None else src_options,
    )
    return IndexReport(
        url=os.fspath(dst),
        fingerprint=report.fingerprint,
        samples=report.samples,
        shards=report.shards,
        bad=tuple(bad),
    )


def _destination(tars: Sequence[TarFile]) -> str:
    """Return where the manifest goes when nobody says: beside the tars."""
    roots = sorted({tar.root for tar in tars})
    if len(roots) > 1 or roots[0].startswith(("http:", "https:")):
        reason = "nothing can be written there" if len(roots) == 1 else f"{roots[1]} is another place"
        raise ConfigError(f"{roots[0]}: {reason}; say with --to where the manifest is to be")
    return roots[0]


def _scanned(tars: Sequence[TarFile], progress: Callable[[int, int], None] | None) -> list[Scanned]:
    done = []
    if progress is not None:
        progress(0, len(tars))
    with TransferPool(_AT_ONCE) as pool:
        for one in pool.map(lambda tar: scan(tar.storage, tar.name), tars):
            done.append(one)
            if progress is not None:
                progress(len(done), len(tars))
    return done


def _whole(tars: Sequence[TarFile], scanned: Sequence[Scanned]) -> tuple[list[shard_index.Index], list[Quarantined]]:
    """Return the indexes without samples that two tars have a part of each, and everything that is bad."""
    indexes = [one.index for one in scanned]
    bad = [
        Quarantined(f"{tar.root}/{tar.name}" + (f"/{key}" if key else ""), "read", reason)
        for tar, one in zip(tars, scanned, strict=True)
        for key, reason in one.bad.items()
    ]
    for number in range(1, len(tars)):
        (key, some), (again, others) = scanned[number - 1].ends[1], scanned[number].ends[0]
        same_place = tars[number - 1].root == tars[number].root and tars[number - 1].split == tars[number].split
        if same_place and key and key == again and not some & others:
            for which, end, of in ((number - 1, -1, 1), (number, 0, 0)):
                if scanned[which].used[of]:
                    indexes[which] = without_end(indexes[which], end)
                    path = f"{tars[which].root}/{tars[which].name}/{key}"
                    bad.append(Quarantined(path, "read", "it is torn apart: two tars have a part of it each"))
    return indexes, sorted(bad)


def _refuse_half_labelled(tars: Sequence[TarFile], scanned: Sequence[Scanned]) -> None:
    """Refuse a split in which only some tars have labels: whoever asks for labels would fail in the others."""
    for split in {tar.split for tar in tars}:
        filled = [(tar, one) for tar, one in zip(tars, scanned, strict=True) if tar.split == split and len(one.index)]
        without = [tar for tar, one in filled if not one.labels]
        if without and len(without) < len(filled):
            labelled = next(tar for tar, one in filled if one.labels)
            raise ConfigError(
                f"{without[0].storage.url(without[0].name)} has no labels and "
                f"{labelled.storage.url(labelled.name)} has; index them as two datasets"
            )


def _chosen(
    tars: Sequence[TarFile], scanned: Sequence[Scanned], indexes: Sequence[shard_index.Index], split: str
) -> Iterator[SelectedRows]:
    for tar, one, rows in zip(tars, scanned, indexes, strict=True):
        if tar.split == split and len(rows):
            yield SelectedRows(
                split, TarLocation(canonical_root(tar.root), None, tar.name, one.bytes, one.sha256), rows
            )
