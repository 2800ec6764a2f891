from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

import shardflow as sf
from shardflow import native
from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.manifest import FILE_NAME, from_bytes
from shardflow.formats.receipt import from_bytes as receipt_from_bytes
from shardflow.packing import verifying
from shardflow.packing.origin import open_sources
from shardflow.packing.verifying import Comparison, compare_with_sources
from tests.helpers.folders import encoded, image_folder, photo, write_tree
from tests.helpers.kernel import without_kernel
from tests.helpers.making import flip, make_dataset
from tests.helpers.tars import write_tar

SETTINGS: dict[str, Any] = {"short_side": 32, "shard_samples": 20, "executor": "serial"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `src`, a folder `more`, and `dst`, packed from the first and extended from the second."""
    root = tmp_path_factory.mktemp("packed")
    src = write_tree(image_folder(root / "src", 50), {"a/bad.jpg": b"\xff\xd8", "a/z.jpg": photo(3)})
    sf.pack(src, root / "dst", **SETTINGS, max_errors=1)
    sf.extend(write_tree(root / "more", {f"h/{n}.jpg": photo(n) for n in range(4)}), root / "dst", executor="serial")
    return root


@pytest.fixture
def dst(packed: Path, tmp_path: Path) -> Path:
    """The dataset, for a test that changes it."""
    return shutil.copytree(packed / "dst", tmp_path / "dst")


def test_the_right_dataset(packed: Path) -> None:
    """A dataset that is as its sources has no findings, whichever images are compared."""
    sources = [packed / "src", sf.sources.Folder(packed / "more")]
    assert sf.verify(packed / "dst", sources=sources) == []
    assert sf.verify(packed / "dst", sources=sources, images=7, seed=5) == []


def test_sources_that_are_not_all(packed: Path) -> None:
    """Each input that the sources do not have is a finding that names it, however few images are compared."""
    found = sf.verify(packed / "dst", sources=[packed / "src"])
    where = [(finding.file, finding.key) for finding in found]
    assert where == [("train/000003.tar", f"0000000{number}") for number in range(52, 56)]
    gone = [f"the source has no 'h/{n}.jpg', from which train/000003.tar was packed" for n in range(4)]
    assert sorted(finding.problem for finding in found) == gone
    assert found == sf.verify(packed / "dst", sources=[packed / "src"], images=1)
    others = {sample["__key__"] for sample in sf.open(packed / "dst")["train"]} - {finding.key for finding in found}
    assert {finding.key for finding in sf.verify(packed / "dst", sources=[packed / "more"], images=5)} == others


def test_the_seed_chooses_the_images(packed: Path, tmp_path: Path) -> None:
    """As many images as asked for are compared, others with another seed."""
    changed = shutil.copytree(packed / "src", tmp_path / "src")
    for number, path in enumerate(sorted(changed.rglob("*.jpg"))):
        path.write_bytes(photo(900 + number))
    sources = [changed, packed / "more"]
    choices = [sf.verify(packed / "dst", sources=sources, images=9, seed=seed) for seed in (0, 0, 1)]
    assert choices[0] == choices[1] != choices[2]
    assert {len(findings) for findings in choices} <= {*range(5, 10)}  # four inputs are as they were


def test_inputs_without_labels_that_are_gone(tmp_path: Path) -> None:
    """Without labels, too, each input that is gone is a finding."""
    write_tree(tmp_path / "src", {f"{n}.jpg": photo(n) for n in range(9)})
    sf.pack(tmp_path / "src", tmp_path / "dst", executor="serial", short_side=32)
    for number in (2, 5):
        (tmp_path / f"src/{number}.jpg").unlink()
    found = sf.verify(tmp_path / "dst", sources=[tmp_path / "src"], images=1)
    gone = [f"the source has no '{number}.jpg', from which train/000000.tar was packed" for number in (2, 5)]
    assert sorted(finding.problem for finding in found) == gone


def test_pictures_of_another_class(packed: Path, dst: Path) -> None:
    """Pictures of one class under the name of another, in a dataset without damage, are found by their folder."""
    manifest = from_bytes((dst / FILE_NAME).read_bytes())
    (dst / FILE_NAME).write_bytes(replace(manifest, classes=("a", "b", "c", "g")).to_bytes())
    assert sf.verify(dst) == []
    found = sf.verify(dst, sources=[packed / "src", packed / "more"])
    assert len(found) == 4
    assert "has the label 'g', its input 'h/" in found[0].problem
    assert found[0].problem.endswith("has 'h'")


def test_pictures_of_another_tree(packed: Path, dst: Path, tmp_path: Path) -> None:
    """Other pictures under the same paths are found, and whether the input has changed since is said."""
    src = shutil.copytree(packed / "src", tmp_path / "src")
    (src / "a/0003.jpg").write_bytes(photo(4))
    (found,) = sf.verify(dst, sources=[src, packed / "more"])
    assert (
        "part 'jpg' differs from the part that is packed from 'a/0003.jpg', which has changed since it was packed"
        in found.problem
    )
    (src / "a/0003.jpg").write_bytes(photo(3) + b"metadata")
    assert sf.verify(dst, sources=[src, packed / "more"]) == []


def test_receipt_that_names_other_inputs(packed: Path, dst: Path) -> None:
    """Where a receipt names another input than the one that was packed, the pictures differ."""
    path = dst / "train/000003.json"
    receipt = receipt_from_bytes(path.read_bytes())
    path.write_bytes(replace(receipt, sources=receipt.sources[1:] + receipt.sources[:1]).to_bytes())
    assert len(sf.verify(dst, sources=[packed / "src", packed / "more"])) == 4


def test_other_parts(tmp_path: Path) -> None:
    """Masks and texts are compared like images."""
    mask = encoded(Image.new("L", (96, 64), 7), "PNG")
    src = write_tree(tmp_path / "src", {"1.jpg": photo(1), "1.txt": b"one", "1.mask.png": mask})
    source = sf.sources.Folder(src, parts=("txt",))
    sf.pack(source, tmp_path / "dst", annotations=sf.annotations.Annotations(masks=("mask.png",)), **SETTINGS)
    assert sf.verify(tmp_path / "dst", sources=[source]) == []
    (src / "1.txt").write_bytes(b"uno")
    (found,) = sf.verify(tmp_path / "dst", sources=[source])
    assert "its part 'txt' differs from the part that is packed from '1.jpg'" in found.problem
    (src / "1.mask.png").write_bytes(encoded(Image.new("L", (96, 64), 8), "PNG"))
    (found,) = sf.verify(tmp_path / "dst", sources=[src])
    assert "its part 'mask.png' differs" in found.problem


@pytest.mark.skipif(not native.available(), reason=native.describe())
def test_other_codecs(packed: Path, tmp_path: Path) -> None:
    """Where the codecs are others, images may differ a little, but are still told from other pictures."""
    sources = [packed / "src", packed / "more"]
    with without_kernel():
        assert sf.verify(packed / "dst", sources=sources) == []
        (tmp_path / "h").mkdir()
        for number in range(4):
            (tmp_path / f"h/{number}.jpg").write_bytes(photo(number + 1))
        assert len(sf.verify(packed / "dst", sources=[packed / "src", tmp_path])) == 4


def scan(number: int) -> Image.Image:
    """Return nearly white paper with a few words, which depend on the number as its grain does."""
    rng = np.random.default_rng(number)
    paper = Image.new("L", (500, 400), 250)
    for x, y in rng.integers(20, 340, (4, 2)).tolist():
        ImageDraw.Draw(paper).text((x, y), f"word {rng.integers(10_000)}", fill=60)
    return Image.fromarray((np.asarray(paper) + rng.normal(0, 1, (400, 500))).clip(0, 255).astype(np.uint8))


def dark(number: int) -> Image.Image:
    """Return a frame with the noise of a sensor and nothing else."""
    noise = np.random.default_rng(number).normal(12, 5, (400, 500, 3))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8))


@pytest.mark.skipif(not native.available(), reason=native.describe())
@pytest.mark.parametrize("draw", [scan, dark])
@pytest.mark.parametrize("how", [{}, {"quality": 40}, {"format": "webp"}, {"format": "png"}])
def test_other_codecs_do_not_hide_other_pictures(tmp_path: Path, draw: Any, how: dict[str, Any]) -> None:
    """With other codecs, nearly white scans and dark frames are told apart, and those of the same file are not."""
    files = {f"{n}.jpg": encoded(draw(n), "JPEG", quality=95) for n in range(3)}
    src = write_tree(tmp_path / "src", files)
    sf.pack(src, tmp_path / "dst", **{**SETTINGS, "short_side": 256, **how})
    with without_kernel():
        assert sf.verify(tmp_path / "dst", sources=[src]) == []
        write_tree(src, {"0.jpg": files["1.jpg"]})
        (found,) = sf.verify(tmp_path / "dst", sources=[src])
    assert "is packed from '0.jpg'" in found.problem


@pytest.mark.skipif(not native.available(), reason=native.describe())
def test_other_codecs_do_not_change_masks(tmp_path: Path) -> None:
    """With other codecs, a mask with one other label is found."""
    files = {"1.jpg": photo(1), "1.mask.png": encoded(Image.new("L", (96, 64), 7), "PNG")}
    src = write_tree(tmp_path / "src", files)
    sf.pack(src, tmp_path / "dst", annotations=sf.annotations.Annotations(masks=("mask.png",)), **SETTINGS)
    with without_kernel():
        assert sf.verify(tmp_path / "dst", sources=[src]) == []
        other = Image.new("L", (96, 64), 7)
        other.paste(8, (10, 10, 20, 20))
        write_tree(src, {"1.mask.png": encoded(other, "PNG")})
        (found,) = sf.verify(tmp_path / "dst", sources=[src])
    assert "its part 'mask.png' differs" in found.problem


def test_receipts_that_are_none(packed: Path, dst: Path) -> None:
    """A shard without its own receipt cannot be compared, which is a finding; the others are compared."""
    path = dst / "train/000003.json"
    shutil.copy(dst / "train/000000.json", path)
    (damage, found) = sf.verify(dst, sources=[packed / "src"])
    assert damage.file == "train/000003.json"
    assert str(found).startswith("train/000003.json: its images cannot be compared with their inputs: ")
    assert f"{path} is not the receipt" in found.problem
    assert [each.file for each in sf.verify(dst)] == ["train/000003.json"]
    path.unlink()
    (damage, found) = sf.verify(dst, sources=[packed / "src"])
    assert "train/000003.json does not exist" in found.problem
    assert [damage] == sf.verify(dst)
    assert "train/000003.json does not exist" in damage.problem


def test_damage_is_reported_once(packed: Path, dst: Path) -> None:
    """The images of a damaged shard are not compared: what is wrong with them is known."""
    flip(dst / "train/000003.tar", 2000)
    damage = sf.verify(dst)
    assert damage
    assert sf.verify(dst, sources=[packed / "src"]) == damage


def test_what_cannot_be_compared(packed: Path, tmp_path: Path) -> None:
    """A virtual dataset, one that was not packed, a missing source and a wrong number are refused before reading."""
    sf.subset(packed / "dst", tmp_path / "part", fraction=0.5)
    with pytest.raises(ConfigError, match=rf"is a virtual dataset, .* receipts; compare {packed}/dst$"):
        sf.verify(tmp_path / "part", sources=[packed / "src"])
    sf.index(shutil.copytree(packed / "dst/train", tmp_path / "tars"), tmp_path / "index")
    with pytest.raises(ConfigError, match=r"`shardflow index`.*nothing"):
        sf.verify(tmp_path / "index", sources=[packed / "src"])
    with pytest.raises(ConfigError, match=r"`shardflow index`.*restore"):
        sf.repair(tmp_path / "index", packed / "src")
    with pytest.raises(ConfigError, match="was not made by packing"):
        sf.verify(make_dataset(tmp_path / "made", [3]), sources=[packed / "src"])
    with pytest.raises(NotFoundError, match="nowhere does not exist"):
        sf.verify(packed / "dst", sources=[tmp_path / "nowhere"], progress=lambda _: pytest.fail("read"))
    with pytest.raises(ConfigError, match="images must be 1 or more, found 0"):
        sf.verify(packed / "dst", images=0)


def test_numbers_that_the_dataset_named(tmp_path: Path) -> None:
    """A table of class numbers is compared with the dataset whose classes a file named, without naming them again."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(3)})
    table = tmp_path / "t.csv"
    table.write_text("path,label\n0.jpg,0\n1.jpg,1\n2.jpg,1\n")
    sf.pack(sf.sources.Table(table, classes=["a", "b"]), tmp_path / "dst", short_side=32, executor="serial")
    assert sf.verify(tmp_path / "dst", sources=[table]) == []
    table.write_text("path,label\n0.jpg,0\n1.jpg,1\n2.jpg,0\n")
    (finding,) = sf.verify(tmp_path / "dst", sources=[table])
    assert "2.jpg" in finding.problem


def test_an_id_that_looks_like_a_number(tmp_path: Path) -> None:
    """A table of ids, some of digits alone, is compared and repaired from as the dataset, without naming them again."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(3)})
    table, dst = tmp_path / "t.csv", tmp_path / "dst"
    table.write_text("path,label\n0.jpg,3f2a\n1.jpg,1234\n2.jpg,1234\n")
    with pytest.raises(ConfigError, match=r"the label '1234' as text, .* list the classes in a file for --classes"):
        sf.pack(table, dst)
    sf.pack(sf.sources.Table(table, classes=["1234", "3f2a"]), dst, short_side=32, executor="serial")
    assert sf.verify(dst, sources=[table]) == []
    flip(dst / "train/000000.tar", 700)
    assert sf.repair(dst, table).repaired == ("train/000000.tar",)
    table.write_text("path,label\n0.jpg,1234\n1.jpg,1234\n2.jpg,1234\n")
    (finding,) = sf.verify(dst, sources=[table])
    assert finding.problem == "has the label '3f2a', its input '0.jpg' has '1234'"


def test_all_labels_are_compared(tmp_path: Path) -> None:
    """Each sample whose label the table corrects is a finding, although few images are compared."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(8)})
    table, labels = tmp_path / "t.jsonl", ["a", "b", ["a", "b"], ["b", "c"], "c", "a", ["c"], "b"]

    def write(labels: list[Any]) -> None:
        rows = ({"path": f"{number}.jpg", "label": label} for number, label in enumerate(labels))
        table.write_text("\n".join(map(json.dumps, rows)))

    write(labels)
    sf.pack(table, tmp_path / "dst", short_side=32, executor="serial")
    assert sf.verify(tmp_path / "dst", sources=[table], images=1) == []
    for number, label in {1: "c", 2: ["a", "c"], 3: "c", 4: ["c"], 5: ["a", "b", "c"], 7: "d"}.items():
        labels[number] = label
    write(labels)
    for images in (1, 8):
        found = sf.verify(tmp_path / "dst", sources=[table], images=images)
        problems = {finding.problem for finding in found}
        assert problems == {
            "has the label 'a', its input '5.jpg' has 'a', 'b', 'c'",
            "has the label 'a', 'b', its input '2.jpg' has 'a', 'c'",
            "has the label 'b', 'c', its input '3.jpg' has 'c'",
            "has the label 'b', its input '1.jpg' has 'c'",
            "has the label 'b', its input '7.jpg' has 'd'",
        }
        assert len({finding.key for finding in found}) == 5


def test_all_texts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample whose row has another value or caption is a finding, although few images are compared."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(8)})
    table = tmp_path / "t.csv"

    def rows(counts: list[int], captions: str) -> None:
        lines = (f"{number}.jpg,a,{counts[number]},{captions[number]}" for number in range(8))
        table.write_text("\n".join(["path,label,count,caption", *lines]))

    rows([*range(8)], "abcdefgh")
    sf.pack(table, tmp_path / "dst", short_side=32, executor="serial")
    assert sf.verify(tmp_path / "dst", sources=[table], images=1) == []
    rows([0, 1, 2, 30, 4, 5, 6, 7], "abcdexgh")
    of_json, of_text = (f"its part '{part}' differs from the part that is packed from" for part in ("json", "txt"))
    for images in (1, 8):
        problems = {finding.problem for finding in sf.verify(tmp_path / "dst", sources=[table], images=images)}
        assert problems == {
            f"{of_json} '3.jpg', which has changed since it was packed: 'count' is '3', not '30'",
            f"{of_text} '5.jpg', which has changed since it was packed",
        }
    monkeypatch.setattr(verifying, "_NAMED", 0)
    problems = {finding.problem for finding in sf.verify(tmp_path / "dst", sources=[table], images=1)}
    assert problems == {
        f"its part {part!r} differs from that of its input '{n}.jpg'" for part, n in [("json", 3), ("txt", 5)]
    }


def test_json_that_is_no_object(tmp_path: Path) -> None:
    """Of a list in `.json`, a finding says only that it differs."""
    for content in (b"[1]", b"[2]"):
        write_tar(tmp_path / "tars/a.tar", [("0.jpg", photo(0)), ("0.json", content)])
        if content == b"[1]":
            sf.pack(tmp_path / "tars", tmp_path / "dst", short_side=32, executor="serial")
    (finding,) = sf.verify(tmp_path / "dst", sources=[tmp_path / "tars"])
    assert finding.problem.startswith("its part 'json' differs from the part that is packed from ")
    assert finding.problem.endswith("which has changed since it was packed")


def test_images_without_labels(tmp_path: Path) -> None:
    """Where nothing has labels, images alone are compared and counted."""
    src = write_tree(tmp_path / "src", {f"{number}.jpg": photo(number) for number in range(4)})
    sf.pack(src, tmp_path / "dst", short_side=32, executor="serial")
    with open_sources(dataset := sf.open(tmp_path / "dst"), [src]) as sources:
        assert compare_with_sources(dataset, sources, images=3) == Comparison([], 3, 0, [])


def test_labels_of_inputs_with_one_path(tmp_path: Path) -> None:
    """If two sources have a path, a sample has the label of either; if it has another, it was packed from neither."""

    def source(name: str, labels: str, first: int) -> Path:
        write_tree(tmp_path / name, {f"{number}.jpg": photo(first + number) for number in range(3)})
        table = tmp_path / name / "t.csv"
        table.write_text("\n".join(["path,label", *(f"{number}.jpg,{label}" for number, label in enumerate(labels))]))
        return table

    sources = [source("one", "abb", 0), source("two", "bba", 10)]
    sf.pack(sources[0], tmp_path / "dst", short_side=32, executor="serial")
    assert sf.verify(tmp_path / "dst", sources=sources, images=1) == []
    sources[0].write_text("path,label\n0.jpg,a\n1.jpg,b\n2.jpg,c")
    (finding,) = sf.verify(tmp_path / "dst", sources=sources, images=1)
    assert finding.problem == "the source has 2 inputs '2.jpg', and train/000000.tar was packed from none of them"
