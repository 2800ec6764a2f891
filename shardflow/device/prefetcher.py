"""The prefetcher: batches on the device before they are asked for, and arithmetic on them there."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils import _pytree

from shardflow._validation import check_integer
from shardflow.errors import ConfigError
from shardflow.loading.stats import Stats, StatsRecorder

from .buffers import Slot
from .copy_stream import Side, side_of
from .prefetch_thread import Pump
from .transform_chain import Stage, Stages


@runtime_checkable
class _Resumable(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class DevicePrefetcher:
    """Iterates a loader with its batches on a device, augmented there; usable wherever the loader is.

    >>> loader = shardflow.Loader(url, batch_size=256, fields=("image", "label", "random_key"))      # doctest: +SKIP
    >>> stages = [shardflow.RandomErasing(0.25), shardflow.Normalize()]                               # doctest: +SKIP
    >>> batches = shardflow.DevicePrefetcher(loader, "cuda", stages, dtype=torch.bfloat16)            # doctest: +SKIP
    >>> for images, labels in batches:                                                                # doctest: +SKIP
    ...     train_step(images, labels)

    On a CUDA or XPU device a thread copies the next batches while the training step runs, through page-locked memory
    and on a side stream that is kept for good. Stages run on the caller's stream, when a batch is handed out, without
    gradients and outside of autocast. What is handed out is the caller's: nothing ever overwrites it. On the CPU (and
    MPS) there is nothing to overlap: batches are moved, if at all, and augmented when they are asked for, in the
    caller's thread.

    Args:
        loader: A `Loader` or `Mix`, or any iterable of batches: a tensor, or tensors nested in tuples, lists and dicts.
            For a GPU it should have workers: without, its transforms run in the thread that copies, and set the global
            generators that the training step draws from.
        device: "cuda", "cuda:1", "cpu", or a `torch.device`.
        stages: Applied in order to the field "image" [B, C, H, W]: this package's, which draw from the field
            "random_key" of the loader, or anything that takes images and returns images. A first `DecodeJpeg` decodes.
        batch_transform: Called at the end with the fields of each batch as arguments; returns what to hand out. It is
            for `torchvision.transforms.v2.MixUp` and its kind.
        dtype: Of floating-point images, which are the tensors [B, C, H, W] (or of more dimensions), at the end. uint8
            stays uint8 where no stage made it anything else, and targets stay as they are.
        channels_last: Put tensors [B, C, H, W] into that memory format, at the end.
        slots: Batches on the device ahead of the one in use, at the most.

    The field "random_key" is used up: it is not among what is handed out. `state_dict` counts the batches handed out,
    not those prefetched.

    Raises:
        ConfigError: There is no such device here, a stage needs a field that the loader does not hand out, or a value
            is out of its range.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | torch.device,
        stages: Sequence[Stage] = (),
        *,
        batch_transform: Callable[..., Any] | None = None,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        slots: int = 2,
    ) -> None:
        slots = check_integer("slots", slots, 1)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ConfigError(f"dtype must be a torch.dtype, such as torch.bfloat16, found {dtype!r}")
        self.loader = loader
        self.device = available(device)
        self._stages = Stages(stages, getattr(loader, "fields", None), batch_transform)
        self._dtype, self._channels_last = dtype, channels_last
        self._side = side_of(self.device)
        self._slots = [Slot(self._side) for _ in range(slots)] if self._side is not None else []
        self._meter = StatsRecorder()
        self._state: dict[str, Any] | None = None  # after the batch handed out last, while the loader is ahead of it
        self._pump: Pump | None = None
        self._iterations = 0

    def __len__(self) -> int:
        """Return the number of batches that each rank gets in a whole epoch, if the loader knows it."""
        return len(self.loader)  # type: ignore[arg-type] # a TypeError that says so, if it does not

    def __iter__(self) -> Iterator[Any]:
        """Start where the loader does. One iteration at a time: starting another ends the one before it."""
        return self._prefetched(self._side) if self._side is not None else self._direct()

    def _end(self) -> None:
        """End the iteration that is running: the loader's cursor is about to be moved."""
        self._iterations += 1
        if self._pump is not None:
            self._pump.close()
            self._pump = None

    def _begin(self) -> int:
        """Begin an iteration, and return its number."""
        self._end()
        self._meter.begin()
        return self._iterations

    def _check(self, iteration: int) -> None:
        if iteration != self._iterations:
            raise ConfigError("the prefetcher was iterated again or moved, which ended this iteration; use two of them")

    def _direct(self) -> Generator[Any, None, None]:
        iteration = self._begin()
        batches = _closable(self.loader)
        try:
            while True:
                self._check(iteration)
                if self._state is None:
                    self._state = self._loader_state()  # a stage may fail, and the batch is not handed out then
                asked = time.perf_counter()
                batch = next(batches, self)
                if batch is self:
                    self._state = None
                    return
                loaded = time.perf_counter()
                batch, key = self._stages.arrive(batch, self.device)
                batch = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), batch)
                batch = self._finish(batch, key=key, lent=False)
                self._state = None
                self._meter.answered(waiting_s=loaded - asked, stages_s=time.perf_counter() - loaded)
                yield batch
        finally:
            batches.close()

    def _prefetched(self, side: Side) -> Generator[Any, None, None]:
        iteration = self._begin()
        if self._state is None:
            self._state = self._loader_state()  # a stage may fail on the first batch
        batches = _closable(self.loader)
        pump = self._pump = Pump(
            batches,
            side,
            self._slots,
            arrive=lambda batch: self._stages.arrive(batch, self.device),
            state=self._loader_state,
        )
        try:
            while True:
                self._check(iteration)
                asked = time.perf_counter()
                taken = pump.take()
                answered = time.perf_counter()
                if taken is None:
                    self._state = None
                    return
                # A wait during which the device still had work to do was no stall.
                stalled = answered - asked if side.has_run_dry() else 0.0
                for_data = min(stalled, max(0.0, taken.loaded_at - asked))
                stages_s = taken.slot.stages_s()
                batch = taken.slot.hand_out(functools.partial(self._finish, key=taken.key, lent=True))
                pump.give_back(taken.slot)
                self._state = taken.state
                self._meter.answered(waiting_s=for_data, copying_s=stalled - for_data, stages_s=stages_s)
                yield batch
        finally:
            pump.close()
            if self._pump is pump:
                self._pump = None  # no cycle of references: a loader has to end as soon as nobody holds it
            batches.close()
            for slot in self._slots:
                slot.retire()

    @torch.no_grad()
    def _finish(self, batch: Any, *, key: int | None, lent: bool) -> Any:
        """Do what is done on the device."""
        with torch.autocast(self.device.type, enabled=False):
            batch = self._stages(batch, key, lent=lent)
        return _pytree.tree_map_only(torch.Tensor, self._convert, batch)

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._dtype is not None and tensor.is_floating_point() and tensor.dim() >= 4:
            tensor = tensor.to(self._dtype)
        if self._channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration runs through, as the loader does."""
        self._end()
        if not hasattr(self.loader, "set_epoch"):
            raise ConfigError(f"a {type(self.loader).__name__} has no epochs to set; shardflow.Loader has")
        self.loader.set_epoch(epoch)
        self._state = None  # not before: a loader that refuses has not moved

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state as it was after the batch that was handed out last.

        Raises:
            ConfigError: The loader has no state.
        """
        if self._state is not None:
            return self._state
        return self._resumable().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the saved one stood.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
            ConfigError: The loader has no state.
        """
        self._end()
        self._resumable().load_state_dict(state)
        self._state = None

    def stats(self) -> Stats:
        """Return where the time went since the iteration began; `print` it to know what to do about it."""
        return self._meter.stats()

    def _resumable(self) -> _Resumable:
        if not isinstance(self.loader, _Resumable):
            raise ConfigError(f"a {type(self.loader).__name__} has no state to save; shardflow.Loader has")
        return self.loader

    def _loader_state(self) -> dict[str, Any] | None:
        return self.loader.state_dict() if isinstance(self.loader, _Resumable) else None


def available(device: str | torch.device) -> torch.device:
    """Return a device with its index, if there is one.

    Raises:
        ConfigError: It is not here.
    """
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must be 'cuda', 'cuda:1', 'cpu' or the like, found {device!r}") from error
    if device.type not in ("cuda", "xpu", "mps"):
        return device
    module = torch.backends.mps if device.type == "mps" else getattr(torch, device.type)
    if not module.is_available():
        raise ConfigError(
            f"device {str(device)!r} is not here: the machine has none, its driver is missing, or this torch "
            f"({torch.__version__}) was built without support for it; take device='cpu', where all of this runs as well"
        )
    if device.type == "mps":
        return device
    index = module.current_device() if device.index is None else device.index
    if index >= module.device_count():
        raise ConfigError(f"device {str(device)!r} is not here: this process sees {module.device_count()} of its kind")
    return torch.device(device.type, index)


def _closable(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Return an iteration of the loader that can be closed, whatever iterators the loader makes."""
    yield from loader
