from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.device_batches import FIELDS

STAGES = [
    shardflow.RandomResizedCrop(8, hflip=0.5),
    shardflow.ColorJitter(0.4, 0.4, 0.4, 0.1),
    shardflow.Normalize(),
    shardflow.RandomErasing(0.5),
]


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader that hands keys out."""
    options = {"batch_size": 6, "num_workers": 0, "tail": "short", "fields": FIELDS, **options}
    return shardflow.Loader(url, decoder=shardflow.CenterCropDecoder(12), **options)


def pixels(url: Path, epoch: int = 0, stages: Any = STAGES, **options: Any) -> dict[int, torch.Tensor]:
    """The pixels of every sample, by label, for one epoch over all simulated ranks."""
    found = {}
    for rank in range(options.get("world_size", 1)):
        whole = loader(url, **{"rank": rank, "world_size": 1, **options})
        whole.set_epoch(epoch)
        for images, labels in shardflow.DevicePrefetcher(whole, "cpu", stages):
            found.update(zip(labels.tolist(), images, strict=True))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"world_size": 3},
        {"batch_size": 11},
        {"shuffle": False},
        {"shuffle": shardflow.Shuffle(lanes=5)},
    ],
    ids=str,
)
def test_pixels_depend_on_seed_epoch_and_sample_alone(dataset: Path, options: dict[str, Any]) -> None:
    """Workers, world size, batch size and order change nothing in a sample's pixels."""
    expected, found = pixels(dataset, epoch=2), pixels(dataset, epoch=2, **options)
    assert sorted(found) == sorted(expected) == list(range(40))
    for label, image in expected.items():
        torch.testing.assert_close(found[label], image, rtol=0, atol=1e-5)


def test_pixels_change_with_epoch_and_seed(dataset: Path) -> None:
    """Another epoch or another seed augments every sample differently."""
    base = pixels(dataset)
    for other in (pixels(dataset, epoch=1), pixels(dataset, seed=1)):
        assert not any(torch.equal(base[label], other[label]) for label in base)


def test_a_resumed_run_goes_on_with_the_same_pixels(dataset: Path) -> None:
    """Stopped after two batches and gone on with elsewhere, in other batches, pixels are those of the whole run."""
    expected = pixels(dataset)
    stopped = shardflow.DevicePrefetcher(loader(dataset), "cpu", STAGES)
    for _, _ in zip(stopped, range(2), strict=False):
        state = stopped.state_dict()
    resumed = shardflow.DevicePrefetcher(loader(dataset, batch_size=5), "cpu", STAGES)
    resumed.load_state_dict(state)
    rest = {label: image for images, labels in resumed for label, image in zip(labels.tolist(), images, strict=True)}
    assert len(rest) == 28
    for label, image in rest.items():
        torch.testing.assert_close(image, expected[label], rtol=0, atol=1e-5)


def test_two_stages_of_a_kind_draw_different_numbers(dataset: Path) -> None:
    """Each stage's place is folded into the keys: of two flips in a row, the second is not always like the first."""
    once = pixels(dataset, stages=[shardflow.RandomHorizontalFlip()])
    twice = pixels(dataset, stages=[shardflow.RandomHorizontalFlip()] * 2)
    never = pixels(dataset, stages=[])
    flipped = sum(not torch.equal(once[label], never[label]) for label in never)
    undone = sum(torch.equal(twice[label], never[label]) for label in never)
    assert 8 < flipped < 32
    assert 8 < undone < 32


def test_blends_take_images_and_labels(dataset: Path) -> None:
    """A blend after the others mixes images and makes targets; the keys are used up."""
    batches = shardflow.DevicePrefetcher(
        loader(dataset), "cpu", [shardflow.Normalize(), shardflow.MixUp(num_classes=40)]
    )
    images, targets = next(iter(batches))
    assert images.shape == (6, 3, 12, 12)
    assert targets.shape == (6, 40)
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    _, again = next(iter(shardflow.DevicePrefetcher(loader(dataset), "cpu", [shardflow.MixUp(num_classes=40)])))
    assert not torch.equal(targets, again)  # its place is another one
    *_, last = shardflow.DevicePrefetcher(loader(dataset, batch_size=39), "cpu", [shardflow.CutMix()])
    assert len(last[0]) == 1


def test_an_empty_batch_passes_all_stages(dataset: Path) -> None:
    """A rank that has no sample in the last step gets an empty batch of the right shapes through stages and blends."""
    stages = [*STAGES, shardflow.OneOf([shardflow.MixUp(num_classes=40), shardflow.CutMix(num_classes=40)])]
    *_, (images, targets) = shardflow.DevicePrefetcher(
        loader(dataset, rank=2, world_size=3, batch_size=13), "cpu", stages
    )
    assert images.shape == (0, 3, 8, 8)
    assert targets.shape == (0, 40)


def test_foreign_stages_are_keyed_by_batch(dataset: Path) -> None:
    """torchvision's own transforms, MixUp among them, draw the same again in a resumed run, and disturb nobody else."""
    stages = [v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.5, 0.5), v2.RandomHorizontalFlip()]

    def batches(**options: Any) -> shardflow.DevicePrefetcher:
        mixup = v2.RandomChoice([v2.MixUp(num_classes=40), v2.CutMix(num_classes=40)])
        return shardflow.DevicePrefetcher(loader(dataset, **options), "cpu", stages, batch_transform=mixup)

    torch.manual_seed(5)
    expected = [*batches()]
    undisturbed = torch.rand(3)
    assert len({float(images.sum()) for images, _ in expected}) == len(expected)
    stopped = batches()
    for _, _ in zip(stopped, range(2), strict=False):
        state = stopped.state_dict()
    resumed = batches(num_workers=1)
    resumed.load_state_dict(state)
    torch.testing.assert_close([*resumed], expected[2:], rtol=0, atol=0)
    torch.manual_seed(5)
    torch.testing.assert_close(torch.rand(3), undisturbed, rtol=0, atol=0)


def test_fields_may_stand_in_any_order(dataset: Path) -> None:
    """Fields are found by name, and those that no stage concerns pass as they are."""
    fields = ("random_key", "key", "image", "label")
    keys, images, labels = next(
        iter(shardflow.DevicePrefetcher(loader(dataset, fields=fields), "cpu", [shardflow.Normalize()]))
    )
    assert [int(key) for key in keys] == labels.tolist()
    assert images.dtype == torch.float32


def test_a_mix_of_loaders_will_do(dataset: Path) -> None:
    """The batches of several datasets are augmented as those of one."""
    mix = shardflow.Mix([(loader(dataset), 1), (loader(dataset, seed=3), 1)])
    images, labels = next(iter(shardflow.DevicePrefetcher(mix, "cpu", STAGES)))
    assert images.shape == (6, 3, 8, 8)
    assert labels.shape == (6,)


def test_missing_fields_are_named(dataset: Path) -> None:
    """Without the field that a stage needs, the error says which `fields` to give the loader."""
    plain = loader(dataset, fields=("image", "label"))
    with pytest.raises(ConfigError, match=r"need random_key, .*give it fields=\('image', 'label', 'random_key'\)"):
        shardflow.DevicePrefetcher(plain, "cpu", [shardflow.RandomHorizontalFlip()])
    with pytest.raises(ConfigError, match="need label"):
        shardflow.DevicePrefetcher(loader(dataset, fields=("image", "random_key")), "cpu", [shardflow.MixUp()])
    shardflow.DevicePrefetcher(plain, "cpu", [shardflow.Normalize()])


def test_batches_of_other_fields_are_refused(dataset: Path) -> None:
    """A loader whose batch_transform changes the fields cannot be augmented by name, which is said."""
    changed = loader(dataset, batch_transform=lambda images, *_: (images,))
    with pytest.raises(ConfigError, match="a batch of 1 fields came where image, label, random_key were expected"):
        next(iter(shardflow.DevicePrefetcher(changed, "cpu", STAGES)))


@pytest.mark.parametrize(
    "compiled",
    [lambda stage: torch.compile(stage, backend="eager"), lambda stage: torch.compile(stage.__call__, backend="eager")],
)
def test_compiled_stages_are_stages(dataset: Path, compiled: Any) -> None:
    """`torch.compile` of a stage, or of its `__call__`, gets the keys and draws what the stage draws."""
    expected, found = pixels(dataset), pixels(dataset, stages=[compiled(stage) for stage in STAGES])
    for label, image in expected.items():
        torch.testing.assert_close(found[label], image, rtol=0, atol=1e-5)


def test_stages_of_other_loaders_batches() -> None:
    """Dicts name their fields, whoever hands them out; what they lack, and columns without names, is said."""
    keys = torch.arange(4)
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    batch = {"image": images, "label": labels, "random_key": keys}
    (flipped,) = shardflow.DevicePrefetcher([batch], "cpu", [shardflow.RandomHorizontalFlip(1)])
    torch.testing.assert_close(flipped["image"], images.flip(-1))
    assert list(flipped) == ["image", "label"]
    for wrong, stage, message in (
        ({"image": images}, shardflow.RandomHorizontalFlip(), "need random_key, a batch has image; hand out dicts"),
        ({"pixels": images}, shardflow.Normalize(), "need image, a batch has pixels; hand out dicts"),
        ((images, labels, keys), shardflow.Normalize(), "a batch of 3 fields came .*; hand out dicts"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(shardflow.DevicePrefetcher([wrong], "cpu", [stage]))


def test_what_are_no_images_is_said(dataset: Path) -> None:
    """Encoded files that nobody decodes, and a stage that returns something else, are errors and not other pixels."""
    files = shardflow.Loader(dataset, batch_size=6, num_workers=0, fields=FIELDS, decoder=shardflow.EncodedDecoder())
    for stage in (shardflow.Normalize(), shardflow.RandomErasing(), shardflow.MixUp()):
        with pytest.raises(
            ConfigError, match=r"works on images \[B, C, H, W\].*need DecodeJpeg\(\) as the first stage"
        ):
            next(iter(shardflow.DevicePrefetcher(files, "cpu", [stage])))
    with pytest.raises(ConfigError, match=r"a stage has to return images, and .* returned 'nothing'"):
        next(iter(shardflow.DevicePrefetcher(loader(dataset), "cpu", [lambda _: "nothing"])))
