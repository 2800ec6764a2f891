from __future__ import annotations

import io
import itertools
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

import shardflow
from shardflow.decoders import CenterCrop, Patches
from shardflow.errors import ConfigError, DecodeError, IntegrityError
from shardflow.loading.fork_rng import one_thread
from shardflow.samplers import AspectBuckets, TokenBudget
from tests.helpers.folders import encoded
from tests.helpers.making import NINE_SIZES, flip, jpeg, make_shapes, write_dataset

PATCH = 8
TEXTS = np.arange(90) % 9
FIELDS = ("image", "cu_seqlens", "positions", "bin", "label", "image_size")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 90 images of nine shapes in three shards; the label of a sample is its number."""
    return make_shapes(tmp_path_factory.mktemp("data") / "set")


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader with bins of 100 tokens."""
    sampler = TokenBudget(100, patch=PATCH, text=TEXTS)
    options = {"batch_size": 2, "num_workers": 0, "tail": "short", "sampler": sampler, "fields": FIELDS, **options}
    return shardflow.Loader(url, shuffle=shardflow.Shuffle(buffer=16, streams=4), **options)


def together(patches: torch.Tensor, positions: torch.Tensor, patch: int = PATCH) -> torch.Tensor:
    """The image [3, H, W] whose patches these are."""
    rows, columns = (positions.max(dim=0).values + 1).tolist()
    image = patches.new_zeros(3, rows * patch, columns * patch)
    for values, (row, column) in zip(patches, positions.tolist(), strict=True):
        image[:, row * patch :, column * patch :][:, :patch, :patch] = values.view(3, patch, patch)
    return image


@pytest.mark.parametrize("workers", [0, 2])
def test_patches_are_those_of_each_image_alone(dataset: Path, workers: int) -> None:
    """Bit by bit: an image in a batch has the patches that it has alone; each sample comes once, in a bin with room."""
    alone = loader(dataset, decoder=Patches(PATCH, stack=False), fields=("image", "label"))
    seen = []
    for patches, ends, positions, bins, labels, sizes in loader(dataset, num_workers=workers):
        assert (patches.dtype, ends.dtype, patches.shape[1:]) == (torch.uint8, torch.int32, (3 * PATCH**2,))
        assert len(ends) == len(labels) + 1
        assert ends[-1] == len(patches) == len(positions)
        tokens = np.bincount(bins.numpy(), np.diff(ends.numpy()) + TEXTS[labels.numpy()])
        assert len(tokens) <= 2
        assert tokens.max(initial=0) <= 100
        for place, number in enumerate(labels.tolist()):
            own = slice(int(ends[place]), int(ends[place + 1]))
            image = together(patches[own], positions[own])
            explained = alone.explain(number)
            assert explained is not None
            assert torch.equal(image, explained.images[0])
            assert image.shape[1:] == tuple(sizes[place].tolist())
        seen += labels.tolist()
    assert sorted(seen) == list(range(90))


def test_the_kernel_and_libraries_make_the_same_patches(tmp_path: Path) -> None:
    """PNGs beside JPEGs of the same pixels: those that the kernel writes itself, and those that are cut."""
    samples = []
    for number, size in enumerate(NINE_SIZES):
        file = jpeg(number, *size)
        png = encoded(Image.open(io.BytesIO(file)), "PNG")
        samples += [(f"{number}a", {"jpg": file}), (f"{number}b", {"png": png})]
    url = write_dataset(tmp_path / "set", {"train": [samples]})
    fields = ("image", "cu_seqlens", "key")
    decoder = Patches(PATCH, hflip=1)
    own = loader(url, fields=fields, sampler=TokenBudget(1000, patch=PATCH, long_side=40), decoder=decoder)
    found = {
        key: patches[begin:end]
        for patches, ends, keys in own
        for key, (begin, end) in zip(keys, itertools.pairwise(ends.tolist()), strict=True)
    }
    for number in range(9):
        assert torch.equal(found[f"{number}a"], found[f"{number}b"])


def test_patches_lie_as_a_convolution_reads_them(dataset: Path) -> None:
    """A linear layer on patches is the convolution with its weights on the images, which also come as a list."""
    batch = next(iter(loader(dataset)))
    listed = next(iter(loader(dataset, decoder=Patches(PATCH, stack=False), fields=("image",))))
    weights = torch.randn(5, 3, PATCH, PATCH)
    linear = nn.functional.linear(batch[0].float(), weights.flatten(1))
    whole = [nn.functional.conv2d(image[None].float(), weights, stride=PATCH) for image in listed[0]]
    torch.testing.assert_close(linear, torch.cat([each[0].flatten(1).T for each in whole]), rtol=1e-4, atol=1e-2)


def test_another_number_of_ranks_goes_on_with_the_bins_that_are_left(dataset: Path) -> None:
    """Two ranks begin an epoch, three end it: all have as many steps, and each sample comes once."""
    seen: list[int] = []
    state: dict[str, Any] = {}
    for rank in range(2):
        begun = loader(dataset, group=(rank, 2))
        for step, batch in enumerate(begun):
            seen += batch[4].tolist()
            if step == 3:
                state = begun.state_dict()
                break
    steps = set()
    for rank in range(3):
        other = loader(dataset, group=(rank, 3), batch_size=1)
        other.load_state_dict(state)
        batches = list(other)
        steps.add(len(batches))
        seen += [number for batch in batches for number in batch[4].tolist()]
        assert all(batch[1].tolist()[:1] == [0] for batch in batches)  # even where a rank has no bin of the last step
    assert len(steps) == 1
    assert sorted(seen) == list(range(90))


def test_transforms_see_whole_images(dataset: Path) -> None:
    """A transform gets each image before it is cut, and its dtype is that of the patches."""
    plain, scaled = loader(dataset), loader(dataset, transform=v2.ToDtype(torch.float32, scale=True))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(one[0].float() / 255, other[0])


def test_patches_of_a_sampler_that_merges_them(dataset: Path) -> None:
    """A token may be several patches: images are multiples of the sampler's patch, and cut into the decoder's."""
    sampler = TokenBudget(20, patch=16)
    _, ends, _, _, _, sizes = next(iter(loader(dataset, sampler=sampler, decoder=Patches(PATCH))))
    assert (sizes % 16 == 0).all()
    assert torch.equal(ends.diff(), sizes.prod(dim=1) // PATCH**2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"decoder": CenterCrop(64)},
        {"decoder": Patches(3)},
        {"decoder": Patches(PATCH), "sampler": AspectBuckets([(64, 64)])},
        {"fields": ("label",)},
        {"fields": ("image", "cu_seqlens"), "sampler": None},
        {"fields": ("image", "pixel_mask")},
    ],
)
def test_what_does_not_fit_is_refused(dataset: Path, wrong: dict[str, Any]) -> None:
    """Decoders, fields and samplers that do not go together are ConfigErrors before loading."""
    with pytest.raises(ConfigError):
        loader(dataset, **wrong)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stack", [True, False])
def test_a_damaged_sample_is_left_out_of_its_bin(dataset: Path, tmp_path: Path, workers: int, stack: bool) -> None:
    """With `max_errors` a bin lacks its damaged samples, and all others are as they were; one more is an error."""
    shutil.copytree(dataset, tmp_path / "set")
    tar = next((tmp_path / "set").glob("**/000001.tar"))
    with tarfile.open(tar) as opened:
        places = [member.offset_data for member in opened if member.name.endswith("jpg")]
    flip(tar, places[4] + 700, places[5] + 700)
    options = {"num_workers": workers, "decoder": Patches(PATCH, stack=stack)}
    fields = ("image", "label", "bin", "image_size", "valid")
    whole = loader(dataset, fields=fields, decoder=Patches(PATCH, stack=stack))
    some = loader(tmp_path / "set", fields=fields, max_errors=2, **options)
    damaged = {44, 45}
    for batch, expected in zip(some, whole, strict=True):
        kept = [row for row, number in enumerate(expected[1].tolist()) if number not in damaged]
        assert [column[kept].tolist() for column in expected[1:]] == [column.tolist() for column in batch[1:]]
        counts = (expected[3] // PATCH).prod(1).tolist()
        if stack:
            rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
            assert torch.equal(batch[0], expected[0][torch.isin(rows, torch.tensor(kept))])
        else:
            assert all(torch.equal(one, expected[0][row]) for one, row in zip(batch[0], kept, strict=True))
    assert len(some.replaced) == 2
    with pytest.raises(IntegrityError, match="max_errors"):
        list(loader(tmp_path / "set", max_errors=1, num_workers=workers))


def test_an_image_that_does_not_decode_is_left_out_of_its_bin(tmp_path: Path) -> None:
    """So are its annotations, and its other fields; a batch of such images alone is an error."""
    samples = []
    for number in range(9):
        image = jpeg(number, *NINE_SIZES[number])
        samples.append(
            (f"{number}", {"jpg": image[: len(image) // 2] if number == 4 else image, "txt": b"%d" % number})
        )
    url = write_dataset(tmp_path / "set", {"train": [samples]})
    fields = ("image", "txt", "crop", "cu_seqlens", "key")
    options = {"sampler": TokenBudget(1000, patch=PATCH), "fields": fields, "max_errors": 1}
    (patches, texts, crops, ends, keys), *_ = loader(url, **options)
    assert sorted(texts) == sorted(keys) == [str(number) for number in range(9) if number != 4]
    assert len(crops) == len(ends) - 1 == 8
    assert ends[-1] == len(patches)
    with pytest.raises(DecodeError):
        list(loader(url, **options | {"batch_size": 1, "sampler": TokenBudget(60, patch=PATCH)}))


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_a_mix_of_budgets(dataset: Path, by: str) -> None:
    """Sources with token budgets mix by bin or by batch: each bin is of one source, and has room."""
    sources = [(loader(dataset, seed=seed, fields=(*FIELDS, "source")), 2 - seed) for seed in range(2)]
    seen: list[list[int]] = [[], []]
    for patches, ends, _, bins, labels, _, source in shardflow.Mix(sources, by=by):
        assert ends[-1] == len(patches)
        for number in bins.unique().tolist():
            here = bins == number
            (of,) = source[here].unique().tolist()
            assert int(ends.diff()[here].sum()) + TEXTS[labels[here].numpy()].sum() <= 100
            seen[of] += labels[here].tolist()
    assert len(set(seen[0])) > len(set(seen[1])) > 20


class SmallNaViT(nn.Module):
    """A transformer over patches of many images, each of which attends to itself alone."""

    def __init__(self, patch: int, width: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3 * patch**2, width), nn.Linear(width, 2)
        self.rows, self.columns = nn.Embedding(16, width), nn.Embedding(16, width)
        self.mixed = nn.Linear(width, 3 * width)

    def forward(self, patches: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The logits of each image."""
        x = self.embed(patches.float() / 255 - 0.5) + self.rows(positions[:, 0]) + self.columns(positions[:, 1])
        counts = ends.diff().long()
        of = torch.arange(len(counts)).repeat_interleave(counts)
        q, k, v = self.mixed(x)[None].chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=of[:, None] == of)[0]
        return self.head(x.new_zeros(len(counts), x.shape[1]).index_add(0, of, x) / counts[:, None])


def test_a_navit_learns_from_patches(tmp_path: Path) -> None:
    """A small transformer with a block mask learns in a few epochs where images of many shapes are bright."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(64):
        width, height = NINE_SIZES[number % 9]
        pixels = rng.integers(0, 100, (height, width, 3), dtype=np.uint8)
        label = number // 9 % 2
        pixels[:, width // 2 :] += np.uint8(100 * label)
        samples.append((f"{number:03}", {"png": encoded(Image.fromarray(pixels), "PNG"), "cls": b"%d" % label}))
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("dark", "bright"))
    batches = loader(url, sampler=TokenBudget(128, patch=PATCH, long_side=64), fields=(*FIELDS[:3], "label"))
    torch.manual_seed(0)
    model = SmallNaViT(PATCH)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    right: list[bool] = []
    with one_thread():
        for _ in range(6):
            right = []
            for patches, ends, positions, labels in batches:
                logits = model(patches, ends, positions)
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                right += (logits.argmax(dim=1) == labels).tolist()
    assert len(right) == 64
    assert np.mean(right) > 0.9
