"""What a user's decoder may count on, and what the loader counts on."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow
from shardflow import decoders
from shardflow.decoders import CropDecoder, Crops, Decoder, Payloads
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.annotations import Annotations, Boxes
from tests.helpers.kernel import without_kernel
from tests.helpers.making import jpeg, make_dataset, write_dataset

DECODERS = [
    decoders.RandomResizedCrop({0: 16, 2: 24}),
    decoders.CenterCrop(16),
    decoders.Cover(),
    decoders.Image(),
    decoders.MultiView([decoders.RandomResizedCrop(16), decoders.CenterCrop(12)]),
    decoders.Raw(),
]

KEYS = np.arange(1, 8, dtype=np.uint64) << np.uint64(40)
SIZES = np.array([[90, 70], [40, 120], [0, 0], [33, 80], [64, 64], [17, 200], [1, 1]])


class LeftHalf(CropDecoder):
    """The left half of each image: a plan is all that it takes."""

    def plan(self, epoch: int, shape: Any, sizes: Any, keys: Any) -> Crops:  # noqa: ARG002
        """Return the left halves."""
        width, height = np.maximum(sizes, 2).T
        box = np.stack([0 * width, 0 * width, width // 2, height], axis=1)
        return Crops.of(sizes, box=box, resized=(12, 24), size=(12, 24))


@pytest.mark.parametrize(
    "returned", [None, True, [0], {7: DecodeError("beyond")}, {-1: DecodeError("before")}, {0: "broken"}, {0: None}]
)
def test_what_decode_returns_is_checked(tmp_path: Path, returned: Any) -> None:
    """A `decode` that returns anything else than the errors of images of the batch is a ConfigError that names it."""

    class Returning(LeftHalf):
        def decode(self, payloads: Payloads, crops: Any, out: Any) -> Any:  # noqa: ARG002
            return returned

    some = shardflow.Loader(
        make_dataset(tmp_path / "set", [7]), batch_size=7, decoder=Returning(), num_workers=0, max_errors=7
    )
    with pytest.raises(ConfigError, match=r"Returning\.decode .*found"):
        next(iter(some))


class Small(Decoder):
    """Decodes by itself, to images of one size, and does not say how it crops."""

    def decode(self, payloads: Payloads, crops: Any, out: Any) -> Any:
        """Decode each image into the list."""
        assert crops is None
        failures = {}
        for index, file in enumerate(payloads.files):
            try:
                small = Image.open(io.BytesIO(file)).convert("RGB").resize((10, 8))
                out[index] = torch.from_numpy(np.array(small)).permute(2, 0, 1)
            except OSError as error:
                failures[index] = DecodeError(str(error))
                out[index] = torch.zeros((3, 8, 10), dtype=torch.uint8)
        return failures


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: type(decoder).__name__)
def test_the_rows_of_a_plan_do_not_depend_on_each_other(decoder: Decoder) -> None:
    """Each row is the plan of its image alone, so that rows can be planned again; equal arguments give equal plans."""
    for epoch in (0, 3):
        whole = decoder.plan(epoch, (20, 30), SIZES, KEYS)
        again = [decoder.plan(epoch, (20, 30), SIZES[row : row + 1], KEYS[row : row + 1]) for row in range(len(SIZES))]
        views = whole if isinstance(whole, tuple) else () if whole is None else (whole,)
        assert len(views) == (len(decoder.views) or (whole is not None))
        for number, view in enumerate(views):
            for row, one in enumerate(again):
                alone = one[number] if isinstance(one, tuple) else one
                assert alone is not None
                assert alone.size == view.size
                for name in ("source", "box", "resized", "offset", "flip"):
                    assert (getattr(alone, name)[0] == getattr(view, name)[row]).all()


def test_a_plan_reads_nothing(tmp_path: Path) -> None:
    """The crops of a batch are known from the index alone, and are those with which its images were made."""
    url = make_dataset(tmp_path / "set", [12])
    split = shardflow.open(url)["train"]
    fields = ("crop", "flipped", "image", "index", "random_key")
    decoder = decoders.RandomResizedCrop(16)
    (shown, flipped, _, numbers, keys), *_ = shardflow.Loader(
        url, batch_size=12, decoder=decoder, fields=fields, num_workers=0
    )
    planned = decoder.plan(0, None, split.image_sizes()[numbers.numpy()], keys.numpy().view(np.uint64))
    assert (torch.from_numpy(planned.shown) == shown).all()
    assert (torch.from_numpy(planned.flip) == flipped).all()


def test_a_plan_alone_is_a_decoder(tmp_path: Path) -> None:
    """Pixels, masks, boxes, the pixel cache, views and `DecodeJpeg` follow the plan of a user's class."""
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy"))
    parts = {"jpg": jpeg(1, 40, 20), "json": b'{"boxes": [[5, 5, 10, 10], [25, 5, 30, 10]]}', "cls": b"0"}
    url = write_dataset(tmp_path / "set", {"train": [[("0", parts)]]}, classes=("x",), annotations=declared)
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 0, "fields": ("image", "boxes")}
    cache = shardflow.Cache(tmp_path / "cache", pixels="1MB")
    (images, (boxes,)), *_ = shardflow.Loader(url, decoder=LeftHalf(), **options)
    assert boxes.tolist() == [[3.0, 6.0, 6.0, 12.0]]
    left = torch.from_numpy(np.array(Image.open(io.BytesIO(parts["jpg"])))).permute(2, 0, 1)[:, :, :20]
    expected = torch.ops.aten._upsample_bilinear2d_aa(left[None], [24, 12], False)[0]
    assert (images[0].int() - expected.int()).abs().max() <= 1
    for _ in range(2):
        (cached, _), *_ = shardflow.Loader(url, decoder=LeftHalf(), cache=cache, **options)
        assert torch.equal(cached, images)
    views, _ = next(iter(shardflow.Loader(url, decoder=decoders.MultiView([LeftHalf(), LeftHalf()]), batch_size=1)))
    assert all(torch.equal(view, images) for view in views)
    raw = shardflow.Loader(url, decoder=decoders.Raw(), batch_size=1, num_workers=0)
    ((later, _),) = shardflow.device.Prefetcher(raw, "cpu", [shardflow.device.DecodeJpeg(LeftHalf())])
    assert torch.equal(later, images)


def test_a_decoder_of_its_own_needs_one_method(tmp_path: Path) -> None:
    """Images in a list are stacked; a failure is that of its sample, and annotations cannot follow."""
    url = make_dataset(tmp_path / "set", [16], undecodable=[3])
    loader = shardflow.Loader(url, batch_size=8, decoder=Small(), max_errors=1, num_workers=0)
    batches = [images for images, _ in loader]
    assert [tuple(images.shape) for images in batches] == [(8, 3, 8, 10)] * 2
    assert len(loader.replaced) == 1
    with pytest.raises(ConfigError, match=r"fields crop .*Crops"):
        next(
            iter(
                shardflow.Loader(
                    url, batch_size=8, decoder=Small(), max_errors=1, fields=("image", "crop"), num_workers=0
                )
            )
        )
    for wrong in (Small, "Small", lambda *_: None):
        with pytest.raises(ConfigError, match="decoder must be"):
            shardflow.Loader(url, batch_size=8, decoder=wrong)  # type: ignore[arg-type]
    for made in (lambda: decoders.MultiView([Small()]), lambda: shardflow.device.DecodeJpeg(Small())):  # type: ignore[list-item, arg-type]
        with pytest.raises(ConfigError, match="RandomResizedCrop or CenterCrop"):
            made()


class Grey(decoders.RandomResizedCrop):
    """Crops without colours."""

    def decode(self, payloads: Payloads, crops: Any, out: Any) -> Any:
        """Decode, and take the mean of the channels."""
        failures = super().decode(payloads, crops, out)
        out[:] = out.float().mean(1, keepdim=True).to(torch.uint8)
        return failures


def test_a_subclass_that_decodes_otherwise_is_not_taken_for_its_base(tmp_path: Path) -> None:
    """It gets encoded images alone, and is no view: there its own pixels would be missing, without a word."""
    url = make_dataset(tmp_path / "set", [8])
    images, _ = next(iter(shardflow.Loader(url, batch_size=8, decoder=Grey(16), num_workers=0)))
    assert torch.equal(images[:, 0], images[:, 2])
    with pytest.raises(ConfigError, match="accepts encoded images only"):
        shardflow.Loader(url, batch_size=8, decoder=Grey(16), cache=shardflow.Cache(tmp_path / "c", pixels="1MB"))
    with pytest.raises(ConfigError, match="RandomResizedCrop or CenterCrop"):
        decoders.MultiView([Grey(16)])
    assert Grey(16) == Grey(16) != decoders.RandomResizedCrop(16)


def test_views_may_cover_the_shape_of_a_batch(tmp_path: Path) -> None:
    """A `MultiView` of a `Cover` needs the shape that a sampler decides on, and hands it on."""
    sampler = shardflow.samplers.AspectBuckets([(10, 14)])
    both = decoders.MultiView([decoders.Cover(), decoders.CenterCrop(8)])
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "decoder": both}
    url = make_dataset(tmp_path / "set", [8])
    (views, _), *_ = shardflow.Loader(url, sampler=sampler, **options)
    assert [tuple(view.shape) for view in views] == [(4, 3, 10, 14), (4, 3, 8, 8)]
    with pytest.raises(ConfigError, match="go together"):
        shardflow.Loader(url, **options)


def test_decoders_are_equal_by_their_settings() -> None:
    """Decoders of one class with equal settings are equal; settings that are not plain have to be the same object."""
    for decoder in DECODERS:
        assert [decoder == other for other in DECODERS].count(True) == 1
    assert decoders.RandomResizedCrop({0: 8}) == decoders.RandomResizedCrop(8) != decoders.RandomResizedCrop(9)
    assert decoders.Image() == decoders.Image() != decoders.Image(stack=False)
    crops = [decoders.CenterCrop(8), decoders.CenterCrop(9)]
    assert decoders.MultiView(crops) == decoders.MultiView(crops) != decoders.MultiView(crops[:1])
    one, other, tensor = Small(), Small(), torch.zeros(2)
    assert one == other
    one.weights = tensor  # type: ignore[attr-defined]
    other.weights = torch.zeros(2)  # type: ignore[attr-defined]
    assert one != other
    other.weights = tensor  # type: ignore[attr-defined]
    assert one == other


def test_sizes_by_epoch_and_shapes_reach_the_device(tmp_path: Path) -> None:
    """Encoded images carry the epoch and the shape of their batch, so the device crops as the workers would."""
    url = make_dataset(tmp_path / "set", [8])
    growing = decoders.RandomResizedCrop({0: 8, 1: 12})
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 0}
    here = shardflow.Loader(url, decoder=growing, **options)
    later = shardflow.device.Prefetcher(
        shardflow.Loader(url, decoder=decoders.Raw(), **options), "cpu", [shardflow.device.DecodeJpeg(growing)]
    )
    for size in (8, 12):
        ((images, _),), ((found, _),) = here, later
        assert images.shape[-1] == size
        assert torch.equal(images, found)
    files, keys = [memoryview(bytearray(jpeg(1, 40, 20)))], KEYS[:1]
    rows = decoders.Raw()(files, SIZES[:1] * 0, keys, shape=(10, 14)).images
    expected = decoders.Cover()(files, SIZES[:1] * 0, keys, shape=(10, 14)).images
    assert torch.equal(shardflow.device.DecodeJpeg(decoders.Cover())(rows, torch.device("cpu")), expected)


class Planned(CropDecoder):
    """Plans what it is given."""

    def __init__(self, crops: Any) -> None:
        self.crops = crops

    def plan(self, epoch: int, shape: Any, sizes: Any, keys: Any) -> Any:  # noqa: ARG002
        """Return it."""
        return self.crops(sizes) if callable(self.crops) else self.crops


def planned(box: tuple[int, ...], *, resized: tuple[int, int] = (12, 12), **options: Any) -> Planned:
    """Return a decoder that plans one box for each image."""
    return Planned(
        lambda sizes: Crops.of(
            sizes, box=np.tile(box, (len(sizes), 1)), resized=resized, **{"size": (12, 12), **options}
        )
    )


@pytest.mark.parametrize(
    "decoder",
    [
        planned((-6, 0, 4, 4)),
        planned((0, 0, 4000, 4000)),
        planned((0, 0, 0, 4)),
        planned((0, 0, 8, 8), offset=(-3, -3)),
        planned((0, 0, 8, 8), offset=(5, 0)),
        planned((0, 0, 8, 8), resized=(4, 4)),
    ],
)
@pytest.mark.parametrize("switched", [contextlib.nullcontext, without_kernel])
def test_a_crop_outside_of_the_image_is_refused(tmp_path: Path, decoder: Planned, switched: Any) -> None:
    """Pixels that are not in the image cannot be asked for, with the kernel or without."""
    url = make_dataset(tmp_path / "set", [4])
    with switched(), pytest.raises(ConfigError, match=r"box=.*resized=.*offset="):
        list(shardflow.Loader(url, batch_size=2, num_workers=0, decoder=decoder))


def test_a_plan_without_crops_is_refused(tmp_path: Path) -> None:
    """A decoder that only crops has to plan crops of one size, also as a view among others."""
    url = make_dataset(tmp_path / "set", [4])
    good = decoders.CenterCrop(8)
    for wrong in (Planned(None), Planned(lambda sizes: Crops.of(sizes))):
        for decoder in (wrong, decoders.MultiView([wrong, good, good])):
            with pytest.raises(ConfigError, match="must return Crops"):
                list(shardflow.Loader(url, batch_size=2, num_workers=0, decoder=decoder))


class Slotted(LeftHalf):
    """Settings that are not among its vars."""

    __slots__ = ("right",)

    def __init__(self, right: int) -> None:
        self.right = right


def test_decoders_that_cannot_be_compared_are_different() -> None:
    """Decoders count as equal only where all of their settings are compared."""
    some = Slotted(20)
    assert some == some
    assert some != Slotted(20)
    assert Planned((np.arange(3),)) != Planned((np.arange(3),))
    assert Planned((1, 2)) == Planned((1, 2))
