"""`shardflow pack` and `shardflow extend`."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

import shardflow
from shardflow._pillow import MISSING_CODECS
from shardflow.cli import main
from shardflow.cli.pack import pack
from shardflow.errors import ConfigError, PackIncompleteError
from shardflow.formats.quarantine import version_name
from shardflow.packing.recipe import PRESETS
from tests.helpers import command
from tests.helpers.command import run
from tests.helpers.folders import encoded, image_folder, photo, turned, write_tree
from tests.helpers.tars import members_of, write_tar


def test_pack(tmp_path: Path) -> None:
    """A pack reports its result, the fingerprint of the dataset, and the next command."""
    src = image_folder(tmp_path / "src", 50)
    write_tree(src, {"a/readme.txt": b"", "b/cut.jpg": b"\xff\xd8\xff"})
    done = run("pack", src, tmp_path / "dst", "--short-side", 32, "--workers", 2, "--max-errors", 1)
    assert done.returncode == 0, done.stderr
    for pattern in (
        r"packed +50 of 51 inputs into 1 shard",
        r"bytes +[\d.]+ [kM]B of images -> [\d.]+ [kM]B of shards",
        r"time +[\d.]+ s, \d+ images/s",
        r"fingerprint +sha256:[0-9a-f]{64}\n",
        r"quarantined +1 input, listed in quarantine\.jsonl\n +1  decode: ",
        r"splits +train 50; 3 classes\n",
        r"left out +files that are not images: 1 \.txt\n",
        rf"next +shardflow verify {tmp_path / 'dst'}\n$",
    ):
        assert re.search(pattern, done.stdout), pattern
    assert done.stderr == ""  # not a terminal


def test_images_that_grow_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pack that is larger than its images says so, and how to avoid it; enlarged images are counted."""
    small = {f"a/{n}.jpg": photo(n, 32, 24) for n in range(3)}
    write_tree(tmp_path / "src", small)
    for name, more, pattern in (
        ("same", (), r"grown +[\d.]+ times.*--preset original"),
        ("large", ("--enlarge",), r"operations +3 enlarged"),
    ):
        arguments = ("pack", str(tmp_path / "src"), str(tmp_path / name), "--executor", "serial", *more)
        assert command.exit_code(*arguments) == 0
        assert re.search(pattern, capsys.readouterr().out)


def test_any_locale(tmp_path: Path) -> None:
    """Arguments, names and output are UTF-8 under an ASCII locale; none of them ends in a traceback."""
    write_tree(tmp_path, {"bild é.jpg": photo(1), "größen.csv": "Bild,größe\nbild é.jpg,groß\n".encode()})
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    columns = ("--image-column", "Bild", "--label-column", "größe", "--workers", 1)
    told = {"cwd": tmp_path, "env": environment, "encoding": "utf-8"}
    done = run("pack", "größen.csv", "dst é", *columns, **told)
    assert "into 1 shard in dst é\n" in done.stdout, done.stderr
    assert shardflow.open(tmp_path / "dst é").classes == ["groß"]
    done = run("pack", "größen.csv", "dst é", *columns, **told)
    assert (done.returncode, done.stderr[:36]) == (3, "shardflow: dst é already holds a dat")
    environment |= {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "cp437"}
    done = run("pack", "größen.csv", "☃", *columns, **{**told, "encoding": "cp437"})
    assert "shard in \\u2603\n" in done.stdout, done.stderr


def test_exit_codes(tmp_path: Path) -> None:
    """Every expected failure is one line on stderr with the documented exit code, and no traceback."""
    src = image_folder(tmp_path / "src", 5)
    bad = write_tree(tmp_path / "bad", {"1.jpg": (src / "a" / "0000.jpg").read_bytes(), "2.jpg": b"", "3\n.jpg": b""})
    (tmp_path / "file").write_text("")
    assert run("pack", src, tmp_path / "dst", "--workers", 1).returncode == 0
    for exit_code, arguments in (
        (1, (bad, tmp_path / "bad-dst", "--workers", 1)),
        (2, (tmp_path / "file", tmp_path / "x")),
        (2, (src, tmp_path / "x", "--quality", 101)),
        (2, (src, "nowhere://bucket/x")),
        (3, (src, tmp_path / "dst")),
        (4, (src, tmp_path / "file")),
        (4, (tmp_path / "nowhere", tmp_path / "x")),
    ):
        done = run("pack", *arguments)
        assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
        lines = [line for line in done.stderr.splitlines() if line and not line.startswith("packing:")]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("shardflow: ")


def test_sources(tmp_path: Path) -> None:
    """Options describe tables, parts and class names; contradictory options are wrong usage."""
    src = write_tree(image_folder(tmp_path / "src", 6), {"names": b"c\nb\na\n"})
    for image in src.glob("*/*.jpg"):
        image.with_suffix(".txt").write_text("hello")
    rows = [f"{path.relative_to(src)}\t{path.parent.name}\tsaid {path.stem}" for path in sorted(src.glob("*/*.jpg"))]
    (src / "t.tsv").write_text("\n".join(["file\tkind\tsays", *rows]))
    options = ["--workers", 1, "--no-shuffle", "--short-side", 16]
    columns = ["--image-column", "file", "--label-column", "kind", "--caption-column", "says"]
    done = run("pack", src / "t.tsv", tmp_path / "1", *options, *columns, "--classes", src / "names")
    assert done.returncode == 0, done.stderr
    dataset = shardflow.open(tmp_path / "1")
    assert dataset.classes == ["c", "b", "a"]
    assert (dataset["train"][0]["cls"], dataset["train"][0]["txt"]) == (b"2", b"said 0000")
    done = run("pack", src, tmp_path / "2", *options, "--parts", "txt")
    assert done.returncode == 0, done.stderr
    assert shardflow.open(tmp_path / "2")["train"][0]["txt"] == b"hello"
    (tmp_path / "1" / "shardflow.json").unlink()  # so that its tars may be packed as others
    done = run("pack", tmp_path / "1" / "train" / "{000000..000000}.tar", tmp_path / "3", *options)
    assert done.returncode == 0, done.stderr
    for tars in (tmp_path / "1/train", tmp_path / "1/train/*.tar"):
        done = run("pack", tars, tmp_path / "x", "--label-column", "label")
        assert (done.returncode, "holds tars, and columns are for a table" in done.stderr) == (2, True), done.stderr
    wrong = [["--parts", "txt", "--label-column", "kind"], ["--label-column", "nothing"], ["--classes", src / "none"]]
    for arguments, exit_code in zip(wrong, (2, 2, 4), strict=True):
        done = run("pack", src / "t.tsv", tmp_path / "x", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (exit_code, 1), done.stderr


def test_images_that_are_not_read(tmp_path: Path) -> None:
    """Images of kinds that are not read stop a pack before it begins; if they are allowed, they count as skipped."""
    src = write_tree(image_folder(tmp_path / "src", 8), {"a/1.psd": b"", "a/2.psd": b"", "b/cut.jpg": b"x"})
    arguments = ("pack", src, tmp_path / "dst", "--short-side", 32, "--executor", "serial", "--max-errors")
    refused = run(*arguments, 1)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "shardflow: 2 images of unsupported kinds: 2 .psd, such as 'a/1.psd', 'a/2.psd' (convert them to JPEG or "
        "PNG). To leave them out, use max_errors= or --max-errors 2, or more if other inputs may turn out to be "
        "damaged\n"
    )
    assert not list((tmp_path / "dst").glob("*/*"))
    assert "3 of 11 inputs could not be packed, 2 are allowed" in run(*arguments, 2).stderr
    done = run(*arguments, 3)
    assert done.returncode == 0, done.stderr
    assert "left out: 2 images of unsupported kinds: 2 .psd" in done.stderr
    for pattern in (
        r"packed +8 of 11 inputs",
        r"time +[\d.]+ s\n",  # the run before has packed all images
        r"quarantined +1 input,.*\nskipped +2 images of unsupported kinds, listed in quarantine\.jsonl\n",
        r" +2  \.psd: convert them to JPEG or PNG\n +1  decode: ",
    ):
        assert re.search(pattern, done.stdout), done.stdout
    assert "11 = 8 packed + 1 quarantined + 2 skipped" in run("info", tmp_path / "dst").stdout
    paths = [json.loads(line)["path"] for line in (tmp_path / "dst/quarantine.jsonl").read_text().splitlines()]
    assert paths == ["a/1.psd", "a/2.psd", "b/cut.jpg"]


def test_extending_by_images_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension counts new images of kinds that are not read; those that are read by now become samples."""
    src, dst = write_tree(image_folder(tmp_path / "src", 4), {"a/1.webp": photo(1), "a/2.psd": b""}), tmp_path / "dst"
    with monkeypatch.context() as patch:
        patch.setitem(MISSING_CODECS, "WEBP", "WebP is not read here")
        shardflow.pack(src, dst, short_side=32, executor="serial", max_errors=2)
    write_tree(src, {"a/3.psd": b"", "a/new.jpg": photo(2)})
    dry = CliRunner().invoke(main.shardflow, ["extend", str(src), str(dst), "--dry-run"]).output
    assert "skipped      1 .psd, such as 'a/3.psd' (convert them to JPEG or PNG); to leave them out, use" in dry
    with pytest.raises(PackIncompleteError, match=r"1 \.psd.*'a/3\.psd'"):
        shardflow.extend(src, dst, executor="serial")
    report = shardflow.extend(src, dst, executor="serial", max_errors=1)
    assert (report.inputs, report.packed, report.quarantined, report.skipped) == (3, 2, 0, 1)
    manifest = shardflow.open(dst).manifest
    assert (manifest.inputs, manifest.samples, manifest.quarantined, manifest.skipped) == (8, 6, 0, 2)
    assert [bad.path for bad in shardflow.open(dst).quarantine()] == ["a/2.psd", "a/3.psd"]


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home directory in every argument, also where a shell does not replace it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_tree(image_folder(tmp_path / "src", 4), {"../names": b"c\nb\na\n"})
    write_tar(tmp_path / "tars/a.tar", members_of([1]))
    for arguments in (
        ("pack", "~/src", "~/dst", "--executor=serial", "--classes=~/names"),
        ("pack", "~/dst", "FILE:" + str(tmp_path / "again"), "--executor=serial"),
        ("subset", "~/dst", "~/part", "--classes=a"),
        ("preview", "~/dst", "--output=~/sheet.png", "--html=~/page.html"),
        ("index", "~/tars/*.tar", "--to=~/index"),
        ("export", "dali", "~/dst", "~/dali"),
        ("info", "~/part"),
    ):
        assert command.exit_code(*arguments) == 0, arguments
    shardflow.Cache("~/cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["src", "names", "dst", "again", "part", "sheet.png", "page.html", "index", "dali", "cache", "tars"]
    )


def test_wrong_usage() -> None:
    """Unknown commands and options are refused with a hint and exit code 2."""
    for arguments in (["frobnicate"], ["pack"], ["pack", "a", "b", "--frob"], ["pack", "a", "b", "--seed", "x"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Try 'shardflow" in done.stderr


def test_help_and_version() -> None:
    """The help lists commands, options with defaults, an example and the exit codes."""
    assert re.fullmatch(r"shardflow \d+\.\d+\.\d+\n", run("--version").stdout)
    overview = run("--help").stdout
    assert "  pack " in overview
    assert all(f"  {code} " in overview for code in (0, 1, 2, 3, 4, 130))
    help_text = run("pack", "--help").stdout
    assert "shardflow pack photos/ photos256/" in help_text
    assert "[default: preset]" in help_text
    assert "[default: 2048]" in help_text


def _packed(src: Path, dst: Path, *options: str) -> Result:
    arguments = [str(src), str(dst), "--executor", "serial", *options]
    return CliRunner().invoke(pack, arguments, catch_exceptions=False)


def test_help_lists_the_presets() -> None:
    """The help says what each preset is for."""
    text = CliRunner().invoke(pack, ["--help"], terminal_width=140).output
    for name, preset in PRESETS.items():
        assert f"  {name:10}{preset.purpose}" in text


def test_options_reach_the_recipe(tmp_path: Path) -> None:
    """Options of the command line are in the manifest; the preset sets the others."""
    src = image_folder(tmp_path / "src", 3)
    _packed(src, tmp_path / "1", "--preset", "fine", "--short-side", "48", "--square", "--filter", "lanczos")
    recipe = {"short_side": 48, "square": True, "filter": "lanczos", "quality": 95, "subsampling": "4:4:4"}
    assert recipe.items() <= shardflow.open(tmp_path / "1").recipe.items()
    options = ("--format", "webp", "--quality", "70", "--long-side", "300", "--enlarge", "--no-square")
    _packed(src, tmp_path / "2", *options)
    recipe = {"format": "webp", "quality": 70, "long_side": 300, "enlarge": True, "square": False}
    assert recipe.items() <= shardflow.open(tmp_path / "2").recipe.items()


def test_operations_are_reported(tmp_path: Path) -> None:
    """A pack counts images that were not only resized: here one animation, and one that was rotated."""
    frames = [Image.new("RGB", (60, 40), colour) for colour in ("red", "green")]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    write_tree(tmp_path / "src", {"1.gif": animation, "2.jpg": encoded(frames[0], "JPEG", exif=turned(8))})
    printed = _packed(tmp_path / "src", tmp_path / "dst").output
    assert "\nsplits       train 2\nlabels       none\n" in printed
    assert "\noperations   1 reduced to the first frame; 1 rotated upright\n" in printed


def test_contradictions_are_config_errors(tmp_path: Path) -> None:
    """Options that contradict each other are refused before anything is written."""
    src = image_folder(tmp_path / "src", 1)
    with pytest.raises(ConfigError, match="long_side and square"):
        _packed(src, tmp_path / "dst", "--square", "--long-side", "300")
    assert not (tmp_path / "dst").exists()


def test_original_preset_copies(tmp_path: Path) -> None:
    """`--preset original` leaves the bytes of ordinary files alone."""
    src = image_folder(tmp_path / "src", 2, 700, 500)
    _packed(src, tmp_path / "dst", "--preset", "original")
    images = [sample["jpg"] for sample in shardflow.open(tmp_path / "dst")["train"]]
    assert sorted(images) == sorted(path.read_bytes() for path in src.rglob("*.jpg"))
    assert Image.open(io.BytesIO(images[0])).size == (700, 500)
    write_tree(src, {"a/progressive.jpg": encoded(Image.open(io.BytesIO(images[0])), "JPEG", progressive=True)})
    assert "1 encoded again; 2 kept as encoded" in _packed(src, tmp_path / "again", "--preset", "original").output


def test_extend(tmp_path: Path) -> None:
    """`shardflow extend` prints what it added, what was known, and both fingerprints; then that nothing is new."""
    src = image_folder(tmp_path / "src", 30)
    before = shardflow.pack(src, tmp_path / "dst", short_side=32, executor="serial").fingerprint
    write_tree(src, {"d/new.jpg": photo(1), "d/bad.jpg": b"x"})
    arguments = ["extend", str(src), str(tmp_path / "dst"), "--executor", "serial", "--max-errors", "1"]
    result = CliRunner().invoke(main.shardflow, arguments)
    assert result.exit_code == 0, result.output
    for line in (
        "added        1 of 2 new inputs in 1 shard",
        "known        30 inputs of the dataset",
        f"quarantined  1 input, listed in {version_name(shardflow.open(tmp_path / 'dst').fingerprint)}",
        "new classes  d",
        f"fingerprint  {shardflow.open(tmp_path / 'dst').fingerprint}",
        f"previous     {before}",
    ):
        assert line in result.output
    again = CliRunner().invoke(main.shardflow, arguments)
    assert again.exit_code == 0
    assert again.output == "nothing new: the dataset already has 32 inputs of this source\n"


def test_extend_with_conflicts(tmp_path: Path) -> None:
    """Inputs with the path of another one stop `extend` unless --on-conflict says otherwise; --dry-run counts them."""
    src = image_folder(tmp_path / "src", 6)
    shardflow.pack(src, tmp_path / "dst", short_side=32, executor="serial")
    write_tree(src, {"a/0000.jpg": photo(9), "d/new.jpg": photo(1)})
    command = ["extend", str(src), str(tmp_path / "dst"), "--executor", "serial"]

    def told(*options: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(main.shardflow, [*command, *options], standalone_mode=False)
        assert result.return_value == exit_code, result.output
        return result.output

    conflict = "1 input with a path of the dataset but another image, label, split or column"
    assert told("--dry-run", exit_code=1).splitlines() == [
        "known        5 inputs of the dataset",
        "train        1 new input",
        f"conflicting  {conflict}: 'a/0000.jpg'",
        "new classes  d",
        "would write  nothing, because of the conflicts, which `verify --source` names; see --on-conflict",
    ]
    assert told("--dry-run", "--on-conflict", "add").splitlines()[-1] == "would write  1 shard"
    done = run(*command)
    assert done.returncode == 2
    assert "1 of 7 inputs with a path of the dataset but another image, label, split or column" in done.stderr
    assert ": 'a/0000.jpg'. " in done.stderr
    assert f"conflicting  {conflict}: skipped\n" in told("--on-conflict", "skip")
    assert told("--on-conflict", "skip").endswith(f"6 inputs of this source; skipped: {conflict}\n")
    assert f"conflicting  {conflict}: added\n" in told("--on-conflict", "add")
    assert told() == "nothing new: the dataset already has 7 inputs of this source\n"
