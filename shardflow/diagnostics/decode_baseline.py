"""The decode baseline: the rate at which the machine's cores decode a split's images if they do nothing else.

Plain processes decode images from memory into reused buffers, with the decoder of the loader. No loader that decodes
these images can be faster on this machine; the difference is the cost of reading, collating and transferring batches.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch

from shardflow.dataset.open_dataset import Split
from shardflow.errors import DeadlineError
from shardflow.formats.image_types import image_size
from shardflow.loading.decoders.decoder import Decoder
from shardflow.loading.stages import image_part
from shardflow.loading.worker_pool import exit_with_parent

from .loader_probe import Measurement

BATCH = 32

_IMAGES = 512
_SHARDS = 8
_TIMEOUT_S = 60.0


def payloads(split: Split) -> list[bytes]:
    """Return up to 512 encoded images, from up to eight local shards, or from the first shard if none is local."""
    local = [number for number in range(len(split.shards)) if split.reader.is_local(number)] or [0]
    chosen = local[:: -(-len(local) // _SHARDS)]
    images = []
    for number in chosen:
        samples = split.shards[number].samples
        for record in range(0, samples, -(-samples * len(chosen) // _IMAGES)):
            sample = split.reader.read(number, record)
            images.append(bytes(sample.parts[image_part(sample)]))
    return images


class DecodeBaseline(contextlib.AbstractContextManager["DecodeBaseline"]):
    """Processes that decode images on request, until the context ends."""

    def __init__(self, encoded: Sequence[bytes], decoder: Decoder, processes: int) -> None:
        self._connections: list[Connection] = []
        self._processes = []
        for seed in range(processes):
            ours, theirs = multiprocessing.Pipe()
            args = (theirs, encoded, decoder, seed, os.getpid())
            process = multiprocessing.Process(target=_decode_on_request, args=args, daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def measure(self, seconds: float) -> Measurement:
        """Let all processes decode in parallel for `seconds` and measure them; this process is not counted."""
        try:
            for connection in self._connections:
                connection.send(seconds)
            if not all(connection.poll(seconds + _TIMEOUT_S) for connection in self._connections):
                raise EOFError
            results = [connection.recv() for connection in self._connections]
        except (EOFError, OSError) as error:
            raise DeadlineError(
                "a process of the decode baseline did not answer; check whether the machine ran out of memory"
            ) from error
        images, wall_s, cpu_s = zip(*results, strict=True)
        return Measurement(images=sum(images), wall_s=sum(wall_s) / len(results), workers_cpu_s=sum(cpu_s))

    def __exit__(self, *_: object) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            process.kill()  # it has no state to lose
            process.join()
            connection.close()


def _decode_on_request(
    requests: Connection, encoded: Sequence[bytes], decoder: Decoder, seed: int, parent: int
) -> None:
    exit_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    torch.set_num_threads(1)  # as in a DataLoader worker
    buffer = functools.cache(functools.partial(torch.empty, dtype=torch.uint8))
    views = [memoryview(bytearray(payload)) for payload in encoded]  # writable, as from a shard
    sizes = np.array([image_size(view) for view in views], dtype=np.int64)  # a loader has them from the index
    batches = [(views[begin : begin + BATCH], sizes[begin : begin + BATCH]) for begin in range(0, len(views), BATCH)]
    keys = np.random.default_rng(seed)
    while True:
        seconds = requests.recv()
        cpu, begin = time.process_time(), time.perf_counter()
        now, images, turn = begin, 0, seed  # each process starts with a different batch
        while now - begin < seconds:
            batch, batch_sizes = batches[turn % len(batches)]
            decoder(batch, batch_sizes, keys.integers(0, 1 << 63, len(batch), dtype=np.uint64), allocate=buffer)
            images, turn, now = images + len(batch), turn + 1, time.perf_counter()
        requests.send((images, now - begin, time.process_time() - cpu))
