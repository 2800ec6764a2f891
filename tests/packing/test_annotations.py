from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import shardflow as sf
from shardflow.errors import DecodeError
from shardflow.packing.annotations import transform_mask, transform_parts
from shardflow.packing.image.geometry import Geometry
from tests.helpers.folders import encoded, photo, png16, quarantined, stored, turned, write_tree

HALF = Geometry(stored=(200, 100), orientation=1, box=(50.0, 0.0, 150.0, 100.0), size=(50, 50))
"""The middle square of a wide picture, at half its size."""


def _moved(**annotations: Any) -> Any:
    return json.loads(transform_parts({"json": json.dumps(annotations).encode()}, None, HALF)["json"])


def test_coordinates_follow() -> None:
    """Boxes, COCO's boxes and keypoints move with the image at any depth, and everything else stays."""
    moved = _moved(
        boxes=[[50, 0, 150, 100], [0, 10, 70, 30]],
        objects=[{"bbox": [60, 20, 10, 40], "keypoints": [[60, 20], [40, 20]], "id": [1, 2, 3, 4]}],
        bbox=[[60, 20, 10, 40]],
        keypoints=[60, 20, 2, 0, 0, 0],
        size=[200, 100],
    )
    assert moved == {
        "boxes": [[0, 0, 50, 50], [0, 5, 10, 15]],
        "objects": [{"bbox": [5, 10, 5, 20], "keypoints": [[5, 10], [-5, 10]], "id": [1, 2, 3, 4]}],
        "bbox": [[5, 10, 5, 20]],
        "keypoints": [5, 10, 2, 0, 0, 0],
        "size": [200, 100],
    }


def test_cropped_boxes_keep_their_place() -> None:
    """A box outside of the crop becomes zeros, so that labels beside it stay in step; an empty list stays one."""
    assert _moved(boxes=[[0, 0, 40, 40], [60, 0, 80, 20]], labels=[7, 8]) == {
        "boxes": [[0, 0, 0, 0], [5, 0, 15, 10]],
        "labels": [7, 8],
    }
    assert _moved(boxes=[], bbox=[], keypoints=[]) == {"boxes": [], "bbox": [], "keypoints": []}


def test_other_json_is_not_touched() -> None:
    """JSON without coordinates keeps its bytes, and so do all other parts."""
    parts = {"json": b'{ "caption":"a \\"box\\"" }', "txt": b"\xff", "meta.json": b"not even JSON"}
    assert transform_parts(parts, None, HALF) == parts


def test_labels() -> None:
    """One class is the text of its number in `.cls`, several are a JSON list in `.labels.json`, none is no part."""
    assert transform_parts({}, 7, HALF) == {"cls": b"7"}
    assert transform_parts({}, (3, 17), HALF) == {"labels.json": b"[3, 17]"}
    assert transform_parts({}, (), HALF) == {"labels.json": b"[]"}
    assert transform_parts({}, None, HALF) == {}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"json": b'{"boxes": [[1, 2, 3]]}'}, r"part 'json': boxes: expected 4 numbers, found \[1, 2, 3\]"),
        ({"json": b'{"boxes": [["1", 2, 3, 4]]}'}, "expected 4 numbers"),
        ({"json": b'{"boxes": 3}'}, "part 'json'"),
        ({"json": b'{"keypoints": [1, 2, 3, 4]}'}, "found 4 numbers"),
        ({"json": b'{"bbox": {"x": 1}}'}, r"bbox: expected a list, found \{'x': 1\}"),
        ({"json": b'{"keypoints": {"x": 1}}'}, "keypoints: expected a list"),
        ({"json": b'{"bbox": [1%s, 0, 1, 1]}' % (b"0" * 400)}, "part 'json': int too large"),
        ({"json": b'{"boxes": [[1, 2'}, "part 'json'"),
        ({"mask.png": b"no image"}, "part 'mask.png': not an image"),
        ({"png": b""}, "would be a second image"),
        ({"cls": b"1"}, "reserved for the labels"),
        ({"a/b": b""}, "names of parts are up to 16"),
        ({"seventeen.letters": b""}, "names of parts are up to 16"),
    ],
)
def test_invalid_parts(parts: dict[str, bytes], message: str) -> None:
    """A part that is not what its name says, or that no sample can have, is named with the reason."""
    with pytest.raises(DecodeError, match=message):
        transform_parts(parts, None, HALF)


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
    source = sf.Folder(write_tree(tmp_path / "src", files), parts=("mask.png", "json", "txt"))
    sf.pack(source, tmp_path / "dst", executor="serial", short_side=20, square=square, subsampling="4:4:4")
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
    source = sf.Folder(write_tree(tmp_path / "src", files), parts=("mask.png",))
    report = sf.pack(source, tmp_path / "dst", executor="serial", max_bad=2)
    assert (report.inputs, report.packed) == (3, 1)
    rows = quarantined(tmp_path / "dst")
    assert [(row["path"], row["stage"]) for row in rows] == [("a.jpg", "decode"), ("b.jpg", "read")]
    assert "lacks mask.png" in rows[1]["reason"]
    assert "5x5" in rows[0]["reason"]


WIDE = Geometry(stored=(400, 200), orientation=1, box=(0, 0, 400, 200), size=(200, 100))
CUT = Geometry(stored=(200, 400), orientation=6, box=(100, 0, 300, 200), size=(100, 100))

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
    left, top, right, bottom = geometry.box
    columns = (left + (np.arange(geometry.size[0]) + 0.5) * (right - left) / geometry.size[0]).astype(int)
    rows = (top + (np.arange(geometry.size[1]) + 0.5) * (bottom - top) / geometry.size[1]).astype(int)
    assert (np.asarray(made) == values[np.ix_(rows, columns)]).all()
    assert made.format == "PNG"
    assert made.mode == image.mode
    assert made.getpalette() == image.getpalette()


@pytest.mark.parametrize("format_name", ["BMP", "GIF", "TIFF"])
def test_masks_in_other_formats(format_name: str) -> None:
    """Whatever lossless format a mask comes in, it leaves as a PNG with the same values."""
    made = Image.open(io.BytesIO(transform_mask(encoded(Image.fromarray(LABELS), format_name), WIDE)))
    assert (np.asarray(made) == LABELS[1::2, 1::2]).all()


def _with_depth(bits: int) -> bytes:
    data = encoded(Image.new("1", (400, 200)), "PNG")
    head = data[12:24] + bytes([bits, 0]) + data[26:29]
    return data[:12] + head + zlib.crc32(head).to_bytes(4, "big") + data[33:]


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
    "16 bits of colour": (png16(np.zeros((200, 400, 3), np.uint16), 2), "no plain label values"),  # cut to 8
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_masks(case: str) -> None:
    """A mask whose values or places could be wrong is refused rather than guessed at."""
    data, said = UNFIT[case]
    with pytest.raises(DecodeError, match=said):
        transform_mask(data, WIDE)
