"""Whole images of different sizes: padded to one size with a mask of the pixels that count, or as a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardflow
from shardflow.errors import ConfigError
from shardflow.loading.padding import Padding, image_sizes, pixel_mask
from tests.helpers.making import make_dataset

FIELDS = ("image", "pixel_mask", "image_size", "label")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 20 labelled samples in two shards, of 15 sizes."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [13, 7])


def turn(image: torch.Tensor) -> torch.Tensor:
    """A transform that changes the size."""
    return image.transpose(1, 2)


def load(url: Path, decoder: Any, **options: Any) -> list[Any]:
    """All batches of an epoch in the split's order."""
    loader = shardflow.Loader(
        url, **{"batch_size": 6, "shuffle": False, "num_workers": 0, "decoder": decoder, **options}
    )
    batches = list(loader)
    loader.close()
    return batches


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    channels=st.sampled_from([(), (1,), (3,)]),
    multiple=st.integers(1, 8),
)
def test_padding_is_zero_and_outside_of_the_mask(
    sizes: list[tuple[int, int]], channels: tuple[int, ...], multiple: int
) -> None:
    """Images lie at the top left of the smallest common multiple; the mask is True there, and all else is zero."""
    images = [torch.randint(1, 255, (*channels, *size), dtype=torch.uint8) for size in sizes]
    padded = Padding(pad_to_multiple_of=multiple).join(images)
    assert isinstance(padded, torch.Tensor)
    height, width = padded.shape[-2:]
    for side, most in ((height, max(size[0] for size in sizes)), (width, max(size[1] for size in sizes))):
        assert side % multiple == 0
        assert 0 <= side - most < multiple
    assert image_sizes(images).tolist() == [list(size) for size in sizes]
    for row, image, mask in zip(padded, images, pixel_mask(image_sizes(images), height, width), strict=True):
        assert torch.equal(row[..., mask], image.flatten(-2))
        assert not row[..., ~mask].any()


@pytest.mark.parametrize(
    ("dtype", "padding", "expected"),
    [
        (torch.uint8, 255, torch.uint8),
        (torch.uint8, 256, torch.int32),
        (torch.int8, 255, torch.int32),
        (torch.int64, -100, torch.int64),
        (torch.float32, 255, torch.float32),
        (torch.bool, 1, torch.bool),
    ],
)
def test_masks_have_a_dtype_that_holds_their_padding(dtype: torch.dtype, padding: int, expected: torch.dtype) -> None:
    """Integers become int32 where theirs cannot hold the padding, also in a batch that needs none; bool is refused."""
    padding_rule = Padding(pad_to_multiple_of=4, mask_padding=padding)
    for sizes in ((4, 4), (4, 3)):
        found = padding_rule.join_masks([torch.ones(1, 4, size).to(dtype) for size in sizes])
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found[1, 0, 0].tolist()) == (expected, [1] * sizes[1] + [padding] * (4 - sizes[1]))
    with pytest.raises(ConfigError, match=r"bool.*255"):
        Padding(pad_to_multiple_of=4).join_masks([torch.ones(1, 4, 4, dtype=torch.bool)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, turn])
def test_padded_batches_hold_every_image(dataset: Path, workers: int, transform: Any) -> None:
    """Whole images come padded, after the transform, with their sizes and a mask, also through shared memory."""
    samples = shardflow.Loader(dataset, batch_size=1, num_workers=0).dataset
    decoder = shardflow.decoders.Image(pad_to_multiple_of=32)
    batches = load(dataset, decoder, transform=transform, fields=FIELDS, num_workers=workers)
    assert [len(labels) for *_, labels in batches] == [6, 6, 6, 2]
    for images, masks, sizes, labels in batches:
        assert images.shape[2:] == masks.shape[1:] == (64, 64)
        for image, mask, size, label in zip(images, masks, sizes.tolist(), labels.tolist(), strict=True):
            whole = samples[label][0] if transform is None else transform(samples[label][0])
            assert size == list(whole.shape[1:])
            assert torch.equal(image[:, mask].view_as(whole), whole)


def test_lists_hold_every_image(dataset: Path) -> None:
    """Without stacking a batch has a list of whole images, and a rank without samples an empty one."""
    samples = shardflow.Loader(dataset, batch_size=1, num_workers=0).dataset
    decoder = shardflow.decoders.Image(stack=False)
    for images, sizes, labels in load(dataset, decoder, fields=("image", "image_size", "label"), num_workers=1):
        assert isinstance(images, list)
        assert [list(image.shape[1:]) for image in images] == sizes.tolist()
        assert all(torch.equal(image, samples[label][0]) for image, label in zip(images, labels.tolist(), strict=True))
    *_, (images, labels) = load(dataset, decoder, limit=13, group=(1, 2))
    assert (images, len(labels)) == ([], 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decoder": shardflow.decoders.Image()},
            r"pad_to_multiple_of=32\) to pad each batch, or decoders.Image\(stack=F",
        ),
        (
            {"decoder": shardflow.decoders.Image(), "transform": turn},
            "cannot be stacked; choose .*pad_to_multiple_of=32",
        ),
        ({"decoder": shardflow.decoders.Image(stack=False), "fields": FIELDS}, "stack=False returns a list"),
        (
            {"decoder": shardflow.decoders.Image(pad_to_multiple_of=1), "fields": FIELDS[1:]},
            "'image' is not among the fields",
        ),
        (
            {"decoder": shardflow.decoders.MultiView([shardflow.decoders.CenterCrop(8)]), "fields": FIELDS},
            "images of a MultiView have several sizes",
        ),
    ],
)
def test_fields_and_sizes_that_do_not_fit_are_named(dataset: Path, options: dict[str, Any], message: str) -> None:
    """Images of several sizes that are neither padded nor listed, and fields without meaning, are ConfigErrors."""
    with pytest.raises(ConfigError, match=message):
        load(dataset, **options)


def test_wrong_arguments_are_named() -> None:
    """A multiple below 1, and padding of a list, are ConfigErrors."""
    with pytest.raises(ConfigError, match="mask_padding"):
        shardflow.decoders.Image(pad_to_multiple_of=32, mask_padding=2**31)
    for arguments in ({"pad_to_multiple_of": 0}, {"pad_to_multiple_of": 32, "stack": False}):
        with pytest.raises(ConfigError, match="pad_to_multiple_of"):
            shardflow.decoders.Image(**arguments)


def test_mixed_loaders_pad_alike(tmp_path: Path) -> None:
    """Mixed by sample, loaders with one way of padding share batches, and two ways are an error."""
    paths = [make_dataset(tmp_path / name, [20]) for name in "ab"]

    def mix(*multiples: int) -> Any:
        return shardflow.Mix([
            (shardflow.Loader(path, decoder=shardflow.decoders.Image(pad_to_multiple_of=each), batch_size=8,
                              num_workers=0), 1)
            for path, each in zip(paths, multiples, strict=True)
        ])  # fmt: skip

    assert next(iter(mix(32, 32)))[0].shape == (8, 3, 64, 64)
    with pytest.raises(ConfigError, match="pad batches differently"):
        mix(32, 16)


@pytest.mark.parametrize("multiple", [None, 4])
def test_different_dtypes_are_refused(multiple: int | None) -> None:
    """Images or masks of a batch that a transform returned in different dtypes are an error; a list may have them."""
    images = [torch.full((1, 4, 4), 7, dtype=torch.uint8), torch.full((1, 4, 4), 1007, dtype=torch.int64)]
    padding_rule = Padding(pad_to_multiple_of=multiple)
    for stack in (padding_rule.join, padding_rule.join_masks):
        for pair in (images, [images[0], images[0].float() / 255]):
            with pytest.raises(ConfigError, match=r"torch\.uint8"):
                stack(pair)
    assert Padding(stack=False).join(images) == images
