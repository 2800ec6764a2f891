"""Behaviour that only a GPU can show; skipped on other machines."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardflow
from tests.helpers import jpegs
from tests.helpers.device import (
    KEYED,
    MIXING,
    annotated_batch,
    keyed_loader,
    noise,
    png,
    random_keys,
    state_after,
)
from tests.helpers.making import jpeg

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """Return a loader with workers and larger crops."""
    return keyed_loader(url, **{"num_workers": 2, "decoder": shardflow.decoders.RandomResizedCrop(64), **options})


def on_cpu(batches: Any) -> list[Any]:
    """Return all batches, on the CPU."""
    return [tuple(tensor.cpu() for tensor in batch) for batch in batches]


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_batches_are_those_of_the_cpu(dataset: Path, pin_memory: bool, buffers: int) -> None:
    """Pinned by the loader or not, with any number of buffers, batches kept to the end are those of the CPU."""
    expected = on_cpu(shardflow.device.Prefetcher(loader(dataset), "cpu"))
    pinning = loader(dataset, num_workers=shardflow.Workers(0, pin_memory=pin_memory))
    batches = shardflow.device.Prefetcher(pinning, "cuda", buffers=buffers)
    torch.testing.assert_close(on_cpu([*batches]), expected, rtol=0, atol=0)


@contextlib.contextmanager
def no_waits() -> Iterator[None]:
    """Make it an error that the host waits for the device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        try:  # setting the mode may raise as well, and the mode must never outlive a test
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def busy(seconds: float) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(int(seconds * 1e9))


def test_copies_do_not_overwrite_batches_in_use() -> None:
    """Large batches that a busy stream reads late are not overwritten, with any number of buffers."""

    class Numbers:
        def __iter__(self) -> Iterator[torch.Tensor]:
            for number in range(20):
                yield torch.full((1 << 24,), number % 256, dtype=torch.uint8)

    def late(images: torch.Tensor) -> torch.Tensor:
        busy(0.01)
        return images.clone()

    for buffers in (1, 2, 3):
        for number, images in enumerate(shardflow.device.Prefetcher(Numbers(), "cuda", [late], buffers=buffers)):
            busy(0.005)
            assert bool((images == number).all())


def test_copies_wait_for_batches_that_are_made_on_the_device() -> None:
    """Batches on the device, made by work that is queued on the caller's stream, are copied when they are made."""
    busy(0.2)
    made = [torch.full((1 << 20,), number, device="cuda") for number in range(4)]
    for number, images in enumerate(shardflow.device.Prefetcher(made, "cuda", buffers=3)):
        assert bool((images == number).all())


@pytest.mark.parametrize("transform", KEYED.values(), ids=KEYED)
def test_transforms_agree_with_the_cpu_and_do_not_wait(transform: Any) -> None:
    """A transform gives the same on the GPU as on the CPU, to a step of 255, and never makes the host wait."""
    images, keys = noise(16, 40, 50), random_keys(16)
    expected = transform(images, keys)
    images, keys = images.cuda(), keys.cuda()
    with no_waits():
        found = transform(images, keys)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4 if expected.is_floating_point() else 1)


@pytest.mark.parametrize("transform", MIXING.values(), ids=MIXING)
def test_mixing_agrees_with_the_cpu_and_does_not_wait(transform: Any) -> None:
    """A mixing transform gives the same on the GPU as on the CPU, and never makes the host wait."""
    given = noise(16, 40, 50), torch.arange(16) % 9, random_keys(16)
    expected = transform(*given)
    given = tuple(tensor.cuda() for tensor in given)  # type: ignore[assignment]
    with no_waits():
        images, targets = transform(*given)
    torch.testing.assert_close(images.cpu(), expected[0], rtol=0, atol=1)
    if isinstance(targets, shardflow.device.MixedTargets):
        targets = shardflow.device.MixedTargets(*(tensor.cpu() for tensor in targets))
    torch.testing.assert_close(targets.cpu() if isinstance(targets, torch.Tensor) else targets, expected[1])


def test_annotations_agree_with_the_cpu() -> None:
    """Masks and boxes follow on the GPU as on the CPU, with images to a step of 255; all of it is on the device."""
    batches = [annotated_batch(count, 40, 300, seed=count) for count in (8, 0, 5, 8)]
    transforms = [
        shardflow.device.RandomResizedCrop(96, hflip=0.5),
        shardflow.device.RandomErasing(0.5, mask_value=255),
    ]
    expected = shardflow.device.Prefetcher(batches, "cpu", transforms)
    for found, its in zip(shardflow.device.Prefetcher(batches, "cuda", transforms), expected, strict=True):
        for name, column in found.items():
            for ours, theirs in zip(column, its[name], strict=True):
                assert ours.device.type == "cuda"
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1 if name == "image" else 0)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # the precision of products is the caller's to choose
@pytest.mark.parametrize("transform", KEYED.values(), ids=KEYED)
def test_compiled_transforms_agree(transform: Any) -> None:
    """Compiled for the GPU, a transform gives the same."""
    images, keys = noise(16, 40, 50).cuda(), random_keys(16).cuda()
    expected = transform(images, keys)
    compiled = torch.compile(transform.__call__, fullgraph=True)(images, keys)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-4 if expected.is_floating_point() else 1)


def test_decoding_on_the_gpu_is_near_the_cpus(dataset: Path) -> None:
    """nvJPEG's pixels, cropped and resized on the device, are the CPU's but for a few steps; the crops are the same."""
    crop = shardflow.decoders.RandomResizedCrop(32)
    decode = shardflow.device.DecodeJpeg(crop)
    batches = shardflow.device.Prefetcher(loader(dataset, decoder=shardflow.decoders.Raw()), "cuda", [decode])
    for (images, labels), (expected, its, _) in zip(batches, loader(dataset, decoder=crop), strict=True):
        assert torch.equal(labels.cpu(), its)
        difference = (images.cpu().int() - expected.int()).abs().float()
        assert difference.mean() < 3  # nvJPEG does not interpolate chroma, as `djpeg -nosmooth` does not: that has 2
        assert difference.max() < 40  # at edges, by how chroma is brought to full size
    assert decode.refused == 0


def upright(payload: bytes) -> bytes:
    """Return a JPEG of 4:2:2 as one of 4:4:0: its units stand upright."""
    at = jpegs.frame(payload) + 11
    assert payload[at] == 0x21
    return payload[:at] + b"\x12" + payload[at + 1 :]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(jpegs.make(1, 64, 64), id="baseline"),
        pytest.param(jpegs.make(1, 64, 64, progressive=True), id="progressive"),
        pytest.param(jpegs.make(1, 64, 64, mode="L"), id="grey"),
        pytest.param(jpegs.make(1, 64, 64, mode="CMYK"), id="CMYK"),
        pytest.param(jpegs.make(1, 64, 64, subsampling=0, keep_rgb=True), id="RGB"),
        pytest.param(jpegs.make(1, 64, 64, subsampling=0), id="4:4:4"),
        pytest.param(jpegs.make(1, 64, 64, subsampling=1), id="4:2:2"),
        pytest.param(upright(jpegs.make(1, 64, 64, subsampling=1)), id="4:4:0"),
        pytest.param(jpegs.make(1, 64, 64, restart_marker_rows=1), id="restarts"),
    ],
)
def test_kinds_of_jpegs_have_the_cpus_colours(payload: bytes) -> None:
    """A JPEG of any kind, alone or in a batch with others, has the colours that the CPU's decoder gives it."""
    given = [memoryview(bytearray(file)) for file in (payload, jpegs.make(2, 64, 64), payload)]
    keys = random_keys(3).numpy().view("uint64")
    expected = shardflow.decoders.Image()(given, np.zeros((3, 2), dtype=np.int64), keys).images
    files = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in given]
    found = shardflow.device.DecodeJpeg()._decode_on_gpu(files, torch.device("cuda", 0))
    for image, its in zip(found, expected, strict=True):
        difference = (image.cpu().int() - its.int()).abs().float()
        assert difference.mean() < 10  # whole images, in saturated colours; a wrong colour space has tens


def test_images_that_nvjpeg_refuses_are_decoded() -> None:
    """Batches with other formats, or of other formats alone, are decoded as by the CPU."""
    crop, keys = shardflow.decoders.CenterCrop(32), random_keys(3)
    for first_png in (0, 1):
        payloads = [memoryview(bytearray(png(number) if number >= first_png else jpeg(number))) for number in range(3)]
        arguments = payloads, np.zeros((3, 2), dtype=np.int64), keys.numpy().view("uint64")
        rows, expected = shardflow.decoders.Raw()(*arguments).images, crop(*arguments).images
        images = shardflow.device.DecodeJpeg(crop)(rows, torch.device("cuda", 0)).cpu()
        assert (images.int() - expected.int()).abs().max() < 40


def test_decoding_does_not_overwrite_what_is_still_read() -> None:
    """While crops wait for a busy device, the next batch is not decoded into the memory of their images."""
    decode, device = shardflow.device.DecodeJpeg(shardflow.decoders.RandomResizedCrop(200)), torch.device("cuda", 0)
    keys = random_keys(32).numpy().view("uint64")
    first, second = (
        [torch.frombuffer(bytearray(jpeg(begin + n, 400, 300)), dtype=torch.uint8) for n in range(32)]
        for begin in (0, 32)
    )
    with torch.cuda.stream(torch.cuda.Stream(device)):
        expected = decode._crop(decode._decode_on_gpu(first, device), keys).cpu()
        for _ in range(5):
            whole = decode._decode_on_gpu(first, device)
            busy(0.1)
            found = decode._crop(whole, keys)
            del whole
            decode._decode_on_gpu(second, device)
            assert torch.equal(found.cpu(), expected)


def test_an_empty_first_batch_is_on_the_device() -> None:
    """A rank without a sample gets its empty batch on the device, the first as well."""
    (images,) = shardflow.device.Prefetcher([torch.zeros(0, 3, 8, 8)], "cuda", [shardflow.device.Normalize()])
    assert images.device.type == "cuda"
    assert images.shape == (0, 3, 8, 8)


def test_state_and_early_exit(dataset: Path) -> None:
    """Left after three batches, the state is that of three batches, and a resumed run goes on from there."""
    whole = on_cpu(shardflow.device.Prefetcher(loader(dataset), "cuda"))
    state = state_after(shardflow.device.Prefetcher(loader(dataset), "cuda", buffers=3), 3)
    assert state["position"] == 21
    resumed = shardflow.device.Prefetcher(loader(dataset), "cuda")
    resumed.load_state_dict(state)
    torch.testing.assert_close(on_cpu(resumed), whole[3:], rtol=0, atol=0)


def test_the_stream_is_kept(dataset: Path) -> None:
    """One copy stream serves all epochs, and memory does not grow from epoch to epoch."""
    batches = shardflow.device.Prefetcher(loader(dataset), "cuda")
    stream = batches._copy_stream.stream  # type: ignore[union-attr]
    used = []
    for _ in range(4):
        for _ in batches:
            pass
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_reserved())
    assert batches._copy_stream.stream == stream  # type: ignore[union-attr]
    assert used[1:] == used[1:2] * 3


def test_a_fast_loader_is_no_bottleneck() -> None:
    """Time that the host waits for a busy device is not counted as waiting for data."""
    batches = shardflow.device.Prefetcher([torch.zeros(1 << 16)] * 20, "cuda")
    for _ in batches:
        busy(0.01)
    assert batches.stats().waiting_share < 0.2


def test_the_time_of_transforms_is_that_of_the_device() -> None:
    """Transforms that the host only queues count with the time that the device takes for them."""

    def slow(images: torch.Tensor) -> torch.Tensor:
        busy(0.01)
        return images.clone()

    batches = shardflow.device.Prefetcher([torch.zeros(1 << 16)] * 20, "cuda", [slow])
    for _ in batches:
        pass
    torch.cuda.synchronize()
    assert batches.stats().transforms_s > 0.05
