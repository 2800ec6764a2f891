"""The demo's steps, with few pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardflow
from shardflow.demo.pictures import draw
from shardflow.demo.scenes import SCENES
from shardflow.demo.steps import DemoResult, draw_samples, run_demo
from shardflow.demo.training import train
from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from tests.helpers.folders import write_tree
from tests.helpers.making import jpeg, make_dataset


def demo(output: Path, **options: Any) -> tuple[DemoResult, list[str]]:
    """Run the demo; return its result, and the lines that it reported."""
    lines: list[str] = []
    return run_demo(output, report=lambda step, line: lines.append(f"{step} {line}".strip()), **options), lines


def photos(root: Path, folders: dict[str, int]) -> Path:
    """Write photo-like pictures into folders below `root`."""
    names = [f"{folder}/{number}.jpg" for folder, count in folders.items() for number in range(count)]
    return write_tree(root, {name: jpeg(number, 90, 80) for number, name in enumerate(names)})


@pytest.mark.parametrize("name", SCENES)
def test_pictures_are_a_function_of_class_and_number(name: str) -> None:
    """The same numbers give the same picture, others another; all are larger than what packing makes of them."""
    first, again, other = draw(name, 0), draw(name, 0), draw(name, 1)
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
    assert first.mode == "RGB"
    assert min(first.size) > 256
    assert np.asarray(first).std() > 10


def test_whole_demo(tmp_path: Path) -> None:
    """Every step reports its result, and a net that had no time to learn is a failure."""
    result, lines = demo(tmp_path / "out", epochs=1, workers=1, pictures=(3, 1))
    assert [line.split()[0] for line in lines if line.split()[0] in STEPS] == list(STEPS)
    assert any("32 of 32 images" in line for line in lines)
    assert any("an epoch is 24 images, each exactly once" in line for line in lines)
    assert any("exact: " in line for line in lines)
    assert len(result.failures) == 1
    assert "did not learn" in result.failures[0]
    dataset = shardflow.open(tmp_path / "out" / "dataset")
    assert dataset.classes == list(SCENES)
    assert (len(dataset["train"]), len(dataset["val"])) == (24, 8)
    with Image.open(result.sheet) as sheet:
        assert sheet.width > 1000


STEPS = ("pictures", "pack", "verify", "stream", "resume", "train", "sheet")


def test_labelled_folder_without_val(tmp_path: Path) -> None:
    """The net is trained on the user's classes without a val split, and its accuracy is never a failure."""
    images = photos(tmp_path / "photos", {"cats": 5, "dogs": 6})
    result, lines = demo(tmp_path / "out", images=images, epochs=1, workers=0)
    assert not result.failures
    assert any("without a val split" in line for line in lines)
    assert any(line.startswith("epoch  1 ") for line in lines)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An output folder that is in use is left as it is; each run writes to a new folder in it."""
    images = photos(tmp_path / "photos", {".": 3})
    output = tmp_path / "out"
    output.mkdir()
    (output / "demo.png").write_bytes(b"the user's")
    for run in ("run2", "run3"):
        result, lines = demo(output, images=images, workers=0)
        assert result.sheet == output / run / "demo.png"
        assert result.sheet.stat().st_size > 1000
        assert any(str(output / run) in line for line in lines)
    assert (output / "demo.png").read_bytes() == b"the user's"


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message names the option to change."""
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="--output"):
        demo(tmp_path / "out")


def test_places_are_checked_first(tmp_path: Path) -> None:
    """A source that is not there and an output that is a dataset are refused, and no folder is made."""
    with pytest.raises(NotFoundError, match="nowhere"):
        demo(tmp_path / "out", images=tmp_path / "nowhere")
    dataset = make_dataset(tmp_path / "set", [1])
    before = sorted(dataset.rglob("*"))
    with pytest.raises(DatasetExistsError, match=r"set .*--output"):
        demo(dataset)
    assert (sorted(dataset.rglob("*")), (tmp_path / "out").exists()) == (before, False)


def test_the_net_learns(tmp_path: Path) -> None:
    """A few epochs on two classes of pictures bring the net far above chance."""
    for name in ("bricks", "sea"):
        for number in range(32):
            path = tmp_path / "pictures" / ("train" if number < 24 else "val") / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(name, number).save(path)
    shardflow.pack(tmp_path / "pictures", tmp_path / "data", short_side=128, executor="serial")
    *_, last = train(tmp_path / "data", split="train", val_split="val", epochs=12, workers=1)
    assert last.val_accuracy is not None
    assert last.val_accuracy > 0.75


def test_sheet_shows_augmented_samples(tmp_path: Path) -> None:
    """The same seed draws the same sheet, another seed another one; few and unlabelled samples are enough."""
    dataset = make_dataset(tmp_path / "data", [3], labelled=False)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_samples(dataset, tmp_path / name, seed=seed)
    drawn = {name: (tmp_path / name).read_bytes() for name in "abc"}
    assert drawn["a"] == drawn["b"] != drawn["c"]
