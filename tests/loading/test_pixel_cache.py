"""The cache of decoded images: the same batches without decoding again, whatever happens to its files."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image

import shardflow
from shardflow import native
from shardflow.errors import ConfigError
from shardflow.loading import pixel_cache
from shardflow.loading.decoders.pixels import decode_whole
from shardflow.native import binding
from shardflow.order import keyed_rng
from tests.helpers import jpegs
from tests.helpers.examples import examples
from tests.helpers.making import make_dataset, write_dataset
from tests.helpers.warm_python import python

SHARDS = [13, 20, 7]
DECODERS = {
    "random": shardflow.decoders.RandomResizedCrop(24),
    "centre": shardflow.decoders.CenterCrop(24, resize=32),
}
every_decoder = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)

READER = """
import hashlib, sys, resource, logging
logging.basicConfig(format="%(message)s")
if len(sys.argv) > 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
import shardflow
loader = shardflow.Loader(sys.argv[1], batch_size=4, tail="short", num_workers=int(sys.argv[3]),
                          decoder=shardflow.decoders.RandomResizedCrop(24),
                          cache=shardflow.Cache(sys.argv[2], pixels="1GB"))
for _ in range(2):
    digest = hashlib.sha256()
    for images, labels in loader:
        print("batch", flush=True)
        digest.update(images.numpy().tobytes())
    print(digest.hexdigest(), flush=True)
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of 40 labelled samples in three shards."""
    return make_dataset(tmp_path / "set", SHARDS)


def loader(
    url: Path | str, *, pixels: int | str | None = None, directory: str = "cache", **options: Any
) -> shardflow.Loader:
    """A loader that shuffles, with its cache beside the dataset."""
    settled = {"batch_size": 6, "num_workers": 0, "tail": "short", "decoder": DECODERS["random"], **options}
    cache = shardflow.Cache(Path(str(url).removeprefix("local://")).parent / directory, pixels=pixels)
    return shardflow.Loader(url, cache=cache, **settled)


def epoch(of: shardflow.Loader, number: int) -> list[tuple[torch.Tensor, ...]]:
    """All batches of an epoch."""
    of.set_epoch(number)
    return [tuple(part.clone() for part in batch) for batch in of]


def same(ours: list[tuple[torch.Tensor, ...]], theirs: list[tuple[torch.Tensor, ...]]) -> bool:
    """Whether batches are equal, bit by bit."""
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
    )


def digests(url: Path) -> list[str]:
    """What `READER` prints last for two epochs, found without the cache."""
    plain = loader(url, batch_size=4)
    return [
        hashlib.sha256(b"".join(images.numpy().tobytes() for images, _ in epoch(plain, number))).hexdigest()
        for number in (0, 1)
    ]


def files(url: Path) -> list[Path]:
    """The files of decoded images."""
    return sorted((url.parent / "cache/decoded").iterdir())


def sums(file: Path, samples: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The head of a file."""
    return np.fromfile(file, dtype=np.uint64, count=samples)


def spoil_images(url: Path) -> None:
    """Overwrite every image of a dataset, and of its copy in the cache, and nothing else."""
    for shard in (url / "train").glob("*.tar"):
        content = bytearray(shard.read_bytes())
        copy = url.parent / "cache/blobs" / hashlib.sha256(content).hexdigest()
        for _, part, offset, size, *_ in np.load(shard.with_suffix(".npy")).tolist():
            if part == b"jpg":
                content[offset : offset + size] = bytes(size)
        shard.write_bytes(content)
        if copy.exists():
            copy.write_bytes(content)


@pytest.mark.parametrize("workers", [0, 2])
@every_decoder
@pytest.mark.usefixtures("way")
def test_batches_are_the_same(dataset: Path, decoder: Any, workers: int) -> None:
    """Epoch after epoch, batches with the cache equal those without it, bit by bit."""
    plain = loader(dataset, decoder=decoder)
    cached = loader(dataset, decoder=decoder, num_workers=workers, pixels="1GB")
    for number in range(3):
        assert same(epoch(cached, number), epoch(plain, number))
    cached.close()


@pytest.mark.parametrize("scheme", ["", "local://"])
@every_decoder
def test_later_epochs_decode_nothing(dataset: Path, decoder: Any, scheme: str) -> None:
    """After the first epoch the encoded images are not looked at, on a local disk or in the cache of a remote one."""
    expected = [epoch(loader(dataset, decoder=decoder), number) for number in (0, 1)]
    url = f"{scheme}{dataset}"
    list(shardflow.open(url, cache=dataset.parent / "cache")["train"])  # samples of a shard on its way are not kept
    assert same(epoch(loader(url, decoder=decoder, pixels="1GB"), 0), expected[0])
    spoil_images(dataset)
    assert same(epoch(loader(url, decoder=decoder, pixels="1GB"), 1), expected[1])


def test_another_decoder_has_pixels_of_its_own(dataset: Path) -> None:
    """Whole images are torchvision's with the cache as without it, though the crops' pixels are the kernel's."""
    epoch(loader(dataset, pixels="1GB"), 0)
    options: dict[str, Any] = {"decoder": shardflow.decoders.Image(), "batch_size": 1, "shuffle": False}
    expected = epoch(loader(dataset, **options), 0)
    cached = loader(dataset, **options, pixels="1GB")
    assert same(epoch(cached, 0), expected)
    assert len(files(dataset)) == len(SHARDS) * (2 if native.available() else 1)


def test_subsets_of_a_tar_have_pixels_of_their_own(tmp_path: Path) -> None:
    """Datasets with different samples of one tar get their own images, and those with the same ones share the files."""
    samples = [(f"{n:09}", {"jpg": jpegs.make(n, 40, 30), "cls": b"%d" % (n % 2)}) for n in range(8)]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("even", "odd"))
    for dst, classes in (("a", ["even"]), ("b", ["odd"]), ("again", ["odd"])):
        shardflow.subset(url, tmp_path / dst, classes=classes)
        plain, cached = (epoch(loader(tmp_path / dst, pixels=pixels), 0) for pixels in (None, "1GB"))
        assert same(cached, plain)
    assert len(files(url)) == 2


def test_transforms_may_keep_what_they_get(dataset: Path) -> None:
    """An image that was handed to a transform is not overwritten by the batches after it."""
    kept: list[torch.Tensor] = []

    def keeping(image: torch.Tensor) -> torch.Tensor:
        kept.append(image)
        return image[:, :8, :8]

    options: dict[str, Any] = {"decoder": shardflow.decoders.Image(), "shuffle": False, "transform": keeping}
    for cached in (None, "1GB", "1GB"):
        epoch(loader(dataset, **options, pixels=cached), 0)
    count = sum(SHARDS)
    for expected, *found in zip(kept[:count], kept[count : 2 * count], kept[2 * count :], strict=True):
        assert all(torch.equal(image, expected) for image in found)


CODINGS = [
    {},
    {"subsampling": 0},
    {"progressive": True},
    {"mode": "L"},
    {"mode": "CMYK"},
    {"quality": 20},
    {"kind": "PNG"},
]


def whole(decoder: Any, payload: memoryview, width: int, height: int) -> Any:
    """The pixels that the cache keeps for a decoder."""
    return decode_whole(decoder.takes_pixels_of, payload, width, height, decoder.max_pixels)


@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(1, 64),
    coding=st.sampled_from(CODINGS),
    number=st.integers(0, 2**63),
)
@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("way")
def test_pixels_stand_for_the_encoded_image(
    width: int, height: int, size: int, coding: dict[str, Any], number: int
) -> None:
    """Decoders return for an image's pixels what they return for the image, for any size of both and any coding."""
    options = {"mode": "RGB", "kind": "JPEG", **coding}
    image = Image.fromarray(jpegs.pixels(number % 1000, width, height)).convert(options.pop("mode"))
    buffer = io.BytesIO()
    image.save(buffer, options.pop("kind"), **options)
    payload = memoryview(bytearray(buffer.getvalue()))
    keys = keyed_rng.fold_array(keyed_rng.key("test", number), np.arange(3))
    for decoder in (
        shardflow.decoders.RandomResizedCrop(size),
        shardflow.decoders.CenterCrop(size, resize=size + number % 9),
        shardflow.decoders.Image(),
    ):
        pixels = whole(decoder, payload, width, height)
        assert pixels is not None
        sizes = np.array([(width, height), (0, 0), (width, height)])
        expected = decoder([payload] * 3, sizes, keys).images
        found, _, failures = decoder([pixels, payload, pixels], sizes[::-1] if number % 2 else sizes * 0, keys)  # type: ignore[list-item]
        assert not failures
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_image_of_another_size_is_not_kept() -> None:
    """An image that is not of the size that the index says has no pixels for the cache, larger or smaller."""
    payload = memoryview(bytearray(jpegs.make(1, 40, 30)))
    for decoder in (DECODERS["random"], shardflow.decoders.Image()):
        assert whole(decoder, payload, 40, 30) is not None
        for width, height in ((20, 10), (30, 40), (80, 60)):
            assert whole(decoder, payload, width, height) is None


@pytest.mark.skipif(not native.available(), reason="needs the native kernel")
def test_pixels_are_found_wherever_their_decoder_lies(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same version of libjpeg-turbo in another environment uses what was kept, whatever its path."""
    epoch(loader(dataset, pixels="1GB"), 0)
    before = files(dataset)
    ours = binding.load()
    assert not isinstance(ours, str)
    copy = shutil.copy(ours.libjpeg, tmp_path / "elsewhere.so")
    theirs = binding.open_kernel(Path(native.__file__).parent, [str(copy)])
    monkeypatch.setattr(binding, "load", lambda: theirs)
    assert str(copy) in native.describe()
    epoch(loader(dataset, pixels="1GB"), 0)
    assert files(dataset) == before


def broken_dataset(root: Path) -> Path:
    """A dataset of 12 images: the fourth was packed cut off, the sixth with a spoilt middle, the rest are whole."""
    samples = []
    for number in range(12):
        image = jpegs.make(number, 60, 50)
        if number == 3:
            image = image[: len(image) // 2]
        if number == 5:
            image = image[: len(image) // 2] + b"\xff\xd3\xff\xd5" + image[len(image) // 2 + 4 :]
        samples.append((f"{number:09}", {"jpg": image, "cls": b"0"}))
    return write_dataset(root, {"train": [samples]}, classes=("a",))


def test_damaged_images_are_never_kept(tmp_path: Path) -> None:
    """What decodes with complaints or not at all is treated in every epoch as without the cache."""
    url = broken_dataset(tmp_path / "set")
    options: dict[str, Any] = {"max_errors": 100}
    plain, cached = loader(url, **options), loader(url, **options, pixels="1GB")
    for number in (0, 1):
        assert same(epoch(cached, number), epoch(plain, number))
    assert cached.replaced == plain.replaced != set()
    kept = sums(*files(url), 12) != 0
    # torchvision's decoder keeps to itself what it complains of.
    assert np.flatnonzero(~kept).tolist() == ([3, 5] if native.available() else [3])


def test_bytes_are_checked_before_their_pixels_are_kept(dataset: Path) -> None:
    """An image with a wrong CRC-32 gets nowhere near the cache."""
    spoil_images(dataset)
    cached = loader(dataset, pixels="1GB")
    with pytest.raises(shardflow.errors.IntegrityError):
        epoch(cached, 0)
    assert not any(sums(file, 1).any() for file in files(dataset))


def test_the_limit_holds(dataset: Path) -> None:
    """Files take no more of the disk than the limit, hold as much as fits, and the rest is decoded as before."""
    cached, plain = loader(dataset, pixels=100_000), loader(dataset)
    for number in (0, 1):
        assert same(epoch(cached, number), epoch(plain, number))
    taken = sum(512 * file.stat().st_blocks for file in files(dataset))
    assert 60_000 < taken <= 100_000
    for limit in (0, 1):
        epoch(loader(dataset, pixels=limit, directory="none"), 0)
        assert not any(file.stat().st_size for file in (dataset.parent / "none/decoded").iterdir())


def test_two_processes_fill_it_at_a_time(dataset: Path) -> None:
    """Two training runs that start together over one empty cache both get the right batches."""
    command = [python(), "-c", READER, str(dataset), str(dataset.parent / "cache"), "2"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    expected = digests(dataset)
    for process in running:
        printed, _ = process.communicate(timeout=120)
        assert [line for line in printed.split() if line != "batch"] == expected


@pytest.mark.parametrize("batches", [1, 4])
def test_a_killed_writer_leaves_nothing_wrong(dataset: Path, batches: int) -> None:
    """A loader after a process that was killed while it filled the cache gets the right batches."""
    command = [python(), "-c", READER, str(dataset), str(dataset.parent / "cache"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(batches):
            assert process.stdout.readline() == "batch\n"
        process.send_signal(signal.SIGKILL)
    plain, cached = loader(dataset), loader(dataset, pixels="1GB")
    for number in (0, 1):
        assert same(epoch(cached, number), epoch(plain, number))


@pytest.mark.parametrize("harm", ["lost", "torn", "cut"])
def test_pixels_that_were_lost_are_noticed(dataset: Path, harm: str) -> None:
    """Where a disk kept a sum and not all of its pixels, as after a loss of power, the image is decoded again."""
    plain = loader(dataset)
    assert same(epoch(loader(dataset, pixels="1GB"), 0), epoch(plain, 0))
    for file in files(dataset):
        size, head = file.stat().st_size, 8 * max(SHARDS)
        with open(file, "r+b") as spoilt:
            if harm == "cut":
                spoilt.truncate(head + size // 3)
            else:
                spoilt.seek(head + size // 3)
                spoilt.write(bytes(size // 2 if harm == "lost" else 8))
    for number in (0, 1):
        assert same(epoch(loader(dataset, pixels="1GB"), number), epoch(plain, number))
    spoil_images(dataset)  # by now everything is back
    undamaged = loader(make_dataset(dataset.parent / "again", SHARDS))
    assert same(epoch(loader(dataset, pixels="1GB"), 2), epoch(undamaged, 2))


def test_a_flipped_bit_of_a_sum_is_noticed(dataset: Path) -> None:
    """Whichever bit of a sum is flipped, of pixels that are there or of pixels that are not, the image is right."""
    options = {"batch_size": 1, "shuffle": False}
    right = [batch[0] for batch in epoch(loader(dataset, **options), 0)][:3]
    one = iter(loader(dataset, **options, pixels="1GB"))
    next(one), next(one)
    (file,) = files(dataset)
    os.truncate(file, 1 << 20)  # the place of a missing record is a hole
    whole = file.read_bytes()
    for bit in (0, 1, 31, 63):
        spoilt = bytearray(whole)
        for record in (0, 2):
            spoilt[8 * record + bit // 8] ^= 1 << bit % 8
        file.write_bytes(spoilt)
        batches = iter(loader(dataset, **options, pixels="1GB"))
        assert all(torch.equal(next(batches)[0], expected) for expected in right)


def test_training_goes_on_when_the_disk_is_full(dataset: Path) -> None:
    """When no more can be written, one warning says so, and the batches are right."""
    command = [python(), "-c", READER, str(dataset), str(dataset.parent / "cache"), "0", "50000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [line for line in done.stdout.split() if line != "batch"] == digests(dataset)
    assert done.stderr.count("no more decoded images are kept") == 1
    assert max(file.stat().st_size for file in files(dataset)) <= 50_000


def test_training_goes_on_when_the_cache_is_deleted(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that are deleted between epochs or under a reader do no harm."""
    plain, cached = loader(dataset), loader(dataset, pixels="1GB")
    batches = iter(cached)
    first = tuple(next(batches))
    shutil.rmtree(dataset.parent / "cache/decoded")
    assert same([first, *(tuple(batch) for batch in batches)], epoch(plain, 0))
    assert same(epoch(cached, 1), epoch(plain, 1))
    assert len(caplog.messages) <= 1


def test_training_goes_on_when_the_disk_fails(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that can be neither read nor written any more do no harm, and one warning says so."""
    cached = loader(dataset, pixels="1GB")
    batches = iter(cached)
    first = tuple(part.clone() for part in next(batches))
    broken = os.open(dataset, os.O_RDONLY)  # a directory: whatever is done with it fails
    for number in descriptors():
        if f"{dataset.parent}/cache/decoded/" in os.readlink(f"/proc/self/fd/{number}"):
            os.dup2(broken, int(number))
    os.close(broken)
    rest = [tuple(part.clone() for part in batch) for batch in batches]
    assert same([first, *rest], epoch(loader(dataset), 0))
    assert same(epoch(cached, 1), epoch(loader(dataset), 1))
    assert len(caplog.messages) == 1


def test_links_are_not_followed(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Links in the place of files are not written through, and one warning says that there is no cache."""
    epoch(loader(dataset, pixels="1GB"), 0)
    victim = dataset.parent / "victim"
    victim.touch()
    for file in files(dataset):
        file.unlink()
        file.symlink_to(victim)
    assert same(epoch(loader(dataset, pixels="1GB"), 0), epoch(loader(dataset), 0))
    assert victim.stat().st_size == 0
    assert len(caplog.messages) == 1


def test_few_files_are_open(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files used least recently are closed when there are too many, and all of them with the loader."""
    monkeypatch.setattr(pixel_cache, "_OPEN_FILES", 1)

    def held() -> int:
        names = [os.readlink(f"/proc/self/fd/{number}") for number in descriptors()]
        return sum(f"{dataset.parent}/cache/decoded/" in name for name in names)

    cached = loader(dataset, pixels="1GB")
    for batch, (images, _) in zip(cached, epoch(loader(dataset), 0), strict=True):
        assert held() == 1
        assert torch.equal(batch[0], images)
    del cached
    gc.collect()
    assert held() == 0


def descriptors() -> Iterator[str]:
    """The descriptors of this process that are still open."""
    return (number for number in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{number}"))


def test_what_cannot_be_is_refused(dataset: Path) -> None:
    """Decoders that take files alone, batches without images, and limits that are no size are named at once."""
    for options, message in [
        ({"decoder": shardflow.decoders.Raw()}, "Raw accepts encoded images only"),
        ({"fields": ("label",)}, "needs 'image'"),
        ({"pixels": "much"}, "a size must be"),
    ]:
        with pytest.raises(ConfigError, match=message):
            loader(dataset, **{"pixels": "1GB", **options})
