from __future__ import annotations

import contextlib
import gc
import itertools
import json
import threading
import time
import weakref
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import shardflow
from shardflow.device import prefetcher as module
from shardflow.device.buffers import BatchBuffer
from shardflow.errors import ConfigError, DecodeError, ResumeMismatchError
from tests.helpers.delayed_copy_stream import DelayedCopyStream
from tests.helpers.device import keyed_loader, loader
from tests.helpers.loading import run_script


@pytest.fixture(params=["cpu", "delayed", "delayed, pinned"])
def copy_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy stream, as on the CPU, and copy streams that copy as late as they may."""
    if request.param != "cpu":
        delayed = DelayedCopyStream(pinned=request.param == "delayed, pinned")
        monkeypatch.setattr(module, "copy_stream_for", lambda _: delayed)


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> DelayedCopyStream:
    """A copy stream that copies as late as it may."""
    delayed = DelayedCopyStream()
    monkeypatch.setattr(module, "copy_stream_for", lambda _: delayed)
    return delayed


def contents(batches: Any) -> list[tuple[bytes, list[int]]]:
    """Return the pixels and labels of all batches."""
    return [(images.numpy().tobytes(), labels.tolist()) for images, labels in batches]


def threads() -> list[str]:
    """Return the names of the running prefetch threads."""
    return [thread.name for thread in threading.enumerate() if thread.name == "device-prefetcher"]


def test_images_that_are_normalized_twice_bring_a_warning(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`Normalize` in the loader's transform and in the prefetcher is a warning, wherever it is nested; one is none."""
    floats = v2.ToDtype(torch.float32, scale=True)
    normalized = v2.Compose([floats, v2.Normalize([0.5] * 3, [0.5] * 3)])
    on_device = [shardflow.device.Normalize()]
    for transform, transforms in ((normalized, []), (floats, on_device), (None, on_device)):
        shardflow.device.Prefetcher(loader(dataset, transform=transform), "cpu", transforms)
    assert not caplog.messages
    shardflow.device.Prefetcher(loader(dataset, transform=lambda image: normalized(image)), "cpu", on_device)
    assert caplog.messages == ["images are normalized twice: by transform of the loader, and again here; leave one out"]


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.usefixtures("copy_stream")
def test_batches_are_the_loaders(dataset: Path, buffers: int) -> None:
    """Over two epochs the batches are the loader's, in order; kept until the end, none is overwritten."""
    plain = loader(dataset)
    expected = contents(plain) + contents(plain)
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", buffers=buffers)
    assert len(batches) == len(plain)
    assert len(batches.dataset) == len(plain.dataset)
    assert batches.epoch == 0
    kept = []
    for epoch in range(2):
        for batch in batches:
            assert batches.epoch == epoch  # also when the loader is at the next one
            kept.append(batch)
    assert contents(kept) == expected
    assert batches.epoch == plain.epoch == 2
    assert threads() == []


@pytest.mark.usefixtures("copy_stream")
def test_a_peek_is_not_an_epoch(dataset: Path) -> None:
    """After `next(iter(batches))` the next iteration starts where that did, also where the loader was ahead of it."""
    expected = contents(loader(dataset))
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", buffers=3)
    first = [contents([next(iter(batches))])[0] for _ in range(2)]
    assert first == expected[:1] * 2  # the second is not a peek any more
    assert batches.epoch == 1
    batches.set_epoch(0)
    next(iter(batches))
    assert batches.state_dict()["position"] > 0
    assert batches.epoch == 0
    assert contents(batches) == expected
    assert batches.epoch == 1
    state = batches.state_dict()
    next(iter(batches))
    batches.load_state_dict(state)
    assert batches.epoch == 1
    list(itertools.islice(batches, 2))
    assert batches.epoch == 2


@pytest.mark.usefixtures("copy_stream")
def test_workers_are_used(dataset: Path) -> None:
    """With worker processes and their shared memory, pixels are the same as without."""
    plain = contents(loader(dataset))
    batches = shardflow.device.Prefetcher(loader(dataset, num_workers=2), "cpu")
    assert contents([*batches]) == plain


@pytest.mark.usefixtures("copy_stream")
@pytest.mark.parametrize("end", ["exhausted", "left early", "failed"])
def test_nothing_is_left_to_the_garbage_collector(end: str) -> None:
    """However an iteration ends, the loader ends with its last reference: a cycle would keep its workers alive."""
    loader = Failing() if end == "failed" else TwoBatches()
    gone = weakref.ref(loader)
    batches = shardflow.device.Prefetcher(loader, "cpu")
    gc.disable()
    try:
        if end == "left early":
            next(iter(batches))
        else:
            with pytest.raises(DecodeError) if end == "failed" else contextlib.nullcontext():
                for _ in batches:
                    pass
        del loader, batches
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("copy_stream")
def test_state_counts_the_batches_returned(dataset: Path) -> None:
    """While batch k is in use, the state is the one after batch k, however far ahead the loader is."""
    whole = contents(loader(dataset))
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", buffers=3)
    assert batches.state_dict()["position"] == 0
    positions = []
    for step, _ in enumerate(batches, start=1):
        time.sleep(0.005)  # for the loader to get ahead
        state = json.loads(json.dumps(batches.state_dict()))
        positions.append(state["position"])
        resumed = shardflow.device.Prefetcher(loader(dataset), "cpu")
        resumed.load_state_dict(state)
        resumed.set_epoch(state["epoch"])
        assert contents(resumed) == whole[step:]
    assert positions == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert (batches.state_dict()["epoch"], batches.state_dict()["position"]) == (1, 0)


@pytest.mark.usefixtures("copy_stream")
def test_after_a_break_the_next_iteration_is_the_next_epoch(dataset: Path) -> None:
    """Leaving early ends the thread, keeps the state, and goes on with the next epoch, as the loader does."""
    plain = loader(dataset)
    _, second = contents(plain), contents(plain)
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", buffers=3)
    for _ in itertools.islice(batches, 8):
        time.sleep(0.005)
    assert threads() == []
    assert batches.state_dict()["position"] == 56
    assert contents(batches) == second
    batches.set_epoch(1)
    assert contents(batches) == second


@pytest.mark.usefixtures("copy_stream")
def test_loading_a_state_replaces_the_current_one(dataset: Path) -> None:
    """A state that is loaded during an iteration replaces the iteration's."""
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu")
    begun = batches.state_dict()
    iteration = iter(batches)
    next(iteration)
    batches.load_state_dict(begun)
    assert batches.state_dict() == begun
    assert contents(batches) == contents(loader(dataset))


class Stateful(list[torch.Tensor]):
    """A loader whose state would be ahead of the batches that a prefetcher returned."""

    def state_dict(self) -> dict[str, int]:
        """Return any state."""
        return {"batch": 3}


def test_the_state_of_another_loader_is_refused() -> None:
    """It counts the batches that were prefetched, so resuming from it would leave some out."""
    with pytest.raises(ConfigError, match=r"Stateful .*state_dict"):
        shardflow.device.Prefetcher(Stateful(), "cpu").state_dict()


@pytest.mark.usefixtures("copy_stream")
def test_one_iteration_at_a_time(dataset: Path) -> None:
    """A new iteration ends the previous one, which raises an error and does not just stop."""
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu")
    first = iter(batches)
    next(first)
    second = iter(batches)
    next(second)
    with pytest.raises(ConfigError, match="was iterated again"):
        next(first)
    assert len([*second]) == len(batches) - 1


class TwoBatches:
    """A loader of two batches, the first of zeros and the second of ones."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.full((2, 2), number) for number in range(2))


class Failing(TwoBatches):
    """A loader that fails after those."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from super().__iter__()
        raise DecodeError("the third batch is bad")


@pytest.mark.usefixtures("copy_stream")
def test_an_error_comes_after_the_batches_before_it() -> None:
    """An error of the loader is raised after all batches before it, and the next iteration starts anew."""
    batches = shardflow.device.Prefetcher(Failing(), "cpu", buffers=3)
    for _ in range(2):
        got = []
        with pytest.raises(DecodeError, match="third batch is bad"):
            got.extend(int(batch[0, 0]) for batch in batches)
        assert got == [0, 1]
    assert threads() == []


@pytest.mark.usefixtures("copy_stream")
def test_an_error_of_a_transform_ends_the_iteration(dataset: Path) -> None:
    """An error of a transform reaches the caller, and no thread is left."""

    def broken(images: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"{len(images)} images")

    with pytest.raises(ValueError, match="7 images"):
        next(iter(shardflow.device.Prefetcher(loader(dataset), "cpu", [broken])))
    gc.collect()
    assert threads() == []


@pytest.mark.usefixtures("copy_stream")
@pytest.mark.parametrize("good", [0, 2])
def test_a_batch_that_a_transform_fails_on_is_not_counted(dataset: Path, good: int) -> None:
    """The state then is the one before that batch, even the first of an epoch, and a resumed run returns the batch."""
    whole = contents(loader(dataset))
    seen: list[int] = []

    def fails(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        if len(seen) > good:
            raise ValueError("enough")
        return images

    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", [fails], buffers=3)
    got = []
    with pytest.raises(ValueError, match="enough"):
        got.extend(contents(batches))
    state = batches.state_dict()
    assert (state["epoch"], state["position"]) == (0, 7 * good)
    resumed = shardflow.device.Prefetcher(loader(dataset), "cpu")
    resumed.load_state_dict(state)
    assert contents(resumed) == whole[good:]


@pytest.mark.usefixtures("copy_stream")
def test_an_empty_loader_is_an_empty_iteration() -> None:
    """A loader without batches gives none, in two iterations."""
    batches = shardflow.device.Prefetcher([], "cpu")
    assert [*batches] == []
    assert [*batches] == []


class Nested(NamedTuple):
    images: torch.Tensor
    extra: dict[str, Any]


@pytest.mark.usefixtures("copy_stream")
def test_any_nesting_of_tensors_passes() -> None:
    """Dicts, lists, tuples, other values, odd shapes, strides and dtypes stay as they are."""
    wide = torch.arange(24.0).view(2, 3, 2, 2)
    given = [
        Nested(
            wide.contiguous(memory_format=torch.channels_last),
            {
                "keys": ["a", "b"],
                "pair": (torch.tensor(3), torch.zeros(0, 5, dtype=torch.float64)),
                "none": None,
                "strided": torch.arange(10)[::2],
                "bool": torch.tensor([True, False]),
                "expanded": torch.tensor([1, 2]).expand(3, 2),
                "n": number,
            },
        )
        for number in range(4)
    ]
    for before, after in zip(given, shardflow.device.Prefetcher(given, "cpu"), strict=True):
        assert isinstance(after, Nested)
        for leaf, its in zip(tree_leaves(after), tree_leaves(before), strict=True):
            assert torch.equal(leaf, its) if isinstance(its, torch.Tensor) else leaf == its
        assert after.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("copy_stream")
def test_a_torch_dataloader_is_augmented() -> None:
    """The batches of a DataLoader, lists of tensors, are augmented; asking for its state is an error."""
    pairs = [(torch.full((3, 2, 2), number, dtype=torch.uint8), number) for number in range(6)]
    batches = shardflow.device.Prefetcher(
        DataLoader(pairs, batch_size=4), "cpu", [shardflow.device.Normalize((0,) * 3, (1,) * 3)]
    )
    got = [(images[:, 0, 0, 0] * 255, labels) for images, labels in batches]
    torch.testing.assert_close(torch.cat([images for images, _ in got]), torch.arange(6.0))
    assert len(batches) == 2
    with pytest.raises(ConfigError, match=r"DataLoader .*state_dict"):
        batches.state_dict()


@pytest.mark.usefixtures("copy_stream")
def test_dtype_and_memory_format_come_last(dataset: Path) -> None:
    """Floats get the dtype, images the memory format; integers stay what they are, autocast or not."""
    batches = shardflow.device.Prefetcher(
        loader(dataset), "cpu", [shardflow.device.Normalize()], dtype=torch.float16, channels_last=True
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        images, labels = next(iter(batches))
    assert images.dtype == torch.float16
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    images, _ = next(iter(shardflow.device.Prefetcher(loader(dataset), "cpu", dtype=torch.float16)))
    assert images.dtype == torch.uint8


def test_transforms_run_without_autocast_and_gradients(dataset: Path) -> None:
    """A transform runs in full precision and without gradients, whatever the context of the caller."""
    seen = []

    def look(images: torch.Tensor) -> torch.Tensor:
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return images

    with torch.autocast("cpu", dtype=torch.bfloat16):
        next(iter(shardflow.device.Prefetcher(loader(dataset), "cpu", [look])))
    assert seen == [(False, False)]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_buffer_is_not_overwritten_while_it_is_read(pinned: bool) -> None:
    """Before each copy into a buffer, the copy stream waits for the event after the last read of that buffer."""
    stream = DelayedCopyStream(pinned=pinned)
    buffers = [BatchBuffer(stream), BatchBuffer(stream)]
    for number in range(6):
        buffer = buffers[number % 2]
        buffer.fill(torch.full((4,), number))
        assert buffer.consume(lambda batch: batch * 2).tolist() == [2 * number] * 4
    copies = [place for place, (kind, _) in enumerate(stream.log) if kind == "copy"]
    consumed = [number for kind, number in stream.log if kind == "compute"][1::2]  # the others precede the read
    for number, place in enumerate(copies[2:]):
        assert ("wait", consumed[number]) in stream.log[copies[number + 1] : place]


def test_staging_memory_is_not_overwritten_before_the_copy() -> None:
    """A buffer that is filled again before its first batch was used waits for that copy on the host."""
    stream = DelayedCopyStream()
    buffer = BatchBuffer(stream)
    buffer.fill(torch.tensor([1, 2, 3]))
    staging, memory = buffer._small._staging, buffer._small._memory
    buffer.fill(torch.tensor([4, 5, 6]))
    assert memory.view(torch.int64)[:3].tolist() == [1, 2, 3]
    assert staging.view(torch.int64)[:3].tolist() == [4, 5, 6]


def test_buffers_keep_their_memory() -> None:
    """The memory of a buffer grows to the largest batch, and serves smaller ones of other shapes and dtypes."""
    stream = DelayedCopyStream()
    buffer = BatchBuffer(stream)
    for batch in (torch.zeros(4), torch.zeros(100), torch.zeros(3, 7, dtype=torch.int16), torch.zeros(99)):
        buffer.fill(batch)
        assert torch.equal(buffer.consume(lambda batch: batch), batch)
    assert len({address for kind, address in stream.log if kind == "copy"}) == 2


@pytest.mark.parametrize("pinned", [False, True])
def test_small_tensors_share_a_copy(pinned: bool) -> None:
    """The boxes of each image and the labels travel in one copy and the images in another; all are kept as they are."""
    stream = DelayedCopyStream(pinned=pinned)
    buffer = BatchBuffer(stream)
    given, kept = [], []
    for number in range(3):
        images = torch.full((2, 3, 120, 100), number, dtype=torch.uint8)
        boxes = [torch.full((count, 4), number + count / 8) for count in (3, 0, 5)]
        given.append(((images, images[:, :1] + 1), boxes, torch.arange(3)[::2], [boxes[0][:, 0] > 0]))
        buffer.fill(given[-1])
        copies = [address for kind, address in stream.log if kind == "copy"]
        assert len(copies) == 2 * (number + 1)
        kept.append(buffer.consume(lambda batch: batch))
    for before, after in zip(tree_leaves(given), tree_leaves(kept), strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    _, boxes, *_ = kept[0]
    assert boxes[0].untyped_storage().data_ptr() == boxes[2].untyped_storage().data_ptr()  # cloned in one piece


def test_an_empty_tensor_is_on_the_device_too() -> None:
    """The first batch of a rank may have no sample; its tensors are on the device all the same."""

    class Elsewhere(DelayedCopyStream):
        def device_memory(self, size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.uint8, device="meta")

    buffer = BatchBuffer(Elsewhere())
    buffer.fill(torch.zeros(0, 3, 8, 8))
    empty = buffer.consume(lambda batch: batch)
    assert empty.device.type == "meta"
    assert empty.shape == (0, 3, 8, 8)


class Slow:
    """A loader whose second batch is held back until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        assert self.release.wait(20)
        yield torch.ones(1)


@pytest.mark.usefixtures("delayed")
def test_a_ready_batch_is_not_held_up_by_the_next() -> None:
    """The first batch is returned although the loader does not have the second one yet."""
    slow = Slow()
    iteration = iter(shardflow.device.Prefetcher(slow, "cpu"))
    assert next(iteration).tolist() == [0]
    slow.release.set()
    assert [batch.tolist() for batch in iteration] == [[1]]


@pytest.mark.usefixtures("delayed")
def test_the_first_batch_is_loaded_in_the_callers_thread() -> None:
    """The loader returns its first batch in the caller's thread, where its workers must be forked."""
    names = []

    def batches() -> Iterator[torch.Tensor]:
        for number in range(3):
            names.append(threading.current_thread() is threading.main_thread())
            yield torch.tensor(number)

    assert [int(batch) for batch in shardflow.device.Prefetcher(batches(), "cpu")] == [0, 1, 2]
    assert names == [True, False, False]


def test_waiting_is_counted_while_the_device_is_idle(delayed: DelayedCopyStream) -> None:
    """Waiting for the loader counts while the device is idle, and not while it has work to do."""

    def slowly() -> Iterator[torch.Tensor]:
        for number in range(4):
            time.sleep(0.03)
            yield torch.tensor(number)

    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return slowly()

    batches = shardflow.device.Prefetcher(Loader(), "cpu")
    for delayed.idle, least, most in ((True, 0.06, 0.5), (False, 0.0, 0.0)):
        assert len([*batches]) == 4
        stats = batches.stats()
        assert least <= stats.waiting_s <= most
        assert stats.batches == 4
        assert stats.first_s >= 0.03


def test_transforms_of_a_busy_device_are_counted(delayed: DelayedCopyStream) -> None:
    """The time of the transforms counts when the device has run them, however far ahead of it the host is."""
    batches = shardflow.device.Prefetcher([torch.zeros(1)] * 4, "cpu")
    for _ in range(2):
        delayed.idle = False
        assert len([*batches]) == 4
        assert batches.stats().transforms_s == 0
        delayed.idle = True
        for _ in range(2):
            assert batches.stats().transforms_s == pytest.approx(0.003)  # all but the first, a millisecond each


@pytest.mark.usefixtures("delayed")
def test_a_failed_transform_has_no_time() -> None:
    """After an iteration that a transform ended, the next one's transforms have their own times alone."""
    left = [3]

    def fails(images: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] == -1:
            raise ValueError("enough")
        return images

    batches = shardflow.device.Prefetcher([torch.zeros(1)] * 4, "cpu", [fails])
    with pytest.raises(ValueError, match="enough"):
        list(batches)
    assert len([*batches]) == 4
    assert batches.stats().transforms_s == pytest.approx(0.003)


def test_the_thread_is_on_the_batches_device(delayed: DelayedCopyStream) -> None:
    """The thread makes the device its current one: otherwise each rank would have a context on the first GPU."""
    assert len([*shardflow.device.Prefetcher([torch.zeros(1)] * 3, "cpu")]) == 3
    assert delayed.threads == ["device-prefetcher"]


def test_copies_wait_for_tensors_that_the_caller_queued(delayed: DelayedCopyStream) -> None:
    """Before the first copy, the copy stream waits for the caller's work: it may make tensors of the batches."""
    assert len([*shardflow.device.Prefetcher([torch.zeros(1)] * 3, "cpu")]) == 3
    before = delayed.log[: [kind for kind, _ in delayed.log].index("copy")]
    assert before == [("compute", 1), ("wait", 1)]


def test_the_copy_stream_waits_for_a_failed_transform() -> None:
    """What a failed transform queued still reads the buffer: the next copy into it waits."""
    stream = DelayedCopyStream()
    buffer = BatchBuffer(stream)
    buffer.fill(torch.zeros(4))

    def fails(_: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        buffer.consume(fails)
    buffer.fill(torch.zeros(4))
    assert stream.log[-2] == ("wait", 2)


def test_a_missing_device_is_an_error() -> None:
    """On a machine without a GPU, asking for one is an error with a remedy."""
    if torch.cuda.is_available():
        pytest.skip("needs CUDA to be missing")
    with pytest.raises(ConfigError, match=r"'cuda' .*device='cpu'"):
        shardflow.device.Prefetcher([], "cuda")


@dataclass
class Wrapped:
    """A batch whose tensors pytree does not find."""

    images: torch.Tensor
    labels: torch.Tensor


@pytest.mark.usefixtures("copy_stream")
def test_tensors_in_objects_are_not_overwritten(dataset: Path) -> None:
    """Tensors that a batch transform puts into an object are never overwritten."""
    expected = contents(loader(dataset))
    kept = list(shardflow.device.Prefetcher(loader(dataset), "cpu", batch_transform=Wrapped))
    assert contents((batch.images, batch.labels) for batch in kept) == expected


@pytest.mark.usefixtures("copy_stream")
def test_batches_whose_tensors_are_not_found() -> None:
    """Any mapping is treated as a dict; an object that hides its tensors is an error, and not left on the host."""
    (batch,) = shardflow.device.Prefetcher([UserDict(image=torch.ones(2, 3, 4, 4), label=torch.zeros(2))], "cpu")
    assert list(batch) == ["image", "label"]
    with pytest.raises(ConfigError, match=r"Wrapped.* tensors"):
        list(shardflow.device.Prefetcher([(Wrapped(torch.ones(1), torch.ones(1)), 1)], "cpu"))


@pytest.mark.usefixtures("copy_stream")
@pytest.mark.parametrize("move", ["load_state_dict", "set_epoch"])
def test_a_refused_move_keeps_the_state(dataset: Path, move: str) -> None:
    """When the loader refuses, the state is still the one after the last batch returned, not after those prefetched."""
    batches = shardflow.device.Prefetcher(loader(dataset), "cpu", buffers=3)
    running = iter(batches)
    next(running)
    time.sleep(0.2)
    before = batches.state_dict()
    assert before["position"] == 7
    with pytest.raises(ResumeMismatchError if move == "load_state_dict" else ConfigError):
        getattr(batches, move)({"epoch": 1} if move == "load_state_dict" else -1)
    assert batches.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "bfloat16"}, "dtype must be a torch.dtype"),
        ({"buffers": 1.5}, "buffers must be a whole number"),
        ({"buffers": 0}, "buffers must be 1 or more, found 0"),
        ({"device": "cdua"}, "device must be 'cuda', .* found 'cdua'"),
        ({"device": None}, "device must be 'cuda'"),
        ({"device": "mps"}, r"device 'mps' is not available.*device='cpu'"),
        ({"transforms": shardflow.device.Normalize()}, "transforms must be a list"),
        ({"transforms": [shardflow.device.Normalize]}, r"such as Normalize\(\)"),
        ({"batch_transform": 3}, "batch_transform must be callable"),
    ],
)
def test_wrong_arguments_are_refused(dataset: Path, arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is an error of the constructor."""
    with pytest.raises(ConfigError, match=message):
        shardflow.device.Prefetcher(loader(dataset), **{"device": "cpu", **arguments})


@pytest.mark.usefixtures("copy_stream")
def test_only_images_get_the_dtype(dataset: Path) -> None:
    """Soft targets and shares stay float32: bfloat16 has two digits."""
    transforms = [shardflow.device.Normalize(), shardflow.device.MixUp(num_classes=60)]
    batches = shardflow.device.Prefetcher(keyed_loader(dataset), "cpu", transforms, dtype=torch.bfloat16)
    images, targets = next(iter(batches))
    assert (images.dtype, targets.dtype) == (torch.bfloat16, torch.float32)


def test_a_loader_without_epochs_is_an_error() -> None:
    """`set_epoch` of a list is an error."""
    with pytest.raises(ConfigError, match=r"list .*set_epoch"):
        shardflow.device.Prefetcher([], "cpu").set_epoch(1)


def test_a_script_that_ends_in_an_epoch_is_silent(dataset: Path) -> None:
    """If the interpreter exits during an iteration that a global refers to, nothing is printed."""
    script = f"""
import shardflow
from tests.helpers.delayed_copy_stream import DelayedCopyStream
from shardflow.device import prefetcher
prefetcher.copy_stream_for = lambda device: DelayedCopyStream()
loader = shardflow.Loader({str(dataset)!r}, batch_size=4, num_workers=1)
batches = iter(shardflow.device.Prefetcher(loader, "cpu"))
next(batches)
"""
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
