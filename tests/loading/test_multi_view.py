"""Several views of an image: the pixels and random numbers of each are its own, however they are made."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow
from shardflow.errors import ConfigError
from shardflow.geometry.crops import Crops
from shardflow.loading.decoders.multi_view import view_keys
from shardflow.order import keyed_rng
from shardflow.order.epochs import augmentation_keys
from tests.helpers.making import jpeg, make_dataset

LARGE, SMALL = shardflow.decoders.RandomResizedCrop(24), shardflow.decoders.RandomResizedCrop(10, scale=(0.05, 0.25))
VIEWS = shardflow.decoders.MultiView([LARGE, LARGE, shardflow.decoders.CenterCrop(20), *[SMALL] * 3])
KEYS = keyed_rng.fold_array(keyed_rng.key(0, "test"), np.arange(7))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 labelled samples in three shards; the images of two are broken."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [13, 20, 7], undecodable=(5, 21))


def brighten(image: torch.Tensor) -> torch.Tensor:
    """A transform that draws from two generators."""
    return image.float() + torch.rand(()) + random.random()


def halve(image: torch.Tensor) -> torch.Tensor:
    """A transform for some views only."""
    return image // 2


def swap(images: tuple[torch.Tensor, ...], labels: torch.Tensor) -> Any:
    """A batch transform."""
    return images[1], images[0], labels


def load(url: Path, **options: Any) -> list[Any]:
    """All batches of epoch 1; batches of 6, in this process, broken images replaced."""
    settled = {"batch_size": 6, "num_workers": 0, "tail": "short", "decoder": VIEWS, "max_errors": 2, **options}
    loader = shardflow.Loader(url, **settled)
    loader.set_epoch(1)
    batches = [(tuple(view.clone() for view in images), *others) for images, *others in loader]
    loader.close()
    return batches


def same(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether batches of views are equal, bit by bit."""
    pairs = [(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one[0], other[0], strict=True)]
    return len(pairs) > 0 and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_keys_of_views_are_frozen() -> None:
    """View 0 has the sample's own key, and the others keys that never change."""
    keys = np.array([1, 2**64 - 1], dtype=np.uint64)
    assert (view_keys(keys, 0) == keys).all()
    assert [view_keys(keys, view).tolist() for view in (1, 9)] == [
        [4546057345101241730, 7761375383085036686],
        [10783558936403743243, 8361219756254885417],
    ]


def test_no_key_serves_twice() -> None:
    """The repeats of a sample, their views, and what transforms on a device fold into these all have different keys."""
    repeats = [augmentation_keys(0, 3, np.arange(20), np.full(20, repeat)) for repeat in range(4)]
    keys = [view_keys(own, view) for own in repeats for view in range(3)]
    transforms = [keyed_rng.fold_array(own, np.array([number])) for own in repeats for number in range(4)]
    keys += [*transforms, *(keyed_rng.fold_array(own, np.array([view])) for own in transforms for view in range(1, 4))]
    assert len(np.unique(np.concatenate(keys))) == 20 * len(keys)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.usefixtures("way")
def test_a_view_is_what_its_decoder_returns_alone(known: bool) -> None:
    """Bit by bit, for JPEGs, other formats, broken files, decoded pixels, and sizes that the index has wrong."""
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(jpeg(9, 70, 90)))
    picture.save(buffer, "PNG")
    payloads = [memoryview(jpeg(number, 90, 70)) for number in range(4)]
    payloads += [memoryview(buffer.getvalue()), memoryview(b"no image"), np.array(picture)]
    sizes = np.array([[90, 70], [70, 90], [90, 70], [0, 0], [70, 90], [90, 70], [70, 90]]) * known
    images, crops, failures = VIEWS(payloads, sizes, KEYS)
    assert isinstance(crops, tuple)
    assert sorted(failures) == [5]
    for view, (decoder, found, own) in enumerate(zip(VIEWS.views, images, crops, strict=True)):
        expected = decoder(payloads, sizes, view_keys(KEYS, view))
        assert torch.equal(found, expected.images)
        assert isinstance(expected.crops, Crops)
        assert (own.shown == expected.crops.shown).all()
        assert (own.flip == expected.crops.flip).all()
    assert not torch.equal(images[0], images[1])


FRESH = shardflow.Workers(1, multiprocessing_context="forkserver")


@pytest.mark.parametrize(
    ("options", "transform"),
    [
        ({"num_workers": 2}, brighten),
        ({"num_workers": FRESH}, [halve, None, brighten, None, halve, None]),
        ({"batch_size": 11, "num_workers": 1}, None),
    ],
)
def test_views_depend_on_the_sample_alone(dataset: Path, options: dict[str, Any], transform: Any) -> None:
    """Workers, their start method and the batch size change no view of a sample; a broken one is replaced in each."""
    expected, found = load(dataset, transform=transform), load(dataset, transform=transform, **options)

    def by_label(batches: list[Any]) -> dict[int, list[torch.Tensor]]:
        images: dict[int, list[torch.Tensor]] = {}
        for views, labels in batches:
            once = [(n, label) for n, label in enumerate(labels.tolist()) if labels.tolist().count(label) == 1]
            images |= {label: [view[n] for view in views] for n, label in once}
        return images

    one, other = by_label(expected), by_label(found)
    good = one.keys() & other.keys()
    assert len(good) >= 34  # without those that stand in for a broken one
    assert all(torch.equal(a, b) for label in good for a, b in zip(one[label], other[label], strict=True))


def test_each_view_has_its_own_transform_and_random_numbers(dataset: Path) -> None:
    """One transform draws anew for each view; of a list, each view gets its own, and None leaves it as decoded."""
    plain, bright = load(dataset), load(dataset, transform=brighten)
    added = [after - before for (views, _), (others, _) in zip(plain, bright, strict=True)
             for before, after in zip(views, others, strict=True)]  # fmt: skip
    drawn = [image.mean().item() for view in added for image in view]
    assert len({round(value, 4) for value in drawn}) > 0.9 * len(drawn)
    mixed = load(dataset, transform=[halve, None, None, None, None, None])
    for (views, _), (others, _) in zip(plain, mixed, strict=True):
        assert torch.equal(others[0], views[0] // 2)
        assert torch.equal(others[1], views[1])


def test_the_first_view_is_that_of_a_loader_without_views(dataset: Path) -> None:
    """View 0 has the pixels that its decoder alone gives a loader."""
    alone = load(dataset, decoder=LARGE)
    for (views, labels), (images, others) in zip(load(dataset), alone, strict=True):
        assert labels.tolist() == others.tolist()
        assert torch.equal(views[0], torch.stack(images))


def test_views_from_cached_pixels_are_the_same(dataset: Path, tmp_path: Path) -> None:
    """With a cache of decoded images, while it fills and when it is full."""
    cache = shardflow.Cache(tmp_path / "cache", pixels="1GB")
    assert same(load(dataset, cache=cache), load(dataset))
    assert same(load(dataset, cache=cache), load(dataset))


def test_batch_transforms_and_empty_batches_have_all_views(dataset: Path) -> None:
    """A batch transform gets the tuple, and a rank without samples in the last step a batch of no rows in each view."""
    (first, second, _), *_ = shardflow.Loader(
        dataset, batch_size=4, decoder=VIEWS, batch_transform=swap, max_errors=2, num_workers=0
    )
    assert first.shape == second.shape == (4, 3, 24, 24)
    last = load(dataset, limit=13, group=(1, 2), max_errors=1)[-1]
    assert [tuple(view.shape) for view in last[0]][::2] == [(0, 3, 24, 24), (0, 3, 20, 20), (0, 3, 10, 10)]


def test_mixed_loaders_share_or_differ_in_their_views(tmp_path: Path) -> None:
    """Mixed by sample, loaders with equal views are decoded together, those with other settings apart."""
    paths = [make_dataset(tmp_path / name, [20]) for name in "ab"]

    def mix(*decoders: Any) -> list[Any]:
        sources = [(shardflow.Loader(path, decoder=each, batch_size=8, num_workers=0), 1)
                   for path, each in zip(paths, decoders, strict=True)]  # fmt: skip
        return [(views, labels) for views, labels in shardflow.Mix(sources)]

    equal = mix(shardflow.decoders.MultiView([LARGE, SMALL]), shardflow.decoders.MultiView([LARGE, SMALL]))
    apart = mix(
        shardflow.decoders.MultiView([LARGE, SMALL]),
        shardflow.decoders.MultiView([LARGE, shardflow.decoders.RandomResizedCrop(10)]),
    )
    assert torch.equal(equal[0][0][0], apart[0][0][0])
    assert not torch.equal(equal[0][0][1], apart[0][0][1])
    with pytest.raises(ConfigError, match="different numbers of views"):
        mix(shardflow.decoders.MultiView([LARGE, SMALL]), LARGE)


def test_sizes_may_change_by_epoch(dataset: Path) -> None:
    """A view with sizes by epoch has that of the epoch."""
    growing = shardflow.decoders.MultiView([shardflow.decoders.RandomResizedCrop({0: 8, 1: 12}), SMALL])
    views, _ = load(dataset, decoder=growing)[0]
    assert [view.shape[-1] for view in views] == [12, 10]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: shardflow.decoders.MultiView([]), "one or more decoders that crop"),
        (lambda _: shardflow.decoders.MultiView(5), "one or more decoders that crop"),
        (lambda _: shardflow.decoders.MultiView([shardflow.decoders.Image()]), r"found Image\("),
        (
            lambda _: shardflow.decoders.MultiView([LARGE, shardflow.decoders.CenterCrop(8, max_pixels=99)]),
            "one max_pixels",
        ),
        (lambda url: load(url, transform=[halve]), "found 1 for 6 views"),
        (lambda url: load(url, transform=[halve, halve], decoder=LARGE), "v2.Compose"),
    ],
)
def test_wrong_arguments_are_named(dataset: Path, make: Any, message: str) -> None:
    """A wrong argument raises ConfigError that says what is allowed."""
    with pytest.raises(ConfigError, match=message):
        make(dataset)
