"""Index: makes a dataset of WebDataset tars, without copying them."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    DatasetExistsError,
    NotFoundError,
    PackIncompleteError,
)
from shardflow.formats import manifest, quarantine
from shardflow.formats.annotations import NOTHING, Annotations, image_stem
from shardflow.formats.manifest import SPLITS
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.shard import is_name
from shardflow.formats.shard_index import KEY_PART, Index
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.transfers import TransferPool
from shardflow.storage.urls import canonical_root, divide_query, remote_options, shown_url

from .finding_tars import find_tars, split_pattern, splits_of_files
from .label_numbering import Classes, LabelNumbering
from .selection import select_rows
from .tar_scan import ScannedTar, scan_tar
from .virtual_dataset import Contents, SelectedRows, TarLocation, VirtualReport, build_virtual_dataset
from .write_lock import refuse_dataset

logger = logging.getLogger(__name__)

_TARS_AT_A_TIME = 4
_INDEX_ANEW = (
    f"to index changed tars again, remove {manifest.FILE_NAME} and the .npy files below SPLIT/0, but not the tars"
)


class _TarFile(NamedTuple):
    storage: Storage
    name: str
    split: str

    @property
    def url(self) -> str:
        return f"{self.storage}/{self.name}"


def index(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    *,
    classes: Classes = None,
    annotations: Annotations | None = None,
    max_errors: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VirtualReport:
    """Make a dataset of existing tars. Each tar is read once, checksummed and indexed; none is copied or changed.

    A sample is consecutive members with one key, including an image. A sample that is incomplete, repeated, split
    between two tars, or in the damaged part of a tar is reported and left out. So is one whose declared coordinates
    belong to another image size, by `width` and `height` in the same JSON. Tars in folders named like splits (`train`,
    `val`, `test`, …), or named like `photos-val-000.tar`, belong to these splits; otherwise all belong to `train`.
    Members whose names are not KEY.PART are ignored. Four tars are read at a time, in blocks.

    >>> shardflow.index("laion/{00000..00099}.tar")
    >>> shardflow.index("https://host/tars/{00000..00099}.tar", "laion-index")

    Args:
        urls: Directories, tars, or patterns with braces or wildcards; on a disk, in a bucket, or on a web server.
        to: A directory or URL for the manifest and the indexes; by default next to the tars.
        classes: Class names in the order of their labels, or a file with one per line. By default the numbers in `.cls`
            are the names.
        annotations: The masks among the parts of samples, and the places of boxes and keypoints.
        max_errors: Number of samples that may be left out; with more, nothing is written.
        src_options, dst_options: Options of fsspec's file systems for the tars and `to`, if these are URLs.
        progress: Called with the numbers of finished tars and of all tars, at first and after each tar.

    Raises:
        ConfigError: The tars do not exist, or belong to a packed dataset. Only some are in folders of splits, or only
            some of a split have labels. A label has no class, samples lack declared parts, or `to` is needed.
        DatasetExistsError: `to` is a dataset.
        PackIncompleteError: More than `max_errors` samples cannot be used.
        StoreError: A tar cannot be read, or the manifest cannot be written.
    """
    max_errors = check_integer("max_errors", max_errors, 0)
    patterns = [urls] if isinstance(urls, str | os.PathLike) else urls
    tars = [tar for pattern in patterns for tar in _find_tars(pattern, src_options)]
    if len({tar.url for tar in tars}) < len(tars):
        raise ConfigError(f"{' '.join(map(shown_url, patterns))}: a tar is named twice; name it once")
    dst = _default_destination(tars) if to is None else to
    storage = open_storage(dst, dst_options if to is not None else src_options, to_write=True)
    try:
        refuse_dataset(storage)
    except DatasetExistsError as error:  # with a remedy that does not remove the tars
        raise DatasetExistsError(f"{storage} is already a dataset, which needs no index; {_INDEX_ANEW}") from error
    _check_writable(storage)
    annotations = annotations or NOTHING
    scans: list[ScannedTar] = []
    if progress is not None:
        progress(0, len(tars))
    with TransferPool(_TARS_AT_A_TIME) as pool:
        for scan in pool.map(lambda tar: _scan(tar, annotations), tars):
            scans.append(scan)
            if progress is not None:
                progress(len(scans), len(tars))
    indexes, bad = _usable_samples(tars, scans)
    _warn_of_copies(tars, scans)
    _check_labels(tars, scans)
    _check_annotations(indexes, annotations)
    lost = sum(map(_lost_samples, scans))
    if len(bad) > max_errors:
        behind = f"; and about {plural(lost, 'sample')} after the damage of tars" if lost else ""
        raise PackIncompleteError(
            f"{plural(len(bad), 'sample')} cannot be used, {max_errors} allowed: {quarantine.describe(bad)}{behind}. "
            f"Leave them out with max_errors= or --max-errors {len(bad)}"
        )
    undecodable = [f"{tar.url}/{key}" for tar, scan in zip(tars, scans, strict=True) for key in scan.undecodable]
    if undecodable:
        some = f"{plural(len(undecodable), 'sample')} without an image in its image part, such as {undecodable[0]!r}"
        logger.warning("%s: loading them will fail; `shardflow pack --max-errors` leaves them out", some)
    if not any(map(len, indexes)):
        message = f"{' '.join(map(shown_url, patterns))}: no usable sample in {plural(len(tars), 'tar')}"
        message += f" ({quarantine.describe(bad)})" if bad else ""
        raise ConfigError(f"{message}; a sample is files of one key, with an image among them: 17.jpg, 17.cls")
    report = build_virtual_dataset(
        dst,
        Contents(
            selected=(rows for split in SPLITS for rows in _selected_rows(tars, scans, indexes, split)),
            splits=SPLITS,
            classes=LabelNumbering(
                classes, {number for scan in scans for number in scan.labels}, " ".join(map(shown_url, patterns))
            ).classes,
            recipe={},
            annotations=annotations,
            made_by="index of existing tars",
            bad=bad,
        ),
        storage_options=dst_options if to is not None else src_options,
    )
    return replace(report, lost=lost)


def _scan(tar: _TarFile, annotations: Annotations) -> ScannedTar:
    try:
        return scan_tar(tar.storage, tar.name, annotations)
    except BucketNotFoundError:
        raise
    except NotFoundError as error:
        raise NotFoundError(f"{tar.url} does not exist; restore it, or leave it out of the pattern") from error


def _lost_samples(scan: ScannedTar) -> int:
    """Return the approximate number of samples after the damage of a tar."""
    if "" not in scan.bad or not len(scan.index):
        return 0
    read = int((scan.index["offset"] + scan.index["size"]).max())
    about = round((scan.bytes - read) / read * len(np.unique(scan.index["record"])))
    return max(0, about - 1)  # the damaged sample is in the list of bad ones


def _find_tars(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Iterator[_TarFile]:
    """Yield the tars that a directory, tar or pattern names, sorted by name."""
    if divide_query(url).query:
        message = f"{shown_url(url)}: a manifest cannot keep the query of this URL, which requests need"
        raise ConfigError(f"{message}; name the tars without it, or copy them to a disk")
    root, pattern = split_pattern(url)
    options = remote_options(root, storage_options)
    storage = open_storage(root, options)
    names = find_tars(storage, pattern, options)
    for name in names:
        if not is_name(name):
            raise ConfigError(f"{storage.url(name)}: names may only have A-Z a-z 0-9 . _ -; rename the tar")
    for name, split in splits_of_files(str(storage), names).items():
        yield _TarFile(storage, name, split)


def _default_destination(tars: Sequence[_TarFile]) -> str:
    roots = sorted({str(tar.storage) for tar in tars})
    if len(roots) > 1 or roots[0].startswith(("http:", "https:")):
        reason = "a web server cannot be written to" if len(roots) == 1 else f"other tars are in {roots[1]}"
        raise ConfigError(f"{roots[0]}: {reason}; name a directory or URL for the manifest with --to")
    return roots[0]


def _check_writable(storage: Storage) -> None:
    """Raise AccessDeniedError, before the tars are read, if a local destination is not writable."""
    folder = storage.local_path("")
    while folder is not None and not folder.exists():
        folder = folder.parent  # where it will be created
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise AccessDeniedError(f"{folder} cannot be written to; name another directory or a URL with --to")


def _usable_samples(tars: Sequence[_TarFile], scans: Sequence[ScannedTar]) -> tuple[list[Index], list[Quarantined]]:
    """Return the indexes of usable samples, and all bad samples."""
    kept = [np.ones(len(np.unique(scan.index["record"])), dtype=np.bool_) for scan in scans]
    bad = {
        Quarantined(f"{tar.url}/{key}" if key else tar.url, "read", reason)
        for tar, scan in zip(tars, scans, strict=True)
        for key, reason in scan.bad.items()
    }
    others = [scan.other_sizes for scan in scans]
    # Coordinates beyond the image of one sample show that all such samples have coordinates of other images.
    if any(found.is_beyond for sizes in others for found in sizes.values()):
        for tar, keep, sizes in zip(tars, kept, others, strict=True):
            keep[list(sizes)] = False
            bad |= {Quarantined(f"{tar.url}/{found.key}", "read", found.reason) for found in sizes.values()}
    # If all samples lack declared parts, these are misspelt: see `_check_annotations`.
    if any(len(scan.lacking) < len(keep) for scan, keep in zip(scans, kept, strict=True)):
        for tar, keep, scan in zip(tars, kept, scans, strict=True):
            keep[list(scan.lacking)] = False
            bad |= {Quarantined(f"{tar.url}/{key}", "read", reason) for key, reason in scan.lacking.values()}
    for number, (tar, next_tar) in enumerate(itertools.pairwise(tars)):
        last, first = scans[number].last, scans[number + 1].first
        neighbours = str(tar.storage) == str(next_tar.storage) and tar.split == next_tar.split
        if neighbours and last.key and last.key == first.key and not last.parts & first.parts:
            reason = "it is split between two tars, which have a part of it each"
            for at, end, place in ((number, last, -1), (number + 1, first, 0)):
                if end.indexed:
                    kept[at][place] = False
                    bad.add(Quarantined(f"{tars[at].url}/{end.key}", "read", reason))
    return [select_rows(scan.index, records) for scan, records in zip(scans, kept, strict=True)], sorted(bad)


def _warn_of_copies(tars: Sequence[_TarFile], scans: Sequence[ScannedTar]) -> None:
    first: dict[str, str] = {}
    filled = [(tar.url, scan.sha256) for tar, scan in zip(tars, scans, strict=True) if len(scan.index)]
    if copies := [(url, same) for url, sha256 in filled if (same := first.setdefault(sha256, url)) != url]:
        message = "%s with the bytes of another, such as %s of %s: their samples come again; leave copies out"
        logger.warning(message, plural(len(copies), "tar"), *copies[0])


def _check_labels(tars: Sequence[_TarFile], scans: Sequence[ScannedTar]) -> None:
    """Raise ConfigError if only some tars of a split have labels, as loading labels would fail in the others."""
    for split in {tar.split for tar in tars}:
        filled = [(tar, scan) for tar, scan in zip(tars, scans, strict=True) if tar.split == split and len(scan.index)]
        without = [tar for tar, scan in filled if not scan.labels]
        if without and len(without) < len(filled):
            labelled = next(tar for tar, scan in filled if scan.labels)
            raise ConfigError(f"{labelled.url} has labels but {without[0].url} has none; index them as two datasets")


def _check_annotations(indexes: Sequence[Index], annotations: Annotations) -> None:
    """Raise ConfigError if no sample has a declared part, whose name is then misspelt."""
    if annotations:
        parts = {part.decode() for index in indexes for part in np.unique(index["part"]).tolist()} - {KEY_PART.decode()}
        stems = {image_stem(part) for part in parts}
        absent = () if any(image_stem(part) in stems for part in annotations.images) else annotations.images
        if missing := annotations.missing(parts) or ", ".join(absent):
            named = missing.removeprefix("has no ")
            raise ConfigError(f"no sample has {named}; parts are {', '.join(sorted(parts))}")


def _selected_rows(
    tars: Sequence[_TarFile], scans: Sequence[ScannedTar], indexes: Sequence[Index], split: str
) -> Iterator[SelectedRows]:
    for tar, scan, rows in zip(tars, scans, indexes, strict=True):
        if tar.split == split and len(rows):
            root = canonical_root(str(tar.storage))
            yield SelectedRows(split, TarLocation(root, None, tar.name, scan.bytes, scan.sha256), rows)
