from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st

import shardflow
from shardflow.device import prefetcher
from shardflow.device.transforms import decode_jpeg
from shardflow.errors import ConfigError, DecodeError
from shardflow.loading.decoders.decoder import Payloads
from shardflow.loading.decoders.raw import STEP_BYTES, EncodedImages
from shardflow.order import keyed_rng
from tests.helpers import jpegs
from tests.helpers.delayed_copy_stream import DelayedCopyStream
from tests.helpers.device import FIELDS, png
from tests.helpers.examples import examples
from tests.helpers.making import flip, jpeg, make_dataset

CROPS: dict[str, Any] = {
    "random": shardflow.decoders.RandomResizedCrop(12),
    "centre": shardflow.decoders.CenterCrop(12),
}


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_later_gives_the_same_pixels(dataset: Path, crop: Any, workers: int) -> None:
    """Decoded after the workers, the pixels are those of the crop itself, bit for bit."""
    options: dict[str, Any] = {"batch_size": 6, "tail": "short", "num_workers": workers}
    at_once = [*shardflow.Loader(dataset, decoder=crop, **options)]
    loader = shardflow.Loader(dataset, decoder=shardflow.decoders.Raw(), **options)
    later = [*shardflow.device.Prefetcher(loader, "cpu", [shardflow.device.DecodeJpeg(crop)])]
    torch.testing.assert_close(later, at_once, rtol=0, atol=0)


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
def test_crops_of_whole_images_are_the_decoders(crop: Any) -> None:
    """Boxes, resizing and flips of whole images, as on a GPU, are those of the decoder, within rounding."""
    payloads = [memoryview(bytearray(jpeg(number, 48 + number, 40))) for number in range(12)]
    keys = keyed_rng.fold_array(1, np.arange(12))
    whole, _, failures = shardflow.decoders.Image()(payloads, unknown(payloads), keys)
    assert not failures
    rows = EncodedImages(shardflow.decoders.Raw()(payloads, unknown(payloads), keys).images)
    ours = shardflow.device.DecodeJpeg(crop)._crop(list(whole), rows)
    theirs = crop(payloads, unknown(payloads), keys).images
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() <= 2  # the kernel's decoding and torchvision's differ by a step, resizing by another
    assert (difference > 1).float().mean() < 0.001


def unknown(payloads: Sequence[Any]) -> Any:
    """Return sizes that the index does not know."""
    return np.zeros((len(payloads), 2), dtype=np.int64)


def damaged(number: int) -> bytes:
    """Return a JPEG whose tables are overwritten with zeros."""
    whole = jpeg(number)
    return whole[:2] + bytes(200) + whole[202:]


def message(error: Exception) -> str:
    """Return the message of an error, without addresses in memory."""
    return re.sub(r" at 0x\w+", "", str(error))


FILES: dict[str, Callable[[int], bytes]] = {
    "jpeg": jpeg,
    "cut off": lambda number: jpeg(number)[:-300],
    "png": png,
    "damaged": damaged,
    "text": lambda number: b"no image" * (number + 1),
    "nothing": lambda _: b"",
}


@examples(60)
@given(
    kinds=st.lists(st.sampled_from(["jpeg", "jpeg", "jpeg", *FILES]), min_size=1, max_size=9),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from([*CROPS]),
)
def test_decoding_later_gives_the_same_errors(kinds: list[str], seed: int, name: str) -> None:
    """Images, and the first error, are those of the crop itself."""
    crop, keys = CROPS[name], keyed_rng.fold_array(seed, np.arange(len(kinds)))
    payloads = [memoryview(bytearray(FILES[kind](number))) for number, kind in enumerate(kinds)]
    expected, _, failures = crop(payloads, unknown(payloads), keys)
    rows = shardflow.decoders.Raw()(payloads, unknown(payloads), keys).images
    if there := sorted(failures):
        with pytest.raises(DecodeError) as caught:
            shardflow.device.DecodeJpeg(crop)(rows, torch.device("cpu"))
        assert message(caught.value) == f"image {there[0]} of the batch: {message(failures[there[0]])}"
    else:
        assert torch.equal(shardflow.device.DecodeJpeg(crop)(rows, torch.device("cpu")), expected)


def picky(kind: type, refused: Sequence[bytes], *arguments: Any) -> Any:
    """Return a decoder of a kind that refuses some images, and has nothing to hand on in their place."""

    class Picky(kind):  # type: ignore[misc]
        def decode(self, payloads: Payloads, crops: Any, out: Any) -> Any:
            files = payloads.files
            failures = {index: DecodeError("no") for index, file in enumerate(files) if bytes(file) in refused}
            kept = [memoryview(b"") if index in failures else file for index, file in enumerate(files)]
            super().decode(dataclasses.replace(payloads, files=kept), crops, out)
            return failures

    return Picky(*arguments)


@pytest.mark.parametrize("refuses", ["reader", "decoder"])
def test_a_sample_can_stand_in_for_another(tmp_path: Path, refuses: str) -> None:
    """In place of samples that are damaged or refused come others, with the pixels of the decoder in the workers."""
    url = make_dataset(tmp_path / "set", [12])
    split = shardflow.open(url)["train"]
    refused = [split[number]["jpg"] for number in (3, 4, 11)]
    if refuses == "reader":
        tar = url / "train" / "000000.tar"
        flip(tar, *(tar.read_bytes().index(file) + 300 for file in refused))
        refused = []
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0, "max_errors": 3}
    at_once = [*shardflow.Loader(url, decoder=picky(shardflow.decoders.RandomResizedCrop, refused, 12), **options)]
    loader = shardflow.Loader(url, decoder=picky(shardflow.decoders.Raw, refused), **options)
    later = [*shardflow.device.Prefetcher(loader, "cpu", [shardflow.device.DecodeJpeg(CROPS["random"])])]
    assert {int(label) for _, labels in later for label in labels} == {*range(12)} - {3, 4, 11}
    torch.testing.assert_close(later, at_once, rtol=0, atol=0)


def test_a_large_image_takes_its_own_size() -> None:
    """One large file adds its own size to a batch, and not that size for each of its files."""
    files = [memoryview(bytes(size)) for size in (10_000, 2_000_000, *[10_000] * 14)]
    rows = shardflow.decoders.Raw()(files, unknown(files), np.zeros(16, np.uint64)).images
    assert sum(map(len, files)) < rows.nbytes < sum(map(len, files)) + 16 * STEP_BYTES + 1000


def test_part_of_a_batch_is_an_error() -> None:
    """Some of the rows, or bytes that are no encoded images, are an error, never other images."""
    files = [memoryview(jpeg(number)) for number in range(8)]
    rows = shardflow.decoders.Raw()(files, unknown(files), np.zeros(8, np.uint64)).images
    places = rows.clone()
    places.view(-1)[32:48].view(torch.int64)[:] = torch.tensor([200, 1 << 40])
    for other in (rows[:4], rows[4:], torch.zeros_like(rows), places):
        with pytest.raises(ConfigError, match=r"batches of decoders\.Raw"):
            shardflow.device.DecodeJpeg()(other, torch.device("cpu"))


def test_decoding_on_the_device_counts_as_copying(monkeypatch: pytest.MonkeyPatch, dataset: Path) -> None:
    """Time that training waits for `DecodeJpeg` counts as copying, not as waiting for data."""

    class Slow(shardflow.decoders.CenterCrop):
        def plan(self, *given: Any) -> Any:
            time.sleep(0.02)
            return super().plan(*given)

    monkeypatch.setattr(prefetcher, "copy_stream_for", lambda _: DelayedCopyStream())
    loader = shardflow.Loader(dataset, batch_size=6, num_workers=0, decoder=shardflow.decoders.Raw())
    batches = shardflow.device.Prefetcher(loader, "cpu", [shardflow.device.DecodeJpeg(Slow(12))])
    for _ in batches:
        pass
    stats = batches.stats()
    assert stats.copying_s > 0.05
    assert stats.copying_s > stats.waiting_s


def on_gpu(decode: shardflow.device.DecodeJpeg, files: Sequence[bytes]) -> list[torch.Tensor]:
    """Decode as on a GPU; torchvision's decoder on the CPU, in the place of nvJPEG, refuses files as that does."""
    return decode._decode_on_gpu(
        [torch.frombuffer(bytearray(f), dtype=torch.uint8) for f in files], torch.device("cpu")
    )


class Refusing:
    """Stands in for torchvision's nvJPEG: refuses whatever contains one of the files, and counts its calls."""

    def __init__(self, *files: bytes, reason: str = "Failed to decode jpeg: 3") -> None:
        self.files, self.reason, self.calls = files, reason, 0

    def __call__(self, files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """Decode the files, or refuse all of them."""
        self.calls += 1
        if any(bytes(file.numpy()) in self.files for file in files):
            raise RuntimeError(f"Error while decoding JPEG images: {self.reason}\nException raised from here")
        return torchvision.io.decode_jpeg(files, mode=torchvision.io.ImageReadMode.RGB, device=device)


def test_a_refused_image_does_not_slow_its_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others of its batch are still decoded together; refusals are counted, and the first is logged."""
    files = [jpeg(number) for number in range(64)]
    payloads = [memoryview(bytearray(file)) for file in files]
    whole = shardflow.decoders.Image()(payloads, unknown(files), np.zeros(64, np.uint64)).images
    refusing = Refusing(files[3], files[40])
    monkeypatch.setattr(decode_jpeg, "jpeg_decoder", lambda: refusing)
    decode = shardflow.device.DecodeJpeg()
    for _ in range(2):
        refusing.calls = 0
        torch.testing.assert_close(on_gpu(decode, files), list(whole), rtol=0, atol=0)
        assert refusing.calls <= 25
    assert decode.refused == 4
    (warning,) = caplog.messages
    assert warning.endswith("Error while decoding JPEG images: Failed to decode jpeg: 3")


def test_cmyk_images_never_reach_nvjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose header says that nvJPEG cannot decode them do not spoil its batch."""
    files = [jpegs.make(number, mode=mode) for number, mode in enumerate(["RGB", "CMYK", "L", "RGB"])]
    refusing = Refusing(files[1])
    monkeypatch.setattr(decode_jpeg, "jpeg_decoder", lambda: refusing)
    decode = shardflow.device.DecodeJpeg()
    assert [tuple(image.shape) for image in on_gpu(decode, files)] == [(3, 48, 64)] * 4
    assert (refusing.calls, decode.refused) == (1, 0)


def test_images_that_the_gpu_refuses_are_decoded_on_the_cpu() -> None:
    """In batches without a JPEG, with other formats, or with a damaged one, each image is decoded or is the error."""

    def decoded(*kinds: str) -> list[torch.Tensor]:
        return on_gpu(shardflow.device.DecodeJpeg(), [FILES[kind](n) for n, kind in enumerate(kinds)])

    for kinds in (["png"], ["jpeg", "png", "jpeg"]):
        payloads = [memoryview(bytearray(FILES[kind](n))) for n, kind in enumerate(kinds)]
        whole = shardflow.decoders.Image()(payloads, unknown(payloads), np.zeros(len(kinds), np.uint64)).images
        torch.testing.assert_close(decoded(*kinds), list(whole), rtol=0, atol=0)
    with pytest.raises(DecodeError, match=r"image 1 .*decoded"):
        decoded("jpeg", "damaged", "png")


@pytest.mark.parametrize(
    "text",
    [
        "decode_jpegs_cuda: torchvision not compiled with nvJPEG support",
        "Failed to initialize nvjpeg with hardware backend: 6",
        "Failed to create nvjpeg state: 1",
    ],
)
def test_without_nvjpeg_decoding_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """If torchvision cannot decode on a GPU at all, that is an error, not a silent detour through the CPU."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(decode_jpeg, "jpeg_decoder", lambda: refuse)
    with pytest.raises(ConfigError, match=f"nvJPEG cannot be used: {text}.*give the crop to the loader"):
        on_gpu(shardflow.device.DecodeJpeg(), [jpeg(1)])


_FULL = "Error while decoding JPEG images: CUDA out of memory. Tried to allocate 2 MiB"


@pytest.mark.parametrize("refusals", [0, 1])
@pytest.mark.parametrize("full", [torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError(_FULL)], ids=repr)
def test_a_full_device_is_an_error(monkeypatch: pytest.MonkeyPatch, refusals: int, full: Exception) -> None:
    """A device without memory for the images is an error, for the batch or, after a refusal, for a part of it."""
    answers = [RuntimeError("not this kind")] * refusals + [full]

    def decode(*_: Any, **__: Any) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(decode_jpeg, "jpeg_decoder", lambda: decode)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        on_gpu(shardflow.device.DecodeJpeg(), [jpeg(1), jpeg(2)])
    assert answers == []


def test_files_travel_unchanged() -> None:
    """Files of any length are the same after their way through a buffer."""
    files = [b"a", b"", b"b" * 20_000, bytes(range(256))]
    payloads = [memoryview(file) for file in files]
    rows, crops, failures = shardflow.decoders.Raw()(payloads, unknown(files), np.zeros(4, np.uint64))
    assert not failures
    assert crops is None
    assert [bytes(EncodedImages(rows).file(index).numpy()) for index in range(4)] == files


def test_an_empty_batch_passes() -> None:
    """No files are no images, of the right shape."""
    images = shardflow.device.DecodeJpeg()(torch.zeros(0, STEP_BYTES, dtype=torch.uint8), torch.device("cpu"))
    assert images.shape == (0, 3, 224, 224)


def test_wrong_use_is_an_error(dataset: Path) -> None:
    """Pixels instead of encoded images, a place after other transforms, and other crops are errors."""
    pixels = shardflow.Loader(dataset, batch_size=6, num_workers=0, fields=FIELDS)
    with pytest.raises(ConfigError, match=r"decoder=decoders\.Raw\(\)"):
        next(iter(shardflow.device.Prefetcher(pixels, "cpu", [shardflow.device.DecodeJpeg()])))
    with pytest.raises(ConfigError, match="must be the first"):
        shardflow.device.Prefetcher(pixels, "cpu", [shardflow.device.Normalize(), shardflow.device.DecodeJpeg()])
    with pytest.raises(ConfigError, match="crop must be"):
        shardflow.device.DecodeJpeg(shardflow.decoders.Image())  # type: ignore[arg-type]
