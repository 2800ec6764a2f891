from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import DecodeError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.formats.coordinates import Coordinates
from shardflow.preview.annotation_overlay import PALETTE, draw_annotations, draw_arrays
from shardflow.preview.contact_sheet import sample_tiles
from shardflow.preview.html_page import write_page
from shardflow.preview.sample_reader import SampleReader
from tests.helpers.folders import encoded, write_tree

DECLARED = Annotations(
    masks=("mask.png",),
    boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels"}),
    keypoints=Keypoints("json", "points[]", "xyv"),
)
CONTENT = {
    "boxes": [[40, 20, 160, 80], [0, 0, 0, 0]],
    "labels": [2, 7],
    "points": [[[100, 50, 2], [180, 90, 0]], [[0, 0, 0], [20, 80, 1]]],
}


def _rgb(number: int) -> tuple[int, ...]:
    return tuple(int(PALETTE[number][at : at + 2], 16) for at in (1, 3, 5))


def _mask(values: Any) -> bytes:
    return encoded(Image.fromarray(values), "PNG")


def test_annotations_are_drawn_where_they_are() -> None:
    """Boxes and points are drawn at their places in a picture of another size, in the colours of their labels."""
    mask = np.zeros((100, 200), np.uint8)
    mask[:20, :30] = 2
    parts = {"mask.png": _mask(mask), "json": json.dumps(CONTENT).encode()}
    picture = Image.new("RGB", (100, 50), "white")
    drawn, detail = draw_annotations(picture, (200, 100), parts, DECLARED)
    pixels = {at: drawn.getpixel(at) for at in [(20, 10), (79, 39), (50, 25), (10, 40), (90, 45), (35, 25), (99, 0)]}
    assert pixels == {
        (20, 10): _rgb(2),  # corners of the box of label 2
        (79, 39): _rgb(2),
        (50, 25): _rgb(2),  # its visible point
        (10, 40): _rgb(7),  # the other box was cut off, its point is there
        (90, 45): (255, 255, 255),  # a point that is not there
        (35, 25): (255, 255, 255),
        (99, 0): (255, 255, 255),
    }
    masked = np.asarray(drawn)[5, 5]
    assert np.abs(masked - (255 + np.array(_rgb(1))) / 2).max() <= 1
    assert detail == "1 box"
    assert picture.getcolors() == [(5000, (255, 255, 255))]


@pytest.mark.parametrize(
    "values",
    [
        np.arange(20_000, dtype=np.uint16).reshape(100, 200),
        np.eye(100, 200, dtype=bool),
        np.zeros((100, 200, 3), np.uint8),
    ],
    ids=["depth", "bilevel", "colours"],
)
def test_masks_of_any_kind(values: Any) -> None:
    """A depth is one colour of many strengths; bilevel masks and colours are drawn as well."""
    declared = Annotations(masks=("mask.png",))
    drawn, detail = draw_annotations(
        Image.new("RGB", (50, 25), "white"), (200, 100), {"mask.png": _mask(values)}, declared
    )
    pixels = np.asarray(drawn).astype(int)
    assert detail == ""
    assert (pixels != 255).any()
    if values.dtype == np.uint16:
        assert (np.diff(pixels[:, 0, 2]) <= 0).all()
        assert len(np.unique(pixels[..., 2])) > 10


def test_what_cannot_be_drawn_is_said() -> None:
    """A sample whose annotations are not what is declared is an error, not a picture without them."""
    for parts in ({"mask.png": _mask(np.zeros((1, 1), np.uint8))}, {"mask.png": b"", "json": b"{}"}):
        with pytest.raises(DecodeError):
            draw_annotations(Image.new("RGB", (9, 9)), (9, 9), parts, DECLARED)


def test_sheet_page_and_info_have_them(tmp_path: Path) -> None:
    """Tiles are drawn on, or say what is wrong with the annotations; page and info name and count them."""
    files = {}
    for number in range(2):
        files[f"{number}.jpg"] = encoded(Image.new("RGB", (200, 100), "white"), "JPEG")
        files[f"{number}.mask.png"] = _mask(np.zeros((100, 200), np.uint8))
        files[f"{number}.json"] = json.dumps(CONTENT).encode()
    source = write_tree(tmp_path / "src", files)
    sf.pack(source, tmp_path / "dst", annotations=DECLARED, short_side=50, executor="serial")
    dataset = sf.open(tmp_path / "dst")
    samples = list(SampleReader(dataset, "train").samples([0, 1]))
    samples[1].parts["json"] = b"{"
    drawn, broken = sample_tiles(samples, None, DECLARED)
    assert drawn.detail.endswith("1 box")
    assert drawn.picture is not None
    assert drawn.picture.getpixel((50, 25)) == _rgb(2)
    assert "part 'json' is not JSON" in broken.problem
    write_page(dataset, tmp_path / "page.html", split="train", count=2, findings=None)
    page = (tmp_path / "page.html").read_text()
    assert "json:boxes:xyxy; 4" in page
    assert "boxes while packing" not in page
    printed = CliRunner().invoke(shardflow, ["info", str(tmp_path / "dst")]).output
    for line in ("masks         mask.png; 2", "boxes         json:boxes:xyxy; 4", "keypoints     json:points[]:xyv; 4"):
        assert line in printed
    as_json = json.loads(CliRunner().invoke(shardflow, ["info", str(tmp_path / "dst"), "--json"]).output)
    assert Annotations.from_json(as_json["annotations"]) == DECLARED


def test_masks_of_boxes_are_drawn() -> None:
    """Polygons and runs of a sample, and the masks that a loader makes of them, have a colour for each object."""
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy", fields={"masks": "segments:mask"}))
    left, right = [[0, 0, 24, 0, 24, 48, 0, 48]], {"size": [48, 96], "counts": [48 * 72, 48 * 24]}
    content = {"boxes": [[0, 0, 24, 48], [72, 0, 96, 48]], "segments": [left, right]}
    picture = Image.new("RGB", (96, 48))
    stored = draw_annotations(picture, picture.size, {"json": json.dumps(content).encode()}, declared)
    masks = np.zeros((2, 48, 96), np.uint8)
    masks[0, :, :24] = masks[1, :, 72:] = 1
    loaded = draw_arrays(picture, [], Coordinates(np.array(content["boxes"]), {"masks": masks}, None))
    for drawn in (stored, loaded):
        assert drawn.detail == "2 boxes"
        for x, number in ((12, 0), (84, 1)):
            assert drawn.picture.getpixel((x, 24)) == tuple(round(value / 2) for value in _rgb(number))
        assert drawn.picture.getpixel((48, 24)) == (0, 0, 0)
