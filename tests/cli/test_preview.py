"""`shardflow preview`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from PIL import Image

import shardflow
from shardflow.cli.preview import preview
from shardflow.formats.quarantine import Quarantined
from shardflow.preview.contact_sheet import SIDE
from tests.helpers.command import exit_code
from tests.helpers.folders import encoded, photo, write_tree
from tests.helpers.making import make_dataset, write_quarantine

USER_CODE = """
import shardflow

def make_loader(num_workers=1):
    decoder = shardflow.decoders.RandomResizedCrop()
    return shardflow.Loader({url!r}, split="val", seed=3, batch_size=4, decoder=decoder, num_workers=num_workers)

def too_dark(image):
    raise ValueError("too dark")

def mixed():
    return shardflow.Mix([(make_loader(0), 1)])

def failing():
    return shardflow.Loader({url!r}, batch_size=4, transform=too_dark)
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the import path, to which a user's file adds its folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def run(*arguments: object) -> Result:
    """Run the command, which must succeed."""
    result = CliRunner().invoke(preview, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return picture.size


def test_draws_a_contact_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default `preview.png` is drawn here; more samples make a higher sheet; the same call draws the same."""
    monkeypatch.chdir(tmp_path)
    url = make_dataset(tmp_path / "set", [8, 8])
    assert "preview.png" in run(url).output
    for name, count in (("a", 4), ("b", 4), ("c", 16)):
        run(url, "--count", count, "--output", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert size(tmp_path / "a")[1] < size(tmp_path / "c")[1] == size(tmp_path / "preview.png")[1]


def test_draws_a_class_an_augmentation_and_the_quarantine(tmp_path: Path) -> None:
    """Each of them is another sheet of the same dataset; the quarantine is drawn with and without its source."""
    url, source = make_dataset(tmp_path / "set", [8, 8]), tmp_path / "source"
    source.mkdir()
    (source / "there.jpg").write_bytes(b"x" * 2000)
    write_quarantine(url, [Quarantined(name, "decode", "no image") for name in ("there.jpg", "gone.jpg", "../up")])
    augments = (["--augment", 9], ["--augment", 9, "--seed", 1])
    quarantines = (["--quarantine"], ["--quarantine", "--source", source])
    for number, arguments in enumerate((["--class", "class9"], *augments, *quarantines)):
        run(url, *arguments, "--output", tmp_path / f"{number}.png")
    drawn = [path.read_bytes() for path in sorted(tmp_path.glob("*.png"))]
    assert len(set(drawn)) == len(drawn) == 5


def test_the_quarantine_of_a_refused_pack(tmp_path: Path) -> None:
    """It is drawn before anything is committed; the paths of a table are looked for beside it."""
    url, table = tmp_path / "set", tmp_path / "src/t.csv"
    write_tree(table.parent, {"cut.jpg": photo(1)[:600], "t.csv": b"path\ncut.jpg\n"})
    write_tree(tmp_path / "other", {"dog.jpg": photo(2)})
    assert exit_code("pack", str(table), str(url)) == 1
    for number, source in enumerate((table.parent, table, tmp_path / "other")):
        run(url, "--quarantine", "--source", source, "--output", tmp_path / f"{number}.png")
    one, two, other = (path.read_bytes() for path in sorted(tmp_path.glob("*.png")))
    assert one == two != other
    assert exit_code("preview", str(url)) == 4
    assert exit_code("preview", str(tmp_path / "none"), "--quarantine") == 4


@pytest.mark.parametrize("kind", ["rows", "table"])
def test_the_quarantine_of_sources_that_are_not_folders(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of Parquet rows, and of a table whose images are in another folder, are those of the files."""
    monkeypatch.chdir(tmp_path)
    cut = photo(1)
    write_tree(tmp_path, {"plain/cut.jpg": cut, "photos/cut.jpg": cut, "all.csv": b"path\ncut.jpg\n"})
    rows = pyarrow.table({"image": pyarrow.array([{"bytes": cut, "path": None}])})
    pyarrow.parquet.write_table(rows, tmp_path / "train-00000.parquet")
    name, source, options = {
        "rows": ("train-00000.parquet#0", "train-00000.parquet", []),
        "table": ("cut.jpg", "all.csv", ["--image-folder", tmp_path / "photos"]),
    }[kind]
    drawn = []
    for path, arguments in (("cut.jpg", ["plain"]), (name, [source, *options])):
        url = make_dataset(tmp_path / f"set{len(drawn)}", [2])
        write_quarantine(url, [Quarantined(path, "decode", "cut")])
        run(url, "--quarantine", "--source", tmp_path / arguments[0], *arguments[1:], "--output", "a.png")
        with Image.open("a.png") as sheet:
            drawn.append(sheet.crop((36, 104, 36 + SIDE, 104 + SIDE)).tobytes())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 60  # a picture


@pytest.mark.parametrize("name", ["{0}", "../{1}", "a/../../{1}", "..%2f{1}", "%2e%2e/{1}", "file://{0}", "~/{1}"])
def test_the_quarantine_leads_nowhere_but_to_the_source(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in a dataset's quarantine, which others may have written, is read below the source or not at all."""
    monkeypatch.setenv("HOME", str(tmp_path))
    url, source, outside = make_dataset(tmp_path / "set", [8]), tmp_path / "source", tmp_path / "outside.jpg"
    write_tree(tmp_path, {"outside.jpg": photo(1), "source/a/inside.jpg": photo(1)})

    def drawn(path: str) -> bytes:
        write_quarantine(url, [Quarantined(path=path, stage="decode", reason="no image")])
        run(url, "--quarantine", "--source", source, "--output", tmp_path / "sheet.png")
        return (tmp_path / "sheet.png").read_bytes()

    before = drawn(name.format(outside, outside.name))
    outside.write_bytes(photo(2))
    assert drawn(name.format(outside, outside.name)) == before
    assert drawn(str(source / "a/inside.jpg")) == drawn("a/inside.jpg")  # as a table may name it


def test_the_quarantine_prints_nothing_of_codecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What Pillow and libtiff say about damaged pictures does not reach the terminal."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60_000)
    url, source = make_dataset(tmp_path / "set", [8]), tmp_path / "source"
    tiff = encoded(Image.effect_noise((40, 40), 90), "TIFF", compression="tiff_adobe_deflate")
    large = encoded(Image.new("L", (300, 300)), "PNG")
    write_tree(source, {"a.tif": tiff[:40] + bytes(400) + tiff[440:], "b.png": large})
    write_quarantine(url, [Quarantined(path.name, "decode", "damaged") for path in sorted(source.iterdir())])
    run(url, "--quarantine", "--source", source, "--output", tmp_path / "sheet.jpg")
    assert capfd.readouterr().err == ""


def test_pictures_of_other_formats(tmp_path: Path) -> None:
    """A suffix other than of PNG and JPEG is refused before anything is read."""
    for option in ("--output", "--html"):
        assert exit_code("preview", str(tmp_path / "none"), f"{option}={tmp_path}/a.gif") == (
            2 if option == "--output" else 4
        )


def test_writes_a_page_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--html` writes a page and no sheet; with `--verify` it lists the findings, and damage is exit code 1."""
    monkeypatch.chdir(tmp_path)
    url, page = make_dataset(tmp_path / "set", [8]), tmp_path / "page.html"
    run(url, "--html", page)
    assert "Not verified" in page.read_text()
    run(url, "--html", page, "--verify")
    assert "No damage" in page.read_text()
    assert not (tmp_path / "preview.png").exists()
    with open(url / "train/000000.tar", "r+b") as tar:
        tar.seek(-1500, 2)
        tar.write(b"damage")
    result = CliRunner().invoke(preview, [str(url), "--html", str(page), "--verify"], standalone_mode=False)
    assert result.return_value == 1
    assert "findings" in page.read_text()


def test_a_page_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--class`, the page has the samples of that class, and says how many of the split; no sheet is drawn."""
    monkeypatch.chdir(tmp_path)
    url, page = make_dataset(tmp_path / "set", [8, 8]), tmp_path / "page.html"
    labels = [int(sample["cls"]) for sample in shardflow.open(url)["train"]]
    run(url, "--html", page, "--class", "class1")
    assert page.read_text().count('"number":') == labels.count(1)
    assert f"Samples of class1: {labels.count(1)} of 16" in page.read_text()
    assert not (tmp_path / "preview.png").exists()


def test_torch_is_not_imported(tmp_path: Path) -> None:
    """Without `--augment`, sheet and page are made without torch, whose import takes seconds."""
    url, page, picture = make_dataset(tmp_path / "set", [8]), tmp_path / "page.html", tmp_path / "picture.png"
    code = f"""
import sys
import shardflow
from shardflow.cli.preview import preview
preview([{str(url)!r}, "--html", {str(page)!r}, "--output", {str(picture)!r}], standalone_mode=False)
print(sorted({{"torch", "torchvision"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert page.exists()
    assert picture.exists()


def test_shows_the_augmentation_of_the_users_own_loader(tmp_path: Path) -> None:
    """The loader of a user's file determines dataset, split, seed and decoder, for sheet and page."""
    url, file = make_dataset(tmp_path / "set", {"train": [4], "val": [8, 8]}), tmp_path / "preview_loader.py"
    file.write_text(USER_CODE.format(url=str(url)))
    sheets = []
    own = ["--loader", f"{file}:make_loader", "--html", tmp_path / "page.html"]
    for number, arguments in enumerate((own, [url, "--split", "val", "--seed", 3], [url, "--split", "val"])):
        run(*arguments, "--augment", 9, "--count", 6, "--output", tmp_path / f"{number}.png")
        with Image.open(tmp_path / f"{number}.png") as picture:
            sheets.append(np.asarray(picture)[100:])  # below the heading
    assert (sheets[0] == sheets[1]).all()
    assert (sheets[0] != sheets[2]).any()
    page = (tmp_path / "page.html").read_text()
    assert (page.count("<figure>"), page.count('"number":')) == (6, 6)
    assert "Sample 9 of val" in page
    assert "as returned by the loader" in page


def test_wrong_usage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing things and contradictory options are reported in one line, with the exit code of their kind."""
    url, file = str(make_dataset(tmp_path / "set", {"train": [8], "val": [8]})), tmp_path / "wrong_loader.py"
    file.write_text(USER_CODE.format(url=url))
    for arguments, code, message in (
        ([url, "--class", "dog"], 2, "no class 'dog'"),
        ([url, "--augment", "8"], 2, "samples are 0 to 7"),
        ([url, "--quarantine"], 2, "an empty quarantine"),
        ([url, "--split", "test"], 2, "no split 'test'"),
        ([url, "--class", "class0", "--augment", "1"], 2, "give one of them"),
        ([url, "--verify"], 2, "--html"),
        ([url, "--source", "x"], 2, "--quarantine"),
        ([], 2, "URL of a dataset"),
        ([url, "--loader", f"{file}:make_loader"], 2, "--loader requires --augment"),
        ([url, "--loader", f"{file}:make_loader", "--augment", "1"], 2, "URL cannot be used with --loader"),
        (["--loader", f"{file}:make_loader", "--augment", "1", "--seed", "3"], 2, "--seed cannot be used with"),
        (["--loader", f"{file}:make_loader", "--augment", "8"], 2, "samples are 0 to 7"),
        (["--loader", f"{file}:mixed", "--augment", "1"], 2, "return one of the loaders of the Mix"),
        (["--loader", f"{file}:failing", "--augment", "1"], 2, "line 9: ValueError: too dark"),
        (["--loader", f"{file}:no_such", "--augment", "1"], 2, "no function 'no_such'"),
        ([url, "--output", str(tmp_path / "no/such/folder.png")], 2, "no/such"),
        ([url, "--html", str(tmp_path / "no/such/page.html")], 2, "no/such"),
        ([url, "--output", str(tmp_path / "page.html")], 2, "choose .png or .jpg, or write a page with --html"),
        (["--html", url], 2, "is a folder; give the name of a file, such as FILE.html"),
        ([url, "--output", str(tmp_path)], 2, "is a folder"),
        ([str(tmp_path / "nothing")], 4, "does not exist"),
    ):
        assert exit_code("preview", *arguments) == code, arguments
        error = capsys.readouterr().err
        assert message in error, (arguments, error)
        assert "Traceback" not in error
