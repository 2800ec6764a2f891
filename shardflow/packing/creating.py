"""Packing: the inputs of a source become a new dataset."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from shardflow._validation import check_integer, explain_unknown_arguments
from shardflow.errors import ConfigError
from shardflow.formats.annotations import NOTHING, Annotations
from shardflow.formats.labels import are_numbers
from shardflow.formats.shard_layout import Sharding
from shardflow.order.shuffle_settings import TRAIN

from .commit import PackReport, carry_out
from .executors import make_executor
from .ledger import Ledger
from .pack_plan import PackPlan
from .progress import ProgressLike
from .recipe import FromPreset, Recipe, make_recipe
from .sample_recipe import SampleRecipe, refuse_absent_images, warn_of_undeclared
from .sources.resolve import list_source, shared_options
from .sources.source import Source

logger = logging.getLogger(__name__)

SHARD_SAMPLES = 2048


_OF_SOURCES = {
    argument: f"the source has it, such as shardflow.sources.Table(src, {name}=...)"
    for name in ("image", "label", "split", "caption", "mask", "images", "classes")
    for argument in (name, f"{name}_column", *(["image_folder"] if name == "images" else []))
}


@explain_unknown_arguments({"size": "short_side is the size of the shorter side, in pixels", **_OF_SOURCES})
def pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    short_side: int | FromPreset | None = "preset",
    long_side: int | FromPreset | None = "preset",
    square: bool | FromPreset = "preset",
    enlarge: bool | FromPreset = "preset",
    filter: str = "preset",  # noqa: A002 - Pillow's and the field's name
    format: str = "preset",  # noqa: A002 - Pillow's and the field's name
    quality: int | FromPreset = "preset",
    subsampling: str = "preset",
    seek_tables: str = "preset",
    max_pixels: int | FromPreset = "preset",
    annotations: Annotations | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = SHARD_SAMPLES,
    max_errors: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    ray_address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressLike = None,
) -> PackReport:
    """Resize the images of a source and write them to `dst` as a dataset.

    The dataset's bytes depend only on the inputs and on the arguments before `max_errors`, not on the number of
    workers, the executor, or interruptions. After an error or a kill, the same call continues.

    Args:
        src: Path or URL of a directory with `CLASS/x.jpg`, `train/CLASS/x.jpg` (and other splits), or `x.jpg`; of a
            table (`.csv`, `.tsv`, `.jsonl`, `.parquet`); of Parquet files with images in them (a folder, a pattern,
            "hf://datasets/OWNER/NAME"); of a COCO set (`.json`); of a shardflow dataset; or of tars, also as a pattern
            ("s3://bucket/{00000..00099}.tar"). Or a Hugging Face dataset, a torchvision dataset, any sized, indexable
            collection or iterable of samples, or a mapping from splits to those. For more options, one of
            `shardflow.sources`.
        dst: Directory, or URL such as "s3://bucket/photos256", that is new, empty, or has an unfinished pack.
        preset: "imagenet", "compact", "fine", "lossless" or "original", see docs/packing.md. It sets those of the
            following settings that are left at "preset"; the value of "imagenet" is in brackets.
        short_side: Pixels of the shorter side, 1 … 65500; None to keep the size. Smaller images do not change. [256]
        long_side: Limit of the longer side in pixels, 1 … 65500; None for no limit. [None]
        square: Crop the central square. [False]
        enlarge: Enlarge smaller images to `short_side`, or to `long_side` if that is None. [False]
        filter: "bicubic", "bilinear" or "lanczos", all antialiased. ["bicubic"]
        format: "jpeg", "webp" (lossy), "png", or "npy" (exact values, uint8 or uint16 [H, W, C], 1 to 16 channels).
            "keep" keeps these formats, and converts others to PNG. It copies a file that needs no change byte for byte,
            with its metadata, except for the seek table. ["jpeg"]
        quality: Quality of a lossy format, 1 … 100. [90]
        subsampling: Chroma subsampling of JPEG: "4:4:4", "4:2:2" or "4:2:0". ["4:2:0"]
        seek_tables: JPEGs that get a seek table, for faster crops: the "encoded" ones, "all" (copied files grow by
            1 %), or "none". Tables need the native kernel. ["encoded"]
        max_pixels: Images with more pixels are quarantined, as are those over the limits of memory and scans that
            follow from it: 110 million pixels take up to 0.99 GB. [110 million]
        annotations: The masks among the parts, and the places of boxes and keypoints, so that they follow the pixels. A
            table's mask column, a COCO, YOLO or VOC set and a shardflow dataset declare theirs. Other parts are kept
            byte for byte.
        shuffle: Whether to shuffle the inputs of "train" before they are divided into shards. Other splits keep the
            order of the source: a folder's paths sorted, a table's rows.
        seed: Seed of the shuffle.
        shard_samples: Inputs per shard, 1 or more; the last shard of a split may have fewer.
        max_errors: Number of inputs that may be left out: quarantined, or skipped because their kind is unsupported.
            With more, nothing is committed.
        workers: Number of processes, 1 or more; None for one per core.
        executor: "processes"; "ray" for the nodes of a Ray cluster, which must reach `src` and `dst` by the same names;
            or "serial" for this process.
        ray_address: Address of the cluster, such as "auto" or "ray://head:10001"; None for one on this machine.
        storage_options: Options of fsspec's file system for `dst`, if the environment does not provide them. They apply
            to a `src` of the same scheme too.
        progress: Called with the `Progress` now and then, in this thread; True for a progress bar, also in a notebook.

    Raises:
        ConfigError: An argument is wrong, `src` has no images or is not a source, or `dst` has other files.
        DatasetExistsError: `dst` is a dataset.
        PackIncompleteError: More than `max_errors` inputs cannot be packed, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.

    Example:
        >>> report = shardflow.pack("photos/", "out/", short_side=256)
        >>> report.inputs == report.packed + report.quarantined + report.skipped
        True
    """
    recipe = make_recipe(
        preset,
        short_side=short_side,
        long_side=long_side,
        square=square,
        enlarge=enlarge,
        filter=filter,
        format=format,
        quality=quality,
        subsampling=subsampling,
        seek_tables=seek_tables,
        max_pixels=max_pixels,
    )
    runner = make_executor(executor, workers, ray_address)
    sharding, max_errors = new_sharding(shard_samples, seed, shuffle), check_integer("max_errors", max_errors, 0)
    started = time.monotonic()
    ledger = Ledger(dst, storage_options)
    ledger.refuse_dataset()
    with plan_pack(src, ledger, recipe, sharding, annotations, max_errors) as plan:
        plan.source.refuse_skipped(max_errors)  # before the destination is made
        with ledger.storage.exclusive_writer() as writer:
            warn_of_undeclared(plan.source, plan.recipe.annotations)
            _warn_of_own_classes(plan.source)
            return carry_out(plan, writer, runner, progress, started)


def _warn_of_own_classes(source: Source) -> None:
    """Warn of a dataset for evaluation alone, whose numbers of classes may not be those of a trained model."""
    if source.has_own_classes and TRAIN not in source.splits and not are_numbers(source.classes or ()):
        split, first = min(source.splits), (source.classes or ("",))[0]
        message = (
            "only the split %s is packed, so classes are numbered by its labels, from %r as 0; for a model of another"
        )
        logger.warning(f"{message} dataset, pass its classes in order: --classes FILE or classes=", split, first)


def new_sharding(shard_samples: int, seed: int, shuffle: bool) -> Sharding:
    """Return the sharding of a dataset without inputs."""
    shard_samples = check_integer("shard_samples", shard_samples, 1)
    return Sharding(
        shard_samples=shard_samples, shuffle=bool(shuffle), seed=check_integer("seed", seed), jobs={}, inputs={}
    )


@contextlib.contextmanager
def plan_pack(
    src: Any,
    ledger: Ledger,
    recipe: Recipe,
    sharding: Sharding,
    annotations: Annotations | None,
    max_errors: int = 0,
) -> Iterator[PackPlan]:
    """Plan a pack, or its dry run; the source is open within the context."""
    if not isinstance(annotations, Annotations | None):
        raise ConfigError(f"annotations must be shardflow.annotations.Annotations, found {type(annotations).__name__}")
    declared = annotations or NOTHING
    options = shared_options(src, ledger.url, ledger.storage_options)
    with list_source(src, options, parts=declared.parts or None) as source:
        samples = SampleRecipe(image=recipe, annotations=source.annotations.joined(declared))
        refuse_absent_images(source, samples.annotations)
        yield PackPlan.of(source, ledger, samples, sharding, max_errors=max_errors)
