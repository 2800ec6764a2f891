"""The examples in the docstrings of public names, run as a reader would."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset as wds
from PIL import Image

import shardflow
from shardflow.annotations import Annotations, Boxes
from tests.helpers.making import jpeg
from tests.helpers.pages import PAGES, blocks, on_this_machine
from tests.helpers.scenes import write_scenes
from tests.packing.sources.test_voc import write_set as write_voc
from tests.packing.sources.test_yolo import write_set as write_yolo

CLASSES = ("cat", "dog", "kitten")
SPACES: list[Any] = [shardflow, *(getattr(shardflow, name) for name in vars(shardflow)["__all__"])]
NAMES = {
    f"{space.__name__}.{name}": value
    for space in SPACES
    if inspect.ismodule(space) and space is not shardflow.errors
    for name in vars(space)["__all__"]
    if not inspect.ismodule(value := getattr(space, name))
}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples read: `photos/`, packed as `photos256`, with and without columns, and smaller sources."""
    folder = tmp_path_factory.mktemp("material")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number in range(280):
            path = Path("photos", "train" if number < 264 else "val", CLASSES[number % 3], f"{number:04}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, 72, 56))
            path.with_suffix(".txt").write_text("a cat on the left")
            objects = [{"bbox": [2, 2, 9, 9], "category_id": 1}]
            values = {"objects": objects, "patient": number // 4, "fold": number % 3}
            path.with_suffix(".json").write_text(json.dumps(values))
        boxes = Boxes("json", "objects[].bbox", "xywh", fields={"labels": "objects[].category_id"})
        source = shardflow.sources.Folder("photos", parts=("txt", "json"))
        for name, quality in (("photos256", 90), ("sketches256", 60)):
            settings: dict[str, Any] = {"annotations": Annotations(boxes=boxes), "executor": "serial"}
            shardflow.pack(source, name, quality=quality, shard_samples=140, **settings)
        shardflow.pack("photos", "plain256", shard_samples=140, executor="serial")
        shardflow.pack(shardflow.sources.Folder("photos/train", parts=("json",)), "scans256", executor="serial")
        table = _scores()
        table.drop(columns=["file", "caption"]).to_parquet("scores.parquet")
        shardflow.columns.add("photos256", table.assign(caption_tokens=5).drop(columns="file"), key="key")
        shutil.copytree("photos256", "bucket/photos256")
        for tars in ("laion", "host/tars"):
            Path(tars).mkdir(parents=True)
            for number in range(2):
                shutil.copy(f"photos256/train/{number:06}.tar", f"{tars}/{number:05}.tar")
        write_scenes(Path("coco"), train=4, val=0)
        Path("coco/train").rename("coco/train2017")
        Path("coco/annotations/instances_train.json").rename("coco/annotations/instances_train2017.json")
        write_yolo(Path("coco8"))
        write_voc(Path("VOCdevkit/VOC2012"))
        Path("datasets/ethz/food101").mkdir(parents=True)
        rows = [{"image": {"bytes": jpeg(number, 72, 56), "path": None}, "label": number} for number in range(3)]
        pq.write_table(pa.Table.from_pylist(rows), "datasets/ethz/food101/train-00000-of-00001.parquet")
        pd.DataFrame({"path": sorted(map(str, Path("photos").rglob("*.jpg"))), "species": "cat"}).to_csv("photos.csv")
    return folder


def _scores() -> pd.DataFrame:
    train = shardflow.open("photos256")["train"]
    keys = [f"train:{sample['__key__']}" for sample in train]
    scores = np.linspace(0, 1, len(keys))
    caption = "a cat on the left"
    table: pd.DataFrame = pd.DataFrame({"key": keys, "file": train.sources(), "score": scores, "caption": caption})
    return table


def _returned(value: Any) -> Iterator[Any]:
    """Yield what a function returns, or the methods of a class."""
    for each in inspect.getmembers(value, inspect.isfunction) if isinstance(value, type) else [("", value)]:
        yield inspect.signature(each[1]).return_annotation


def _docstrings(value: Any) -> Iterator[str]:
    """Yield the docstrings of an object, and of the methods of a class."""
    methods = inspect.getmembers(value, inspect.isfunction) if isinstance(value, type) else []
    yield from (inspect.getdoc(each) or "" for each in (value, *(each for name, each in methods if name[0] != "_")))


EXAMPLES = {
    f"{name}-{number}": examples
    for name, value in NAMES.items()
    for number, text in enumerate(_docstrings(value))
    if (examples := doctest.DocTestParser().get_examples(text))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a docstring run from top to bottom, and print the values that it shows."""
    _run(EXAMPLES[name], material, tmp_path, monkeypatch)


def _run(examples: list[doctest.Example], material: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    code = "".join(example.source for example in examples)
    patch.chdir(folder)
    patch.setenv("XDG_CACHE_HOME", str(folder / "user-cache"))
    for each in material.iterdir():
        if each.name in code:
            shutil.copytree(each, each.name) if each.is_dir() else shutil.copy(each, each.name)
    shutil.copytree(material / "photos256", "photos256", dirs_exist_ok=True)
    if re.search(r"columns\.add|extend\(|verify\(", code):  # of a dataset without columns, from images alone
        shutil.rmtree("photos256")
        shutil.copytree(material / "plain256", "photos256")
    names = _names()
    for example in examples:
        printed = io.StringIO()
        source = re.sub(r"(?:s3|https|hf)://|/nvme/", "", on_this_machine(example.source))
        source = source.replace("00099", "00001").replace("TokenBudget(8192", "TokenBudget(128")
        source = re.sub(r"(shardflow\.(?:pack|extend)\(.*)\)", r'\1, executor="serial")', source)
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "<example>", "single"), names)
        matches = doctest.OutputChecker().check_output(example.want, printed.getvalue(), doctest.ELLIPSIS)
        assert matches or not example.want, printed.getvalue()


def _names() -> dict[str, Any]:
    """Return the names that the examples take for granted."""
    return {
        "shardflow": shardflow,
        "np": np,
        "torch": torch,
        "wds": wds,
        "Image": Image,
        "url": "photos256",
        "images": torch.zeros(4, 3, 8, 8),
        "labels": torch.arange(4),
        "keys": torch.arange(4),
        "losses": np.ones(264),
        "frame": _scores(),
        "train_step": lambda *_: None,
        "table": pd.DataFrame({"path": shardflow.open("photos256")["train"].sources(), "fold": 0}),
        "tokenizer": lambda texts: SimpleNamespace(input_ids=[text.split() for text in texts]),
    }


def test_an_example_that_fails_is_found(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that raises, or prints another value than it shows, fails."""
    for text, error in ((">>> missing\n", NameError), (">>> 1 + 1\n3\n", AssertionError)):
        examples, folder = doctest.DocTestParser().get_examples(text), tmp_path / error.__name__
        folder.mkdir()
        with pytest.raises(error):
            _run(examples, material, folder, monkeypatch)


def test_sections_of_docstrings_start_at_the_margin() -> None:
    """Sections such as Args have no indentation, also in a docstring that is composed of two."""
    indented = re.compile(r"^ +(Args|Attributes|Returns|Raises):", re.MULTILINE)
    assert [name for name, value in NAMES.items() if any(map(indented.search, _docstrings(value)))] == []


def test_every_public_name_has_an_example() -> None:
    """Each public name has an example, stands in one, in a docstring or a page, or is the type that one returns."""
    code = "".join(example.source for examples in EXAMPLES.values() for example in examples)
    code += "".join(
        block.code
        for path in PAGES.values()
        for block in blocks(path.read_text(encoding="utf-8"))
        if block.kind in ("python", "script")
    )
    used = set(re.findall(r"\w+", code))
    for _ in range(2):  # what is returned, and what that has
        used |= {
            word
            for name, value in NAMES.items()
            if name.rpartition(".")[2] in used
            for annotation in (*inspect.get_annotations(value).values(), *_returned(value))
            for word in re.findall(r"\w+", str(annotation))
        }
    own = {name.rpartition("-")[0] for name in EXAMPLES}
    lacking = [name for name in NAMES if name not in own and name.rpartition(".")[2] not in used]
    assert not lacking
