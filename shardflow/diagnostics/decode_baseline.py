"""The machine's own limit: how many of these images its cores decode when they do nothing else.

Plain processes decode images that are already in memory, into memory that is used again, with the loader's own
decoder. No loader of these images can be faster here; the share of it that one reaches is what its reading, collating
and handing over leave.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch

from shardflow.dataset.dataset import Split
from shardflow.errors import DeadlineError
from shardflow.formats.image_size import image_size
from shardflow.loading.decoders import Decoder
from shardflow.loading.stages import image_part
from shardflow.loading.workers import exit_with_parent

from .time_window import Window

BATCH = 32

_IMAGES = 512
_SHARDS = 8
_PATIENCE_S = 60.0


def payloads(split: Split) -> list[bytes]:
    """Return up to 512 encoded images, from up to eight of the local shards.

    Raises:
        IntegrityError: One is damaged.
        DecodeError: A sample has no image.
    """
    local = [number for number in range(len(split.shards)) if split.reader.is_local(number)] or [0]
    chosen = local[:: -(-len(local) // _SHARDS)]
    found = []
    for number in chosen:
        samples = split.shards[number].samples
        for record in range(0, samples, -(-samples * len(chosen) // _IMAGES)):
            sample = split.reader.read(number, record)
            found.append(bytes(sample.parts[image_part(sample)]))
    return found


class DecodeBaseline:
    """Processes that decode when they are asked to; close it when done."""

    def __init__(self, encoded: Sequence[bytes], decoder: Decoder, processes: int) -> None:
        self._ends: list[Connection] = []
        self._processes = []
        for seed in range(processes):
            ours, theirs = multiprocessing.Pipe()
            args = (theirs, encoded, decoder, seed, os.getpid())
            process = multiprocessing.Process(target=_work, args=args, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def measure(self, seconds: float) -> Window:
        """Let all processes decode side by side for so long, and return what they did, this process left out.

        Raises:
            DeadlineError: A process has ended, or does not answer.
        """
        try:
            for end in self._ends:
                end.send(seconds)
            if not all(end.poll(seconds + _PATIENCE_S) for end in self._ends):
                raise EOFError
            done = [end.recv() for end in self._ends]
        except (EOFError, OSError) as error:
            raise DeadlineError("a process that only decodes did not answer; see whether memory ran out") from error
        images, wall_s, cpu_s = zip(*done, strict=True)
        return Window(images=sum(images), wall_s=sum(wall_s) / len(done), workers_cpu_s=sum(cpu_s))

    def close(self) -> None:
        """End the processes, which have nothing to lose."""
        for end, process in zip(self._ends, self._processes, strict=True):
            process.kill()
            process.join()
            end.close()

    def __enter__(self) -> DecodeBaseline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _work(requests: Connection, encoded: Sequence[bytes], decoder: Decoder, seed: int, owner: int) -> None:
    exit_with_parent(owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair, which then ends this process
    torch.set_num_threads(1)  # as in a DataLoader's worker
    memory: dict[tuple[int, ...], torch.Tensor] = {}

    def empty(shape: tuple[int, ...]) -> torch.Tensor:
        if shape not in memory:
            memory[shape] = torch.empty(shape, dtype=torch.uint8)
        return memory[shape]

    views = [memoryview(bytearray(payload)) for payload in encoded]  # writable, as those of a shard's map are
    sizes = np.array([image_size(view) for view in views], dtype=np.int64)  # which a loader has from the index
    batches = [(views[begin : begin + BATCH], sizes[begin : begin + BATCH]) for begin in range(0, len(views), BATCH)]
    keys = np.random.default_rng(seed)
    while True:
        seconds = requests.recv()
        cpu, begin = time.process_time(), time.perf_counter()
        now, images, turn = begin, 0, seed  # each process starts elsewhere
        while now - begin < seconds:
            batch, batch_sizes = batches[turn % len(batches)]
            decoder(batch, batch_sizes, keys.integers(0, 1 << 63, len(batch), dtype=np.uint64), empty)
            images, turn, now = images + len(batch), turn + 1, time.perf_counter()
        requests.send((images, now - begin, time.process_time() - cpu))
