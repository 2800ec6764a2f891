from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import shardflow
from making import make_dataset
from shardflow.load import handover
from shardflow.load.received import end_workers


@pytest.fixture(autouse=True)
def no_slabs_from_elsewhere() -> None:
    """Slabs of loaders that earlier tests dropped are not this test's."""
    gc.collect()
    handover._received.clear()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 labelled samples."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [120, 80])


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader whose batches are large enough for the shared slots."""
    options = {"batch_size": 16, "num_workers": 2, "prefetch_factor": 2, **options}
    return shardflow.Loader(url, decoder=shardflow.RandomResizedCropDecoder(64), **options)


def slots_in_use() -> list[int]:
    """How many slots are taken in each of this process's slabs."""
    return [int(slab.numpy()[: 2 + 3].sum()) for slab in handover._received.values()]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_batches_through_slots_are_the_batches(dataset: Path, context: str) -> None:
    """Over three epochs, batches from reused memory equal those made in this process; one slab a worker serves them."""
    direct, through = loader(dataset, num_workers=0), loader(dataset, multiprocessing_context=context)
    for _ in range(3):
        for (images, labels), (expected, expected_labels) in zip(through, direct, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, expected_labels)
    assert len(handover._received) == 2
    assert all(number == 0 for _, number in handover._received)
    end_workers(through._batches)
    assert not handover._received


def test_kept_batches_are_never_overwritten(dataset: Path) -> None:
    """A caller who keeps every batch, more than there are slots, has them all unchanged at the end."""
    through = loader(dataset)
    kept = [images for images, _ in through]
    for _ in through:
        pass  # another epoch through the same memory
    expected = [images for images, _ in loader(dataset, num_workers=0)]
    assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True))


@pytest.mark.parametrize(
    "part", [lambda images: images[3, 1:, ::2], lambda images: images.numpy()[2], lambda images: images.flatten(1)[5]]
)
def test_a_view_keeps_its_memory(dataset: Path, part: Any) -> None:
    """A view of a batch, a numpy array of it included, stays what it was after the batch itself was let go."""
    through = loader(dataset)
    views = [part(images) for images, _ in through]
    for _ in through:
        pass
    expected = [part(images) for images, _ in loader(dataset, num_workers=0)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(views, expected, strict=True))


def test_slots_come_back_when_batches_are_let_go(dataset: Path) -> None:
    """After an epoch whose batches were dropped no slot is taken, and leaving early loses none either."""
    through = loader(dataset)
    for leave_after in (100, 2, 2, 100):
        for step, _batch in enumerate(through):
            if step == leave_after:
                break
        del _batch
    gc.collect()
    assert handover._received
    assert set(slots_in_use()) == {0}


def test_a_fork_of_the_training_process_frees_nothing(dataset: Path) -> None:
    """A child that inherits a batch and drops it does not give the slot away under the parent's hands."""
    through = loader(dataset)
    batches = iter(through)
    images, _ = next(batches)
    before = images.clone()
    holder = [images]
    del images
    taken = sum(slots_in_use())

    def drop() -> None:
        holder.clear()
        gc.collect()

    child = multiprocessing.get_context("fork").Process(target=drop)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert sum(slots_in_use()) >= min(taken, 1)
    for _ in batches:
        pass
    assert torch.equal(holder[0], before)


def test_strides_and_dtypes_survive(dataset: Path) -> None:
    """Float and channels-last batches arrive with their dtype and memory format."""
    images, _ = next(iter(loader(dataset, batch_transform=_ChannelsLast())))
    assert images.is_contiguous(memory_format=torch.channels_last)
    images, _ = next(iter(loader(dataset, transform=v2.ToDtype(torch.float32, scale=True))))
    assert images.dtype == torch.float32
    expected, _ = next(iter(loader(dataset, num_workers=0, transform=v2.ToDtype(torch.float32, scale=True))))
    assert torch.equal(images, expected)


class _ChannelsLast:
    """A batch transform that changes the memory format."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch with channels last in memory."""
        return images.contiguous(memory_format=torch.channels_last), labels
