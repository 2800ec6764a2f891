"""A split as a PyTorch map-style dataset: `len(dataset)` samples, `dataset[i]` an image with its label."""

from __future__ import annotations

import functools
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset as TorchDataset

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.dataset.class_labels import read_labels, single_classes
from shardflow.dataset.open_dataset import Dataset, Split
from shardflow.formats.labels import CLASS_PART, LABEL_PARTS

from .batch_fields import parsed_labels
from .decoders.whole_image import Image
from .stages import image_part


class MapDataset(TorchDataset[tuple[torch.Tensor, Any]]):
    """The samples of a loader in the order of the split, as whole images without transforms.

    >>> image, label = loader.dataset[17]     # uint8 [3, H, W], int
    >>> accuracy = correct / len(val.dataset)

    Use it to look at samples; for training, iterate over the loader, which reads shards sequentially. With
    `samplers.Subset`, it has the samples of the subset, in the subset's order, as PyTorch's `Subset` has: then the
    field "index" of a batch, a number in the split, is one of `indices`.

    Attributes:
        dataset: The open dataset with all splits, as from `shardflow.open`.
        split: The split; `split[i]` are the undecoded parts of a sample.
        classes: The class names, label 0 first; empty without labels.
        class_to_idx: Class name → label.
        indices: The number of each sample in the split, int64 [len(dataset)].
        targets: The label of each sample: an int; or, if some samples have none or several, a tuple for each.
        samples: Path below the source, or row of the table, from which a sample was packed, and its label; not of a
            `Subset`, where `split.sources()[index]` has the path.
    """

    def __init__(
        self, dataset: Dataset, split: Split, samples: int, chosen: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.dataset, self.split, self._chosen = dataset, split, chosen
        self.classes = list(dataset.classes or ())
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._samples = samples if chosen is None else len(chosen)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("transform", "target_transform", "transforms"):
            raise AttributeError("samples come without transforms; give transform= to the Loader")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return self._samples

    @overload
    def __getitem__(self, number: int) -> tuple[torch.Tensor, Any]: ...

    @overload
    def __getitem__(self, number: slice) -> list[tuple[torch.Tensor, Any]]: ...

    def __getitem__(self, number: int | slice) -> tuple[torch.Tensor, Any] | list[tuple[torch.Tensor, Any]]:
        """Return image and label of a sample; negative numbers count from the end. A slice returns a list.

        Returns:
            The image as packed, uint8 [3, H, W]; and its label: an int, a tuple of int for several classes, or None.

        Raises:
            IndexError: The sample does not exist.
            IntegrityError: Its bytes are damaged.
            DecodeError: It has no image, or one that cannot be decoded.
        """
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        number = check_integer("the number of a sample", number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} does not exist; there are {len(self)}, numbered from 0")
        number %= len(self)
        number = number if self._chosen is None else int(self._chosen[number])
        sample = self.split.reader.read(*self.split.locate(number))
        size = np.array([sample.image_size], dtype=np.int64)
        decoded = Image()([sample.parts[image_part(sample)]], size, np.zeros(1, dtype=np.uint64))
        if decoded.failures:
            raise sample.with_sample(decoded.failures[0])
        part = next((part for part in LABEL_PARTS if part in sample.parts), None)
        labels = None if part is None else parsed_labels(sample, part)
        return decoded.images[0], labels[0] if part == CLASS_PART and labels else labels

    @functools.cached_property
    def indices(self) -> npt.NDArray[np.int64]:
        """The number of each sample in the split, int64 [len(dataset)]."""
        return np.arange(self._samples) if self._chosen is None else self._chosen

    @functools.cached_property
    def targets(self) -> list[int] | list[tuple[int, ...]]:
        """The label of each sample; if some have none or several, the labels of each as a tuple."""
        labels = single_classes(self.split, len(self.classes))[self.indices]
        if (labels >= 0).all():
            numbers: list[int] = labels.tolist()
            return numbers
        several = [*read_labels(self.split, len(self.classes))]
        return [several[number] for number in self.indices.tolist()]

    @functools.cached_property
    def samples(self) -> list[tuple[str, Any]]:
        """The source of each sample, as from `Split.source`, and its label, as ImageFolder has them."""
        if self._chosen is not None:
            message = "of a Subset has no samples, as its numbers are not those of the field 'index'"
            raise AttributeError(f"the dataset {message}: split.sources()[index] is the source")
        sources = self.split.sources()
        return [(sources[number], label) for number, label in zip(self.indices.tolist(), self.targets, strict=True)]

    def __repr__(self) -> str:
        return f"MapDataset({self.dataset.url!r}, split={self.split.name!r}): {plural(len(self), 'sample')}"
