"""A collection: samples as objects, from Hugging Face datasets, torchvision, or anything else that can be gone through.

They live in this process, where no worker can reach them, and what they hand out may differ the next time. So each is
taken once, in order, and copied to a temporary file, as the bytes of its image file or, where there is none, its pixels
without loss; workers then read slices of that file. It takes as much room in the directory for temporary files as the
images have bytes. An image that is a file on this machine is read from there and not copied.

What a resume goes by is the content: a sample that differs from the last time is packed again, with all that follow it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.manifest import SPLITS
from shardflow.storage.local_files import map_os_errors

from .huggingface import is_dataset, undecoded
from .image_objects import encoded
from .items import Item, Items, more
from .labelling import draft, numbered
from .reader import Reader
from .sample_adapter import IMAGE_KEYS, LABEL_KEYS, Keys, Taken
from .source import Source

Scratch: TypeAlias = Callable[[], Path]
"""Returns an empty directory that lasts as long as the source is used."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Samples as objects: a sized, indexable collection, an iterable, or a mapping from splits to those.

    A sample is an image; or (image, target); or a mapping. An image is one of Pillow's, an array, a tensor of uint8,
    or the bytes or the path of a file. A target is the number or name of a class, a list of those, a mask (an image),
    or annotations: a dictionary or a list of dictionaries. Of a mapping, entries that are bytes become parts of
    that name, and all others `.json`, but for those that are named here.

    Args:
        samples: What to pack.
        image: Key of the image; None for a Hugging Face dataset's only image column, or else `IMAGE_KEYS`.
        label: Key of the class; None for a dataset's only column of classes, or else `LABEL_KEYS`.
        caption: Key of a text for `.txt`.
        mask: Key of a mask for `.mask.png`.
        classes: Class names in the order of their labels, or a file with one a line; None for those that the dataset
            or the samples name.

    Example:
        >>> shardflow.pack(shardflow.Collection(dataset, image="photo", label="species"), "out/")  # doctest: +SKIP
    """

    samples: Any
    _: KW_ONLY
    image: str | None = None
    label: str | None = None
    caption: str | None = None
    mask: str | None = None
    classes: Classes = None

    def list(self, scratch: Scratch) -> Source:
        """Take all samples and list them.

        Raises:
            ConfigError: There are none, the first has no image, or a split or label is none that can be.
            StoreError: There is no room for them.
        """
        splits = self.samples if isinstance(self.samples, Mapping) else {"train": self.samples}
        strange = next((split for split in splits if split not in SPLITS), None)
        if strange is not None:
            raise ConfigError(f"the samples have the split {strange!r}; splits are named {', '.join(SPLITS)}")
        for samples in splits.values():
            if not hasattr(samples, "__iter__") and not hasattr(samples, "__getitem__"):
                raise ConfigError(f"expected a path, a URL, a dataset or samples, found {type(samples).__name__}")
        folder, names = scratch(), self.classes
        drafts: list[Items] = []
        for split in sorted(splits):
            view = self._view(splits[split], split)
            if names is not None and self.classes is None and view.classes not in (None, names):
                raise ConfigError(f"the classes of split {split!r} are others than before; use names as labels")
            names = view.classes if names is None else names
            with _Spool(folder, f"{split}.bin") as spool:
                drafts.append(Items.of(_drafts(view, spool, split)))
        found = Items.of(itertools.chain(*drafts))
        if not found:
            raise ConfigError(f"{type(self.samples).__name__} has no samples; an iterator has them only once")
        return numbered(found, names, type(self.samples).__name__, Reader(base=str(folder)))

    def _view(self, samples: Any, split: str) -> _View:
        keys = Keys(image=self.image, label=self.label, caption=self.caption, mask=self.mask)
        if is_dataset(samples):
            return _huggingface(samples, keys, split)
        classes = getattr(samples, "classes", None)  # torchvision's; of ImageNet, several names for each
        names = tuple(name if isinstance(name, str) else name[0] for name in classes) if classes else None
        return _View(samples, keys, names)


class _View(NamedTuple):
    """What is gone through, how each sample is taken apart, and the class names that are known without."""

    samples: Any
    keys: Keys
    classes: tuple[str, ...] | None


class _Spool:
    """A new file that payloads are written to, one after the other."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._name = folder / name, name

    def __enter__(self) -> _Spool:
        with map_os_errors(self._path):
            self._file = open(self._path, "wb")
        return self

    def __exit__(self, *exception: object) -> None:
        with map_os_errors(self._path):
            self._file.close()

    def place(self, payload: bytes | Path) -> list[object]:
        """Return where a payload is from now on."""
        if isinstance(payload, Path):
            return [str(payload)]
        with map_os_errors(self._path):
            offset = self._file.tell()
            self._file.write(payload)
        return [self._name, offset, len(payload), zlib.crc32(payload)]


def _huggingface(dataset: Any, keys: Keys, split: str) -> _View:
    dataset, features = undecoded(dataset, f"the dataset's split {split!r}")
    images = [name for name in features.images if name != keys.mask]
    image = keys.image or (images[0] if len(images) == 1 else next((key for key in IMAGE_KEYS if key in images), None))
    if image is None:
        raise ConfigError(f"the dataset has several columns with images: {', '.join(images)}; name one with image=")
    label = keys.label or (next(iter(features.classes)) if len(features.classes) == 1 else None)
    return _View(dataset, replace(keys, image=image, label=label), features.classes.get(label or LABEL_KEYS[0]))


def _drafts(view: _View, spool: _Spool, split: str) -> Iterator[Item]:
    """Yield the samples of a split as drafts."""
    for number, sample in enumerate(_each(view.samples)):
        path = f"{split}#{number}"
        try:
            if isinstance(sample, Exception):
                raise SampleError(f"{type(sample).__name__}: {sample}") from sample
            yield _drafted(view.keys.take(sample), split, path, spool)
        except SampleError as error:
            if number == 0 and not isinstance(sample, Exception):
                raise ConfigError(f"the first sample of {type(view.samples).__name__}: {error}") from error
            yield draft(split, None, path, -1, 0, more(bad=str(error)))


def _drafted(taken: Taken, split: str, path: str, spool: _Spool) -> Item:
    image = encoded(taken.image)
    parts = {
        part: value if isinstance(value, str) else spool.place(encoded(value, as_png=True))
        for part, value in taken.parts.items()
    }
    size, changed_ns = len(image) if isinstance(image, bytes) else -1, 0
    if isinstance(image, Path):
        with contextlib.suppress(OSError):  # reading it says what is wrong
            status = os.stat(image)
            size, changed_ns = status.st_size, status.st_ctime_ns
    return draft(split, taken.label, path, size, changed_ns, more(image=spool.place(image), parts=parts))


def _each(samples: Any) -> Iterator[Any]:
    """Yield the samples, or what was raised in the place of one."""
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        yield from samples
        return
    files = _files_of(samples)
    if files is not None:
        yield from ((Path(path), label) for path, label in files)
        return
    for number in range(len(samples)):
        try:
            yield samples[number]
        except Exception as error:  # whatever a loader of images raises at a broken one
            yield error


def _files_of(samples: Any) -> list[tuple[str, int]] | None:
    """Return paths and classes of torchvision's ImageFolder; None of anything else, and where transforms change it."""
    files = getattr(samples, "samples", None)
    changes = any(getattr(samples, name, None) for name in ("transform", "target_transform", "transforms"))
    if changes or not isinstance(files, list) or len(files) != len(samples):
        return None
    return files if all(isinstance(path, str) for path, _ in files) else None
