"""The prefetcher: copies batches to a device ahead of the training step, and augments them there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from shardflow._validation import check_integer
from shardflow.errors import ConfigError
from shardflow.loading.decoders.repeated_crops import check_mixing, warn_of_repeated_crops
from shardflow.loading.engine import Engine, Iteration
from shardflow.loading.stats import Stats, StatsRecorder
from shardflow.loading.transform_parts import parts_of

from .buffers import BatchBuffer
from .copy_stream import CopyStream, EventTimer, copy_stream_for
from .prefetch_thread import PrefetchThread
from .transform_chain import DeviceTransform, PreparedBatch, TransformChain

logger = logging.getLogger(__name__)


class Prefetcher:
    """Iterates over a loader with its batches copied to a device and augmented there; usable wherever the loader is.

    >>> loader = shardflow.Loader(url, batch_size=256, fields=("image", "label", "random_key"))
    >>> transforms = [shardflow.device.RandomErasing(0.25), shardflow.device.Normalize()]
    >>> batches = shardflow.device.Prefetcher(loader, "cuda", transforms, dtype=torch.bfloat16)
    >>> for images, labels in batches:
    ...     train_step(images, labels)

    On a CUDA device a thread copies the next batches while the training step runs, through page-locked memory and on a
    separate stream. Transforms run on the caller's current stream when a batch is requested, without gradients and
    outside autocast. The memory of a batch is never overwritten. On other devices nothing overlaps: batches are copied
    and augmented when they are requested, in the caller's thread.

    The field "random_key" is removed from the batches. `state_dict` counts returned batches, not prefetched ones.

    Args:
        loader: A `Loader` or `Mix`, or any iterable of batches: a tensor, or tensors nested in tuples, lists and dicts.
            For a GPU it should have workers: otherwise its transforms run in the copying thread, and seed the global
            generators that the training step draws from.
        device: "cuda", "cuda:1", "cpu", or a `torch.device`.
        transforms: Applied in order to the field "image" [B, C, H, W], or to each of its views: transforms of this
            package, which draw from the loader's field "random_key", or any callable that takes and returns images.
            `DecodeJpeg` must be the first.
        batch_transform: Called last, with the fields of a batch as arguments; returns the batch. For
            `torchvision.transforms.v2.MixUp` and the like.
        dtype: Final dtype of floating-point images, that is tensors with four or more dimensions. uint8 images stay
            uint8, and targets keep their dtype.
        channels_last: Whether tensors [B, C, H, W] get this memory format in the end.
        buffers: Batches on the device ahead of the one in use, 1 or more.

    Raises:
        ConfigError: The device is not available, a transform needs a field that the loader does not return, or a value
            is out of its range.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | torch.device,
        transforms: Sequence[DeviceTransform] = (),
        *,
        batch_transform: Callable[..., Any] | None = None,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        buffers: int = 2,
    ) -> None:
        buffers = check_integer("buffers", buffers, 1)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ConfigError(f"dtype must be a torch.dtype, such as torch.bfloat16, found {dtype!r}")
        self.loader = loader
        self.device = resolve_device(device)
        decoder = getattr(loader, "decoder", None)
        warn_of_repeated_crops(decoder, transforms=transforms, batch_transform=batch_transform)
        earlier = [source.transform for source in loader._plan.sources] if isinstance(loader, Engine) else ()
        if _normalizes(earlier) and _normalizes(transforms):
            logger.warning("images are normalized twice: by transform of the loader, and again here; leave one out")
        fields, pads = getattr(loader, "fields", None), getattr(loader, "pads", False)
        check_mixing(batch_transform, fields or (), pad=pads)
        self._transforms = TransformChain(
            transforms, fields, batch_transform, getattr(loader, "annotations", None), pads=pads
        )
        self._dtype, self._channels_last = dtype, channels_last
        self._copy_stream = stream = copy_stream_for(self.device)
        self._buffers = [BatchBuffer(stream) for _ in range(buffers)] if stream is not None else []
        self._stats = StatsRecorder()
        self._timer = EventTimer()  # times transforms on devices with a copy stream
        self._thread: PrefetchThread | None = None
        self._iterations = 0

    @property
    def dataset(self) -> Any:
        """The `dataset` of the loader."""
        return self.loader.dataset  # type: ignore[attr-defined] # AttributeError if it has none

    @property
    def epoch(self) -> int:
        """The loader's epoch, of the running iteration or the next."""
        return self.loader.epoch  # type: ignore[attr-defined, no-any-return]

    def __len__(self) -> int:
        """Return the number of batches per rank in a whole epoch, if the loader has a length."""
        return len(self.loader)  # type: ignore[arg-type] # TypeError if it has none

    def __iter__(self) -> Iterator[Any]:
        """Start where the loader starts. A new iteration ends the previous one."""
        return self._prefetched(self._copy_stream) if self._copy_stream is not None else self._direct()

    def _end(self) -> None:
        """End the running iteration: the loader's cursor is about to move."""
        self._iterations += 1
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _begin(self) -> int:
        self._end()
        self._stats.begin()
        self._timer = EventTimer()
        return self._iterations

    def _check_running(self, iteration: int) -> None:
        if iteration != self._iterations:
            raise ConfigError(
                "this iteration ended, because the prefetcher was iterated again or its cursor was moved; for two "
                "iterations at a time, use two prefetchers"
            )

    def _direct(self) -> Generator[Any, None, None]:
        number = self._begin()
        with self._iteration() as iteration:
            while True:
                self._check_running(number)
                requested = time.perf_counter()
                batch = next(iteration.batches, self)
                if batch is self:
                    return
                loaded = time.perf_counter()
                prepared = self._prepare(batch)
                prepared = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), prepared)
                batch = self._transform(prepared, in_buffer=False)
                iteration.hand_out()  # a batch does not count if a transform fails on it
                self._stats.answered(waiting_s=loaded - requested, transforms_s=time.perf_counter() - loaded)
                yield batch

    def _prefetched(self, copy_stream: CopyStream) -> Generator[Any, None, None]:
        number = self._begin()
        # The loader's batches may be on the device, made by work that is queued on the compute stream.
        copy_stream.record_compute().block_copy_stream()
        with self._iteration() as iteration:
            thread = self._thread = PrefetchThread(iteration.batches, copy_stream, self._buffers, self._prepare)
            timer: EventTimer | None = None
            try:
                while True:
                    self._check_running(number)
                    requested = time.perf_counter()
                    prefetched = thread.get()
                    answered = time.perf_counter()
                    if prefetched is None:
                        return
                    # Training continued during the wait if the device still had work.
                    stalled = answered - requested if copy_stream.compute_is_idle() else 0.0
                    for_data = min(stalled, max(0.0, prefetched.loaded_at - requested))
                    batch = prefetched.buffer.consume(functools.partial(self._transform, in_buffer=True), timer)
                    thread.release(prefetched.buffer)
                    iteration.hand_out()
                    self._stats.answered(waiting_s=for_data, copying_s=stalled - for_data)
                    timer = self._timer  # the first batch is not timed
                    yield batch
            finally:
                thread.close()
                if self._thread is thread:
                    self._thread = None  # breaks a reference cycle that would keep the loader alive
                for buffer in self._buffers:
                    buffer.retire()

    def _iteration(self) -> Iteration | _Uncounted:
        return self.loader.new_iteration() if isinstance(self.loader, Engine) else _Uncounted(self.loader)

    def _prepare(self, batch: Any) -> PreparedBatch:
        return self._transforms.prepare(batch, self.device)

    @torch.no_grad()
    def _transform(self, prepared: PreparedBatch, *, in_buffer: bool) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            batch = self._transforms(prepared, in_buffer=in_buffer)
        return _pytree.tree_map_only(torch.Tensor, self._convert, batch)

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        converted = self._dtype is not None and tensor.is_floating_point() and tensor.dim() >= 4
        dtype = self._dtype if converted else tensor.dtype
        if self._channels_last and tensor.dim() == 4:  # one pass over the images for both
            tensor = tensor.to(dtype, memory_format=torch.channels_last)
            return tensor.contiguous(memory_format=torch.channels_last)  # if ambiguous strides were kept
        return tensor.to(dtype)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, as the loader's `set_epoch` does.

        Raises:
            ConfigError: The loader has no `set_epoch`, or refuses the epoch.
        """
        self._end()
        self._method("set_epoch")(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state after the last returned batch.

        Raises:
            ConfigError: The loader is not a `Loader` or `Mix`.
        """
        state: dict[str, Any] = self._method("state_dict")()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start at a saved state.

        Raises:
            ResumeMismatchError: The state belongs to another dataset, split or order.
            ConfigError: The loader is not a `Loader` or `Mix`.
        """
        self._end()
        self._method("load_state_dict")(state)

    def stats(self, *, whole_run: bool = False) -> Stats:
        """Return the statistics of the current iteration, or of the whole run; `print` them for advice."""
        stats, counts = self._stats.stats(whole_run=whole_run), {}
        if callable(loader_stats := getattr(self.loader, "stats", None)):  # may be some batches ahead
            loaded = loader_stats(whole_run=whole_run)
            counts = {name: getattr(loaded, name) for name in ("samples", "read_bytes", "network_bytes", "replaced")}
        return dataclasses.replace(stats, transforms_s=stats.transforms_s + self._timer.seconds(), **counts)

    def _method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self.loader, name, None)
        is_ahead = "state" in name and not isinstance(self.loader, Engine)  # its state counts prefetched batches
        if method is None or is_ahead:
            raise ConfigError(f"a {type(self.loader).__name__} cannot provide {name}; use a shardflow.Loader or Mix")
        return method


def resolve_device(device: str | torch.device) -> torch.device:
    """Return an available device, a CUDA device with its index; ConfigError if it is not available."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device must be 'cuda', 'cuda:1', 'cpu' or another torch device, found {device!r}"
        ) from error
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device.type)
    if backend is not None and not backend.is_available():
        raise ConfigError(
            f"device {str(device)!r} is not available: the machine has none, its driver is missing, or torch "
            f"{torch.__version__} was built without support for it; use device='cpu', which supports everything too"
        )
    if device.type != "cuda":
        return device
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(f"device {str(device)!r} is not available: torch sees {torch.cuda.device_count()} devices")
    return torch.device("cuda", index)


class _Uncounted(contextlib.AbstractContextManager["_Uncounted"]):
    """An iteration of a loader without a cursor."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.batches = _closable(loader)

    def __exit__(self, *_: object) -> None:
        self.batches.close()

    def hand_out(self) -> None:
        """Do nothing."""


def _closable(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Return a generator over the loader, because not all iterators can be closed."""
    yield from loader


def _normalizes(transform: object) -> bool:
    return any(type(part).__name__ == "Normalize" for part in parts_of(transform))
