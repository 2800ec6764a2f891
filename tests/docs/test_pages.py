from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import prometheus_client
import pytest
import torch
import webdataset as wds
from torchvision.transforms import v2

import shardflow
from shardflow.demo import pictures
from tests.helpers.making import jpeg
from tests.helpers.pages import (
    PAGES,
    PROJECT,
    alternatives,
    blocks,
    commands,
    few,
    is_shown,
    on_this_machine,
    run_command,
    run_page,
)
from tests.helpers.s3_server import Server
from tests.helpers.scenes import write_scenes

CLASSES = ("city", "dunes", "sea")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGES["docs/glossary.md"].read_text(encoding="utf-8"), re.M)
DRAW = functools.cache(pictures.draw)
TRAIN, VAL = 270, 30  # so many pictures that a batch of 256 is full


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pictures that the pages name `photos/`, and beside it what `shardflow pack` makes of it."""
    folder = tmp_path_factory.mktemp("pages") / "photos"
    for number in range(TRAIN + VAL):
        path = folder / ("train" if number < TRAIN else "val") / CLASSES[number % 3] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 72, 56))
    shardflow.pack(folder, folder.parent / "photos256", shard_samples=128, executor="serial")
    return folder


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages that draw the demo's pictures get small ones, drawn once; torch does not wait for a second core.

    Metrics that a page exports are not those of another test.
    """
    monkeypatch.setattr(pictures, "_SHORT_SIDE", (80, 120))
    monkeypatch.setattr(pictures, "draw", DRAW)
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", PAGES)
def test_pages_run(
    page: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All code of a page runs from top to bottom, beside a folder `photos/` and a dataset `photos256`."""
    text = PAGES[page].read_text(encoding="utf-8")
    code = "".join(block.code for block in blocks(text) if block.kind in ("python", "console"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    if "demo --draw photos/" not in code:
        shutil.copytree(photos, "photos")
    if "pack scenes/ scenes256" in code:
        write_scenes(Path("scenes"), train=20, val=4)
    if "pack photos/ photos256" not in code:
        shutil.copytree(photos.parent / "photos256", "photos256")
    if '"tars/{' in code:
        _write_tars(Path("tars"))
    if "submission.csv" in code:
        _write_competition()
    translated = on_this_machine
    if "s3://bucket" in code:
        server, prefix = request.getfixturevalue("server"), request.getfixturevalue("prefix")
        translated = _with_bucket(server, prefix, monkeypatch)
        if not re.search(r"(pack|sync) \S+ s3://bucket/photos256", code):
            shardflow.sync(photos.parent / "photos256", translated("s3://bucket/photos256"))
        server.put(f"{prefix}/tars/train", photos.parent / "photos256/train")
    names = run_page(PAGES[page], _names(), translated)
    if "submission.csv" in code:
        _check_submission(names["model"])
    if "accuracy =" in code:
        _check_accuracy(names)
    if "def read(path)" in code:
        _check_file(names["read"])


def _write_tars(folder: Path) -> None:
    """Write two tars of 20 images with captions, as other tools do."""
    folder.mkdir()
    paths = sorted(Path("photos/train").rglob("*.jpg"))
    for shard in range(2):
        with wds.TarWriter(f"{folder}/{shard:05}.tar") as tar:
            for path in paths[20 * shard : 20 * shard + 20]:
                tar.write({"__key__": path.stem, "jpg": path.read_bytes(), "txt": f"a {path.parent.name}"})


def _write_competition() -> None:
    """Write the tables and the flat folder of a competition, from the photos."""
    Path("images").mkdir()
    paths = sorted(Path("photos").rglob("*.jpg"))
    rows = ["id,species,patient,age"]
    rows += [f"{path.stem},{path.parent.name},p{number % 60},{number / 4}" for number, path in enumerate(paths[:200])]
    Path("train.csv").write_text("\n".join(rows))
    ids = [path.stem for path in paths[200:]]
    Path("test.csv").write_text("\n".join(["id", *ids]))
    Path("sample_submission.csv").write_text("\n".join(["id,species", *(f"{each},sea" for each in reversed(ids))]))
    for path in paths:
        path.rename(Path("images") / path.name)


def _check_submission(model: Model) -> None:
    """Compare the submission of a page with a plain loop over the files, in the order of the sample."""
    rows = [line.split(",") for line in Path("submission.csv").read_text().splitlines()[1:]]
    expected = [line.split(",")[0] for line in Path("sample_submission.csv").read_text().splitlines()[1:]]
    assert [key for key, _ in rows] == expected
    samples = shardflow.Loader("test256", split="test", batch_size=1).dataset
    crop, found = v2.Compose([v2.Resize(256), v2.CenterCrop(224)]), dict(map(tuple, rows))  # type: ignore[arg-type]
    for path, (image, _) in zip(samples.split.sources(), samples, strict=True):
        inputs = torch.stack([crop(image), crop(image).flip(-1)]) / 255
        assert found[Path(path).stem] == CLASSES[int(model(inputs).softmax(1).sum(0).argmax())]


def _check_file(read: Callable[[Path], torch.Tensor]) -> None:
    """Compare the images that a page reads from files with those of the loader, which were resized by `pack`."""
    loader = shardflow.Loader("photos256", split="val", batch_size=1, num_workers=0, fields=("image", "index"))
    names = loader.dataset.split.sources()
    for image, (number,) in loader:
        (path,) = Path("photos").rglob(Path(names[number]).name)
        assert float((read(path).float() - image.float()).abs().mean()) < 4


def _check_accuracy(names: dict[str, Any]) -> None:
    """Compare the accuracy that a page computes with that of a plain loop over the images of `val`."""
    model = names["model"]
    assert not model.training
    assert model.inference_modes
    assert all(model.inference_modes)
    samples = shardflow.Loader("photos256", split="val", batch_size=1).dataset
    crop = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    right = sum(int(model(crop(image)[None].float() / 255).argmax(1).item() == label) for image, label in samples)
    assert names["accuracy"] == right / len(samples)
    assert 0 < right < len(samples)


@pytest.mark.parametrize("page", ["README.md", "docs/loading.md"])
def test_options_in_comments_run(page: str, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a comment offers in place of an argument can be pasted there: the loader gives a first batch."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos.parent / "photos256", "photos256")
    for block in blocks(PAGES[page].read_text(encoding="utf-8")):
        for option, code in alternatives(block.code) if block.kind == "python" else ():
            names = _names()
            exec(code.replace("num_workers=None", "num_workers=0"), names)
            assert len(next(iter(names["loader"]))[0]), option


def test_alternatives_are_found() -> None:
    """Each alternative in a comment gives the block with it in place of the value shown."""
    code = "f(\n    a=1,  # or 2, or g(3, 4)\n    b=2,  # more or less: this, or 5\n)\n"
    assert [option for option, _ in alternatives(code)] == ["2", "g(3, 4)", "5"]
    assert [changed for _, changed in alternatives(code)][1] == code.replace("1,  # or 2, or g(3, 4)", "g(3, 4),")


def _with_bucket(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return lambda code: on_this_machine(code).replace("s3://bucket", server.url(prefix))


class Model(torch.nn.Sequential):
    """A net that predicts otherwise while it is trained, and keeps for each call whether gradients were left out."""

    def __init__(self) -> None:
        layers = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(3, len(CLASSES))
        super().__init__(*layers)
        self.inference_modes: list[bool] = []
        with torch.no_grad():  # it compares the colours
            layers[-1].weight.copy_(torch.tensor([[9.0, -9, 0], [0, 9, -9], [-9, 0, 9]]))
            layers[-1].bias.zero_()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.inference_modes.append(torch.is_inference_mode_enabled())
        logits: torch.Tensor = super().forward(images)
        return logits


def _names() -> dict[str, Any]:
    model = Model()
    modules = {"shardflow": shardflow, "torch": torch, "np": np, "wds": wds}
    return {**modules, "range": few, "model": model, "checkpoint": {}, "train_step": lambda *_: None}


def test_what_is_run() -> None:
    """Blocks are told apart by their language, commands by their prompt, and output belongs to the command above."""
    text = (
        "a\n```python\nx\n```\n```python peer\ny\n```\n```console\n$ b  # c\nd e\n$ f \\\n  g\n```\n```json\n{}\n```\n"
    )
    found = [(block.kind, block.line) for block in blocks(text)]
    assert found == [("python", 2), ("peer", 5), ("console", 8), ("json", 14)]
    assert list(commands("$ b  # c\nd e\n$ f \\\n  g\n")) == [("b", ["d e"]), ("f   g", [])]


def test_what_does_not_run_is_found(tmp_path: Path, photos: Path) -> None:
    """A page whose code raises, whose command fails, or shows what does not come, or names a missing file, is found."""
    page = tmp_path / "page.md"
    page.write_text("```python\nmissing\n```\n")
    with pytest.raises(NameError):
        run_page(page, {}, str)
    for command, shown, message in (
        (f"shardflow info {tmp_path}/none", [], "exit code 4"),
        (f"shardflow info {photos.parent}/photos256", ["dataset …", "nothing"], "in place of\ndataset …\nnothing"),
        ("python examples/none.py", [], r"there is no examples/none\.py"),
    ):
        with pytest.raises(AssertionError, match=message):
            run_command(command, shown, "here")


def test_output_is_compared() -> None:
    """Output is compared line by line, but for figures that no two machines share, and what a page leaves out."""
    printed = ["packed   3 of 3 inputs", "time  0.9 s, 1,200 images/s", "fingerprint  sha256:ab", "next  verify"]
    for shown in (
        printed,
        ["packed 3 of 3 inputs", "time 12.5 s, 7 images/s", "fingerprint sha256:…", "next  verify"],
        ["packed …", "…", "next  verify"],
        ["…"],
    ):
        assert is_shown(printed, shown)
    for shown in (printed[:3], printed[1:], ["packed 2 of 3 inputs", "…"], ["…", "time", "…"], [*printed, "more"]):
        assert not is_shown(printed, shown)


def test_links_lead_somewhere() -> None:
    """Every relative link of a page leads to a file of the project, and if it says so to a heading there."""
    for page, path in PAGES.items():
        for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
            target = (path.parent / link).resolve() if link else path
            assert target.exists(), f"{page} links to {link}"
            assert target.is_relative_to(PROJECT)
            assert not heading or heading in _headings(target), f"{page} links to {link}#{heading}"


def _headings(path: Path) -> set[str]:
    """Return the names by which the headings of a page are linked to."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_text_of_the_drawing_stays_in_its_box() -> None:
    """No text is wider than its box, or runs into the next one, in fonts with wide letters either."""
    drawing = ElementTree.parse(PROJECT / "docs/architecture.svg").getroot()
    boxes, texts = [], []
    for each in drawing.iter():
        kind, numbers = each.tag.rpartition("}")[2], {name: float(each.get(name, 0)) for name in ("x", "y")}
        if kind == "rect":
            boxes.append((numbers["x"], numbers["y"], float(each.get("width", 0)), float(each.get("height", 0))))
        elif kind == "text":
            size, width = {"small": (15, 0.63), "head": (18, 0.7)}.get(each.get("class", ""), (18, 0.63))
            length = len(each.text or "") * size * width
            left = numbers["x"] - (length / 2 if each.get("text-anchor") == "middle" else 0)
            texts.append((left, left + length, numbers["y"], numbers["x"]))
    assert len(boxes) > 5
    for left, right, y, at in texts:
        inside = [(x, x + width) for x, top, width, height in boxes if x < at < x + width and top < y < top + height]
        assert max(x for x, _ in inside) + 5 < left
        assert right < min(end for _, end in inside) - 5
        assert not [other for other in texts if other[2] == y and left < other[0] < right]


def test_the_terminal_of_readme_shows_all_of_its_text() -> None:
    """The drawing is small, has two colour schemes, and no text leaves its window."""
    path = PROJECT / "docs/first-minute.svg"
    assert path.stat().st_size < 30_000
    drawing = ElementTree.parse(path).getroot()
    style = next(each.text or "" for each in drawing.iter() if each.tag.endswith("style"))
    assert "prefers-color-scheme: dark" in style
    window = next(each for each in drawing.iter() if each.tag.endswith("rect"))
    lines = [each for each in drawing.iter() if each.tag.endswith("text")]
    assert lines[0].text == "$ shardflow pack photos/ photos256/"
    for line in lines:
        assert float(line.get("x", 0)) + len(line.text or "") * 14 * 0.63 < float(window.get("width", 0))
        assert float(line.get("y", 0)) < float(window.get("height", 0))


@pytest.mark.parametrize("name", ["loaders", "sampling"])
def test_charts_show_all_of_their_text(name: str) -> None:
    """A chart has two colour schemes, and no text leaves its paper in a font with wide letters."""
    drawing = ElementTree.parse(PROJECT / f"docs/{name}.svg").getroot()
    assert "prefers-color-scheme: dark" in next(
        each.text or "" for each in drawing.iter() if each.tag.endswith("style")
    )
    texts = [each for each in drawing.iter() if each.tag.endswith("text")]
    assert len(texts) > 8
    for each in texts:
        length = len(each.text or "") * (8.6 if each.get("class") == "head" else 8.0)
        share = {"end": 1.0, "middle": 0.5}.get(each.get("class", ""), 0.0)
        left = float(each.get("x", 0)) - share * length
        assert 0 < left < left + length < 880


def test_messages_are_those_of_the_package() -> None:
    """Each message that the troubleshooting page explains is one that the package says."""
    package = PROJECT / "shardflow"
    said = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    page = PAGES["docs/troubleshooting.md"].read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert explained
    for message in explained:
        for part in message.split("…"):
            assert part in said, message


def test_terms_are_defined_once_in_alphabetical_order() -> None:
    """Each term has one row with its meaning, and the rows are sorted."""
    terms = [term for term, _, _ in ROWS[1:]]
    assert len(terms) > 30
    assert terms == sorted(set(terms))
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS[1:])


def test_modules_exist() -> None:
    """Each term names one or more modules, and all of them exist."""
    for term, _, modules in ROWS[1:]:
        paths = re.findall(r"`([^`]+)`", modules)
        assert paths, term
        assert all((PROJECT / "shardflow" / path).is_file() for path in paths), f"{term}: {modules}"
