"""Images of more than 8 bits or three channels: packed and loaded bit by bit, and cropped in floating point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F  # noqa: N812 - its usual name
from webdataset.autodecode import basichandlers

import shardflow
from shardflow.dataset.open_dataset import open_dataset
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats import image_array
from shardflow.order import keyed_rng
from shardflow.packing.verifying import verify
from shardflow.preview.contact_sheet import decode_picture
from tests.helpers.making import jpeg, write_dataset

KEYS = keyed_rng.fold_array(keyed_rng.key(0, "test"), np.arange(6))
SIZES = np.array([(50, 40)] * 6)
EITHER = pytest.mark.parametrize(
    "kind", [(1, np.uint16), (3, np.uint16), (3, np.uint8), (7, np.uint16), (16, np.uint8)]
)


def values(number: int, kind: tuple[int, Any], height: int = 40, width: int = 50) -> Any:
    """Return noise over the whole range."""
    rng = np.random.default_rng(number)
    return rng.integers(0, np.iinfo(kind[1]).max, (height, width, kind[0]), dtype=kind[1], endpoint=True)


def payloads(kind: tuple[int, Any]) -> list[Any]:
    """Six images as they are in a shard."""
    return [memoryview(image_array.to_bytes(values(number, kind))) for number in range(6)]


@EITHER
def test_crops_are_torchvisions_in_floating_point(kind: tuple[int, Any]) -> None:
    """A crop is that of the float image, antialiased and rounded; where nothing is resized, bit by bit."""
    decoder = shardflow.decoders.RandomResizedCrop(16)
    images, crops, failures = decoder(payloads(kind), SIZES, KEYS)
    assert not failures
    assert images.dtype == torch.from_numpy(values(0, kind)).dtype
    for number, image in enumerate(images):
        x, y, w, h = crops.box[number].tolist()
        whole = torch.from_numpy(values(number, kind)).permute(2, 0, 1).float()
        wanted = F.resized_crop(whole, y, x, h, w, [16, 16], antialias=True)
        wanted = F.hflip(wanted) if crops.flip[number] else wanted
        assert (image.float() - wanted).abs().max() <= 0.51 + (kind[1] is np.uint8) * 0.5  # torch rounds uint8 twice
    same, _, _ = shardflow.decoders.CenterCrop(40, resize=40)(payloads(kind), SIZES, KEYS)
    for number, image in enumerate(same):
        np.testing.assert_array_equal(image.numpy(), values(number, kind)[:, 5:45].transpose(2, 0, 1))


def test_a_damaged_array_fails_alone() -> None:
    """One that is cut short is a failure of its own, and the others are as without it, also in several views."""
    kind = (5, np.uint16)
    broken = payloads(kind)
    broken[0], broken[3] = broken[0][:90], broken[3][:-1]
    decoder = shardflow.decoders.MultiView(
        [shardflow.decoders.RandomResizedCrop(16), shardflow.decoders.CenterCrop(12)]
    )
    expected, _, _ = decoder(payloads(kind), SIZES, KEYS)
    found, _, failures = decoder(broken, SIZES, KEYS)
    assert sorted(failures) == [0, 3]
    assert all(isinstance(error, DecodeError) for error in failures.values())
    for view, other in zip(found, expected, strict=True):
        assert view.dtype == torch.uint16
        assert not view.float()[[0, 3]].any()
        assert torch.equal(view[1:3], other[1:3])


@pytest.mark.parametrize("other", [(4, np.uint16), (3, np.uint16), (5, np.uint8), None])
def test_kinds_do_not_mix_in_a_batch(other: Any) -> None:
    """Other channels or bits in one batch are a ConfigError that names both."""
    mixed = payloads((5, np.uint16))
    mixed[2] = memoryview(jpeg(0)) if other is None else payloads(other)[2]
    with pytest.raises(ConfigError, match=r"16 bits .*5 channels"):
        shardflow.decoders.RandomResizedCrop(16)(mixed, SIZES, KEYS)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of 12 images of 16 bits in six channels, and of two sizes, and the dataset packed from it."""
    import tifffile

    folder = tmp_path_factory.mktemp("arrays")
    for number in range(12):
        path = folder / f"src/class{number % 2}/{number:02}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = values(number, (6, np.uint16), 40 + number % 2)
        tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="contig")
    shardflow.pack(folder / "src", folder / "set", format="npy", short_side=None, shard_samples=5, workers=1)
    return folder / "src", folder / "set"


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_load_bit_by_bit(packed: tuple[Path, Path], workers: int) -> None:
    """Packed from TIFFs, whole images arrive with their exact values, padded or as a list, through shared memory."""
    _, url = packed
    names = open_dataset(url)["train"]
    wanted = {}
    for number in range(12):
        sample = names[number]
        wanted[number] = torch.from_numpy(image_array.pixels(sample["image.npy"]).copy()).permute(2, 0, 1)
    sources = [
        torch.from_numpy(values(number, (6, np.uint16), 40 + number % 2)).permute(2, 0, 1) for number in range(12)
    ]
    assert all(any(torch.equal(one, source) for source in sources) for one in wanted.values())
    for decoder in (shardflow.decoders.Image(pad_to_multiple_of=32), shardflow.decoders.Image(stack=False)):
        loader = shardflow.Loader(
            url, batch_size=4, decoder=decoder, fields=("image", "image_size", "index"), num_workers=workers
        )
        seen = 0
        for images, sizes, index in loader:
            for image, (height, width), number in zip(images, sizes.tolist(), index.tolist(), strict=True):
                assert image.dtype == torch.uint16
                assert torch.equal(image[:, :height, :width], wanted[number])
                seen += 1
        assert seen == 12
        loader.close()


def test_crops_do_not_depend_on_workers(packed: tuple[Path, Path], tmp_path: Path) -> None:
    """Random crops in uint16 are the same with workers, and beside a cache of decoded images, which leaves them out."""

    def load(**options: Any) -> list[torch.Tensor]:
        loader = shardflow.Loader(packed[1], batch_size=4, decoder=shardflow.decoders.RandomResizedCrop(128), **options)
        batches = [images.clone() for images, _ in loader]
        loader.close()
        return batches

    plain = load(num_workers=0)
    assert [(images.shape, images.dtype) for images in plain] == [((4, 6, 128, 128), torch.uint16)] * 3
    for options in ({"num_workers": 2}, {"num_workers": 0, "cache": shardflow.Cache(tmp_path, pixels="1GB")}):
        assert all(torch.equal(a, b) for a, b in zip(load(**options), plain, strict=True))


def test_other_readers_and_commands_know_them(packed: tuple[Path, Path]) -> None:
    """webdataset decodes the part by itself; verify compares it, contact sheets draw it, and no mean is known."""
    source, url = packed
    dataset = open_dataset(url)
    assert sorted({tuple(size) for size in dataset["train"].image_sizes().tolist()}) == [(50, 40), (50, 41)]
    assert verify(url, sources=[source]) == []
    decoded = basichandlers("image.npy", bytes(dataset["train"][0]["image.npy"]))
    assert decoded.dtype == np.uint16
    assert decoded.shape[1:] == (50, 6)
    picture = decode_picture(dataset["train"][0]["image.npy"])
    assert picture is not None
    assert picture[0].mode == "RGB"
    assert dataset.manifest.mean is None


def test_another_npy_part_is_no_image(tmp_path: Path) -> None:
    """A part that is named `npy` alone, such as an embedding, stays a part beside the image."""
    samples = [("0", {"npy": image_array.to_bytes(values(0, (1, np.uint8))), "png": b"", "jpg": jpeg(1)})]
    url = write_dataset(tmp_path / "set", {"train": [samples]})
    loader = shardflow.Loader(url, batch_size=1, fields=("image", "npy"), shuffle=False, num_workers=0)
    ((images, (part,)),) = list(loader)
    assert images.shape == (1, 3, 224, 224)
    assert image_array.is_array(part)
