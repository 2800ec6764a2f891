from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torchvision.transforms import v2

import shardflow
from shardflow.device.transforms.rng import fold
from shardflow.errors import ConfigError
from tests.helpers.device import FIELDS, keyed_loader, noise, random_keys, state_after

TRANSFORMS = [
    shardflow.device.RandomResizedCrop(8, hflip=0.5),
    shardflow.device.ColorJitter(0.4, 0.4, 0.4, 0.1),
    shardflow.device.Normalize(),
    shardflow.device.RandomErasing(0.5),
]


def pixels(url: Path, epoch: int = 0, transforms: Any = TRANSFORMS, **options: Any) -> dict[int, torch.Tensor]:
    """Return the pixels of every sample by label, for one epoch over all simulated ranks."""
    found = {}
    for rank in range(world_size := options.pop("world_size", 1)):
        whole = keyed_loader(url, **{"group": (rank, world_size), **options})
        whole.set_epoch(epoch)
        for images, labels in shardflow.device.Prefetcher(whole, "cpu", transforms):
            found.update(zip(labels.tolist(), images, strict=True))
    return found


@pytest.mark.parametrize(
    "options",
    [
        *({"num_workers": 2}, {"world_size": 3}, {"batch_size": 11}),
        *({"shuffle": shuffle} for shuffle in (False, shardflow.Shuffle(streams=5))),
    ],
    ids=str,
)
def test_pixels_depend_on_seed_epoch_and_sample_alone(dataset: Path, options: dict[str, Any]) -> None:
    """Workers, world size, batch size and order change nothing in a sample's pixels."""
    expected, found = pixels(dataset, epoch=2), pixels(dataset, epoch=2, **options)
    assert sorted(found) == sorted(expected) == list(range(60))
    for label, image in expected.items():
        torch.testing.assert_close(found[label], image, rtol=0, atol=1e-5)


def test_pixels_change_with_epoch_and_seed(dataset: Path) -> None:
    """Another epoch or another seed augments every sample differently."""
    base = pixels(dataset)
    for other in (pixels(dataset, epoch=1), pixels(dataset, seed=1)):
        assert not any(torch.equal(base[label], other[label]) for label in base)


def test_a_resumed_run_has_the_same_pixels(dataset: Path) -> None:
    """Resumed after two batches with another batch size, the pixels are those of the whole run."""
    expected = pixels(dataset)
    state = state_after(shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", TRANSFORMS), 2)
    resumed = shardflow.device.Prefetcher(keyed_loader(dataset, batch_size=5), "cpu", TRANSFORMS)
    resumed.load_state_dict(state)
    rest = {label: image for images, labels in resumed for label, image in zip(labels.tolist(), images, strict=True)}
    assert len(rest) == 46
    for label, image in rest.items():
        torch.testing.assert_close(image, expected[label], rtol=0, atol=1e-5)


def test_two_transforms_of_a_kind_draw_different_numbers(dataset: Path) -> None:
    """The position of a transform is folded into the keys: the second of two flips is independent of the first."""
    once = pixels(dataset, transforms=[shardflow.device.RandomHorizontalFlip()])
    twice = pixels(dataset, transforms=[shardflow.device.RandomHorizontalFlip()] * 2)
    never = pixels(dataset, transforms=[])
    flipped = sum(not torch.equal(once[label], never[label]) for label in never)
    undone = sum(torch.equal(twice[label], never[label]) for label in never)
    assert 12 < flipped < 48
    assert 12 < undone < 48


def test_mixing_takes_images_and_labels(dataset: Path) -> None:
    """A mixing transform after others returns mixed images and targets; the keys are removed."""
    batches = shardflow.device.Prefetcher(
        keyed_loader(dataset), "cpu", [shardflow.device.Normalize(), shardflow.device.MixUp(num_classes=60)]
    )
    images, targets = next(iter(batches))
    assert images.shape == (7, 3, 12, 12)
    assert targets.shape == (7, 60)
    torch.testing.assert_close(targets.sum(1), torch.ones(7))
    _, again = next(
        iter(shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", [shardflow.device.MixUp(num_classes=60)]))
    )
    assert not torch.equal(targets, again)  # its position is another one
    *_, last = shardflow.device.Prefetcher(keyed_loader(dataset, batch_size=59), "cpu", [shardflow.device.CutMix()])
    assert len(last[0]) == 1


def test_the_labels_of_several_classes_are_mixed() -> None:
    """Without a field "label", "labels" becomes the targets; with both, one would not be mixed: an error."""
    batch = {
        "image": torch.rand(4, 3, 8, 8),
        "labels": torch.eye(4),
        "random_key": torch.arange(4),
    }
    mixup = shardflow.device.MixUp(per_pair=True)
    (found,) = shardflow.device.Prefetcher([batch], "cpu", [mixup])
    assert ((found["labels"] > 0).sum(1) == 2).all()
    with pytest.raises(ConfigError, match="leave one of them out"):
        next(iter(shardflow.device.Prefetcher([{**batch, "label": torch.arange(4)}], "cpu", [mixup])))


def test_mixing_needs_to_know_the_padding(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A padded loader needs the field "valid" for mixing on the device; torchvision's, which ignores it, is refused.

    Torchvision's mixes the second field alone, so another target brings a warning.
    """
    mixup, fields = v2.MixUp(num_classes=60), ("image", "label", "random_key")
    padded = keyed_loader(dataset, fields=fields, tail="pad")
    with pytest.raises(ConfigError, match=r"need valid.*give it fields="):
        shardflow.device.Prefetcher(padded, "cpu", [shardflow.device.MixUp()])
    with pytest.raises(ConfigError, match=r"mix the padding"):
        shardflow.device.Prefetcher(padded, "cpu", batch_transform=v2.Compose([mixup]))
    with pytest.raises(ConfigError, match=r"mix the padding"):
        keyed_loader(dataset, tail="pad", batch_transform=mixup)
    fields = (*fields, "valid")
    assert not caplog.records
    keyed_loader(dataset, fields=("image", "cls", "label"), batch_transform=v2.Compose([mixup]))
    assert "MixUp as batch_transform mixes the images and 'cls', but not 'label'; mix them" in caplog.text
    keyed_loader(dataset, fields=fields, tail="pad", batch_transform=lambda *batch: (*mixup(*batch[:2]), *batch[2:]))
    shardflow.device.Prefetcher(keyed_loader(dataset, fields=fields, tail="pad"), "cpu", [shardflow.device.MixUp()])


@pytest.mark.parametrize("field", ["score", "txt", "images", "pixel_mask", "cls"])
def test_what_is_not_mixed_beside_the_labels_is_refused(dataset: Path, field: str) -> None:
    """A column, a part or further images would stay those of one image; what names that image may be there."""
    batch = {"image": torch.rand(2, 3, 8, 8), "label": torch.arange(2), "random_key": torch.arange(2)}
    mixup = [shardflow.device.MixUp(num_classes=2)]
    known = {**batch, "index": torch.arange(2), "key": ["a", "b"], "valid": torch.ones(2, dtype=torch.bool)}
    assert next(iter(shardflow.device.Prefetcher([known], "cpu", mixup)))["key"] == ["a", "b"]
    with pytest.raises(ConfigError, match=f"MixUp mixes images and their labels, not {field};"):
        next(iter(shardflow.device.Prefetcher([{**known, field: torch.rand(2)}], "cpu", mixup)))
    if field == "cls":
        fields = ("image", "label", "random_key", "cls")
        with pytest.raises(ConfigError, match="not cls;"):
            shardflow.device.Prefetcher(keyed_loader(dataset, fields=fields), "cpu", mixup)


@pytest.mark.parametrize("transform", [shardflow.device.MixUp(per_pair=True), shardflow.device.CutMix(num_classes=9)])
def test_padding_is_mixed_into_no_sample(transform: Any) -> None:
    """With the field `valid`, samples of a padded batch are mixed as they are without the padding."""
    batch = {"image": torch.rand(5, 3, 8, 8), "label": torch.arange(5), "random_key": torch.arange(1, 6)}
    padded = {**batch, "valid": torch.tensor([True, True, True, False, False])}
    found, expected = (
        next(iter(shardflow.device.Prefetcher([each], "cpu", [transform])))
        for each in (padded, {name: column[:3] for name, column in batch.items()})
    )
    torch.testing.assert_close(found["image"][:3], expected["image"], rtol=0, atol=0)
    for own, right in zip(tree_leaves(found["label"]), tree_leaves(expected["label"]), strict=True):
        torch.testing.assert_close(own[:3], right, rtol=0, atol=0)
    nothing = {name: column[:0] for name, column in padded.items()}
    (empty,) = shardflow.device.Prefetcher([nothing], "cpu", [transform])
    assert len(empty["image"]) == 0


def test_an_empty_batch_passes_all_transforms(dataset: Path) -> None:
    """A rank that has no sample in the last step gets an empty batch of the right shapes through all transforms."""
    transforms = [
        *TRANSFORMS,
        shardflow.device.OneOf([shardflow.device.MixUp(num_classes=60), shardflow.device.CutMix(num_classes=60)]),
    ]
    *_, (images, targets) = shardflow.device.Prefetcher(
        keyed_loader(dataset, group=(6, 7), batch_size=2), "cpu", transforms
    )
    assert images.shape == (0, 3, 8, 8)
    assert targets.shape == (0, 60)


def test_transforms_of_other_libraries_are_keyed_by_batch(dataset: Path) -> None:
    """torchvision's transforms, MixUp too, draw the same in a resumed run, and restore the global generators."""
    transforms = [v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.5, 0.5), v2.RandomHorizontalFlip()]

    def batches(**options: Any) -> shardflow.device.Prefetcher:
        mixup = v2.RandomChoice([v2.MixUp(num_classes=60), v2.CutMix(num_classes=60)])
        return shardflow.device.Prefetcher(keyed_loader(dataset, **options), "cpu", transforms, batch_transform=mixup)

    torch.manual_seed(5)
    expected = [*batches()]
    undisturbed = torch.rand(3)
    assert len({float(images.sum()) for images, _ in expected}) == len(expected)
    state = state_after(batches(), 2)
    resumed = batches(num_workers=1)
    resumed.load_state_dict(state)
    torch.testing.assert_close([*resumed], expected[2:], rtol=0, atol=0)
    torch.manual_seed(5)
    torch.testing.assert_close(torch.rand(3), undisturbed, rtol=0, atol=0)


def test_fields_may_stand_in_any_order(dataset: Path) -> None:
    """Fields are found by name, and those that no transform uses stay as they are."""
    fields = ("random_key", "key", "image", "label")
    keys, images, labels = next(
        iter(shardflow.device.Prefetcher(keyed_loader(dataset, fields=fields), "cpu", [shardflow.device.Normalize()]))
    )
    assert [int(key) for key in keys] == labels.tolist()
    assert images.dtype == torch.float32


def test_a_mix_of_loaders_is_augmented(dataset: Path) -> None:
    """The batches of several datasets are augmented as those of one."""
    mix = shardflow.Mix([(keyed_loader(dataset), 1), (keyed_loader(dataset, seed=3), 1)])
    images, labels = next(iter(shardflow.device.Prefetcher(mix, "cpu", TRANSFORMS)))
    assert images.shape == (7, 3, 8, 8)
    assert labels.shape == (7,)


def test_views_are_augmented_each_in_its_own_way() -> None:
    """Each view gets what it would alone, with random numbers of its own; a transform of another library likewise."""
    images, keys = noise(6), random_keys(6)
    views = (images, images, images[:, :, :9, :12])
    jitter = shardflow.device.ColorJitter(0.4, 0.4, 0.4)
    transforms = [shardflow.device.Normalize(), jitter, shardflow.device.RandomErasing(1), v2.RandomHorizontalFlip(0.5)]
    batch = {"image": views, "label": torch.arange(6), "random_key": keys}
    (found,) = shardflow.device.Prefetcher([batch], "cpu", transforms)
    assert [view.shape for view in found["image"]] == [view.shape for view in views]
    assert not torch.equal(found["image"][0], found["image"][1])
    (found,) = shardflow.device.Prefetcher([{**batch, "image": list(views)}], "cpu", [transforms[0], jitter])
    for number, (view, given) in enumerate(zip(found["image"], views, strict=True)):
        own = fold(fold(keys, 1), number) if number else fold(keys, 1)
        torch.testing.assert_close(view, jitter(shardflow.device.Normalize()(given), own))
    with pytest.raises(ConfigError, match=r"MixUp .*3 views"):
        list(shardflow.device.Prefetcher([batch], "cpu", [shardflow.device.MixUp()]))


def test_missing_fields_are_named(dataset: Path) -> None:
    """Without a field that a transform needs, the error names the `fields` to give the loader."""
    plain = keyed_loader(dataset, fields=("image", "label"))
    with pytest.raises(ConfigError, match=r"fields=\('image', 'label', 'random_key'\)"):
        shardflow.device.Prefetcher(plain, "cpu", [shardflow.device.RandomHorizontalFlip()])
    with pytest.raises(ConfigError, match="need label"):
        shardflow.device.Prefetcher(
            keyed_loader(dataset, fields=("image", "random_key")), "cpu", [shardflow.device.MixUp()]
        )
    shardflow.device.Prefetcher(plain, "cpu", [shardflow.device.Normalize()])


def test_batches_of_other_fields_are_refused(dataset: Path) -> None:
    """A loader whose batch_transform changes the fields is an error that says where batch_transform belongs."""
    changed = keyed_loader(dataset, batch_transform=lambda images, *_: (images,))
    with pytest.raises(
        ConfigError,
        match=r"random_key.*1 .*batch_transform",
    ):
        next(iter(shardflow.device.Prefetcher(changed, "cpu", TRANSFORMS)))


def test_compiled_transforms_are_keyed(dataset: Path) -> None:
    """`torch.compile` of a transform, or of its `__call__`, gets the keys and draws the same."""
    first, second, *others = TRANSFORMS  # tests/device/test_transforms.py compiles the others
    compiled = [torch.compile(first, backend="eager"), torch.compile(second.__call__, backend="eager"), *others]
    expected, found = pixels(dataset), pixels(dataset, transforms=compiled)
    for label, image in expected.items():
        torch.testing.assert_close(found[label], image, rtol=0, atol=1e-5)


def test_batches_of_other_loaders() -> None:
    """Dicts name their fields, from any loader; missing fields, and columns without names, are errors."""
    keys = torch.arange(4)
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    batch = {"image": images, "label": labels, "random_key": keys}
    (flipped,) = shardflow.device.Prefetcher([batch], "cpu", [shardflow.device.RandomHorizontalFlip(1)])
    torch.testing.assert_close(flipped["image"], images.flip(-1))
    assert list(flipped) == ["image", "label"]
    for wrong, transform, message in (
        ({"image": images}, shardflow.device.RandomHorizontalFlip(), "need random_key, but a batch has image"),
        ({"pixels": images}, shardflow.device.Normalize(), "need image, but a batch has pixels"),
        ((images, labels, keys), shardflow.device.Normalize(), "of the fields image, label, found 3 of them"),
    ):
        with pytest.raises(ConfigError, match=f"{message}; let the loader return dicts"):
            list(shardflow.device.Prefetcher([wrong], "cpu", [transform]))


def test_other_data_than_images_is_refused(dataset: Path) -> None:
    """Encoded images without DecodeJpeg, and a transform that returns no images, are errors and not other pixels."""
    files = shardflow.Loader(dataset, batch_size=6, num_workers=0, fields=FIELDS, decoder=shardflow.decoders.Raw())
    for transform in (shardflow.device.Normalize(), shardflow.device.RandomErasing(), shardflow.device.MixUp()):
        with pytest.raises(ConfigError, match=r"images.*DecodeJpeg\(\)"):
            next(iter(shardflow.device.Prefetcher(files, "cpu", [transform])))
    with pytest.raises(ConfigError, match=r"images.* returned 'nothing'"):
        next(iter(shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", [lambda _: "nothing"])))


def test_images_of_16_bits_are_refused() -> None:
    """Images whose range the transforms do not know are an error that names the remedy, which helps."""
    images = torch.full((2, 3, 8, 8), 40000, dtype=torch.uint16)
    batch = {"image": images, "label": torch.zeros(2, dtype=torch.int64), "random_key": torch.arange(2)}
    masked = {"image": list(images), "mask": torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "random_key": torch.arange(2)}
    for given, transform in (
        (batch, shardflow.device.ColorJitter(0.4)),
        (batch, shardflow.device.MixUp(num_classes=1)),
        (masked, shardflow.device.RandomErasing(1)),
    ):
        with pytest.raises(ConfigError, match=r"torch\.uint16.*v2\.ToDtype"):
            next(iter(shardflow.device.Prefetcher([given], "cpu", [transform])))
        remedied = [v2.ToDtype(torch.float32, scale=True), transform]
        assert next(iter(shardflow.device.Prefetcher([given], "cpu", remedied)))["image"][0].max() <= 1
