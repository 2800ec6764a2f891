"""Where the loader's CPU time goes: stage by stage, the kernel alone, and the whole loader.

The stages are those of a loader without workers, whose calls are timed. The kernel alone decodes the crops of an epoch
again, into memory that is warm, in as many processes at once as there are workers: two busy cores share caches and
memory, and each is slower than one alone.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from bench.loaders.measure import Normalise
from bench.loaders.peers.recipe import BATCH, SIZE, WORKERS
from bench.report import markdown
from bench.usage import Stopwatch
from shardflow import Loader, native
from shardflow.loading import batch_sampler, collate, stages
from shardflow.loading.decoders import standard_crops

STAGES = (stages.Read, stages.Decode, collate.Collate)
CHAIN = ("plan", "find in the shards", "read, check and decode", "collate")
"""Stages in order; the time of each is that of the pipeline up to it, less that of the one before."""


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    epochs = [stage_times(url) for _ in range(rounds + 1)][1:]
    lines = [(stage, f"{median(epoch[stage] for epoch in epochs):.1f}") for stage in epochs[0]]
    for count in (1, WORKERS):
        lines.append((f"the kernel alone, {count} at once", f"{kernel_alone(url, rounds, count):.1f}"))
    for count in (0, WORKERS):
        total, main, others = whole(url, rounds, count)
        where = f"{main:.1f} of it in the main process (others used {others:.0%} of the machine)"
        lines.append((f"the loader with {count} workers, {where}", f"{total:.1f}"))
    return markdown(("", "CPU-µs/image"), lines)


def stage_times(url: str) -> dict[str, float]:
    """Return the CPU time per image of each stage, in µs, over an epoch."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            begin = time.process_time()
            try:
                return work(*arguments, **named)
            finally:
                spent[name] += time.process_time() - begin

        return wrapper

    def stage(name: str, start: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def wrapper(*arguments: Any) -> Iterator[Any]:
            return iter(timed(name, functools.partial(next, iter(start(*arguments)), None)), None)

        return wrapper

    places = ((batch_sampler.BatchSampler, "__iter__"), *((stage, "__call__") for stage in STAGES))
    functions = {
        "of it boxes of crops": (standard_crops, "random_resized_crops"),
        "of it the kernel": (native, "decode_views"),
    }
    normalise, images = timed("normalise, in the main process", Normalise()), 0
    with ExitStack() as patches:
        for name, (owner, attribute) in zip(CHAIN, places, strict=True):
            patches.enter_context(patch.object(owner, attribute, stage(name, getattr(owner, attribute))))
        for name, (module, attribute) in functions.items():
            patches.enter_context(patch.object(module, attribute, timed(name, getattr(module, attribute))))
        for pixels, _ in Loader(url, batch_size=BATCH, num_workers=0):
            normalise(pixels)
            images += len(pixels)
    whole = {name: 1e6 * seconds / images for name, seconds in spent.items()}
    own = {name: whole[name] - whole.get(before, 0.0) for before, name in zip(("", *CHAIN), CHAIN, strict=False)}
    parts = {"read, check and decode": [*functions]}
    ordered = [each for name in CHAIN for each in (name, *parts.get(name, ()))]
    return {name: own.get(name, whole[name]) for name in (*ordered, "normalise, in the main process")}


def kernel_alone(url: str, epochs: int, processes: int) -> float:
    """Return the kernel's CPU time per image when it runs in several processes at once."""
    together, results = multiprocessing.Barrier(processes), multiprocessing.Queue()
    arguments = (url, epochs, together, results)
    running = [multiprocessing.Process(target=_decode_again, args=arguments) for _ in range(processes)]
    for process in running:
        process.start()
    measured = [results.get() for _ in range(processes * epochs)]
    for process in running:
        process.join()
    return median(measured)


def _decode_again(url: str, epochs: int, together: Any, results: Any) -> None:
    """Time the kernel on the crops of one epoch after another, starting each with the other processes."""
    loader, out = Loader(url, batch_size=BATCH, num_workers=0), torch.empty(BATCH, 3, SIZE, SIZE, dtype=torch.uint8)
    kernel, calls = native.decode_views, []

    def recorded(payloads: Any, views: Any, *, in_files: Any, **named: Any) -> Any:
        read = [payload if place is None else place.read() for payload, place in zip(payloads, in_files, strict=True)]
        calls.append(functools.partial(kernel, read, [view._replace(out=out.numpy()) for view in views], **named))
        return kernel(payloads, views, in_files=in_files, **named)

    for _ in range(epochs):
        calls.clear()
        with patch.object(native, "decode_views", recorded):
            images = sum(len(pixels) for pixels, _ in loader)
        together.wait()
        begin = time.process_time()
        for call in calls:
            call()
        results.put(1e6 * (time.process_time() - begin) / images)


def whole(url: str, epochs: int, workers: int) -> tuple[float, float, float]:
    """Return the CPU time per image of all processes and of this one, and the share of the machine others used."""
    loader = Loader(url, batch_size=BATCH, num_workers=workers)
    measured = []
    for _ in range(epochs + 1):
        stopwatch, main = Stopwatch(), time.process_time()
        images = sum(len(pixels) for pixels, _ in loader)
        main, used = time.process_time() - main, stopwatch.read()
        measured.append((1e6 * used.cpu_s / images, 1e6 * main / images, used.others))
    total, own, others = map(median, zip(*measured[1:], strict=True))
    return total, own, others
