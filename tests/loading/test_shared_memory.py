from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import get_worker_info
from torchvision.transforms import v2

import shardflow
from shardflow.errors import WorkerError
from shardflow.loading import shared_memory
from tests.helpers.loading import until, with_workers
from tests.helpers.making import make_dataset


@pytest.fixture(autouse=True)
def no_slots_from_elsewhere() -> None:
    """Slots of loaders that earlier tests dropped are not this test's."""
    gc.collect()
    shared_memory._pools.clear()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 labelled samples."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [120, 80])


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader whose batches are large enough for the shared slots."""
    options = {"batch_size": 16, "num_workers": 2, "prefetch_factor": 2, **options}
    return shardflow.Loader(url, decoder=shardflow.decoders.RandomResizedCrop(64), **with_workers(options))


def slots_in_use() -> int:
    """How many slots of this process's loaders are taken."""
    return sum(sum(pool.in_use) for pool in shared_memory._pools.values())


def slots() -> int:
    """How many slots this process's loaders have made."""
    return sum(sum(map(bool, pool._sizes)) for pool in shared_memory._pools.values())


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_batches_through_slots_are_the_batches(dataset: Path, context: str) -> None:
    """Over three epochs, batches from reused memory equal those made in this process; few slots serve them."""
    direct, through = loader(dataset, num_workers=0), loader(dataset, multiprocessing_context=context)
    for _ in range(3):
        for (images, labels), (expected, expected_labels) in zip(through, direct, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, expected_labels)
    assert 2 <= slots() <= 2 * 2 + 2
    through.close()
    assert not shared_memory._pools


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
    """A view of a batch, a numpy array of it included, stays what it was after the batch itself was dropped."""
    through = loader(dataset)
    views = [part(images) for images, _ in through]
    for _ in through:
        pass
    expected = [part(images) for images, _ in loader(dataset, num_workers=0)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(views, expected, strict=True))


def test_slots_come_back_when_batches_are_dropped(dataset: Path) -> None:
    """After an epoch whose batches were dropped no slot is taken, and leaving early loses none either."""
    through = loader(dataset)
    for leave_after in (100, 2, 2, 100):
        for step, _batch in enumerate(through):
            if step == leave_after:
                break
        del _batch
    gc.collect()
    assert slots()
    assert slots_in_use() == 0


def test_kept_labels_keep_no_slot(dataset: Path) -> None:
    """A caller who collects the labels of an epoch gets all its images through slots, and the labels unchanged."""
    through = loader(dataset, num_workers=1)
    kept = [labels for images, labels in through if through_slots(images)]
    kept += [labels for images, labels in through if through_slots(images)]
    gc.collect()
    assert slots_in_use() == 0
    direct = loader(dataset, num_workers=0)
    expected = [labels for _ in range(2) for _, labels in direct]
    assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True))


def test_workers_that_end_before_the_first_batch_leave_no_slot(dataset: Path) -> None:
    """When a worker dies while the first batch waits for it, the slots that another one has sent are dropped."""
    through = loader(dataset, batch_transform=_FirstWorkerHangs())

    def kill() -> None:
        if until(lambda: slots() > 0):
            os.kill(through._pool.pids()[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError):
        next(iter(through))
    killer.join()
    assert not shared_memory._pools


def test_a_fork_of_the_training_process_frees_nothing(dataset: Path) -> None:
    """A child that inherits a batch and drops it does not give the slot away under the parent's hands."""
    through = loader(dataset)
    batches = iter(through)
    holder = [next(batches)[0]]
    before = holder[0].clone()
    next(batches)  # the iteration itself keeps the last batch

    def drop() -> None:
        holder.clear()
        gc.collect()

    child = multiprocessing.get_context("fork").Process(target=drop)
    child.start()
    child.join()
    assert child.exitcode == 0
    for _ in batches:
        pass
    assert torch.equal(holder[0], before)


def test_slots_are_made_when_they_are_needed(dataset: Path) -> None:
    """A caller who drops batches makes workers use fewer slots than they may; one who keeps batches gets all."""
    through = loader(dataset, num_workers=2, prefetch_factor=2)
    for _ in range(3):
        for _batch in through:
            time.sleep(0.01)
    few = slots()
    kept = [batch for _ in range(3) for batch in through]
    assert few <= 4 + 2 < slots() == 4 + shared_memory.SLOTS_BEYOND_PREFETCH
    assert len(kept) == 3 * len(through)


def test_workers_take_turns_with_slots() -> None:
    """A slot that one worker's batch has left is the next one's, in any worker, and is never lent twice at a time."""
    pool = shared_memory.SlotPool(2)
    other = shared_memory.SlotPool(2, pool.number, os.fdopen(os.dup(pool._file.fileno()), "r+b", buffering=0))
    assert (pool.acquire(100), other.acquire(100), pool.acquire(100)) == (0, 1, None)
    pool.memory(0)[99] = 7
    assert other.memory(0)[99] == 7
    pool.in_use[0] = 0
    assert other.acquire((1 << 63) - 1) is None  # more than any file can have
    assert (other.acquire(1 << 20), pool.memory(0).nbytes) == (0, 1 << 20)


def test_a_slot_grows_with_its_batches(dataset: Path) -> None:
    """Batches that become larger get larger slots, in the place of the smaller ones, while these are still in use."""
    through = shardflow.Loader(
        dataset,
        batch_size=16,
        num_workers=shardflow.Workers(1),
        decoder=shardflow.decoders.RandomResizedCrop({0: 64, 1: 96}),
    )
    small = [images for images, _ in itertools.islice(through, 2)]
    before = [images.clone() for images in small]
    through.set_epoch(1)
    for images, _ in through:
        assert images.shape[-1] == 96
        assert through_slots(images)
    assert all(torch.equal(images, other) for images, other in zip(small, before, strict=True))
    assert slots() <= 2 + shared_memory.SLOTS_BEYOND_PREFETCH


def test_strides_and_dtypes_survive(dataset: Path) -> None:
    """Float and channels-last batches arrive with their dtype and memory format."""
    images, _ = next(iter(loader(dataset, batch_transform=_ChannelsLast())))
    assert images.is_contiguous(memory_format=torch.channels_last)
    images, _ = next(iter(loader(dataset, transform=v2.ToDtype(torch.float32, scale=True))))
    assert images.dtype == torch.float32
    expected, _ = next(iter(loader(dataset, num_workers=0, transform=v2.ToDtype(torch.float32, scale=True))))
    assert torch.equal(images, expected)


def through_slots(images: torch.Tensor) -> bool:
    """Whether a batch lies in one of the slots."""
    slots = [
        torch.frombuffer(slot, dtype=torch.uint8)
        for pool in shared_memory._pools.values()
        for slot in pool._mapped.values()
    ]
    return any(0 <= images.data_ptr() - slot.data_ptr() < slot.nbytes for slot in slots)


class _Peculiar(shardflow.decoders.RandomResizedCrop):
    """A decoder that does something else with what it was lent, in turn, and returns the same pixels all the same."""

    def __init__(self) -> None:
        super().__init__(64)
        self._calls = 0

    def allocate_images(self, payloads: Any, crops: Any, allocate: Any) -> Any:
        """Return memory for the images, lent or not."""
        shape = (len(payloads), 3, 64, 64)
        self._calls += 1
        if self._calls % 5 == 0:
            return allocate((2 * len(payloads), 3, 64, 64))[::2]
        if self._calls % 5 == 1:
            allocate(shape)
            return allocate(shape)
        if self._calls % 5 == 2:
            return list(allocate(shape))
        if self._calls % 5 == 3:
            return allocate((len(payloads), 64, 64, 3)).permute(0, 3, 1, 2)
        allocate(shape).zero_()
        return super().allocate_images(payloads, crops, allocate=lambda shape: torch.empty(shape, dtype=torch.uint8))

    def decode(self, payloads: Any, crops: Any, out: Any) -> Any:
        """Decode, and copy to where the images are wanted."""
        images = torch.empty((len(payloads), 3, 64, 64), dtype=torch.uint8)
        failures = super().decode(payloads, crops, images)
        for row, image in zip(out, images, strict=True):
            row.copy_(image)
        return failures


def test_whatever_a_decoder_does_with_its_slot(dataset: Path) -> None:
    """A slot that comes back in another form, in part or not at all gives right batches, and is free afterwards."""
    through = shardflow.Loader(
        dataset, batch_size=16, num_workers=shardflow.Workers(2, prefetch_factor=2), decoder=_Peculiar()
    )
    direct = loader(dataset, num_workers=0)
    kept = []
    for _ in range(4):
        for (images, _), (expected, _) in zip(through, direct, strict=True):
            assert torch.equal(images, expected)
            kept.append((images, expected))
    assert all(torch.equal(images, expected) for images, expected in kept)
    kept.clear()
    del images
    gc.collect()
    assert slots_in_use() == 0


def test_decoding_goes_straight_into_slots(dataset: Path) -> None:
    """The usual loader's batches all lie in slots, after many iterations that were left early as well."""
    through = loader(dataset)
    for _ in range(8):
        assert through_slots(next(iter(through))[0])
    assert all(through_slots(images) for images, _ in through)


def test_a_batch_with_lists_and_tuples_takes_one_slot(dataset: Path) -> None:
    """Tuples, lists with a tensor per sample, and fields of any size and dtype arrive as they were, in one slot."""
    through = loader(dataset, batch_transform=_Nested(), num_workers=1)
    expected = list(loader(dataset, batch_transform=_Nested(), num_workers=0))
    for batch, wanted in zip(through, expected, strict=True):
        (views, boxes, empty), shapes, (label, words) = batch
        for found, right in zip((*views, *boxes, *empty, *shapes, label), _flat(wanted), strict=True):
            assert found.shape == right.shape
            assert found.dtype == right.dtype
            assert torch.equal(found, right)
        assert words == ["word", "another"]
        assert slots_in_use() >= 1
        assert through_slots(views[0])
        assert through_slots(shapes[3])
        assert len({each.untyped_storage().data_ptr() for each in boxes}) == 1
    del batch, views, boxes, empty, shapes, label, found
    gc.collect()
    assert slots_in_use() == 0


def _flat(batch: Any) -> list[torch.Tensor]:
    (views, boxes, empty), shapes, (label, _) = batch
    return [*views, *boxes, *empty, *shapes, label]


class _Nested:
    """A batch transform that returns tensors in tuples and in lists."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return views of two sizes, boxes, lists of empty tensors, images of many shapes, and a label."""
        boxes = [torch.arange(4.0 * (label % 3)).view(-1, 4) for label in labels.tolist()]
        shapes = [image[:, : 20 + number, ::2].to(torch.float16) for number, image in enumerate(images)]
        return (
            ((images, images[:, :, :8, :8]), boxes, [torch.zeros(0, 4, dtype=torch.bfloat16)] * 3),
            shapes,
            (labels[0], ["word", "another"]),
        )


def test_other_fields_are_put_behind_images_that_stay_in_place() -> None:
    """From the second batch on, images decoded into a slot are not moved to make room for another large field."""
    pool = shared_memory.BatchSender(3)
    slots, moved = pool.start(), []
    with patch.object(shared_memory, "get_worker_info", return_value=object()):
        for number in range(4):
            images = pool.borrow((16, 3, 64, 64)).fill_(number)
            masks = torch.full((16, 64, 64), number, dtype=torch.int32)
            placed = pool.place([images[1:], masks, images[:1]])
            assert placed is not None
            slot, layouts = placed
            found = [layout.view(slots.memory(slot)) for layout in layouts]
            assert all(
                torch.equal(each, right) for each, right in zip(found, (images[1:], masks, images[:1]), strict=True)
            )
            moved.append(found[2].data_ptr() != images.data_ptr())
            pool.end_loan()
            slots.in_use[slot] = 0
    assert moved == [True, False, False, False]


def test_batches_without_samples_take_no_slot(dataset: Path) -> None:
    """A rank that has no sample in the last step gets an empty batch, and the slot it was decoded to is free again."""
    through = loader(dataset, group=(1, 2), tail="short", limit=33)
    for _ in range(9):
        sizes = [len(images) for images, _ in through]
        assert sizes == [16, 0]
    gc.collect()
    assert slots_in_use() == 0


def test_transforms_may_keep_what_they_are_given(dataset: Path) -> None:
    """A batch transform that hands out the batch before still has that batch, however long ago it was decoded."""
    delayed = loader(dataset, batch_transform=_Delayed(), shuffle=False, num_workers=1)
    expected = [images for images, _ in loader(dataset, num_workers=0, shuffle=False)]
    for (images, _), before in zip(delayed, [expected[0], *([expected[0]] * 6), *expected], strict=False):
        assert torch.equal(images, before)


def test_fields_may_change_places(dataset: Path) -> None:
    """Batches whose fields change places, dtypes and shapes from one to the next arrive as each of them is."""
    through, direct = (loader(dataset, batch_transform=_Changing(), num_workers=number) for number in (1, 0))
    for batch, expected in zip(through, direct, strict=True):
        for found, right in zip(batch, expected, strict=True):
            assert type(found) is type(right)
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(right))
            assert torch.as_tensor(found).dtype == torch.as_tensor(right).dtype


class _Changing:
    """A batch transform that returns the labels as a list or as a tensor of some dtype, first or last, in turn."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return images and labels in one of the forms."""
        self._calls += 1
        case = self._calls % 5
        if case == 0:
            return labels.tolist(), images
        if case == 1:  # its form differs from that before in nothing but the places
            return images, labels.tolist()
        if case == 2:
            return labels.to(torch.bfloat16), images, labels[:0]
        return images[:8], labels.bool(), labels.to(torch.complex128)[::2] if case == 3 else labels[3]


class _FirstWorkerHangs:
    """A batch transform of which worker 0 never returns."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch, in another worker."""
        info = get_worker_info()
        if info is not None and info.id == 0:
            time.sleep(60)
        return images, labels


class _Delayed:
    """A batch transform that returns the images it was given seven batches ago."""

    def __init__(self) -> None:
        self._seen: list[torch.Tensor] = []

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return older images with the labels."""
        self._seen.append(images)
        return self._seen[max(0, len(self._seen) - 8)], labels


class _ChannelsLast:
    """A batch transform that changes the memory format."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch with channels last in memory."""
        return images.contiguous(memory_format=torch.channels_last), labels
