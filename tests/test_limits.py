"""Files that ask for gigabytes or hours end in typed errors at every door, within 1 GB and a minute."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow as sf
from shardflow import native
from shardflow.device.transforms import decode_jpeg
from shardflow.device.transforms.decode_jpeg import STEP_BYTES, JpegBuffer
from shardflow.diagnostics.decode_baseline import DecodeBaseline, payloads
from shardflow.errors import TooLargeError
from shardflow.loading.decoders import Decoder
from shardflow.preview.augmentation import augment_sample
from shardflow.preview.contact_sheet import sample_tiles
from shardflow.preview.html_page import write_page
from shardflow.preview.quarantine import quarantine_tiles, read_quarantine
from shardflow.preview.sample_reader import SampleReader
from shardflow.storage.local import LocalStorage
from tests.helpers import bombs
from tests.helpers.folders import photo, quarantined, write_tree
from tests.helpers.kernel import without_kernel
from tests.helpers.tars import write_tar

BOMBS, BURDENS = bombs.bombs(), bombs.burdens()
DECODERS: dict[str, Decoder] = {
    "random crop": sf.RandomResizedCropDecoder(16),
    "centre crop": sf.CenterCropDecoder(16),
    "whole": sf.ImageDecoder(),
    "encoded": sf.EncodedDecoder(),
}


def source(root: Path) -> Path:
    """Write the files as a folder, and as a tar beside it, of which each file is a sample; return the folder."""
    write_tree(root / "src", {**BOMBS, **BURDENS, "sound.jpg": photo(1)})
    members = [(f"{name.replace('.', '-')}.jpg", data) for name, data in (*BOMBS.items(), *BURDENS.items())]
    write_tar(root / "tars/0.tar", [("sound.jpg", photo(1)), *members])
    return root / "src"


def assert_too_large(said: Any) -> None:
    """Fail unless an error's text names a size and the limit."""
    assert "pixels" in str(said), said
    assert "limit" in str(said), said


def pack(root: Path) -> None:
    """Pack the folder in both ways: all bombs are quarantined as too large, and whatever is packed is whole."""
    for preset in ("imagenet", "original"):
        report = sf.pack(root / "src", root / preset, preset=preset, executor="serial", max_bad=99)
        assert report.inputs == len(BOMBS) + len(BURDENS) + 1
        rows = {row["path"]: row for row in quarantined(root / preset)}
        assert set(BOMBS) <= set(rows) <= {*BOMBS, *BURDENS}
        for name in BOMBS:
            assert rows[name]["stage"] == "decode"
            assert_too_large(rows[name]["reason"])
    tiles = quarantine_tiles(read_quarantine(sf.open(root / preset)), LocalStorage(root / "src"))
    assert all(tile.picture is None for tile in tiles if tile.title in BOMBS)


def load(root: Path, cache: sf.Cache | None) -> None:
    """Load the tar: the bombs are bad samples, which others replace, and without `max_bad` the first is the error."""
    for name, decoder in DECODERS.items():
        if cache is not None and name == "encoded":
            continue
        options: dict[str, Any] = {"shuffle": False, "num_workers": 0, "decoder": decoder, "cache": cache}
        whole = {"transform": lambda image: image[:, :1, :1]} if name == "whole" else {}
        loader = sf.Loader(root / "indexed", batch_size=len(BOMBS) + len(BURDENS) + 1, max_bad=99, **options, **whole)
        for _ in range(2 if cache else 1):
            next(iter(loader))
        large = [problem for problem in loader.substituted if "too large" in problem or "limit" in problem]
        for bomb in BOMBS:
            (problem,) = [problem for problem in large if f"sample {bomb.replace('.', '-')}:" in problem]
            assert "0.tar" in problem
            assert_too_large(problem)
        with pytest.raises(TooLargeError) as caught:
            next(iter(sf.Loader(root / "indexed", batch_size=2, **options)))
        assert caught.value.key is not None


def decode_on_device() -> None:
    """Give the encoded images to the device's decoder, which does not rely on the loader's check."""
    cpu = torch.device("cpu")
    for data in BOMBS.values():
        files = [memoryview(bytearray(file)) for file in (photo(1), data)]
        rows = torch.zeros((2, -(-(len(data) + 2000) // STEP_BYTES) * STEP_BYTES), dtype=torch.uint8)
        buffer = JpegBuffer(rows)
        for index, file in enumerate(files):
            buffer.put_file(index, file, key=index)
        with pytest.raises(TooLargeError, match=r"^image 1 of the batch: the image has"):
            sf.DecodeJpeg(sf.RandomResizedCropDecoder(16))(rows, cpu)
        with pytest.raises(TooLargeError, match=r"^image 1 of the batch: the image has"):  # as on a GPU
            decode_jpeg._decode_on_gpu([torch.frombuffer(file, dtype=torch.uint8) for file in files], cpu)


def look(root: Path) -> None:
    """Read samples, draw previews and measure the baseline."""
    dataset = sf.open(root / "indexed")
    assert len([*dataset["train"]]) == len([*sf.samples(root / "indexed", shuffle=False)])
    reader = SampleReader(dataset, "train")
    tiles = [*sample_tiles(reader.samples(range(len(dataset["train"]))), None)]
    assert sum(tile.picture is None and "limit" in tile.problem for tile in tiles) == len(BOMBS)
    for number in (1, 2):
        with pytest.raises(TooLargeError):
            augment_sample(dataset, "train", number, epochs=1)
    write_page(dataset, root / "page.html", split="train", count=99, findings=None, versions={})
    images = payloads(dataset["train"])
    assert len(images) == len(BOMBS) + len(BURDENS) + 1
    with DecodeBaseline(images, sf.RandomResizedCropDecoder(16), 1) as baseline:
        assert baseline.measure(0.01).images > 0


def every_door(root: Path, way: str) -> None:
    """Go through all doors, in the limits of this process."""
    torch.set_num_threads(1)
    torch.zeros(3, 40, 40, dtype=torch.uint8)
    warnings.simplefilter("error")
    bombs.enter_limits()
    sf.index(root / "tars", root / "indexed", max_bad=99)
    pack(root)
    for cache in (None, sf.Cache(root / "cache", pixels="100GB")):
        load(root, cache)
    if way == "with the kernel":
        decode_on_device()
        look(root)


@pytest.mark.parametrize("way", ["with the kernel", "without"])
def test_bombs(tmp_path: Path, way: str) -> None:
    """In a process that may take 1 GB and a minute of CPU, all doors refuse all bombs, with a size and the limit."""
    if way == "with the kernel" and not native.available():
        pytest.skip(native.describe())
    source(tmp_path)
    code = "import sys; from tests import test_limits; test_limits.alone(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, way], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "DecompressionBomb" not in done.stderr


def alone(root: str, way: str) -> None:
    """Run `every_door`, with the kernel or without."""
    if way == "without":
        with without_kernel():
            every_door(Path(root), way)
    else:
        every_door(Path(root), way)
