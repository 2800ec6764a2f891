"""`loader.dataset`: a split as PyTorch's map-style datasets are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.folders import image_folder
from tests.helpers.making import jpeg, make_dataset, write_dataset


def test_samples_are_counted_and_looked_up(tmp_path: Path) -> None:
    """Its length is that of what the loader reads, limit included; sample i is the whole image and its label."""
    url = make_dataset(tmp_path / "set", [5, 4])
    loader = shardflow.Loader(url, batch_size=2, num_workers=0, limit=7)
    samples = loader.dataset
    assert len(samples) == 7
    assert [samples[number][1] for number in range(7)] == list(range(7))
    image, label = samples[-1]
    assert (image.dtype, image.shape[0], label) == (torch.uint8, 3, 6)
    assert [label for _, label in samples[-3:]] == [4, 5, 6]
    for number in (7, -8):
        with pytest.raises(IndexError):
            samples[number]
    with pytest.raises(ConfigError, match="whole number"):
        samples["a"]  # type: ignore[index]
    assert repr(samples) == f"MapDataset({str(url)!r}, split='train'): 7 samples"
    assert len(samples.dataset["train"]) == 9
    assert len(next(iter(DataLoader(samples, batch_size=None)))) == 2  # what PyTorch's own loader takes


def test_a_subset_has_its_samples_alone(tmp_path: Path) -> None:
    """With a `Subset`, also one set later, `len(loader.dataset)` divides an accuracy, and sample i is the subset's."""
    url = make_dataset(tmp_path / "set", [4, 5])
    for shuffle in (True, False):
        subset = shardflow.samplers.Subset(index=[8, 2, 5])
        loader = shardflow.Loader(url, batch_size=2, sampler=subset, shuffle=shuffle, tail="short", num_workers=0)
        assert len(loader.dataset) == sum(len(labels) for _, labels in loader) == 3
        assert [loader.dataset[number][1] for number in (0, 1, -1)] == loader.dataset.targets == [8, 2, 5]
        assert "9 samples, 3 per epoch" in repr(loader)
        assert "chosen by Subset(3 samples)" in repr(loader)
        loader.set_sampler(shardflow.samplers.Subset(index=[7, 1, 3, 0]))
        assert "chosen by Subset(4 samples)" in repr(loader)
        assert len(loader.dataset) == sum(len(labels) for _, labels in loader) == 4
        assert loader.dataset.targets == loader.dataset.indices.tolist() == [7, 1, 3, 0]
    assert shardflow.Loader(url, batch_size=2, num_workers=0, limit=3).dataset.indices.tolist() == [0, 1, 2]


def test_classes_are_torchvisions(tmp_path: Path) -> None:
    """Classes and their numbers are there as ImageFolder has them, on the loader too."""
    url = make_dataset(tmp_path / "set", [2])
    loader = shardflow.Loader(url, batch_size=2, num_workers=0)
    assert loader.dataset.classes == loader.classes == ["class0", "class1"]
    assert loader.dataset.class_to_idx == loader.class_to_idx == {"class0": 0, "class1": 1}
    assert loader.dataset.targets == [loader.dataset[number][1] for number in range(len(loader.dataset))]


def test_samples_are_files_with_labels(tmp_path: Path) -> None:
    """`samples` has the source and the label of each sample; a subset's could be mistaken for the split's."""
    src = image_folder(tmp_path / "src", 12)
    shardflow.pack(src, tmp_path / "set", short_side=32, workers=1)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "shuffle": False}
    dataset = shardflow.Loader(tmp_path / "set", **options).dataset
    assert len(dataset.samples) == 12
    for number, (path, label) in enumerate(dataset.samples):
        assert (path, label) == (dataset.split.source(number), dataset[number][1])
        assert Path(path).parent.name == dataset.classes[label]
    subset = shardflow.Loader(
        tmp_path / "set", **options, sampler=shardflow.samplers.Subset(index=[7, 1, 3, 0])
    ).dataset
    with pytest.raises(AttributeError, match=r"split.sources\(\)\[index\] is the source"):
        _ = subset.samples
    assert [subset.split.sources()[index] for index in subset.indices] == [dataset.samples[n][0] for n in (7, 1, 3, 0)]


def test_labels_of_other_kinds(tmp_path: Path) -> None:
    """Samples of several classes have a tuple, samples without labels None; `targets` has no number that is none."""
    several = [("a", {"jpg": jpeg(0), "labels.json": b"[0, 2]"}), ("b", {"jpg": jpeg(1), "labels.json": b"[1]"})]
    url = write_dataset(tmp_path / "several", {"train": [several]}, classes=("x", "y", "z"))
    loader = shardflow.Loader(url, batch_size=1, num_workers=0)
    assert [loader.dataset[0][1], loader.dataset[1][1]] == loader.dataset.targets == [(0, 2), (1,)]
    assert loader.fields == ("image", "labels")
    some = [[("a", {"jpg": jpeg(0), "cls": b"0"}), *several[1:]]]
    mixed = write_dataset(tmp_path / "mixed", {"train": some}, classes=("x", "y"))
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 0, "shuffle": False}
    assert [labels.tolist() for _, labels in shardflow.Loader(mixed, **options)] == [[[1, 0], [0, 1]]]
    with pytest.raises(ConfigError, match=r"no part 'cls', only labels.json; change `fields` to \"labels\""):
        list(shardflow.Loader(mixed, **options, fields=("image", "label")))
    bare = shardflow.Loader(make_dataset(tmp_path / "bare", [2], labelled=False), batch_size=1, num_workers=0)
    assert (bare.dataset[0][1], bare.dataset.targets) == (None, [(), ()])
    assert bare.classes == []
