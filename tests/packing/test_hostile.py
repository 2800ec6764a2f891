from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardflow as sf
from shardflow.packing.progress import Progress
from shardflow.reports import PackReport
from tests.helpers.command import run
from tests.helpers.folders import contents, encoded, image_folder, photo, quarantined, without_root, write_tree
from tests.helpers.hostile import (
    DECODE,
    EITHER,
    ENCODE,
    FILES,
    PACKED,
    READ,
    Corpus,
    corpus,
    fingerprint,
    forged,
    picture,
    reference,
    write,
)

SHORT_SIDE = 32
SETTINGS: dict[str, Any] = {"short_side": SHORT_SIDE, "quality": 100, "subsampling": "4:4:4", "shard_samples": 512}
LEVELS = 2.5  # mean difference of a packed image to its reference, of 255: JPEG's at quality 100, on hard edges


def each_alone(src: Path) -> sf.sources.Folder:
    """The files of a folder, each an image of its own: some of the corpus have the names of an image and its mask."""
    return sf.sources.Folder(src, parts=())


class Packing:
    """The corpus, packed once by two workers."""

    def __init__(self, folder: Path) -> None:
        self.files: Corpus = corpus()
        self.src, self.dst = folder / "src", folder / "dst"
        self.expected = write(self.src, self.files)
        self.before = fingerprint(self.src)
        self.report: PackReport = sf.pack(
            each_alone(self.src), self.dst, **SETTINGS, workers=2, max_errors=len(self.expected)
        )
        self.quarantined = {row["path"]: row for row in quarantined(self.dst)}


@pytest.fixture(scope="module")
def packing(tmp_path_factory: pytest.TempPathFactory) -> Packing:
    """The corpus and what became of it."""
    return Packing(tmp_path_factory.mktemp("hostile"))


def sources(dst: Path) -> dict[str, str]:
    """The input that became each sample: split and key → path."""
    found = {}
    for path in sorted(dst.glob("*/*.json")):
        receipt = json.loads(path.read_bytes())
        with open(path.with_suffix(".tar"), "rb") as tar:
            keys = subprocess.run(["tar", "t"], stdin=tar, capture_output=True, text=True, check=True).stdout.split()
        images = [key.partition(".")[0] for key in keys if not key.endswith(".cls")]
        found.update(zip(images, receipt["sources"], strict=True))
    return found


def test_every_input_is_accounted_for(packing: Packing) -> None:
    """Each input is packed or quarantined, exactly once, as what it is; a quarantined one has a stage and a reason."""
    report, packed = packing.report, sources(packing.dst)
    assert report.inputs == len(packing.expected) == report.packed + report.quarantined
    assert sorted([*packed.values(), *packing.quarantined]) == sorted(packing.expected)
    assert len(packing.quarantined) == report.quarantined > 500
    for path, fate in packing.expected.items():
        row = packing.quarantined.get(path)
        found = PACKED if row is None else row["stage"]
        assert found in ({PACKED, DECODE, ENCODE} if fate == EITHER else {fate}), (path, row)
        assert row is None or row["reason"]


def test_the_source_is_untouched(packing: Packing) -> None:
    """No input's bytes, mode or time are other than before, and nothing was added."""
    assert fingerprint(packing.src) == packing.before


def test_every_packed_image_decodes(packing: Packing) -> None:
    """The dataset is valid, and the loader decodes each of its samples."""
    assert sf.verify(packing.dst) == []
    decoder = sf.decoders.CenterCrop(16)
    loader = sf.Loader(packing.dst, batch_size=64, decoder=decoder, shuffle=False, tail="short", num_workers=0)
    assert sum(len(images) for images, _ in loader) == packing.report.packed


def test_packed_images_look_like_their_sources(packing: Packing) -> None:
    """What is whole comes out as a plain bicubic resize of it, within a few levels: every format, mode and depth."""
    paths = sources(packing.dst)
    compared = 0
    for sample in sf.open(packing.dst)["train"]:
        path = paths[sample["__key__"]]
        if packing.expected[path] != PACKED or path not in packing.files:
            continue
        expected = np.asarray(reference(packing.files[path][0], SHORT_SIDE)).astype(int)
        found = np.asarray(Image.open(io.BytesIO(sample["jpg"]))).astype(int)
        assert found.shape == expected.shape, path
        assert abs(found - expected).mean() < LEVELS, path
        compared += 1
    assert compared > 60


def test_the_same_bytes_without_workers(packing: Packing, tmp_path: Path) -> None:
    """One process makes of the corpus what several make, down to the reasons."""
    sf.pack(each_alone(packing.src), tmp_path / "dst", **SETTINGS, executor="serial", max_errors=len(packing.expected))
    assert contents(tmp_path / "dst") == contents(packing.dst)


def test_forged_sizes_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    """Headers that promise gigabytes, of pixels or of text, cost no more memory than small pictures."""
    files = {name: data for name, (data, _) in forged().items()}
    write_tree(tmp_path / "src", {**files, "sound/1.jpg": photo(1)})
    script = """
import resource, sys
import shardflow as sf
def pack(src, dst):
    sf.pack(src, dst, executor="serial", max_errors=99)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(pack(sys.argv[1] + "/sound", sys.argv[2] + "/0"), pack(sys.argv[1], sys.argv[2] + "/1"))
"""
    command = [sys.executable, "-c", script, tmp_path / "src", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    before, after = map(int, done.stdout.split())
    assert len(files) > 10
    assert after - before < 16 << 10  # in KB


def test_unreadable_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that this user may not read is quarantined with the reason."""
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "src", {"a/1.jpg": photo(1), "a/2.jpg": photo(2)})
    (tmp_path / "src/a/2.jpg").chmod(0)
    tmp_path.chmod(0o777)
    with without_root():
        sf.pack("src", "dst", **SETTINGS, executor="serial", max_errors=1)
    (row,) = quarantined(tmp_path / "dst")
    assert (row["path"], row["stage"], row["reason"]) == ("a/2.jpg", READ, "Permission denied")


def test_inputs_that_vanish_or_change_meanwhile(tmp_path: Path) -> None:
    """An input that is gone or has another size when its turn comes is quarantined, and the others are packed."""
    src = image_folder(tmp_path / "src", 60)
    last = sorted(src.rglob("*.jpg"))[-3:]

    def disturb(progress: Progress) -> None:
        if progress.done >= 32 and last[0].exists():
            last[0].unlink()
            last[1].write_bytes(photo(1) + b"longer")
            last[2].unlink()
            last[2].mkdir()

    report = sf.pack(
        src, tmp_path / "dst", **SETTINGS, executor="serial", shuffle=False, max_errors=3, progress=disturb
    )
    assert (report.inputs, report.packed) == (60, 57)
    rows = quarantined(tmp_path / "dst")
    assert [row["path"] for row in rows] == [path.relative_to(src).as_posix() for path in last]
    assert [row["stage"] for row in rows] == [READ] * 3
    assert "No such file" in rows[0]["reason"]
    assert "bytes when it was listed" in rows[1]["reason"]
    assert rows[2]["reason"] == "not a regular file"
    assert sf.verify(tmp_path / "dst") == []


def test_messages_survive_odd_names(tmp_path: Path) -> None:
    """Names that no terminal should see stand escaped in the one line that the command says of them."""
    names = [os.fsdecode(name) for name in (b"line\nbreak.jpg", b"no \xff utf-8.jpg", b"\x1b[31mred.jpg")]
    write_tree(tmp_path / "src", {"sound.jpg": photo(1), **dict.fromkeys(names, FILES["JPEG"][:50])})
    done = run("pack", "src", "dst", "--workers", 1, cwd=tmp_path, text=False)
    last = done.stderr.rstrip(b"\n").splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(b"shardflow: 3 of 4 inputs could not be packed")
    assert all(repr(name).encode() in last for name in names)
    assert b"\x1b[31m" not in done.stderr


def test_codecs_do_not_talk_to_the_terminal(tmp_path: Path) -> None:
    """What a library writes to its process's standard error about bad bytes is not shown; the ledger has the reason."""
    tiff = bytearray(encoded(picture(), "TIFF", compression="tiff_lzw"))
    tiff[20:200] = bytes(180)
    write_tree(tmp_path / "src", {"1.tif": bytes(tiff), "2.jpg": photo(1)})
    done = run("pack", "src", "dst", "--workers", 1, "--max-errors", 1, cwd=tmp_path, check=True)
    assert "LZW" not in done.stderr
    (row,) = quarantined(tmp_path / "dst")
    assert row["reason"] in ("the data is damaged (decoder error -2)", "the data is damaged (-2)")  # as Pillow 11 says
    assert f"\n          1  decode: {row['reason']}\n" in done.stdout
