from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
import torch
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

import shardflow as sf
from shardflow._masks import mask_values
from shardflow._pillow import map_codec_errors
from shardflow.cli.main import shardflow
from shardflow.cli.output import operation_counts
from shardflow.errors import ConfigError, DecodeError, PackIncompleteError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.formats.coordinates import read_coordinates
from shardflow.packing import sample_recipe
from shardflow.packing.image.encoded_image import Geometry
from shardflow.packing.recipe import Recipe
from shardflow.packing.sample_recipe import SampleRecipe, transform_mask, transform_parts
from tests.helpers.examples import examples
from tests.helpers.folders import contents, encoded, photo, png16, png_chunk, quarantined, stored, turned, write_tree
from tests.helpers.jobs import preview
from tests.helpers.masks import resize_mask

HALF = Geometry((200, 100), 1, resized=(100, 50), window=(25, 0, 75, 50))
"""The middle square of a wide picture, at half its size."""


def _moved(content: Any, boxes: str | None, keypoints: str | None = None) -> Any:
    declared = Annotations(
        boxes=Boxes.parse(boxes) if boxes else None, keypoints=Keypoints.parse(keypoints) if keypoints else None
    )
    return json.loads(transform_parts({"json": json.dumps(content).encode()}, None, HALF, declared)[0]["json"])


CONTENT: Any = {
    "boxes": [[50, 0, 150, 100], [0, 10, 70, 30]],
    "objects": [{"bbox": [60, 20, 10, 40], "keypoints": [[60, 20], [40, 20]], "id": [1, 2, 3, 4]}],
    "bbox": [[60, 20, 10, 40]],
    "keypoints": [60, 20, 2, 0, 0, 0],
    "size": [200, 100],
}


@pytest.mark.parametrize(
    ("boxes", "keypoints", "changed"),
    [
        ("json:boxes:xyxy", None, {"boxes": [[0, 0, 50, 50], [0, 5, 10, 15]]}),
        ("json:bbox:xywh", "json:keypoints:xyv", {"bbox": [[5, 10, 5, 20]], "keypoints": [5, 10, 2, 0, 0, 0]}),
        ("json:boxes[]:cxcywh", None, {"boxes": [[25, 25, 50, 50], [0, 0, 0, 0]]}),
        (
            "json:objects[].bbox:xywh",
            "json:objects[].keypoints:xy",
            {"objects": [{"bbox": [5, 10, 5, 20], "keypoints": [[5, 10], [-5, 10]], "id": [1, 2, 3, 4]}]},
        ),
    ],
)
def test_coordinates_follow(boxes: str, keypoints: str | None, changed: Any) -> None:
    """Boxes and keypoints move with the image where they are declared, and everything else stays, whatever its name."""
    content = CONTENT if "cxcywh" not in boxes else {**CONTENT, "boxes": [[100, 50, 120, 100], [20, 10, 60, 20]]}
    assert _moved(content, boxes, keypoints) == {**content, **changed}


def test_fractions_follow() -> None:
    """Fractions of the image are fractions of the packed image afterwards."""
    content = {"boxes": [[0.25, 0, 0.5, 1]], "points": [[0.3, 0.2]]}
    moved = _moved(content, "json:boxes:xyxy:normalized", "json:points:xy:normalized")
    assert moved == {"boxes": [[0, 0, 0.5, 1]], "points": [[0.1, 0.2]]}


SIDES = st.integers(1, 900)
BOXES = st.lists(
    st.tuples(*[st.floats(-50, 950).map(lambda at: round(at, 3))] * 4).map(
        lambda at: [min(at[0], at[2]), min(at[1], at[3]), max(at[0], at[2]), max(at[1], at[3])]
    ),
    max_size=4,
)
TO_FORMAT: dict[str, Callable[[float, float, float, float], list[float]]] = {
    "xyxy": lambda *box: [*box],
    "xywh": lambda x1, y1, x2, y2: [x1, y1, x2 - x1, y2 - y1],
    "cxcywh": lambda x1, y1, x2, y2: [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1],
}


@given(
    stored=st.tuples(SIDES, SIDES),
    orientation=st.integers(1, 8),
    resized=st.tuples(SIDES, SIDES),
    crop=st.tuples(*[st.floats(0, 0.49)] * 4),
    boxes=BOXES,
    form=st.sampled_from([*TO_FORMAT]),
    normalized=st.booleans(),
)
@examples(150)
def test_moved_boxes_are_the_rectangles_of_the_geometry(
    stored: tuple[int, int],
    orientation: int,
    resized: tuple[int, int],
    crop: tuple[float, float, float, float],
    boxes: list[list[float]],
    form: str,
    normalized: bool,
) -> None:
    """In any format and units, a moved box is where its corners went, clipped; one outside has no area."""
    upright = stored[::-1] if orientation >= 5 else stored
    if normalized:  # others are refused, as pixels
        boxes = [[min(max(at, -side), 2 * side) for at, side in zip(box, upright * 2, strict=True)] for box in boxes]
    assume(normalized or not boxes or max(map(max, boxes)) > 1)
    left, top, right, bottom = (int(share * side) for share, side in zip(crop, resized * 2, strict=True))
    window = (left, top, resized[0] - right, resized[1] - bottom)
    geometry = Geometry(stored, orientation, resized, window)
    scale = (*upright, *upright) if normalized else (1, 1, 1, 1)
    content = {"b": [[at / side for at, side in zip(TO_FORMAT[form](*box), scale, strict=True)] for box in boxes]}
    declared = Annotations(boxes=Boxes("json", "b", form, normalized))
    parts = transform_parts({"json": json.dumps(content).encode()}, None, geometry, declared)[0]
    found = read_coordinates(declared, parts.get, geometry.size).boxes
    assert found is not None
    expected = [_clipped(box, upright, resized, window) for box in boxes]
    slack = 2e-3 + 1e-6 * max(resized)
    for got, wanted in zip(found.tolist(), expected, strict=True):
        # A box that barely touches the image may be lost or kept by a rounding; its area is nothing either way.
        thin = min(wanted[2] - wanted[0], wanted[3] - wanted[1]) < slack
        assert got == pytest.approx(wanted, abs=slack) or thin


def _clipped(
    box: list[float], upright: tuple[int, int], resized: tuple[int, int], window: tuple[int, int, int, int]
) -> tuple[float, ...]:
    """Return a box as it is in a window of the resized image, side by side; zeros where nothing of it is inside."""
    found = []
    for axis in (0, 1):
        begin, end = (at * resized[axis] / upright[axis] for at in (box[axis], box[axis + 2]))
        first, last = max(begin, window[axis]), min(end, window[axis + 2])
        if first > last or (first == last and begin < end):
            return 0, 0, 0, 0
        found.append((first - window[axis], last - window[axis]))
    return found[0][0], found[1][0], found[0][1], found[1][1]


def test_degenerate_boxes_keep_their_place() -> None:
    """A line or a point in the image stays one, up to its borders, in any format; one outside of the crop is zeros."""
    boxes = [[70, 10, 70, 30], [60, 20, 60, 20], [50, 0, 50, 100], [20, 10, 20, 30], [150, 99, 150, 99]]
    found = [[10, 5, 10, 15], [5, 10, 5, 10], [0, 0, 0, 50], [0, 0, 0, 0], [50, 49.5, 50, 49.5]]
    assert _moved({"boxes": boxes}, "json:boxes:xyxy") == {"boxes": found}
    for form in ("xywh", "cxcywh"):
        assert _moved({"boxes": [TO_FORMAT[form](*box) for box in boxes]}, f"json:boxes:{form}") == {
            "boxes": [TO_FORMAT[form](*box) for box in found]
        }


def test_cropped_boxes_keep_their_place() -> None:
    """A box outside of the crop becomes zeros, so that labels beside it stay in step; an empty list stays one."""
    assert _moved({"boxes": [[0, 0, 40, 40], [60, 0, 80, 20]], "labels": [7, 8]}, "json:boxes:xyxy") == {
        "boxes": [[0, 0, 0, 0], [5, 0, 15, 10]],
        "labels": [7, 8],
    }
    assert _moved([], "json:[].bbox:xywh", "json:[].keypoints:xyv") == []


@pytest.mark.parametrize("preset", ["original", "imagenet"])
def test_boxes_without_area_keep_their_place(tmp_path: Path, preset: str) -> None:
    """A line or a point is packed as one, where it lies; loading drops it with its label, unless all boxes are kept.

    One outside of the image becomes zeros, and is counted.
    """
    boxes = [[10, 10, 10, 30], [0, 0, 40, 40], [20, 20, 20, 20], [90, 8, 90, 8]]
    content = json.dumps({"boxes": boxes, "labels": [5, 6, 7, 8]}).encode()
    write_tree(tmp_path / "src", {"a.png": encoded(Image.new("RGB", (64, 64)), "PNG"), "a.json": content})
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels"}))
    report = sf.pack(tmp_path / "src", tmp_path / "dst", preset=preset, annotations=declared, executor="serial")
    assert (report.counts["boxes"], report.counts["boxes_outside"]) == (4, 1)
    assert "1 boxes outside of the packed image" in operation_counts(report.counts)
    (sample,) = sf.open(tmp_path / "dst")["train"]
    assert json.loads(sample["json"]) == {"boxes": [*boxes[:3], [0, 0, 0, 0]], "labels": [5, 6, 7, 8]}
    options = {"batch_size": 1, "decoder": sf.decoders.CenterCrop(64, resize=64), "shuffle": False, "num_workers": 0}
    for rule, kept in (
        (sf.annotations.CroppedBoxes(), [1]),
        (sf.annotations.CroppedBoxes(min_visibility=None), [0, 1, 2, 3]),
    ):
        ((_, found, labels),) = sf.Loader(tmp_path / "dst", fields=("image", rule, "box_labels"), **options)
        assert labels[0].tolist() == [5 + number for number in kept]
        assert found[0].tolist() == [[*boxes[:3], [0, 0, 0, 0]][number] for number in kept]


def test_what_is_not_declared_is_not_touched() -> None:
    """Parts that are not declared keep their bytes, whatever they are called and hold."""
    parts = {
        "json": b'{ "boxes":[[1, 2, 3]], "bbox": "a \\"box\\"" }',
        "txt": b"\xff",
        "meta.json": b"not even JSON",
        "mask.png": b"no image",
    }
    assert transform_parts(parts, None, HALF) == (parts, {})


def test_annotations_are_counted() -> None:
    """Masks, boxes and the keypoints that are there are counted; a kind without any is left out."""
    declared = Annotations(
        masks=("mask.png",), boxes=Boxes("json", "b", "xyxy"), keypoints=Keypoints("json", "k[]", "xyv")
    )
    mask = encoded(Image.new("L", (200, 100)), "PNG")
    content = {"b": [[0, 0, 9, 9], [60, 0, 70, 9]], "k": [[1, 2, 0, 3, 4, 1], [5, 6, 2, 7, 8, 2]]}
    for given_content, counts in (
        (content, {"masks": 1, "boxes": 2, "keypoints": 3, "boxes_outside": 1}),
        ({"b": [], "k": []}, {"masks": 1}),
        ({"b": [[40, 0, 201, 9], [40, 0, 203, 9]], "k": [[], []]}, {"masks": 1, "boxes": 2, "boxes_beyond": 1}),
    ):
        parts = {"mask.png": mask, "json": json.dumps(given_content).encode()}
        assert transform_parts(parts, None, HALF, declared)[1] == counts


def test_labels() -> None:
    """One class is the text of its number in `.cls`, several are a JSON list in `.labels.json`, none is no part."""
    assert transform_parts({}, 7, HALF)[0] == {"cls": b"7"}
    assert transform_parts({}, (3, 17), HALF)[0] == {"labels.json": b"[3, 17]"}
    assert transform_parts({}, (), HALF)[0] == {"labels.json": b"[]"}
    assert transform_parts({}, None, HALF)[0] == {}


@pytest.mark.parametrize(
    ("parts", "declared", "message"),
    [
        (
            {"json": b'{"boxes": [[1, 2, 3]]}'},
            "boxes:xyxy",
            r"part 'json': boxes: expected 4 numbers, found \[1, 2, 3\]",
        ),
        ({"json": b'{"boxes": [["1", 2, 3, 4]]}'}, "boxes:xyxy", "expected 4 numbers"),
        ({"json": b'{"boxes": 3}'}, "boxes:xyxy", "part 'json'"),
        ({"json": b'{"keypoints": [1, 2, 3, 4]}'}, "keypoints:xyv", "found 4 numbers"),
        ({"json": b'{"bbox": {"x": 1}}'}, "bbox:xywh", r"bbox: expected 4 numbers, found an object with 'x'"),
        ({"json": b'{"keypoints": {"x": 1}}'}, "keypoints:xy", "keypoints: expected a list"),
        ({"json": b'{"bbox": [1%s, 0, 1, 1]}' % (b"0" * 400)}, "bbox:xywh", "part 'json': bbox: int too large"),
        ({"json": b'{"boxes": [[1, 2'}, "boxes:xyxy", "part 'json' is not JSON"),
        ({"json": b"{}"}, "boxes:xyxy", "part 'json': the whole part: expected an object with 'boxes'"),
        ({"txt": b"{}"}, "boxes:xyxy", "has no json, which is declared"),
        ({"mask.png": b"no image"}, "mask.png", "part 'mask.png': not an image"),
        ({"json": b"{}"}, "mask.png", "has no mask.png, which is declared"),
        ({"png": b""}, None, "would be a second image"),
        ({"cls": b"1"}, None, "reserved for the labels"),
        ({"a/b": b""}, None, "names of parts are up to 16"),
        ({"seventeen.letters": b""}, None, "names of parts are up to 16"),
    ],
)
def test_invalid_parts(parts: dict[str, bytes], declared: str | None, message: str) -> None:
    """A part that is missing or not what is declared, or that no sample can have, is named with the reason."""
    annotations = Annotations()
    if declared == "mask.png":
        annotations = Annotations(masks=(declared,))
    elif declared is not None and declared.startswith("keypoints"):
        annotations = Annotations(keypoints=Keypoints.parse(f"json:{declared}"))
    elif declared is not None:
        annotations = Annotations(boxes=Boxes.parse(f"json:{declared}"))
    with pytest.raises(DecodeError, match=message):
        transform_parts(parts, None, HALF, annotations)


def _quarters(width: int, height: int) -> Image.Image:
    """A picture of four colours, by which its upright position is known."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 255
    pixels[: height // 2, width // 2 :, 0] = 255
    pixels[height // 2 :, : width // 2, 1] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize("square", [False, True])
def test_image_mask_and_boxes_stay_together(tmp_path: Path, orientation: int, square: bool) -> None:
    """After turning, resizing and cropping, the mask and the box mark what they marked in the upright picture."""
    upright = _quarters(120, 80)
    red = (np.asarray(upright) == (255, 0, 0)).all(-1)
    files = {
        "x.jpg": encoded(stored(upright, orientation), "JPEG", exif=turned(orientation), quality=95),
        "x.mask.png": encoded(Image.fromarray(red.astype(np.uint8) * 7), "PNG"),
        "x.json": json.dumps({"boxes": [[60, 0, 120, 40]]}).encode(),
        "x.txt": "a réd corner".encode(),
    }
    source = sf.sources.Folder(write_tree(tmp_path / "src", files), parts=("txt",))
    declared = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy"))
    sf.pack(
        source,
        tmp_path / "dst",
        annotations=declared,
        executor="serial",
        short_side=20,
        square=square,
        subsampling="4:4:4",
    )
    assert sf.open(tmp_path / "dst").manifest.annotations == declared
    (sample,) = sf.open(tmp_path / "dst")["train"]
    image = np.asarray(Image.open(io.BytesIO(sample["jpg"]))).astype(int)
    mask = np.asarray(Image.open(io.BytesIO(sample["mask.png"])))
    assert image.shape[:2] == mask.shape == ((20, 20) if square else (20, 30))
    is_red = (abs(image - (255, 0, 0)) < 100).all(-1)
    assert (is_red == (mask == 7)).mean() > 0.95
    assert set(np.unique(mask)) == {0, 7}
    ((left, top, right, bottom),) = json.loads(sample["json"])["boxes"]
    inside = np.zeros(mask.shape, bool)
    inside[round(top) : round(bottom), round(left) : round(right)] = True
    assert (inside == (mask == 7)).all()
    assert sample["txt"].decode() == "a réd corner"


def test_a_mask_of_another_size_is_quarantined(tmp_path: Path) -> None:
    """A mask that does not fit its image, and an image that lacks a part, are quarantined and named."""
    mask = encoded(Image.new("L", (5, 5)), "PNG")
    files = {"a.jpg": photo(1), "b.jpg": photo(2), "c.jpg": photo(3), "a.mask.png": mask}
    files["c.mask.png"] = encoded(Image.new("L", (96, 64)), "PNG")
    source, declared = write_tree(tmp_path / "src", files), Annotations(masks=("mask.png",))
    report = sf.pack(source, tmp_path / "dst", annotations=declared, executor="serial", max_errors=2)
    assert (report.inputs, report.packed) == (3, 1)
    assert report.counts["masks"] == 1
    rows = quarantined(tmp_path / "dst")
    assert [(row["path"], row["stage"]) for row in rows] == [("a.jpg", "decode"), ("b.jpg", "read")]
    assert "has no mask.png" in rows[1]["reason"]
    assert "5x5" in rows[0]["reason"]


@pytest.mark.parametrize(("form", "warned"), [("xyxy", False), ("xywh", True)])
def test_boxes_of_another_format_reach_beyond_their_images(
    form: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Corners that are declared as widths and heights leave many images, which a warning counts."""
    files: dict[str, bytes] = {}
    for number in range(6):
        files[f"{number}.jpg"] = photo(number)  # 96 x 64
        boxes = [[60, 30, 90, 60], [1, 1, 20, 20]]
        files[f"{number}.json"] = json.dumps({"boxes": boxes}).encode()
    declared = Annotations(boxes=Boxes("json", "boxes", form))
    report = sf.pack(write_tree(tmp_path / "src", files), tmp_path / "dst", annotations=declared, executor="serial")
    assert report.packed == 6
    assert ("6 of 12 boxes reach beyond their image" in caplog.text) == warned
    assert "boxes_beyond" not in report.counts


def _annotated(folder: Path, count: int = 5) -> Path:
    """Images of 96x64 pixels with a mask, and a JSON with as many boxes as the number of the image."""
    files: dict[str, bytes] = {}
    for number in range(count):
        boxes = [[4 * at, 2 * at, 4 * at + 20, 2 * at + 20] for at in range(number)]
        files[f"{number}.jpg"] = photo(number)
        files[f"{number}.mask.png"] = encoded(Image.new("L", (96, 64), number), "PNG")
        files[f"{number}.json"] = json.dumps({"boxes": boxes, "labels": [*range(number)]}).encode()
    return write_tree(folder, files)


DECLARED = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels"}))
SETTINGS: dict[str, Any] = {"short_side": 32, "shard_samples": 2, "executor": "serial"}


def test_the_declaration_stays_with_the_dataset(tmp_path: Path) -> None:
    """Whatever is made of a dataset, or compared with it, has and uses the declaration that it was packed with."""
    src = _annotated(tmp_path / "src")
    a, b = tmp_path / "a", tmp_path / "b"
    sf.pack(src, a, annotations=DECLARED, **SETTINGS)
    assert sf.verify(a, sources=[src]) == []
    made = [a, *(tmp_path / name for name in ("again", "subset", "split", "synced", "merged", "folds/fold0"))]
    sf.pack(a, made[1], **SETTINGS)
    sf.subset(a, made[2], limit=2)
    sf.split(a, made[3], val=0.4)
    sf.sync(a, made[4])
    sf.merge([a, made[2]], made[5])
    sf.split_folds(a, tmp_path / "folds", folds=2)
    assert {name: sf.open(name).manifest.annotations for name in made} == dict.fromkeys(made, DECLARED)
    shard = sf.open(a).shards[1]
    before = (a / shard.name).read_bytes()
    (a / shard.name).chmod(0o644)
    (a / shard.name).write_bytes(before[:-1] + b"x")
    assert sf.repair(a, src, workers=1).repaired == (shard.name,)
    assert (a / shard.name).read_bytes() == before
    _annotated(src, 7)
    assert sf.extend(src, a, executor="serial").packed == 2
    sf.pack(_annotated(tmp_path / "all", 7), b, annotations=DECLARED, **SETTINGS)
    for at in (a, b):
        statistics = sf.open(at).manifest.statistics
        assert statistics is not None
        assert {name: statistics["train"].counts[name] for name in ("masks", "boxes")} == {"masks": 7, "boxes": 21}
    other = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy"))
    sf.pack(src, tmp_path / "other", annotations=other, **SETTINGS)
    assert sf.diff(a, tmp_path / "other").annotations == {"box fields": ("labels=labels", None)}
    with pytest.raises(ConfigError, match="declares the annotations"):
        sf.merge([a, tmp_path / "other"], tmp_path / "refused")
    plain = Image.new("L", (96, 64))
    with pytest.raises(ConfigError, match=r"declares.*annotations"):
        sf.extend(
            sf.sources.Collection([{"image": plain, "seg": plain}], mask="seg"), _plain(tmp_path), executor="serial"
        )


def _plain(tmp_path: Path) -> Path:
    sf.pack(write_tree(tmp_path / "photos", {"1.jpg": photo(1)}), tmp_path / "plain", **SETTINGS)
    return tmp_path / "plain"


def test_another_declaration_is_another_pack(tmp_path: Path) -> None:
    """A pack that was stopped goes on with its own declaration alone: shards of another one are packed again."""
    src = _annotated(tmp_path / "src")
    (src / "5.jpg").write_bytes(b"x")
    for name in ("5.json", "5.mask.png"):
        (src / name).write_bytes(b"x")
    dst = tmp_path / "dst"
    with pytest.raises(PackIncompleteError):
        sf.pack(src, dst, annotations=DECLARED, **SETTINGS)
    counted = {"annotations": DECLARED, "short_side": 32, "shard_samples": 2}
    assert preview(src, dst, **counted).finished == 3  # type: ignore[arg-type]
    unlabelled = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy"))
    assert preview(src, dst, **{**counted, "annotations": unlabelled}).finished == 0  # type: ignore[arg-type]
    sf.pack(src, dst, annotations=unlabelled, max_errors=1, **SETTINGS)
    sf.pack(src, tmp_path / "fresh", annotations=unlabelled, max_errors=1, **SETTINGS)
    assert contents(dst) == contents(tmp_path / "fresh")


def test_the_same_bytes_for_any_workers(tmp_path: Path) -> None:
    """Moved masks and boxes are the same, byte for byte, for any number of workers."""
    src = _annotated(tmp_path / "src")
    settings = {"short_side": 20, "square": True, "shard_samples": 2, "annotations": DECLARED}
    for name, executor in (("one", {"executor": "serial"}), ("two", {"workers": 2})):
        sf.pack(src, tmp_path / name, **settings, **executor)  # type: ignore[arg-type]
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_options_of_the_commands(tmp_path: Path) -> None:
    """`pack` and `index` take the declaration as texts, and refuse one that is none, or of parts that are not there."""
    src, dst = _annotated(tmp_path / "src"), tmp_path / "dst"
    declared = ["--mask", "mask.png", "--boxes", "json:boxes:xyxy", "--box-field", "labels=labels"]
    packed = CliRunner().invoke(shardflow, ["pack", str(src), str(dst), "--short-side", "32", *declared])
    assert packed.exit_code == 0, packed.output
    tars = [str(shutil.copytree(dst / "train", tmp_path / "tars")), "--to", str(tmp_path / "index")]
    indexed = CliRunner().invoke(shardflow, ["index", *tars, *declared])
    assert indexed.exit_code == 0, indexed.output
    for made in (dst, tmp_path / "index"):
        assert sf.open(made).manifest.annotations == DECLARED
    with pytest.raises(ConfigError, match=r"seg\.png,.*mask\.png"):
        sf.index(tars[0], tmp_path / "other", annotations=Annotations(masks=("seg.png",)))
    for wrong in (["--box-field", "a=b"], [*declared, "--box-field", "labels"]):
        assert CliRunner().invoke(shardflow, ["pack", str(src), str(tmp_path / "x"), *wrong]).exit_code == 2


def test_missing_parts_are_seen_before_packing(tmp_path: Path) -> None:
    """A dry run names the inputs that lack a declared part, as the pack's quarantine does."""
    table = write_tree(
        tmp_path, {"1.jpg": photo(1), "t.jsonl": b'{"image": "1.jpg", "boxes": []}\n{"image": "1.jpg"}\n'}
    )
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy"))
    bad = preview(table / "t.jsonl", tmp_path / "dst", annotations=declared).bad
    with pytest.raises(PackIncompleteError):
        sf.pack(table / "t.jsonl", tmp_path / "dst", annotations=declared, executor="serial")
    (row,) = quarantined(tmp_path / "dst")
    assert [each._asdict() for each in bad] == [row]
    assert row["reason"] == "has no json, which is declared"


def test_a_misspelt_declaration_is_named(tmp_path: Path) -> None:
    """Where no input has what is declared, the error names the options, and does not doubt the folder."""
    declared = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxs", "xyxy"))
    with pytest.raises(PackIncompleteError, match=r"; check the parts that --mask, --boxes and --keypoints name$"):
        sf.pack(_annotated(tmp_path / "src", 2), tmp_path / "dst", annotations=declared, **SETTINGS)


def test_undeclared_annotations_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning names the option for a part that looks like a mask, one for boxes; declared ones need none."""
    src = _annotated(tmp_path / "src", 3)
    sf.pack(sf.sources.Folder(src, parts=("mask.png", "json")), tmp_path / "a", **SETTINGS)
    warned = sorted((record.getMessage() for record in caplog.records), reverse=True)
    assert len(warned) == 2
    assert "--mask mask.png" in warned[0]
    assert "--boxes json:PATH:FORMAT" in warned[1]
    sample = sf.open(tmp_path / "a")["train"][0]
    assert sample["mask.png"] in {(src / f"{number}.mask.png").read_bytes() for number in range(3)}
    caplog.clear()
    sf.pack(src, tmp_path / "b", annotations=DECLARED, **SETTINGS)
    assert caplog.records == []


def test_masks_of_collections_and_tables_are_declared(tmp_path: Path) -> None:
    """A target that is an image, and the column that is named as the mask, are masks without a further word."""
    photos = [(Image.new("RGB", (40, 30)), Image.new("L", (40, 30)))]
    sf.pack(photos, tmp_path / "a", **SETTINGS)
    files = {"1.jpg": photo(1), "1.png": encoded(Image.new("L", (96, 64)), "PNG"), "t.csv": b"image,m\n1.jpg,1.png\n"}
    sf.pack(sf.sources.Table(write_tree(tmp_path, files) / "t.csv", mask="m"), tmp_path / "b", **SETTINGS)
    for name in ("a", "b"):
        assert sf.open(tmp_path / name).manifest.annotations == Annotations(masks=("mask.png",))


WIDE = Geometry((400, 200), 1, resized=(200, 100), window=(0, 0, 200, 100))
CUT = Geometry((200, 400), 6, resized=(200, 100), window=(50, 0, 150, 100))

LABELS = (np.arange(200 * 400).reshape(200, 400) // 7 % 251).astype(np.uint8)
PALETTE = [value for entry in range(256) for value in (entry, 255 - entry, entry // 2)]


MASKS: dict[str, npt.NDArray[Any]] = {
    "8 bits": LABELS,
    "16 bits": LABELS.astype(np.uint16) * 257,
    "palette": LABELS,
    "bilevel": LABELS > 99,
    "colours": np.stack([LABELS, LABELS // 2, LABELS * 0], -1),
}


@pytest.mark.parametrize("case", MASKS)
@pytest.mark.parametrize("geometry", [WIDE, CUT], ids=["whole", "cut"])
def test_masks(case: str, geometry: Geometry) -> None:
    """A mask keeps its values, its depth and its palette, and each pixel takes the value of the nearest one."""
    values = MASKS[case]
    image = Image.fromarray(values)
    if case == "palette":
        image.putpalette(PALETTE)
    made = Image.open(io.BytesIO(transform_mask(encoded(image, "PNG"), geometry)))
    left, top, right, bottom = geometry.crops.shown[0].tolist()
    columns = (left + (np.arange(geometry.size[0]) + 0.5) * (right - left) / geometry.size[0]).astype(int)
    rows = (top + (np.arange(geometry.size[1]) + 0.5) * (bottom - top) / geometry.size[1]).astype(int)
    assert (np.asarray(made) == values[np.ix_(rows, columns)]).all()
    assert made.format == "PNG"
    assert made.mode == image.mode
    assert made.getpalette() == image.getpalette()


@given(st.tuples(st.integers(1, 200), st.integers(1, 200)), st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_masks_are_resized_around_the_centres_of_pixels(upright: tuple[int, int], size: tuple[int, int]) -> None:
    """Each pixel of a whole mask that is packed is the one at its centre, by exact arithmetic."""
    values = np.arange(upright[0] * upright[1], dtype=np.uint16).reshape(upright[::-1])
    geometry = Geometry(upright, 1, resized=size, window=(0, 0, *size))
    made = np.asarray(Image.open(io.BytesIO(transform_mask(encoded(Image.fromarray(values), "PNG"), geometry))))
    expected = resize_mask(torch.from_numpy(values.astype(np.int32)), size[1], size[0])
    np.testing.assert_array_equal(made, expected.numpy())


@pytest.mark.parametrize("format_name", ["BMP", "GIF", "TIFF"])
def test_masks_in_other_formats(format_name: str) -> None:
    """Whatever lossless format a mask comes in, it leaves as a PNG with the same values."""
    made = Image.open(io.BytesIO(transform_mask(encoded(Image.fromarray(LABELS), format_name), WIDE)))
    assert (np.asarray(made) == LABELS[1::2, 1::2]).all()


def _with_depth(bits: int) -> bytes:
    data = encoded(Image.new("1", (400, 200)), "PNG")
    head = data[12:24] + bytes([bits, 0]) + data[26:29]
    return data[:12] + head + zlib.crc32(head).to_bytes(4, "big") + data[33:]


def _short_palette() -> bytes:
    """Return a mask whose palette has 4 colours, and a pixel of value 255 beyond them."""
    mask = Image.fromarray(np.where(LABELS == 250, 255, LABELS % 4).astype(np.uint8))
    mask.putpalette(PALETTE)
    data = encoded(mask, "PNG")
    begin, end = data.index(b"PLTE") - 4, data.index(b"IDAT") - 4
    return data[:begin] + png_chunk(b"PLTE", bytes(PALETTE[:12])) + data[end:]


def _tiff(values: npt.NDArray[Any], **how: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **{"photometric": "minisblack", **how})
    return buffer.getvalue()


UNFIT = {
    "lossy": (encoded(Image.fromarray(LABELS), "JPEG"), "not an image in one of the formats PNG"),
    "of another size": (
        encoded(Image.fromarray(LABELS[:100]), "PNG"),
        "the mask has 400x100 pixels, the upright image 400x200",
    ),
    "translucent": (encoded(Image.fromarray(LABELS).convert("LA"), "PNG"), "mode LA has no plain label values"),
    "floating point": (encoded(Image.new("F", (400, 200)), "TIFF"), "mode F has no plain label values"),
    "cut short": (encoded(Image.fromarray(LABELS), "PNG")[:300], "."),
    "empty": (b"", "the file is empty"),
    "2 bits": (_with_depth(2), "no plain label values"),  # Pillow would spread label 1 to 85
    "4 bits": (_with_depth(4), "no plain label values"),  # to 17
    "4 bits, TIFF": (_tiff(LABELS % 16, bitspersample=4), "no plain label values"),
    "beyond its palette": (_short_palette(), "the value 255 is beyond its palette of 4 colours"),
    "0 is white": (_tiff(LABELS, photometric="miniswhite"), "no plain label values"),  # Pillow would invert it
    "1 bit, 0 is white": (_tiff(LABELS > 99, photometric="miniswhite"), "no plain label values"),
    "signed": (_tiff(LABELS.astype(np.int8)), "no plain label values"),  # -1 would become 255
    "signed, 16 bits": (_tiff(LABELS.astype(np.int16)), "no plain label values"),
    "32 bits": (_tiff(LABELS.astype(np.uint32)), "no plain label values"),
    "RGBA": (encoded(Image.fromarray(LABELS).convert("RGBA"), "PNG"), "mode RGBA has no plain label values"),
    "CMYK": (encoded(Image.fromarray(LABELS).convert("CMYK"), "TIFF"), "mode CMYK has no plain label values"),
    "turned": (encoded(Image.fromarray(LABELS), "PNG", exif=turned(3)), "metadata rotate or mirror it"),
    "16 bits of colour": (png16(np.zeros((200, 400, 3), np.uint16), 2), "no plain label values"),  # cut to 8
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_masks(case: str) -> None:
    """A mask whose values or places could be wrong is refused rather than guessed at."""
    data, said = UNFIT[case]
    with pytest.raises(DecodeError, match=said):
        transform_mask(data, WIDE)
    with pytest.raises(DecodeError, match=said), map_codec_errors(DecodeError):  # as a loader reads it, where it lies
        mask_values(data, WIDE.upright)


def test_the_digest_names_the_geometry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where annotations are moved, how they are moved is a part of the digest; of an image alone it is not."""
    plain = SampleRecipe(image=Recipe())
    masks = SampleRecipe(image=Recipe(), annotations=Annotations(masks=("mask.png",)))
    before = plain.digest, masks.digest
    monkeypatch.setattr(sample_recipe, "_GEOMETRY_VERSION", 3)
    assert plain.digest == before[0] == Recipe().digest
    assert masks.digest != before[1]
