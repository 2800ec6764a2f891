from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds

import shardflow
from tests.helpers.making import jpeg
from tests.helpers.pages import PAGES, PROJECT, blocks, commands, few, on_this_machine, run_command, run_page
from tests.helpers.s3_fixtures import prefix, server
from tests.helpers.s3_server import Server

__all__ = ["prefix", "server"]

CLASSES = ("cat", "dog", "owl")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGES["docs/glossary.md"].read_text(encoding="utf-8"), re.M)
TRAIN, VAL = 270, 30  # so many pictures that a batch of 256 is full


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pictures that the pages name `photos/`, and beside it what `shardflow pack` makes of it."""
    folder = tmp_path_factory.mktemp("pages") / "photos"
    for number in range(TRAIN + VAL):
        path = folder / ("train" if number < TRAIN else "val") / CLASSES[number % 3] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 72, 56))
    shardflow.pack(folder, folder.parent / "photos256", shard_samples=128, workers=1)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_pages_run(
    page: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All code of a page runs from top to bottom, beside a folder `photos/` and a dataset `photos256`."""
    text = PAGES[page].read_text(encoding="utf-8")
    code = "".join(block.code for block in blocks(text) if block.kind in ("python", "console"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(photos, "photos")
    if "pack photos/ photos256" not in code:
        shutil.copytree(photos.parent / "photos256", "photos256")
    translated = on_this_machine
    if "s3://bucket" in code:
        translated = _with_bucket(request.getfixturevalue("server"), request.getfixturevalue("prefix"), monkeypatch)
        if not re.search(r"(pack|sync) \S+ s3://bucket/photos256", code):
            shardflow.sync(photos.parent / "photos256", translated("s3://bucket/photos256"))
    run_page(PAGES[page], _names(), translated)


def _with_bucket(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return lambda code: on_this_machine(code).replace("s3://bucket", server.url(prefix))


def _names() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, len(CLASSES)))
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
        (f"shardflow info {photos.parent}/photos256", ["dataset", "nothing"], "no line like 'nothing'"),
        ("python examples/none.py", [], r"there is no examples/none\.py"),
    ):
        with pytest.raises(AssertionError, match=message):
            run_command(command, shown, "here")


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
    assert len(terms) > 50
    assert terms == sorted(set(terms))
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS[1:])


def test_modules_exist() -> None:
    """Each term names one or more modules, and all of them exist."""
    for term, _, modules in ROWS[1:]:
        paths = re.findall(r"`([^`]+)`", modules)
        assert paths, term
        assert all((PROJECT / "shardflow" / path).is_file() for path in paths), f"{term}: {modules}"
