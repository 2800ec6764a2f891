"""The fields of a batch: their names and origins, checked against the samples of a split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shardflow._validation import did_you_mean
from shardflow.dataset.open_dataset import Dataset, Split
from shardflow.dataset.shard_rows import ShardRows
from shardflow.errors import ConfigError, DeadlineError, ShardflowError, TransientError
from shardflow.formats.annotations import Annotations
from shardflow.formats.columns import COMPUTED_FIELDS
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import CLASS_PART, LABEL_PARTS
from shardflow.geometry.objects import BOXES, KEYPOINTS, CroppedBoxes
from shardflow.order.keyed_rng import I64

from .annotation_fields import AnnotationFields
from .column_fields import ColumnFields, Filled
from .decoders.decoder import Decoder
from .padding import ONE_SIZE, PADDING_FIELDS
from .source import IMAGES
from .tv_sample import check_movable

CROP_FIELDS = ("flipped", "crop")
"""The fields that describe how the decoder cropped the images."""


_CAPTIONS = ("caption", "captions", "text")


def resolve_fields(
    given: Sequence[str | CroppedBoxes | Filled] | None,
    dataset: Dataset,
    split: Split,
    drawn: Callable[[], I64],
    *,
    pad: bool,
) -> tuple[tuple[str, ...], AnnotationFields, ColumnFields]:
    """Return the fields of a batch, by default image and label, with `valid` for a padded tail; and their origins.

    `drawn` returns the numbers of the samples that an epoch can have. The parts of samples are taken from the index of
    the first shard, so that no tar is opened.

    Raises:
        ConfigError: Names repeat, the first shard's samples lack a part, or the dataset lacks a column or some of its
            values.
    """
    options = list(given) if isinstance(given, Collection) else []
    rules = [option for option in options if isinstance(option, CroppedBoxes)]
    filled = {option.name: option.default for option in options if isinstance(option, Filled)}
    fields = [
        BOXES if isinstance(each, CroppedBoxes) else each.name if isinstance(each, Filled) else each for each in options
    ]
    if isinstance(given, str):
        raise ConfigError(f"fields must be a list or tuple of names, such as ({given!r},), found the text {given!r}")
    is_list = given is None or isinstance(given, Collection)
    if not is_list or not all(isinstance(field, str) for field in fields) or len(set(fields)) != len(fields):
        raise ConfigError(f"fields must be different names, such as ('image', 'label'), found {given!r}")
    rows = _first_rows(split)
    parts = None if rows is None else rows.parts()
    if given is None:
        label = "key" if dataset.classes is None else "label"
        if label == "label" and parts is not None and parts.intersection(LABEL_PARTS) != {CLASS_PART}:
            label = "labels" if parts.intersection(LABEL_PARTS) else "key"  # samples with several classes; a test set
        fields = ["image", label, *["valid"] * pad]
    annotations = AnnotationFields(fields, dataset.manifest.annotations, *rules[:1] or [CroppedBoxes()])
    if "image" not in fields and annotations.names:
        raise ConfigError(
            f"fields {', '.join(annotations.names)} follow the crops of the images; add 'image', or name the part "
            f"{annotations.parts[annotations.names[0]]!r} to get its bytes or values unchanged"
        )
    try:
        columns = ColumnFields(fields, split, filled, parts, drawn)
    except ConfigError as error:
        raise ConfigError(f"{dataset.url}, split {split.name!r}: {error}") from None
    if parts is not None:
        for field in fields:
            known = field in annotations.names or field in columns
            if not known and (problem := _problem(field, parts, dataset, split)) is not None:
                raise ConfigError(f"{dataset.url}, split {split.name!r}: {problem}")
    return tuple(fields), annotations, columns


def check_image_fields(
    fields: Sequence[str], annotated: Sequence[str], decoder: Decoder, split: Split, *, samples: int, transformed: bool
) -> None:
    """Check that the fields about images fit the decoder; ConfigError if not.

    Unless the decoder or transform makes images one size, the first `samples` images of the first shard must have one.
    """
    views, padding = bool(decoder.views), decoder.padding
    if transformed and annotated:
        check_movable(annotated)
    if "image" not in fields and (found := [field for field in CROP_FIELDS if field in fields]):
        raise ConfigError(f"{' and '.join(found)} describe the crops of images; add 'image' to the fields")
    found = [field for field in PADDING_FIELDS if field in fields]
    if found and ("image" not in fields or views):
        reason = "the images of a MultiView have several sizes" if views else "'image' is not among the fields"
        raise ConfigError(f"{' and '.join(found)} cannot be fields: {reason}; leave them out")
    if padding.patch is None and (packed := [field for field in ("cu_seqlens", "positions") if field in fields]):
        raise ConfigError(f"{' and '.join(packed)} need patches: add 'image', and sampler=samplers.TokenBudget(...)")
    if "pixel_mask" in found and not padding.stack:
        raise ConfigError("pixel_mask needs padded images, but stack=False returns a list; leave it out")
    must_be_equal = padding.stack and padding.pad_to_multiple_of is None and "image" in fields
    if must_be_equal and decoder.keeps_sizes and not transformed and (rows := _first_rows(split)) is not None:
        sizes = {(width, height) for width, height in rows.image_sizes()[:samples].tolist() if width and height}
        if len(sizes) > 1:
            raise ConfigError(
                f"images of sizes {sorted(sizes)[:3]} (width, height) cannot be stacked; choose {ONE_SIZE}"
            )


def _first_rows(split: Split) -> ShardRows | None:
    """Return the rows of the first shard; None if its index cannot be read.

    Raises:
        DeadlineError, TransientError: The store does not answer: the first batch would wait in vain too.
    """
    try:
        return split.reader.rows(0) if len(split.shards) else None
    except (DeadlineError, TransientError):
        raise
    except ShardflowError:  # raised again when the shard is read
        return None


def _problem(field: str, parts: set[str], dataset: Dataset, split: Split) -> str | None:
    """Return why samples with these parts lack a field; None if they have it."""
    part = field
    if field == "image":
        is_there, part, remedy = bool(parts & IMAGE_PARTS), "jpg", "; leave 'image' out of fields"
    elif field == "label":
        is_there, part = CLASS_PART in parts, CLASS_PART
        remedy = "; use 'labels'" if parts.intersection(LABEL_PARTS) else "; leave 'label' out, or pack with labels"
        remedy += "; `columns.compute` makes a label in the json a column of another name" * ("json" in parts)
    elif field == IMAGES:
        is_there = bool(dataset.manifest.annotations.images)
        remedy = "; it declares no further images, as `shardflow pack SRC DST --image img1.jpg` does"
    elif field == "labels":
        is_there, part = bool(parts.intersection(LABEL_PARTS)), CLASS_PART
        remedy = "; leave 'labels' out, or pack with labels"
        if is_there and dataset.classes is None:
            return "the field 'labels' needs a dataset with class names; use 'label'"
    else:
        is_there = field in COMPUTED_FIELDS or field in parts
        remedy = "" if is_there else _missing_part(field, parts, dataset, split)
    return None if is_there else f"field {field!r}: no part {part!r} among {', '.join(sorted(parts))}{remedy}"


def _missing_part(field: str, parts: set[str], dataset: Dataset, split: Split) -> str:
    """Return the remedy for a field that is neither computed nor a part."""
    if field in _CAPTIONS and "txt" in parts:
        return "; captions are the part 'txt', unless `shardflow.columns.add` added a column"
    if (remedy := _undeclared(field, parts, dataset.manifest.annotations)) is not None:
        return remedy
    names = [*COMPUTED_FIELDS, *dataset.manifest.columns]
    hint = did_you_mean(field, [*names, *parts])
    return f"{hint}; fields are {', '.join(names)}, and any part{split.json_remedy(field)}"


def _undeclared(field: str, parts: set[str], declared: Annotations) -> str | None:
    """Return the remedy for a field of annotations that are not declared; None for another field."""
    if field.startswith("box_") and declared.boxes is not None:
        return (
            f"; the fields of its boxes are {', '.join(declared.boxes.fields) or 'none'}; declare others when packing"
        )
    if field == BOXES or field.startswith("box_"):
        return "; it declares no boxes, as `shardflow pack SRC DST --boxes json:boxes:xyxy` does"
    if field == KEYPOINTS:
        return "; it declares no keypoints, as `shardflow pack SRC DST --keypoints json:keypoints:xyv` does"
    if f"{field}.png" in parts:
        part = f"{field}.png"
        return f"; it does not declare {part} a mask, as `shardflow pack SRC DST --mask {part}` does"
    return None
