"""A refused command leaves every file as it was, and is refused again."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError, FormatError, PackIncompleteError, ShardflowError
from shardflow.formats import manifest, quarantine, receipt
from shardflow.storage.local import LocalStorage
from tests.helpers.folders import contents, image_folder, photo, without_root, write_tree
from tests.helpers.making import flip, make_dataset
from tests.helpers.s3_fixtures import prefix, server
from tests.helpers.s3_server import Server

__all__ = ["prefix", "server"]

NEW = re.compile(r"train/00000[2-9]\.(tar|npy|json)|quarantine-unfinished\.jsonl|unfinished-[0-9a-f]{64}\.json")
"""Files of an extension that is not finished, which no reader looks at: the same command goes on with them."""

BAD = {"c/new.jpg": photo(7), "c/bad.jpg": b"\xff\xd8", "c/worse.jpg": b""}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `src` with an input that is bad and one that is skipped, and the dataset `dst`, once extended."""
    root = tmp_path_factory.mktemp("packed")
    src = write_tree(image_folder(root / "src", 9), {"a/bad.jpg": b"x", "a/old.psd": b"x"})
    settings: dict[str, Any] = {"short_side": 32, "executor": "serial"}
    sf.pack(src, root / "dst", **settings, shard_samples=20, max_errors=2)
    write_tree(src, {"a/more.jpg": photo(3), "b/bad.jpg": b"y"})
    sf.extend(src, root / "dst", executor="serial", max_errors=1)
    return root


@pytest.fixture
def place(packed: Path, tmp_path: Path) -> Path:
    """A directory with copies of both, and `before`."""
    shutil.copytree(packed, tmp_path / "place", copy_function=shutil.copy2)
    shutil.copytree(tmp_path / "place/dst", tmp_path / "place/before")
    return tmp_path / "place"


def extend(place: Path, **options: Any) -> None:
    """Extend the dataset from the folder."""
    sf.extend(place / "src", place / "dst", **{"executor": "serial", **options})


def extend_with(files: dict[str, bytes], **options: Any) -> Callable[[Path], None]:
    """Return an extension by a folder with these further files."""

    def run(place: Path) -> None:
        write_tree(place / "src", files)
        extend(place, **options)

    return run


def extend_from(source: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return an extension by another source."""
    return lambda place: sf.extend(source(place), place / "dst", executor="serial")


def extend_damaged(damage: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return an extension of a dataset after something has happened to it."""

    def run(place: Path) -> None:
        if not (place / "damaged").exists():
            (place / "damaged").touch()
            damage(place / "dst")
            shutil.rmtree(place / "before")
            shutil.copytree(place / "dst", place / "before")
        write_tree(place / "src", {"c/new.jpg": photo(7)})
        extend(place)

    return run


def edit_manifest(dst: Path, **changes: Any) -> None:
    """Write another manifest."""
    made = manifest.from_bytes((dst / manifest.FILE_NAME).read_bytes())
    (dst / manifest.FILE_NAME).write_bytes(replace(made, **changes).to_bytes())


def edit_receipt(dst: Path) -> None:
    """Write a receipt of another shard."""
    path = dst / "train/000000.json"
    made = receipt.from_bytes(path.read_bytes())
    path.write_bytes(replace(made, shard=replace(made.shard, samples=1)).to_bytes())


def while_locked(place: Path) -> None:
    """Extend while another process writes."""
    with LocalStorage(place / "dst").exclusive_writer():
        extend_with({"c/new.jpg": photo(7)})(place)


def interrupted(place: Path) -> None:
    """Extend, and interrupt the process as its jobs are done."""

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        extend_with(BAD, max_errors=9, progress=stop)(place)
    raise ShardflowError("it was interrupted")


def changed_meanwhile(place: Path) -> None:
    """Extend while another program replaces the manifest."""

    def change(_: object) -> None:
        if not (place / "changed").exists():
            (place / "changed").touch()
            for name in ("dst", "before"):
                edit_manifest(place / name, inputs=99)

    if (place / "changed").exists():
        raise ShardflowError("another version is there now")
    extend_with({"c/new.jpg": photo(7)}, progress=change)(place)


def read_only(place: Path) -> None:
    """Extend a dataset that this user cannot write."""
    if (place / "dst").stat().st_uid == 0:
        place.parent.parent.parent.chmod(0o755)
        place.parent.parent.chmod(0o755)
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    write_tree(place / "src", {"c/new.jpg": photo(7)})
    with without_root():
        extend(place)


def masked(_: Path) -> sf.sources.Collection:
    """Return a collection with masks."""
    plain = Image.new("L", (96, 64))
    return sf.sources.Collection([{"image": plain, "label": "a", "seg": plain}], mask="seg")


EXTENSIONS: dict[str, Callable[[Path], object]] = {
    "more bad inputs than allowed": extend_with(BAD, max_errors=1),
    "only bad inputs": extend_with({"c/bad.jpg": b""}),
    "images of a kind that is not read": extend_with({"c/new.psd": b""}),
    "a conflict": extend_with({"a/more.jpg": photo(8)}),
    "a wrong argument": lambda place: extend(place, max_errors=-1),
    "no labels": extend_from(lambda place: write_tree(place / "flat", {"x.jpg": photo(1)})),
    "other annotations": extend_from(masked),
    "no source": extend_from(lambda place: place / "none"),
    "an empty source": extend_from(lambda place: write_tree(place / "none", {"x.txt": b""})),
    "a missing receipt": extend_damaged(lambda dst: (dst / "train/000000.json").unlink()),
    "a damaged receipt": extend_damaged(lambda dst: (dst / "train/000000.json").write_bytes(b"{")),
    "a receipt of another shard": extend_damaged(edit_receipt),
    "a damaged manifest": extend_damaged(lambda dst: flip(dst / manifest.FILE_NAME, 200)),
    "a lost quarantine": extend_damaged(lambda dst: [path.unlink() for path in dst.glob("quarantine*")]),
    "a damaged quarantine": extend_damaged(lambda dst: [path.write_bytes(b"") for path in dst.glob("quarantine-*")]),
    "another recipe": extend_damaged(lambda dst: edit_manifest(dst, recipe={"short_side": 7, "colours": "new"})),
    "no sharding": extend_damaged(lambda dst: edit_manifest(dst, sharding=None)),
    "a held lock": while_locked,
    "no right to write": read_only,
    "a manifest that changes meanwhile": changed_meanwhile,
    "an interrupt": interrupted,
}


@pytest.mark.parametrize("refused", EXTENSIONS.values(), ids=EXTENSIONS)
def test_a_refused_extension(place: Path, refused: Callable[[Path], object]) -> None:
    """All files stay as they were, only those of the unfinished extension are added, and it is refused again."""
    for _ in range(2):
        with pytest.raises(ShardflowError):
            refused(place)
        before, after = contents(place / "before"), contents(place / "dst")
        assert {name: after.get(name) for name in before} == before
        assert [name for name in after.keys() - before.keys() if not NEW.fullmatch(name)] == []


OTHERS: dict[str, Callable[[Path], object]] = {
    "pack": lambda place: sf.pack(place / "src", place / "dst", executor="serial", max_errors=9),
    "index": lambda place: sf.index(place / "dst", place / "dst"),
    "subset": lambda place: sf.subset(place / "dst", place / "dst", classes=["a"]),
    "merge": lambda place: sf.merge([place / "dst"], place / "dst"),
    "split": lambda place: sf.split(place / "dst", place / "dst", val=0.3),
    "sync": lambda place: sf.sync(make_dataset(place / "set", [3]), place / "dst"),
}


@pytest.mark.parametrize("refused", OTHERS.values(), ids=OTHERS)
def test_a_command_refused_by_a_dataset(place: Path, refused: Callable[[Path], object]) -> None:
    """A command that makes a dataset leaves one that is there exactly as it was."""
    with pytest.raises(ShardflowError):
        refused(place)
    assert contents(place / "dst") == contents(place / "before")


@pytest.mark.parametrize("command", ["pack", "sync"])
def test_a_command_refused_by_other_files(place: Path, command: str) -> None:
    """A command that needs an empty directory leaves one with other files exactly as it was."""
    mine = {"notes.txt": b"mine", "train/x.tar": b"mine", ".tmp-notes": b"mine", "train/.tmp-x": b"mine"}
    shutil.rmtree(place / "dst")
    write_tree(place / "dst", mine)
    with pytest.raises(ShardflowError):
        OTHERS[command](place)
    assert contents(place / "dst") == mine


def test_a_repair_that_fails(place: Path) -> None:
    """What a source cannot replace stays as it is."""
    dst = place / "dst"
    flip(dst / "train/000000.tar", 2000)
    (dst / "train/000001.tar").unlink()
    before = contents(dst)
    for source in (None, make_dataset(place / "set", [3]), write_tree(place / "few", {"a/0000.jpg": photo(99)})):
        report = sf.repair(dst, source)
        assert (report.repaired, set(report.failed)) == ((), {"train/000000.tar", "train/000001.tar"})
        assert contents(dst) == before


def test_in_a_bucket(place: Path, server: Server, prefix: str) -> None:
    """A bucket keeps every blob as well, and the same command is refused again; then it lists all that was left out."""
    url, options = server.url(prefix), server.options()
    sf.sync(place / "dst", url, dst_options=options)
    before = server.contents(prefix)
    assert sf.open(url, storage_options=options).quarantine() == sf.open(place / "dst").quarantine()
    write_tree(place / "src", BAD)
    for _ in range(2):
        with pytest.raises(PackIncompleteError, match=r"quarantine-unfinished\.jsonl"):
            sf.extend(place / "src", url, executor="serial", max_errors=1, storage_options=options)
        after = server.contents(prefix)
        assert {name: after.get(name) for name in before} == before
        assert [name for name in after.keys() - before.keys() if not NEW.fullmatch(name)] == []
    assert sf.extend(place / "src", url, executor="serial", max_errors=2, storage_options=options).quarantined == 2
    after = server.contents(prefix)
    assert quarantine.UNFINISHED_NAME not in after
    assert {name for name in before if after[name] != before[name]} == {manifest.FILE_NAME}


def test_repaired_inputs_in_a_bucket(place: Path, server: Server, prefix: str) -> None:
    """After a refusal that names the lock, repaired inputs are packed once the lock is removed."""
    url, options = server.url(prefix), server.options()
    sf.sync(place / "dst", url, dst_options=options)
    write_tree(place / "src", BAD)
    with pytest.raises(PackIncompleteError, match="which keeps the packed ones") as refused:
        sf.extend(place / "src", url, executor="serial", storage_options=options)
    for name in ("bad", "worse"):
        (place / f"src/c/{name}.jpg").unlink()
    with pytest.raises(ConfigError, match="finish it with the command and the inputs that began it"):
        sf.extend(place / "src", url, executor="serial", storage_options=options)
    (lock,) = re.findall(r"remove s3://\S+/(unfinished-\w+\.json) unless", str(refused.value))
    server.storage(prefix).remove(lock)
    assert sf.extend(place / "src", url, executor="serial", storage_options=options).packed == 1


def test_each_version_has_its_quarantine(place: Path) -> None:
    """Each version lists what it left out, however often the dataset was extended and refused since."""
    dst = place / "dst"
    old = sf.open(dst)
    with pytest.raises(PackIncompleteError):
        extend_with(BAD)(place)
    listed = (dst / quarantine.UNFINISHED_NAME).read_text().splitlines()
    assert [json.loads(line)["path"] for line in listed] == ["c/bad.jpg", "c/worse.jpg"]
    assert [bad.path for bad in sf.open(dst).quarantine()] == ["a/bad.jpg", "a/old.psd", "b/bad.jpg"]
    extend(place, max_errors=2)
    new = [*(bad.path for bad in old.quarantine()), "c/bad.jpg", "c/worse.jpg"]
    assert [bad.path for bad in sf.open(dst).quarantine()] == new
    assert [bad.path for bad in sf.open(dst, version=old.fingerprint).quarantine()] == new[:3]
    sf.sync(dst, place / "copy")
    assert [bad.path for bad in sf.open(place / "copy").quarantine()] == new
    assert sf.extend(place / "src", place / "copy", executor="serial").inputs == 0


def test_a_quarantine_of_another_version(place: Path) -> None:
    """A list that does not have as many inputs as the version is an error that names the file."""
    dst = place / "dst"
    (dst / quarantine.version_name(sf.open(dst).fingerprint)).unlink()
    with pytest.raises(FormatError, match=r"quarantine\.jsonl.*2 inputs.*has 3"):
        sf.open(dst).quarantine()


def test_a_quarantine_of_a_pack_is_not_that_of_an_index(tmp_path: Path) -> None:
    """An index beside the quarantine of another pack has none of its own, and is copied and verified."""
    src = write_tree(image_folder(tmp_path / "src", 4), {"a/bad.jpg": b"x"})
    sf.pack(src, tmp_path / "dst", short_side=32, executor="serial", max_errors=1)
    (tmp_path / "dst" / manifest.FILE_NAME).unlink()
    sf.index(tmp_path / "dst")
    assert sf.open(tmp_path / "dst").quarantine() == []
    sf.sync(tmp_path / "dst", tmp_path / "copy")
    assert sf.verify(tmp_path / "copy") == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_text("x")])
def test_verify_finds_a_damaged_quarantine(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """Where inputs were left out, a list of them that is missing or damaged is a finding; receipts mend it."""
    src = write_tree(image_folder(tmp_path / "src", 4), {"a/bad.jpg": b"x"})
    sf.pack(src, tmp_path / "dst", short_side=32, executor="serial", max_errors=1)
    assert sf.verify(tmp_path / "dst") == []
    damage(tmp_path / "dst" / quarantine.FILE_NAME)
    (finding,) = sf.verify(tmp_path / "dst")
    assert (finding.file, finding.key) == (quarantine.FILE_NAME, None)
    assert finding.problem.endswith("restore it from a copy")
    assert sf.repair(tmp_path / "dst").left == ()
    assert [bad.path for bad in sf.open(tmp_path / "dst").quarantine()] == ["a/bad.jpg"]


def test_a_pack_refused_for_skipped_images_makes_nothing(tmp_path: Path) -> None:
    """A pack that is refused for images of a kind that is not read does not make its destination."""
    src = write_tree(image_folder(tmp_path / "src", 4), {"a/old.psd": b"x"})
    with pytest.raises(PackIncompleteError, match="of unsupported kinds"):
        sf.pack(src, tmp_path / "dst", short_side=32, executor="serial")
    assert not (tmp_path / "dst").exists()
