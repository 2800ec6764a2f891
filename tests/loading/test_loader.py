from __future__ import annotations

import functools
import gc
import itertools
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ConfigError, DecodeError, IntegrityError, NotFoundError
from shardflow.loading.decoders.pixels import warn_without_kernel
from shardflow.loading.source import EpochStart
from tests.helpers.kernel import without_kernel
from tests.helpers.loading import labels
from tests.helpers.making import flip, jpeg, make_dataset, write_dataset

SIZES = [50, 7, 33, 60]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 150 labelled samples in four uneven shards, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": SIZES, "val": [20, 3]})


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of small crops, so that tests spend their time elsewhere."""
    defaults = {"batch_size": 8, "num_workers": 0, "decoder": shardflow.decoders.RandomResizedCrop(16)}
    return shardflow.Loader(url, **{**defaults, **options})


class FailOnce:
    """A transform that fails the first time that it is called."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """The image."""
        if not self.flag.exists():
            self.flag.touch()
            raise ValueError("too dark")
        return image


def test_batch_is_images_and_labels(dataset: Path) -> None:
    """A batch is uint8 [B, 3, S, S] and int64 [B], and all but the images' crops agree with the stored samples."""
    images, numbers = next(iter(loader(dataset)))
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (8, 3, 16, 16))
    assert (numbers.dtype, tuple(numbers.shape)) == (torch.int64, (8,))


def test_slow_decoding_is_told_once(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first loader that decodes without the native kernel logs one warning with the reason; no later one does."""
    warn_without_kernel.cache_clear()
    with without_kernel():
        loader(dataset, fields=["label"])
        loader(dataset, decoder=shardflow.decoders.Image(), transform=v2.Resize((16, 16)))
        assert not caplog.records
        for _ in range(2):
            loader(dataset)
    (record,) = caplog.records
    assert record.getMessage() == "JPEGs are decoded at less than half the speed: switched off by a test"


def test_torchvision_is_imported_where_it_decodes(dataset: Path) -> None:
    """A loader with the kernel never imports torchvision, and one without does before its workers are forked.

    Workers import nothing: the training process has all that they use, and their memory stays shared.
    """
    code = f"""
import sys
import shardflow
from shardflow import native
from shardflow.loading.decoders.pixels import warn_without_kernel
def modules(images, labels):
    return sorted(sys.modules)
batches = iter(shardflow.Loader({str(dataset)!r}, batch_size=8, num_workers=1, batch_transform=modules))
print(*(name for name in next(batches) if name not in sys.modules))
next(iter(shardflow.Loader({str(dataset)!r}, batch_size=8, num_workers=0)))
print("torchvision" in sys.modules)
native.available = lambda: False
warn_without_kernel.cache_clear()
shardflow.Loader({str(dataset)!r}, batch_size=8, num_workers=1)
print("torchvision" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_an_evaluation_split_is_evaluated(dataset: Path) -> None:
    """Of a split that is not `train`, each sample comes once, in order, as the same centre crop in each epoch."""
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 0}
    val = shardflow.Loader(dataset, split="val", **options)
    assert "in the split's order" in repr(val)
    assert "by CenterCrop(size=224, resize=256, max_pixels=110000000), tail 'short'" in repr(val)
    first, second = list(val), list(val)
    assert labels(first) == labels(second) == list(range(23))
    for (one, _), (two, _) in zip(first, second, strict=True):
        assert torch.equal(one, two)
    assert [int(each["cls"]) for each in shardflow.samples(dataset, split="val")] == list(range(23))
    assert next(iter(shardflow.Mix([(dataset, 1)], split="val", **options)))[1].tolist() == list(range(8))
    buckets = shardflow.samplers.AspectBuckets([(16, 16)])
    cover = shardflow.Loader(dataset, split="val", sampler=buckets, **options).decoder
    assert cover == shardflow.decoders.Cover(random=False, hflip=0)
    train = shardflow.Loader(dataset, **options)
    assert "by RandomResizedCrop(size=224, scale=(0.08, 1.0), " in repr(train)
    assert labels(train) != sorted(labels(train))
    for shuffle in (True, shardflow.Shuffle(buffer=4)):
        assert labels(shardflow.Loader(dataset, split="val", shuffle=shuffle, **options)) != list(range(16))
    assert labels(shardflow.Loader(dataset, shuffle=False, **options)) == list(range(TOTAL))


def test_defaults_need_no_decoder(dataset: Path) -> None:
    """Training crops are 224 pixels by default, and so are evaluation crops."""
    for shuffle in (True, False):
        images, _ = next(iter(shardflow.Loader(dataset, batch_size=2, num_workers=0, shuffle=shuffle)))
        assert tuple(images.shape) == (2, 3, 224, 224)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_epoch_is_exact_for_any_workers(dataset: Path, workers: int) -> None:
    """Whatever the number of workers, every epoch has each sample once, in an order of its own."""
    with_none = loader(dataset, tail="short")
    with_some = loader(dataset, tail="short", num_workers=workers)
    orders = [labels(with_some) for _ in range(3)]
    assert orders == [labels(with_none) for _ in range(3)]
    assert all(sorted(order) == list(range(TOTAL)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 0), (2, 3), (3, 0), (3, 1), (5, 0), (5, 2)])
@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_epoch_is_exact_for_any_world_size(dataset: Path, world_size: int, workers: int, tail: str) -> None:
    """The ranks together see each sample once; every rank makes as many steps; each tail does what it says."""
    options = {"tail": tail, "num_workers": workers, "fields": ("image", "label", "valid")}
    ranks = [loader(dataset, group=(rank, world_size), **options) for rank in range(world_size)]
    epochs = [list(rank) for rank in ranks]
    assert {len(epoch) for epoch in epochs} == {len(ranks[0])}
    counted = [label for epoch in epochs for _, numbers, valid in epoch for label in numbers[valid].tolist()]
    full = TOTAL // (8 * world_size) * 8 * world_size
    assert len(set(counted)) == len(counted) == (full if tail == "drop" else TOTAL)
    sizes = [len(batch[1]) for epoch in epochs for batch in epoch]
    if tail == "short":
        last = [len(epoch[-1][1]) for epoch in epochs]
        assert sum(last) == TOTAL - full
        assert max(last) - min(last) <= 1
    else:
        assert set(sizes) == {8}


def test_ranks_without_a_last_sample_get_an_empty_batch(dataset: Path) -> None:
    """With fewer samples left than ranks, a rank's last short batch is empty but keeps its shape and dtype."""
    last = [list(loader(dataset, split="val", batch_size=2, tail="short", group=(rank, 5)))[-1] for rank in range(5)]
    assert sorted(len(numbers) for _, numbers in last) == [0, 0, 1, 1, 1]
    images, numbers = next(batch for batch in last if not len(batch[1]))
    assert (images.dtype, tuple(images.shape), numbers.dtype) == (torch.uint8, (0, 3, 16, 16), torch.int64)


def test_without_shuffle_samples_come_in_order(dataset: Path) -> None:
    """`shuffle=False` reads the split from its first sample to its last, in every epoch."""
    in_order = loader(dataset, shuffle=False, tail="short", num_workers=2)
    assert labels(in_order) == labels(in_order) == list(range(TOTAL))


def test_streams_spread_a_batch_over_the_epoch(dataset: Path) -> None:
    """With more streams a batch holds samples of more places of the order, and the epoch stays exact."""
    order = labels(loader(dataset, shuffle=shardflow.Shuffle(streams=7, buffer=1), tail="short"))
    assert sorted(order) == list(range(TOTAL))
    assert order != labels(loader(dataset, shuffle=shardflow.Shuffle(streams=1, buffer=1), tail="short"))


def test_length_counts_the_batches_of_a_rank(dataset: Path) -> None:
    """len(loader) is the number of batches an epoch hands out."""
    for tail, expected in (("drop", 6), ("pad", 7), ("short", 7)):
        some = loader(dataset, tail=tail, group=(1, 3))
        assert len(some) == len(list(some)) == expected


def test_fields_are_handed_out_in_order(dataset: Path) -> None:
    """`fields` chooses what a batch consists of: keys as strings, any part as bytes, labels as tensor."""
    keys, raw, numbers = next(iter(loader(dataset, fields=("key", "jpg", "label"), shuffle=False)))
    assert keys == [f"{n:09}" for n in range(8)]
    assert all(payload[:2] == b"\xff\xd8" for payload in raw)
    assert numbers.tolist() == list(range(8))


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_on_the_cpu_whatever_the_default_device(dataset: Path, workers: int) -> None:
    """`torch.set_default_device` and `set_default_dtype` change neither the device, the types nor the values."""
    fields, decoder = ("image", "label", "labels", "index", "random_key", "valid"), shardflow.decoders.Image()
    options = {"transform": v2.CenterCrop(16), "fields": fields, "decoder": decoder, "tail": "pad", "split": "val"}
    expected = list(loader(dataset, **options))
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        some = loader(dataset, num_workers=workers, **options)
        batches = list(some)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    for batch, before in zip(batches, expected, strict=True):
        for values, others in zip(batch, before, strict=True):
            assert values.dtype == others.dtype
            assert torch.equal(values, others)


def test_unlabelled_datasets_hand_out_keys(tmp_path: Path) -> None:
    """Without labels the default fields are image and key."""
    url = make_dataset(tmp_path / "set", [10], labelled=False)
    images, keys = next(iter(loader(url, shuffle=False)))
    assert tuple(images.shape) == (8, 3, 16, 16)
    assert keys == [f"{n:09}" for n in range(8)]


def test_padded_tail_comes_with_its_mask(dataset: Path) -> None:
    """With tail="pad" the default fields end with the mask of valid samples."""
    *_, last = loader(dataset, tail="pad")
    assert last[2].tolist() == [True] * (TOTAL % 8) + [False] * (8 - TOTAL % 8)


def test_transform_and_batch_transform_apply(dataset: Path) -> None:
    """A v2 transform is applied to each image, a batch transform to the fields of each batch."""
    transform, mixup = v2.ToDtype(torch.float32, scale=True), v2.MixUp(num_classes=TOTAL)
    some = loader(dataset, transform=transform, batch_transform=mixup, num_workers=1)
    images, mixed = next(iter(some))
    assert images.dtype == torch.float32
    assert float(images.max()) <= 1
    assert tuple(mixed.shape) == (8, TOTAL)
    assert torch.allclose(mixed.sum(1), torch.ones(8))


@pytest.mark.parametrize("decoder", [shardflow.decoders.RandomResizedCrop(16), shardflow.decoders.CenterCrop(16)])
def test_crops_go_on_with_the_batch(tmp_path: Path, decoder: Any) -> None:
    """A batch knows how each image was cropped; where one replaces another, it is the crop of that one."""
    url = make_dataset(tmp_path / "set", [40], undecodable=[13])
    some = loader(url, decoder=decoder, max_errors=1, shuffle=False)
    some._control.begin(0, len(some), [EpochStart(epoch=0, position=0, streams=some._streams)])
    sampler, read, decode, *_ = some._pipeline.pipeline
    for number, batch in enumerate(decode(read(iter(sampler)))):
        sizes = np.array([sample.image_size for sample in batch.samples])
        expected = decoder.plan(0, None, sizes, batch.keys)
        if number == 1:  # sample 13 is the sixth of the second batch
            expected.replace(5, expected[6:7])
            assert batch.samples[5] is batch.samples[6]
        for name in ("box", "resized", "offset", "flip"):
            assert np.array_equal(getattr(batch.crops, name), getattr(expected, name))
        assert batch.crops.size == (16, 16)


def test_whole_images_need_a_transform_to_one_size(dataset: Path) -> None:
    """decoders.Image hands out images of their own sizes: refused when they cannot be stacked, fine after a resize."""
    with pytest.raises(ConfigError, match="cannot be stacked"):
        next(iter(loader(dataset, decoder=shardflow.decoders.Image())))
    resized = loader(dataset, decoder=shardflow.decoders.Image(), transform=v2.Resize((20, 24)))
    assert tuple(next(iter(resized))[0].shape) == (8, 3, 20, 24)


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_early_moves_to_the_next_epoch(dataset: Path, workers: int) -> None:
    """After a `break` with batches in flight, the next iteration is the whole next epoch, without a stale batch."""
    some = loader(dataset, num_workers=workers, tail="short")
    expected = [labels(some) for _ in range(3)]
    again = loader(dataset, num_workers=workers, tail="short")
    for _ in itertools.islice(again, 3):
        pass
    assert again.state_dict()["position"] == 24
    assert labels(again) == expected[1]
    assert labels(again) == expected[2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_peek_is_not_an_epoch(dataset: Path, workers: int) -> None:
    """After `next(iter(loader))` the next iteration starts where that did, at the start or at a loaded position."""
    expected = labels(loader(dataset, num_workers=0))
    some = loader(dataset, num_workers=workers)
    next(iter(some))
    assert (some.epoch, some.remaining) == (0, len(some))
    assert some.state_dict()["position"] == some.batch_size  # handed out all the same
    assert labels(some) == expected
    assert some.epoch == 1
    stopped = loader(dataset, num_workers=0)
    list(itertools.islice(stopped, 3))
    some.load_state_dict(stopped.state_dict())
    for _ in some:
        break
    assert (some.epoch, some.remaining) == (0, len(some) - 3)
    assert labels(some) == expected[3 * some.batch_size :]


def test_only_one_peek_in_a_row_is_not_an_epoch(dataset: Path) -> None:
    """Who draws every batch by a new iteration gets other ones, and so does a loop that leaves every epoch early."""
    some, plain = loader(dataset, num_workers=0), loader(dataset, num_workers=0)
    firsts = [next(iter(some))[1].tolist() for _ in range(4)]
    whole = [labels(plain)[: some.batch_size] for _ in range(3)]
    assert firsts == [whole[0], *whole]
    some.set_epoch(5)
    for epoch in (5, 6, 7):
        assert some.epoch == epoch
        list(itertools.islice(some, 2))
        assert (some.epoch, some.remaining) == (epoch + 1, len(some))


def test_an_epoch_that_failed_is_not_a_peek(dataset: Path) -> None:
    """After an error in the second batch the next iteration is the next epoch, as after any other error."""
    some = loader(dataset, num_workers=0, batch_transform=fail_once_after(1))
    with pytest.raises(ArithmeticError):
        labels(some)
    assert (some.epoch, some.remaining) == (1, len(some))


def test_an_epoch_that_is_left_is_named_once(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first epoch of training that is left early brings a warning with the remedy, which works; no other does."""
    expected = labels(loader(dataset, num_workers=0))
    some, val = loader(dataset, num_workers=0), loader(dataset, num_workers=0, shuffle=False)
    for each in (val, some):
        next(iter(each))
        first = list(itertools.islice(each, 2))
        each.load_state_dict(each.state_dict())
        assert len(list(each)) == len(each) - 2
        each.set_epoch(0)
        list(itertools.islice(each, len(each) - 1))
        each.set_epoch(0)
        assert list(itertools.islice(each, 2))[1][1].tolist() == first[1][1].tolist()
        assert not caplog.messages
        list(itertools.islice(each, 2))
        list(itertools.islice(each, 2))
    left = f"epoch 0 was left with {len(some) - 2} batches to go, and epoch 1 is next"
    assert [message.partition(";")[0] for message in caplog.messages] == [left]
    again = loader(dataset, num_workers=0)  # a loop over range(again.epoch, 1) would be empty
    list(itertools.islice(again, 2))
    repr(again)
    assert len(caplog.messages) == 1
    assert again.epoch == again.epoch == 1
    assert [message.partition(";")[0] for message in caplog.messages] == [left] * 2
    assert labels(loader(dataset, num_workers=0)) == expected


def test_looks_at_single_batches_that_cost_epochs_are_named(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second look in a row at one batch ends its epoch: the warning says so, and how to begin with epoch 0."""
    some = loader(dataset, num_workers=0)
    for _ in range(2):
        next(iter(some))
    assert not caplog.text
    next(iter(some))
    assert "epoch 1 is next; the second look in a row at one batch counts: call loader.set_epoch(0)" in caplog.text
    some.set_epoch(0)
    assert labels(some) == labels(loader(dataset, num_workers=0))


class Dimmed:
    """A transform with a strength that a user changes between epochs."""

    strength = 1.0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """The image, float32, darker."""
        return image / 255 * self.strength


class Strength:
    """Settings as an attribute of a class, which functions and methods read."""

    value = 1.0


NAMESPACE, MODULE = SimpleNamespace(value=1.0), ModuleType("settings")


class OfClass(v2.Transform):
    """A transform whose method reads a variable of its module, in a function inside."""

    def transform(self, inpt: torch.Tensor, params: Any) -> torch.Tensor:  # noqa: ARG002
        """The image, float32, darker."""
        return torch.stack([each / 255 * Strength.value for each in inpt])


class OfAttribute:
    """A transform with an attribute of its class."""

    value = 1.0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """The image, float32, darker."""
        return image / 255 * self.value


SETTINGS: dict[str, tuple[Any, Any]] = {
    "class": (Strength, lambda image: image / 255 * Strength.value),
    "method": (Strength, v2.Compose([v2.Identity(), OfClass()])),
    "attribute": (OfAttribute, OfAttribute()),
    "namespace": (NAMESPACE, lambda image: image / 255 * NAMESPACE.value),
    "module": (MODULE, lambda image: image / 255 * MODULE.value),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_that_a_transform_reads_reach_the_workers(
    dataset: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings in classes, namespaces and modules of the user that are changed between epochs count in the next."""
    holder, transform = SETTINGS[kind]
    monkeypatch.setattr(holder, "value", 1.0, raising=False)
    some = loader(dataset, num_workers=1, transform=transform)
    assert max(float(images.max()) for images, _ in some) > 0
    pids = some._pool.pids()
    assert max(float(images.max()) for images, _ in some) > 0
    assert some._pool.pids() == pids
    holder.value = 0.0
    assert max(float(images.max()) for images, _ in some) == 0
    some.close()


def test_a_changed_decoder_reaches_the_workers(dataset: Path) -> None:
    """An attribute of the decoder that is changed between epochs counts in the next one, as its repr says."""
    decoder = shardflow.decoders.RandomResizedCrop(8, hflip=1)
    some = loader(dataset, num_workers=1, decoder=decoder, fields=("image", "flipped"))
    assert all(bool(flipped.all()) for _, flipped in some)
    some.decoder.hflip = 0  # type: ignore[attr-defined]
    assert not any(bool(flipped.any()) for _, flipped in some)
    some.close()


@pytest.mark.parametrize("name", ["fields", "classes", "max_errors", "workers", "transform", "decoder", "batch_size"])
def test_settings_of_a_loader_are_fixed(dataset: Path, name: str) -> None:
    """An assignment that would have no effect is an error."""
    with pytest.raises(AttributeError, match=f"{name} is fixed once a loader is made; make another one"):
        setattr(loader(dataset, num_workers=0), name, ())


@pytest.mark.parametrize("kind", ["attribute", "composed", "variable", "array"])
def test_a_changed_transform_reaches_the_workers(dataset: Path, kind: str) -> None:
    """A value that is changed between two epochs counts in the next one, as with a DataLoader; else workers stay."""
    strength = 1.0
    dimmed, array = Dimmed(), np.ones(3, dtype=np.float32)
    transform = {
        "attribute": dimmed,
        "composed": v2.Compose([v2.Identity(), dimmed]),
        "array": lambda image: image / 255 * array[0],
    }.get(kind, lambda image: image / 255 * strength)
    some = loader(dataset, num_workers=1, transform=transform)

    def brightest() -> float:
        return max(float(images.max()) for images, _ in some)

    assert brightest() > 0
    before = some._pool.pids()
    assert brightest() > 0
    assert some._pool.pids() == before
    strength = dimmed.strength = array[0] = 0.0
    assert brightest() == 0
    some.close()


def test_a_function_that_is_defined_again_reaches_the_workers(dataset: Path) -> None:
    """A helper of the transform that a cell defines again counts in the next epoch; the same code changes nothing."""
    space: dict[str, Any] = {}

    def define(value: int) -> None:
        exec(f"def helper(image):\n    return image * 0 + {value}\n", space)

    define(1)
    exec("def transform(image):\n    return helper(image)\n", space)
    some = loader(dataset, num_workers=1, transform=space["transform"])
    assert {int(images.max()) for images, _ in some} == {1}
    before = some._pool.pids()
    define(1)
    assert {int(images.max()) for images, _ in some} == {1}
    assert some._pool.pids() == before
    define(2)
    assert {int(images.max()) for images, _ in some} == {2}
    some.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_was_packed_again_in_its_place(tmp_path: Path, workers: int) -> None:
    """Another dataset at the path ends the next epoch with an error, not with old samples; an extension does not."""
    (tmp_path / "src").mkdir()
    for number in range(4):
        (tmp_path / "src" / f"{number}.jpg").write_bytes(jpeg(number))
    pack = functools.partial(shardflow.pack, tmp_path / "src", tmp_path / "set", short_side=16, executor="serial")
    pack()
    some = loader(tmp_path / "set", batch_size=2, num_workers=workers, fields=("key",))
    mix = shardflow.Mix([(tmp_path / "set", 1)], batch_size=2, num_workers=0, fields=("key",))
    assert len(list(some)) == len(list(mix)) == 2
    (tmp_path / "src" / "4.jpg").write_bytes(jpeg(4))
    shardflow.extend(tmp_path / "src", tmp_path / "set", executor="serial")
    assert len(list(some)) == len(list(mix)) == 2
    shutil.rmtree(tmp_path / "set")
    pack(quality=50)
    for each in (some, mix):
        with pytest.raises(IntegrityError, match=r"was replaced since it was opened.*make another loader"):
            list(each)
    some.close()


def test_settings_are_fixed(dataset: Path) -> None:
    """A setting that is assigned later, as to a torch DataLoader, would have no effect, and is an error."""
    some = loader(dataset, num_workers=0)
    for name in ("batch_size", "shuffle", "transform", "seed", "sampler", "num_workers", "decoder"):
        with pytest.raises(AttributeError, match=name):
            setattr(some, name, 8)
    with pytest.raises(AttributeError, match="to the Loader"):
        some.dataset.transform = str  # type: ignore[attr-defined]


def fail_once_after(batches: int) -> Any:
    """A transform of batches that raises an error once, after so many."""
    numbers = itertools.count()

    def transform(*fields: Any) -> Any:
        if next(numbers) == batches:
            raise ArithmeticError
        return fields

    return transform


def test_set_epoch_chooses_the_order(dataset: Path) -> None:
    """`set_epoch` makes the next iteration that epoch, also the one that was just run."""
    some = loader(dataset, num_workers=2, tail="short")
    first, second = labels(some), labels(some)
    for epoch, expected in ((1, second), (0, first), (0, first)):
        some.set_epoch(epoch)
        assert labels(some) == expected


def test_two_loaders_do_not_disturb_each_other(dataset: Path) -> None:
    """A train and a val loader iterated in turns deliver what each delivers alone."""
    alone = labels(loader(dataset, tail="short")), labels(loader(dataset, split="val", tail="short"))
    train, val = loader(dataset, num_workers=2, tail="short"), loader(dataset, split="val", num_workers=1, tail="short")
    mixed = list(itertools.zip_longest(train, val))
    assert labels(batch for batch, _ in mixed) == alone[0]
    assert labels(batch for _, batch in mixed if batch is not None) == alone[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_second_iteration_ends_the_first(dataset: Path, workers: int) -> None:
    """Two iterations of one loader at once cannot both be right: the older one says so, and takes nothing away."""
    some = loader(dataset, num_workers=workers)
    expected = [labels(some) for _ in range(2)]
    some.set_epoch(0)
    older = iter(some)
    next(older)
    newer = iter(some)
    first = next(newer)
    with pytest.raises(ConfigError, match=r"the loader .*iterated again"):
        next(older)
    assert labels([first, *newer]) == expected[1]


def test_batches_count_when_they_are_handed_out(dataset: Path) -> None:
    """Batches that are taken ahead do not move the cursor, nor do those of an iteration that is over."""
    some = loader(dataset)
    with some.new_iteration() as iteration:
        assert len([next(iteration.batches) for _ in range(3)]) == 3
        assert some.state_dict()["position"] == 0
        for _ in range(2):
            iteration.hand_out()
        assert some.state_dict()["position"] == 2 * some.batch_size
        some.set_epoch(4)
        iteration.hand_out()
    state = some.state_dict()
    assert (state["epoch"], state["position"]) == (4, 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["load_state_dict", "set_epoch", "set_epoch to the same"])
def test_moving_the_loader_ends_its_iteration(dataset: Path, workers: int, how: str) -> None:
    """A loader that is moved while it is iterated, to roll back for one, goes on from there, and its state says so."""
    some = loader(dataset, num_workers=workers, tail="short")
    expected = [labels(some) for _ in range(3)]
    state = {**some.state_dict(), "epoch": 2, "position": 16}
    some.set_epoch(0)
    running = iter(some)
    next(running)
    if how == "load_state_dict":
        some.load_state_dict(state)
        rest = expected[2][16:]
    else:
        epoch = 2 if how == "set_epoch" else 0
        some.set_epoch(epoch)
        state, rest = {**state, "epoch": epoch, "position": 0}, expected[epoch]
    assert some.state_dict() == state
    with pytest.raises(ConfigError, match="set_epoch or load_state_dict"):
        next(running)
    assert some.state_dict() == state
    assert labels(some) == rest


def test_moving_the_loader_after_its_last_batch_is_the_end(dataset: Path) -> None:
    """Setting the next epoch inside the loop, with the last batch, ends the loop as always."""
    some = loader(dataset, tail="short")
    expected = [labels(some) for _ in range(3)]
    some.set_epoch(0)
    for step, _ in enumerate(some, start=1):
        if step == len(some):
            some.set_epoch(2)
    assert labels(some) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_of_the_transform_the_next_epoch_is_whole(
    dataset: Path, tmp_path: Path, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the user's own code raises arrives as it is, ends the workers, and leaves nothing behind to complain."""
    some = loader(dataset, num_workers=workers, transform=FailOnce(tmp_path / "failed"), tail="short")
    with pytest.raises(ValueError, match="too dark"):
        labels(some)
    assert not some._pool.pids()
    assert sorted(labels(some)) == sorted(labels(loader(dataset, tail="short")))
    del some
    gc.collect()
    assert "Exception ignored" not in capfd.readouterr().err


def test_numbers_may_be_numpys(dataset: Path, tmp_path: Path) -> None:
    """Integers of numpy, as they come out of `np.arange`, are integers, and a state has none of them."""
    options = {"batch_size": 8, "seed": 3, "limit": 40, "samples_per_epoch": 64}
    plain, theirs = (
        shardflow.Loader(
            dataset,
            num_workers=0,
            decoder=shardflow.decoders.CenterCrop(8),
            shuffle=shardflow.Shuffle(buffer=number(16), streams=number(4)),
            group=(number(0), number(2)),
            **{name: number(value) for name, value in options.items()},
        )
        for number in (int, np.int64)
    )
    plain.set_epoch(5)
    theirs.set_epoch(np.int64(5))
    torch.save(theirs.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == plain.state_dict()
    assert labels(theirs) == labels(plain)


def test_limit_takes_the_first_samples_of_the_split(dataset: Path) -> None:
    """`limit` is the same subset in every epoch, shuffled anew."""
    some = loader(dataset, limit=53, tail="short")
    first, second = labels(some), labels(some)
    assert sorted(first) == sorted(second) == list(range(53))
    assert first != second


def test_loading_leaves_the_callers_randomness_alone(dataset: Path) -> None:
    """Iterating changes neither torch's nor numpy's global generator in the training process."""
    for workers in (0, 1):
        torch.manual_seed(5)
        np.random.seed(5)
        expected = torch.rand(1), np.random.rand()
        torch.manual_seed(5)
        np.random.seed(5)
        list(loader(dataset, num_workers=workers, transform=v2.RandomErasing(1.0)))
        assert (torch.rand(1), np.random.rand()) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_payload_is_named(tmp_path: Path, workers: int) -> None:
    """A flipped byte raises IntegrityError naming shard and sample."""
    url = make_dataset(tmp_path / "set", [10, 10])
    shard = url / "train/000001.tar"
    payload = shardflow.open(url)["train"][10]["jpg"]
    flip(shard, shard.read_bytes().index(payload) + len(payload) // 2)
    with pytest.raises(IntegrityError, match=r"000001\.tar, sample 000000010: .*`shardflow") as caught:
        list(loader(url, num_workers=workers, tail="short"))
    assert (caught.value.shard, caught.value.key) == (str(shard), "000000010")


@pytest.mark.parametrize("workers", [0, 2])
def test_undecodable_image_is_named(tmp_path: Path, workers: int) -> None:
    """An image that does not decode raises DecodeError naming shard and sample, and the state stays right."""
    url = make_dataset(tmp_path / "set", [10, 10], undecodable=[10])
    some = loader(url, num_workers=workers, shuffle=False, batch_size=4)
    with pytest.raises(DecodeError, match=r"000001\.tar, sample 000000010: "):
        list(some)
    assert some.state_dict()["position"] == 8


@pytest.mark.parametrize(
    "part",
    [
        *({"labels.json": text} for text in (b"[null]", b"null", b"[-1]", b"[0.5]", b"[3]", b"[%d]" % 10**30, b"[")),
        *({"cls": text} for text in (b"-1", b"3", b"%d" % 10**30, b"cat")),
    ],
    ids=repr,
)
def test_labels_that_are_none_are_named(tmp_path: Path, part: dict[str, bytes]) -> None:
    """What is no list of numbers of classes raises DecodeError naming the sample, and sets no class."""
    samples = [("a", {"jpg": jpeg(0), "labels.json": b"[0, 2]"}), ("b", {"jpg": jpeg(1), **part})]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x", "y", "z"))
    some = loader(url, fields=("labels",), batch_size=1, shuffle=False, num_workers=0)
    batches = iter(some)
    assert next(batches)[0].tolist() == [[1.0, 0.0, 1.0]]
    with pytest.raises(DecodeError, match=r"000000\.tar, sample b: .*0 .*2"):
        next(batches)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ConfigError, "batch_size must be 1 or more"),
        ({"batch_size": 151}, ConfigError, "has 150 samples, less than one batch of 151; lower batch_size"),
        ({"tail": "wrap"}, ConfigError, "drop, pad, short"),
        ({"shuffle": 8192}, ConfigError, r"shuffle must be True, False or Shuffle\(...\), found 8192"),
        ({"group": 1}, ConfigError, r"group must be \(rank, size\)"),
        ({"group": (2, 2)}, ConfigError, "rank must be 0"),
        ({"split": "test"}, ConfigError, "has no split 'test'; it has train, val$"),
        ({"split": ["train", "val"]}, ConfigError, r"has no split \['train', 'val'\]; it has train, val$"),
        ({"fields": ("image", "txt")}, ConfigError, "no part 'txt' among cls, jpg"),
        ({"limit": 0}, ConfigError, "limit must be 1 or more"),
        ({"num_workers": -1}, ConfigError, "num_workers must be 0 or more"),
        ({"seed": "a"}, ConfigError, "seed must be a whole number, found 'a'"),
        ({"batch_size": True}, ConfigError, "batch_size must be a whole number, found True"),
        ({"limit": 1.5}, ConfigError, "limit must be a whole number, found 1.5"),
        ({"max_errors": -1}, ConfigError, "max_errors must be 0 or more"),
        ({"decoder": "device"}, ConfigError, "decoder must be one of shardflow.decoders"),
        ({"transform": 3}, ConfigError, "transform must be callable, found 3"),
        ({"transform": "flip"}, ConfigError, "transform must be callable, found 'flip'"),
        (
            {"decoder": shardflow.decoders.Image},
            ConfigError,
            r"such as Image\(\)",
        ),
        (
            {"transform": shardflow.device.Normalize()},
            ConfigError,
            r"Normalize runs on the device: pass it to device.Prefetcher",
        ),
        ({"batch_transform": shardflow.device.MixUp()}, ConfigError, "MixUp runs on the device"),
        (
            {"fields": "image"},
            ConfigError,
            r"fields must be a list or tuple of names, such as \('image',\), found the text",
        ),
        ({"fields": ("image", "image")}, ConfigError, "fields must be different names, such as"),
    ],
)
def test_wrong_arguments_are_named(
    dataset: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A wrong argument raises ConfigError that says what is allowed."""
    with pytest.raises(error, match=message):
        next(iter(loader(dataset, **options)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "buffer must be 1 or more, found 0"),
        ({"streams": -1}, "streams must be 1 or more, found -1"),
        ({"buffer": 1.5}, "buffer must be a whole number"),
        ({"buffer": 2**64}, "buffer must be 1,099,511,627,776 or less"),
        ({"streams": 2**64}, "streams must be 1,048,576 or less"),
    ],
)
def test_wrong_shuffles_are_named(options: dict[str, Any], message: str) -> None:
    """`Shuffle` checks its numbers itself."""
    with pytest.raises(ConfigError, match=message):
        shardflow.Shuffle(**options)


def test_missing_dataset_says_how_to_make_one(tmp_path: Path) -> None:
    """A path without a dataset raises NotFoundError with the command that packs one."""
    with pytest.raises(NotFoundError, match="shardflow pack"):
        loader(tmp_path)
    with pytest.raises(NotFoundError, match="does not exist"):
        loader(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("drop_last", "tail='drop' leaves the last incomplete batch out, tail='short' keeps it"),
        ("collate_fn", "batch_transform is called with the fields of each batch"),
        *((name, "") for name in ("batch_sampler", "worker_init_fn", "generator", "timeout", "weights")),
        ("num_replicas", r"use group=\(rank, size\)"),
        ("batchsize", r"\(did you mean 'batch_size'\?\)"),
        ("xyz", "there are url, split, version, batch_size"),
    ],
)
def test_arguments_of_other_loaders_are_explained(dataset: Path, name: str, remedy: str) -> None:
    """An argument of PyTorch's gets the name that it has here, a mistyped one the right one."""
    with pytest.raises(ConfigError, match=rf"^there is no argument '{name}'.*{remedy}"):
        shardflow.Loader(dataset, **{"batch_size": 4, name: None})
    with pytest.raises(ConfigError, match=f"there is no argument '{name}'"):
        shardflow.Mix([(dataset, 1)], **{"batch_size": 4, name: None})


def test_use_as_a_dataset_is_explained(dataset: Path) -> None:
    """An argument without its name, and a loader within PyTorch's, are errors that say what to write."""
    with pytest.raises(ConfigError, match=r"'url'.* split=, .*batch_size="):
        shardflow.Loader(dataset, 64)
    wrapped = torch.utils.data.DataLoader(shardflow.Loader(dataset, batch_size=4, num_workers=0), batch_size=4)
    with pytest.raises(TypeError, match=r"DataLoader.*loader\.dataset"):
        next(iter(wrapped))


def test_the_tail_is_dropped_when_shuffling_and_kept_otherwise(dataset: Path) -> None:
    """By default training drops what fills no batch, and an evaluation has each sample exactly once."""
    for shuffle, tail in ((True, "drop"), (shardflow.Shuffle(buffer=8), "drop"), (False, "short")):
        some = loader(dataset, batch_size=64, shuffle=shuffle, num_workers=0, tail=None)
        assert some.describe()["tail"] == tail
        assert sum(len(batch[1]) for batch in some) == (len(some.dataset) // 64 * 64 if tail == "drop" else 150)


def test_a_loader_says_what_it_does(dataset: Path) -> None:
    """Its settings and its place in the epoch are there under PyTorch's names, and all of it in its repr."""
    some = loader(dataset, batch_size=32, num_workers=0, tail="drop", seed=7)
    assert (some.batch_size, some.num_workers, some.epoch, some.remaining, len(some)) == (32, 0, 0, 4, 4)
    batches = iter(some)
    next(batches)
    assert (some.epoch, some.remaining, len(some)) == (0, 3, 4)
    resumed = loader(dataset, batch_size=16, num_workers=0, tail="drop", seed=7)
    resumed.load_state_dict(some.state_dict())
    assert (resumed.remaining, len(resumed)) == (7, 9)
    assert len(list(resumed)) == 7
    assert (resumed.epoch, resumed.remaining) == (1, 9)
    for said in (f"of {dataset}, split 'train': 150 samples", "seed 7", "9 batches of 16 x (image, label)", "0 of 1"):
        assert said in repr(resumed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            ("image", "lable"),
            r"field 'lable': no part 'lable' among cls, jpg \(did you mean 'label'\?\); fields are",
        ),
        (("image", "json"), "no part 'json' among cls, jpg"),
    ],
)
def test_unknown_fields_are_named_when_the_loader_is_made(dataset: Path, fields: tuple[str, ...], message: str) -> None:
    """A field that the samples lack is a ConfigError at once, with the parts that they have."""
    with pytest.raises(ConfigError, match=message):
        shardflow.Loader(dataset, batch_size=4, fields=fields)


def test_missing_labels_are_named_when_the_loader_is_made(tmp_path: Path) -> None:
    """A dataset without labels refuses the fields of labels before the first batch."""
    bare = make_dataset(tmp_path / "bare", [4], labelled=False)
    for field in ("label", "labels"):
        with pytest.raises(ConfigError, match=f"field '{field}': no part 'cls' among jpg; leave '{field}' out"):
            shardflow.Loader(bare, batch_size=2, fields=("image", field))


def test_whole_images_of_several_sizes_are_refused_when_the_loader_is_made(dataset: Path) -> None:
    """Without a transform they could not be stacked, which the index tells."""
    with pytest.raises(ConfigError, match=r"sizes .*decoders\.RandomResizedCrop"):
        shardflow.Loader(dataset, batch_size=4, decoder=shardflow.decoders.Image())
    shardflow.Loader(dataset, batch_size=1, decoder=shardflow.decoders.Image())


def test_torch_warns_once_of_many_workers(dataset: Path) -> None:
    """Its warning of more workers than cores comes when they are started, and not when the loader is made as well."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader(dataset, num_workers=1000)
    assert not caught
