"""Collections: samples as objects, from Hugging Face datasets, torchvision, or any other iterable.

Workers cannot reach objects of this process, and a second iteration may yield different ones. So each sample is read
once, in order, and copied to a temporary file: the bytes of its image file or, without one, its pixels, lossless.
Workers read slices of that file. It needs as much room in the temporary directory as the images have bytes; images that
are files on this machine are not copied.

A resume compares contents: the shard of a sample that has changed is packed again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError, DecodeError, SampleError
from shardflow.formats.annotations import Annotations
from shardflow.formats.manifest import SPLITS
from shardflow.storage.file_names import name_of, path_of
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.staging import temporary_staging

from .items import Item, Items, encode_more
from .labelling import number_labels, unlabelled_input
from .reader import Reader, file_state, is_place
from .sample_adapter import IMAGE_KEYS, AdaptedSample, SampleAdapter, image_file, label_column
from .source import Source

logger = logging.getLogger(__name__)

_READ_AGAIN = 4  # samples of a dataset, to see whether its images are random
_NAME_FILES_THEMSELVES = ("generator", "imagefolder")
"""Builders whose rows may name files of this machine: paths come from the caller's function, or from the library."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Samples as objects: a sized, indexable collection, an iterable, or a mapping from splits to those.

    A sample is an image; or (image, target); or a mapping. An image is a Pillow image, an array or tensor of uint8, or
    the bytes or path of a file. A target is the number or name of a class, a list of those, a mask (an image, or a
    `pathlib.Path`), or annotations: a dictionary, which becomes `.json`, or a list of dictionaries, its entry
    "annotations". Entries of a mapping that are bytes become parts of that name; all others go to `.json`, except those
    named below. Rows of a Hugging Face dataset may name files only if the caller or the library wrote the paths, as in
    `Dataset.from_dict` and "imagefolder".

    Args:
        samples: The samples.
        image: Key of the image; None for a Hugging Face dataset's only image column, otherwise "image", "img" or an
            image extension such as "jpg".
        label: Key of the class; None for "label" or "cls", otherwise a dataset's only column of classes.
        caption: Key of a text for `.txt`.
        mask: Key of a mask for `.mask.png`; it is declared as a mask, as is a target that is a mask.
        classes: Class names in the order of their labels, or a file with one per line; None for those of the dataset or
            the samples.

    Example:
        >>> rows = [{"photo": Image.new("RGB", (300, 400)), "species": "newt"}]
        >>> report = shardflow.pack(shardflow.sources.Collection(rows, image="photo", label="species"), "out/")
    """

    samples: Any
    _: KW_ONLY
    image: str | None = None
    label: str | None = None
    caption: str | None = None
    mask: str | None = None
    classes: Classes = None

    def list(self) -> Source:
        """Copy all samples and list them."""
        splits = self.samples if isinstance(self.samples, Mapping) else {"train": self.samples}
        unknown = next((split for split in splits if split not in SPLITS), None)
        if unknown is not None:
            raise ConfigError(f"the samples have the split {unknown!r}; splits are named {', '.join(SPLITS)}")
        for samples in splits.values():
            if hasattr(samples, "columns") and hasattr(samples, "__dataframe__"):
                rows = "Collection(frame.to_dict('records')), or of polars `frame.to_dicts()`"
                remedy = "write it to a file and pass shardflow.sources.Table(file, image=...) if it names files"
                remedy += f", or {rows}, if it has the images"
                raise ConfigError(f"a {type(samples).__name__} is not a collection of samples; {remedy}")
            is_path = isinstance(samples, str | os.PathLike)
            if is_path or (not hasattr(samples, "__iter__") and not hasattr(samples, "__getitem__")):
                found = f"expected a path, a URL, a source or samples, found {type(samples).__name__}"
                alone = "; a path or a source is passed without a dict, and its folders name its splits"
                raise ConfigError(found + alone * isinstance(self.samples, Mapping))
        with contextlib.ExitStack() as stack:
            staging = contextlib.ExitStack()  # closed without the error, which may be that of the caller's iterator
            stack.callback(staging.close)
            folder, _ = staging.enter_context(temporary_staging())
            masks: set[str] = set()
            unlabelled, names = self._copy(splits, folder, masks)
            if not unlabelled:
                raise ConfigError(f"{type(self.samples).__name__} has no samples; an iterator yields them only once")
            source = number_labels(unlabelled, names, type(self.samples).__name__, Reader(base=str(folder)))
            return replace(source, annotations=Annotations(masks=tuple(sorted(masks))), resources=stack.pop_all())

    def _copy(self, splits: Mapping[str, Any], folder: Path, masks: set[str]) -> tuple[Items, Classes]:
        """Copy the samples of all splits into a folder; return them and the class names. Add mask parts to `masks`."""
        names = self.classes
        unlabelled: list[Items] = []
        for split in sorted(splits):
            adapted = self._adapt(splits[split], split)
            if names is not None and self.classes is None and adapted.classes not in (None, names):
                raise ConfigError(f"split {split!r} has other classes than the earlier splits; use names as labels")
            names = adapted.classes if names is None else names
            with _PayloadFile(folder, f"{split}.bin") as file:
                unlabelled.append(Items.of(_unlabelled_inputs(adapted, file, split, masks)))
        return Items.of(itertools.chain(*unlabelled)), names

    def _adapt(self, samples: Any, split: str) -> _Split:
        adapter = SampleAdapter(image=self.image, label=self.label, caption=self.caption, mask=self.mask)
        if _is_dataset(samples):
            adapted = _huggingface(samples, adapter, split)
            is_changed = getattr(samples, "format", {}).get("type") == "custom"  # by `with_transform`
        else:
            origin, _ = _of_subset(samples)
            if not _warn_of_transform(origin, split) and (number := _changing(samples, adapter)) is not None:
                remedy = "pack the dataset without its random transforms, for the Loader"
                message = "split %r: sample %d has another image when it is read again, and only one is packed; %s"
                logger.warning(message, split, number, remedy)
            classes = getattr(origin, "classes", None)  # torchvision's; ImageNet has several names for each class
            names = tuple(name if isinstance(name, str) else name[0] for name in classes) if classes else None
            adapted = _Split(samples, adapter, names)
            numbers = getattr(origin, "class_to_idx", None) or {}  # an own `find_classes` may number them otherwise
            is_changed = getattr(origin, "target_transform", None) is not None or any(
                isinstance(name, str) and numbers.get(name, place) != place for place, name in enumerate(classes or ())
            )
        if not is_changed or adapted.classes is None or self.classes is not None:
            return adapted
        remedy = "pass Collection(classes=...), or let it return names"
        reason = "a transform or class_to_idx may give classes other numbers, so the set's names are left out"
        logger.warning("split %r: %s; %s", split, reason, remedy)
        return adapted._replace(classes=None)


def _warn_of_transform(samples: Any, split: str) -> bool:
    """Warn of a dataset that is known to transform its images, perhaps at random; return whether it is."""
    while (transform := _transform(samples)) is None and hasattr(samples, "dataset"):
        samples = samples.dataset  # of a wrapper
    if transform is not None:
        name = type(transform).__name__
        remedy = "pack it without, and give the transform to the Loader"
        logger.warning("split %r: the dataset has the transform %s, whose results are packed; %s", split, name, remedy)
    return transform is not None


def _changing(samples: Any, adapter: SampleAdapter) -> int | None:
    """Return the number of one of the first samples whose image differs when it is read again; None without one."""
    with contextlib.suppress(Exception):  # samples that raise are quarantined later, and iterators have no numbers
        for number in range(min(_READ_AGAIN, len(samples))):
            one, other = (np.asarray(adapter.adapt(samples[number]).image) for _ in range(2))
            if not np.array_equal(one, other):
                return number
    return None


def _transform(samples: Any) -> Any:
    joint = getattr(samples, "transforms", None)  # also holds transforms of targets alone
    return (
        getattr(samples, "transform", None) or (None if getattr(samples, "target_transform", None) else joint) or None
    )


def _of_subset(samples: Any) -> tuple[Any, Sequence[int] | None]:
    """Return the dataset of which `samples` is a PyTorch `Subset`, such as of `random_split`, and the numbers in it.

    Other samples are returned with None.
    """
    library, numbers = sys.modules.get("torch.utils.data"), None
    while library is not None and type(samples) is library.Subset:
        indices = samples.indices
        numbers = indices if numbers is None else [indices[number] for number in numbers]
        samples = samples.dataset
    return samples, numbers


class _Split(NamedTuple):
    """The samples of a split, their adapter, and the class names that the collection has."""

    samples: Any
    adapter: SampleAdapter
    classes: tuple[str, ...] | None
    may_name_files: bool = True  # whether paths in samples are trusted


class _PayloadFile:
    """A new file to which payloads are appended."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._name = folder / name, name

    def __enter__(self) -> _PayloadFile:
        with map_os_errors(self._path):
            self._file = open(self._path, "wb")
        return self

    def __exit__(self, *exception: object) -> None:
        with map_os_errors(self._path):
            self._file.close()

    def append(self, payload: bytes | Path) -> list[object]:
        """Write a payload, unless it is a file, and return its location, see `Reader`."""
        if isinstance(payload, Path):
            return [name_of(str(payload))]
        with map_os_errors(self._path):
            offset = self._file.tell()
            self._file.write(payload)
        return [self._name, offset, len(payload), zlib.crc32(payload)]


def _huggingface(dataset: Any, adapter: SampleAdapter, split: str) -> _Split:
    own_paths = _may_name_files(dataset)
    dataset, images, classes = _undecoded(dataset, f"the dataset's split {split!r}")
    images = [name for name in images if name != adapter.mask]
    first = images[0] if len(images) == 1 else next((key for key in IMAGE_KEYS if key in images), None)
    image = adapter.image or first
    if image is None:
        raise ConfigError(f"the dataset has several columns with images: {', '.join(images)}; name one with image=")
    label = label_column(adapter.label, dataset.features, classes, "the dataset")
    names = None if label is None else classes.get(label)
    return _Split(dataset, replace(adapter, image=image, label=label), names, own_paths)


def _is_dataset(value: object) -> bool:
    """Return whether a value is a Hugging Face dataset, without importing the library."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, library.Dataset | library.IterableDataset)


def _may_name_files(dataset: Any) -> bool:
    """Return whether paths in rows may be opened: whether the caller or the library wrote them.

    Other paths come from files of rows, which are usually downloaded. Without a recorded builder, rows in memory belong
    to the caller; streams and files of rows may come from any builder.
    """
    files = [Path(each["filename"]) for each in getattr(dataset, "cache_files", ())]
    if any(file.with_name("state.json").exists() for file in files):  # saved to disk: it contains its images
        return False
    if (builder := dataset.info.builder_name) is not None:
        return builder in _NAME_FILES_THEMSELVES
    return not files and hasattr(dataset, "cache_files")


def _undecoded(dataset: Any, where: str) -> tuple[Any, list[str], dict[str, tuple[str, ...]]]:
    """Return a dataset that yields undecoded images, its image columns, and its class columns with their names."""
    import datasets

    features = dataset.features or {}
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if not images:
        found = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise ConfigError(f"{where} has no column with images, but {found or 'no known columns'}; cast it to Image()")
    for name in images:
        dataset = dataset.cast_column(name, datasets.Image(decode=False))
    # A list of classes has the class as its `feature`.
    types = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    classes = {name: tuple(each.names) for name, each in types.items() if isinstance(each, datasets.ClassLabel)}
    return dataset, images, classes


def _unlabelled_inputs(adapted: _Split, file: _PayloadFile, split: str, masks: set[str]) -> Iterator[Item]:
    for number, (below, sample) in enumerate(_samples(adapted.samples)):
        path = below or f"{split}#{number}"
        try:
            if isinstance(sample, Exception):
                raise SampleError(f"{type(sample).__name__}: {sample}") from sample
            found = adapted.adapter.adapt(sample)
            if number == 0 and isinstance(sample, Mapping) and str(sample.get("split")) in SPLITS:
                remedy = "pass a mapping from splits to samples, or a table, to divide them"
                logger.warning(
                    "the samples have an entry 'split', which goes to .json: all are in %s; %s", split, remedy
                )
            if not below and isinstance(found.image, str | Path) and adapted.may_name_files:
                path = name if is_place(name := name_of(str(found.image))) else path
            yield _unlabelled_input(found, split, path, file, may_name_files=adapted.may_name_files)
            if found.mask is not None:
                masks.add(found.mask)
        except SampleError as error:
            if number == 0 and not isinstance(sample, Exception) and not isinstance(error, DecodeError):
                raise ConfigError(f"the first sample of {type(adapted.samples).__name__}: {error}") from error
            yield unlabelled_input(split, None, path, -1, 0, encode_more(bad=str(error)))


def _unlabelled_input(
    sample: AdaptedSample, split: str, path: str, file: _PayloadFile, *, may_name_files: bool
) -> Item:
    def load(value: Any, *, as_png: bool = False) -> bytes | Path:
        found = image_file(value, as_png=as_png)
        if isinstance(found, Path) and not may_name_files:
            raise SampleError(
                f"names the file {str(found)!a} as its image, which rows of unknown origin must not do; if you trust "
                "them, pack `(row for row in dataset)`, or a table of the paths as shardflow.sources.Table"
            )
        return found

    image = load(sample.image)
    parts = {
        part: value if isinstance(value, str) else file.append(load(value, as_png=True))
        for part, value in sample.parts.items()
    }
    size, identity = file_state(path_of(name_of(str(image)))) if isinstance(image, Path) else (len(image), 0)
    more = encode_more(image=file.append(image), parts=parts)
    return unlabelled_input(split, sample.label, path, size, identity, more)


def _samples(samples: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path of each sample below an ImageFolder, otherwise "", and the sample, or the exception it raises."""
    samples, numbers = _of_subset(samples)
    if numbers is None and not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        yield from (("", sample) for sample in samples)
        return
    numbers = range(len(samples)) if numbers is None else numbers
    files = _files_of(samples)
    for number in numbers:
        try:
            if files is None:
                yield "", samples[number]
            else:
                path, label = files[number]
                yield name_of(os.path.relpath(path, samples.root)), (Path(path), label)
        except Exception as error:  # image loaders raise anything on a damaged file
            yield "", error


def _files_of(samples: Any) -> list[tuple[str, int]] | None:
    """Return paths and classes of torchvision's ImageFolder; None if code may change its images or labels."""
    folder: Any = sys.modules.get("torchvision.datasets.folder")
    if folder is None or getattr(type(samples), "__getitem__", None) is not folder.DatasetFolder.__getitem__:
        return None
    changes = samples.transforms or samples.transform or samples.target_transform
    if changes or samples.loader is not folder.default_loader or len(samples.samples) != len(samples):
        return None
    return samples.samples  # type: ignore[no-any-return]
