from __future__ import annotations

import re
from pathlib import Path

import shardflow
from tests.helpers.command import run
from tests.helpers.folders import image_folder, write_tree


def test_pack(tmp_path: Path) -> None:
    """A pack reports its result, the fingerprint of the dataset, and the next command."""
    src = image_folder(tmp_path / "src", 50)
    write_tree(src, {"a/readme.txt": b"", "b/cut.jpg": b"\xff\xd8\xff"})
    done = run("pack", src, tmp_path / "dst", "--short-side", 32, "--workers", 2, "--max-bad", 1)
    assert done.returncode == 0, done.stderr
    for pattern in (
        r"packed +50 of 51 inputs into 1 shard",
        r"bytes +0\.\d MB -> 0\.\d MB",
        r"time +[\d.]+ s, \d+ images/s",
        r"fingerprint +sha256:[0-9a-f]{64}\n",
        r"quarantined +1 input, listed in quarantine\.jsonl\n +1  decode: ",
        r"skipped +1 \.txt\n",
        rf"next +shardflow verify {tmp_path / 'dst'}\n$",
    ):
        assert re.search(pattern, done.stdout), pattern
    assert "images/s" in done.stderr


def test_exit_codes(tmp_path: Path) -> None:
    """Every expected failure is one line on stderr with the documented exit code, and no traceback."""
    src = image_folder(tmp_path / "src", 5)
    bad = write_tree(tmp_path / "bad", {"1.jpg": (src / "a" / "0000.jpg").read_bytes(), "2.jpg": b"", "3\n.jpg": b""})
    (tmp_path / "file").write_text("")
    assert run("pack", src, tmp_path / "dst", "--workers", 1).returncode == 0
    failures = [
        (1, (bad, tmp_path / "bad-dst", "--workers", 1)),
        (2, (tmp_path / "file", tmp_path / "x")),
        (2, (src, tmp_path / "x", "--quality", 101)),
        (2, (src, "nowhere://bucket/x")),
        (3, (src, tmp_path / "dst")),
        (4, (src, tmp_path / "file")),
        (4, (tmp_path / "nowhere", tmp_path / "x")),
    ]
    for exit_code, arguments in failures:
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
    assert dataset.classes == ("c", "b", "a")
    assert (dataset["train"][0]["cls"], dataset["train"][0]["txt"]) == (b"2", b"said 0000")
    done = run("pack", src, tmp_path / "2", *options, "--parts", "txt")
    assert done.returncode == 0, done.stderr
    assert shardflow.open(tmp_path / "2")["train"][0]["txt"] == b"hello"
    done = run("pack", tmp_path / "1" / "train" / "{000000..000000}.tar", tmp_path / "3", *options)
    assert done.returncode == 0, done.stderr
    wrong = [["--parts", "txt", "--label-column", "kind"], ["--label-column", "nothing"], ["--classes", src / "none"]]
    for arguments, exit_code in zip(wrong, (2, 2, 4), strict=True):
        done = run("pack", src / "t.tsv", tmp_path / "x", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (exit_code, 1), done.stderr


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
    assert "[default: 256]" in help_text
