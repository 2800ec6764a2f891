from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow import native
from shardflow.errors import IntegrityError, ManifestError, NotFoundError, ShardflowError
from shardflow.formats import seek_table, shard_index, tar_members, ustar
from shardflow.formats.manifest import FILE_NAME, Manifest
from shardflow.formats.shard import Shard
from shardflow.storage.local import LocalStorage
from tests.helpers.examples import stride
from tests.helpers.making import flip, jpeg, make_dataset, write_shard
from tests.helpers.tars import TarInMemory, members_of, plain_tar, write_tar

TRAIN, OTHER = "train/000000", "train/000001"
PAGE = 4096


def small(root: Path) -> Path:
    """A dataset of two shards of two samples, of the same size and with members in the same places."""
    storage = LocalStorage(root)
    shards = []
    for ordinal in range(2):
        samples = [
            (f"{number:09}", {"cls": b"%d" % number, "jpg": jpeg(number, 8, 8)[:630]})
            for number in range(2 * ordinal, 2 * ordinal + 2)
        ]
        shards.append(write_shard(storage, f"train/{ordinal:06}.tar", samples))
    commit(storage, shards, classes=4)
    return root


def commit(storage: LocalStorage, shards: Sequence[Shard], classes: int, **recipe: Any) -> None:
    """Write the manifest of these shards."""
    names = tuple(f"class{n}" for n in range(classes))
    storage.put(FILE_NAME, Manifest(splits={"train": tuple(shards)}, classes=names, recipe=recipe).to_bytes())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small dataset, for tests that restore the files which they damage."""
    return small(tmp_path_factory.mktemp("verify") / "set")


def read(root: Path) -> list[dict[str, Any] | ShardflowError]:
    """Return for each sample what a reader gets; errors of other types are raised."""
    outcomes: list[dict[str, Any] | ShardflowError] = []
    split = shardflow.open(root)["train"]
    for number in range(len(split)):
        try:
            outcomes.append(split[number])
        except ShardflowError as error:
            outcomes.append(error)
    return outcomes


def put(root: Path, files: Mapping[str, bytes | None]) -> None:
    """Replace files; None deletes a file."""
    for name, data in files.items():
        (root / name).unlink(missing_ok=True)  # writing over a file waits for the disk
        if data is not None:
            (root / name).write_bytes(data)


def assert_found(root: Path, files: Mapping[str, bytes | None], right: Sequence[Any]) -> list[Any]:
    """Damage files, check that `verify` reports each and that no reader gets a wrong sample, and restore them."""
    before = {name: (root / name).read_bytes() for name in files}
    assert all(data != before[name] for name, data in files.items())
    try:
        put(root, files)
        found = {finding.file for finding in shardflow.verify(root)}
        outcomes = read(root)
    finally:
        put(root, before)
    assert found >= set(files)
    for outcome, expected in zip(outcomes, right, strict=True):
        assert isinstance(outcome, ShardflowError) or outcome == expected
    return outcomes


def test_intact_dataset_has_no_findings(tmp_path: Path) -> None:
    """An intact dataset has no findings, with and without labels, and `progress` is called for each shard."""
    root = make_dataset(tmp_path / "a", {"train": [5, 1, 7], "val": [2]})
    checked: list[str] = []
    assert shardflow.verify(root, progress=lambda shard: checked.append(shard.name)) == []
    assert sorted(checked) == ["train/000000.tar", "train/000001.tar", "train/000002.tar", "val/000000.tar"]
    assert shardflow.verify(str(make_dataset(tmp_path / "b", [3], labelled=False))) == []
    assert shardflow.verify(small(tmp_path / "c")) == []


@pytest.mark.skipif(not native.available(), reason=native.describe())
def test_seek_tables_are_made_anew(tmp_path: Path) -> None:
    """A JPEG with the seek table of another scan is found where readers use it, and one with its own is not."""
    jpegs = [jpeg(number, 400, 300) for number in range(2)]
    tables = [native.seek_table(one) or b"" for one in jpegs]
    storage = LocalStorage(tmp_path)
    images = [seek_table.insert(jpegs[0], tables[0]), seek_table.insert(jpegs[0], tables[1])]
    samples = [(f"{number:09}", {"cls": b"0", "jpg": image}) for number, image in enumerate(images)]
    shard = write_shard(storage, "train/000000.tar", samples)
    for limit, wrong in ((400 * 300, ["000000001"]), (400 * 300 - 1, ["000000000", "000000001"])):
        commit(storage, [shard], classes=1, seek_tables="encoded", max_pixels=limit)
        findings = shardflow.verify(tmp_path)
        assert [finding.key for finding in findings] == wrong
        assert all("seek table" in finding.problem for finding in findings)
    commit(storage, [shard], classes=1)
    assert shardflow.verify(tmp_path) == []


def test_nothing_to_verify(tmp_path: Path) -> None:
    """A missing dataset and a damaged manifest are errors, not findings."""
    with pytest.raises(NotFoundError):
        shardflow.verify(tmp_path / "none")
    root = small(tmp_path / "set")
    (root / FILE_NAME).write_bytes((root / FILE_NAME).read_bytes().replace(b'"inputs": 0', b'"inputs": 1'))
    with pytest.raises(ManifestError, match="fingerprint"):
        shardflow.verify(root)


@pytest.mark.parametrize("kind", ["header", "payload", "padding", "end"])
def test_every_flipped_bit_of_a_shard_is_found(shared: Path, kind: str) -> None:
    """One wrong bit in any part of a tar is found, and no reader gets a sample with it."""
    right, data = read(shared), bytearray((shared / f"{TRAIN}.tar").read_bytes())
    members = list(tar_members.members(TarInMemory(bytes(data))))
    regions = {
        "header": [position for m in members for position in range(m.offset - 512, m.offset)],
        "payload": [position for m in members for position in range(m.offset, m.offset + m.size)],
        "padding": [p for m in members for p in range(m.offset + m.size, m.offset + m.size + ustar.padding(m.size))],
        "end": list(range(len(data) - 1024, len(data))),
    }
    assert sum(map(len, regions.values())) == len(data)
    wrong = 0
    tried = regions[kind][:: stride(7)]
    for position in tried:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        outcomes = assert_found(shared, {f"{TRAIN}.tar": bytes(damaged)}, right)
        wrong += sum(isinstance(outcome, ShardflowError) for outcome in outcomes)
        assert outcomes[2:] == right[2:]
    if kind in ("padding", "end"):
        assert wrong == 0  # no sample's bytes are there
    if kind == "payload":
        assert wrong == len(tried)


def test_every_flipped_bit_of_an_index_is_found(shared: Path) -> None:
    """One wrong bit anywhere in an index is found, and readers get every sample right all the same."""
    right, data = read(shared), (shared / f"{TRAIN}.npy").read_bytes()
    for position in range(0, len(data), stride(7)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        assert assert_found(shared, {f"{TRAIN}.npy": bytes(damaged)}, right) == right


def test_a_damaged_index_does_not_accuse_its_tar(tmp_path: Path) -> None:
    """Of a shard whose index has a flipped bit, only the index is a finding."""
    flip(small(tmp_path) / f"{TRAIN}.npy", 300)
    assert {finding.file for finding in shardflow.verify(tmp_path)} == {f"{TRAIN}.npy"}


def test_findings_do_not_advise_to_verify(tmp_path: Path) -> None:
    """The findings of `verify` leave out the advice to run it, which errors of readers have."""
    write_tar(tmp_path / "0.tar", members_of(range(3)), mtime=1)
    shardflow.index(tmp_path)
    flip(tmp_path / "0.tar", 0)
    findings = shardflow.verify(tmp_path)
    assert any(finding.problem.startswith("record 0: ") for finding in findings)
    assert not any("shardflow verify" in finding.problem for finding in findings)


def test_every_truncation_of_a_shard_is_found(shared: Path) -> None:
    """A tar cut off at any block, or a byte before or after one, or with bytes added, is found."""
    right, data = read(shared), (shared / f"{TRAIN}.tar").read_bytes()
    lengths = {block + off for block in range(0, len(data), 512) for off in (-1, 0, 1)} - {-1}
    for damaged in [*(data[:length] for length in lengths), data + bytes(512), data + data]:
        outcomes = assert_found(shared, {f"{TRAIN}.tar": damaged}, right)
        assert all(isinstance(outcome, IntegrityError) for outcome in outcomes[:2])


def test_every_zeroed_page_is_found(shared: Path) -> None:
    """A page or a sector of zeros in place of data is found."""
    right, data = read(shared), (shared / f"{TRAIN}.tar").read_bytes()
    for size in (512, PAGE):
        for start in range(0, len(data) - 1024, 512):
            damaged = data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
            assert_found(shared, {f"{TRAIN}.tar": damaged}, right)


@pytest.mark.parametrize("parts", [(".tar",), (".npy",), (".tar", ".npy")], ids=" and ".join)
def test_swapped_files_are_found(shared: Path, parts: tuple[str, ...]) -> None:
    """Swapped shards are found, their tars, their indexes or both, although their sizes are equal."""
    right = read(shared)
    files = {}
    for part in parts:
        files[TRAIN + part], files[OTHER + part] = [(shared / f"{name}{part}").read_bytes() for name in (OTHER, TRAIN)]
        assert len(files[TRAIN + part]) == len(files[OTHER + part])
    outcomes = assert_found(shared, files, right)
    assert (outcomes == right) == (parts == (".npy",))


@pytest.mark.parametrize("missing", [(".tar",), (".npy",), (".tar", ".npy")], ids=" and ".join)
def test_missing_files_are_found(shared: Path, missing: tuple[str, ...]) -> None:
    """A missing tar and a missing index are found, each by itself; without the index, samples are right."""
    right = read(shared)
    outcomes = assert_found(shared, {f"{TRAIN}{part}": None for part in missing}, right)
    if ".tar" in missing:
        assert all(isinstance(outcome, NotFoundError) for outcome in outcomes[:2])
    else:
        assert outcomes == right


def test_findings_name_sample_and_part(tmp_path: Path) -> None:
    """A damaged payload is reported with the key of the sample and the columns that differ."""
    root = small(tmp_path / "set")
    tar = root / f"{TRAIN}.tar"
    member = list(tar_members.members(TarInMemory(tar.read_bytes())))[3]
    flip(tar, member.offset + 400)
    by_key = {finding.key: finding for finding in shardflow.verify(root)}
    assert set(by_key) == {None, "000000001"}
    assert str(by_key[None]) == "train/000000.tar: its SHA-256 differs from the manifest's"
    assert str(by_key["000000001"]) == "train/000000.tar, sample 000000001: part 'jpg' differs from the index in crc32"


def test_all_damage_is_reported(tmp_path: Path) -> None:
    """All damage is reported, in the order of the splits and shards."""
    root = make_dataset(tmp_path / "set", {"train": [3] * 6, "val": [2]})
    paths = [root / f"train/{ordinal:06}.tar" for ordinal in range(6)]
    members = list(tar_members.members(TarInMemory(paths[0].read_bytes())))
    flip(paths[0], *(members[number].offset + 300 for number in (1, 3, 5)))
    paths[1].with_suffix(".npy").unlink()
    paths[2].write_bytes(paths[2].read_bytes()[:-1024])
    paths[3].unlink()
    paths[3].with_suffix(".npy").write_bytes(b"")
    header = bytearray(paths[5].read_bytes())
    header[0] ^= 1
    paths[5].write_bytes(header)
    (root / "val/000000.npy").write_bytes(paths[0].with_suffix(".npy").read_bytes())
    findings = shardflow.verify(root)
    assert [finding.key for finding in findings if finding.file == "train/000000.tar"] == [
        *[None, "000000000", "000000001", "000000002"]
    ]
    files = [finding.file for finding in findings]
    assert set(files) == {
        *("train/000000.tar", "train/000001.npy", "train/000002.tar", "train/000003.tar", "train/000003.npy"),
        *("train/000005.tar", "val/000000.npy"),
    }
    size = paths[2].stat().st_size
    cut = [finding.problem for finding in findings if finding.file == "train/000002.tar"]
    assert f"has {size} bytes, but the manifest says {size + 1024}" in cut
    splits = [file.partition("/")[0] for file in files]
    assert splits == sorted(splits)


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        (b"4", r"label b'4' is not a whole number from 0 to 3"),
        *((label, "is not a whole number") for label in (b"-1", b"", b" 1", b"1\n", b"1.0", "\u0663".encode())),
        (b"9" * 10_000, r"label b'9{20}' is not a whole number"),
        (None, "has no label"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_wrong_labels_are_found(tmp_path: Path, label: bytes | None, problem: str) -> None:
    """A label that is not a class, or is missing, is found with the key of the sample: its bytes are intact."""
    storage = LocalStorage(tmp_path)
    parts = {"jpg": jpeg(0, 8, 8)} if label is None else {"jpg": jpeg(0, 8, 8), "cls": label}
    shard = write_shard(storage, "train/000000.tar", [("000", {"cls": b"3", "jpg": b""}), ("001", parts)])
    commit(storage, [shard], classes=4)
    (finding,) = shardflow.verify(tmp_path)
    assert (finding.file, finding.key) == ("train/000000.tar", "001")
    assert re.search(problem, finding.problem)


@pytest.mark.parametrize("labels", [b"[4]", b"[-1]", b"1", b'["1"]', b"[1", b"[1.0]"])
def test_wrong_lists_of_labels_are_found(tmp_path: Path, labels: bytes) -> None:
    """An invalid list of labels is found with the key of the sample; a valid one is not reported."""
    storage = LocalStorage(tmp_path)
    samples = [("000", {"jpg": b"", "labels.json": b"[0, 3]"}), ("001", {"jpg": b"", "labels.json": labels})]
    commit(storage, [write_shard(storage, "train/000000.tar", samples)], classes=4)
    (finding,) = shardflow.verify(tmp_path)
    assert (finding.key, "are not a list of whole numbers from 0 to 3" in finding.problem) == ("001", True)


def test_manifest_that_miscounts_is_found(tmp_path: Path) -> None:
    """A shard with more or fewer samples than the manifest says is found, and reading it is a typed error."""
    storage = LocalStorage(tmp_path)
    shard = write_shard(storage, "train/000000.tar", [(f"{n:03}", {"cls": b"0"}) for n in range(3)])
    for samples in (2, 4):
        commit(storage, [replace(shard, samples=samples)], classes=4)
        problems = [finding.problem for finding in shardflow.verify(tmp_path)]
        assert f"has 3 samples, but the manifest says {samples}" in problems
        assert all(isinstance(outcome, ShardflowError) for outcome in read(tmp_path))


@pytest.mark.parametrize("column", ["offset", "size", "crc32", "width", "part"])
def test_index_that_contradicts_its_shard_is_found(tmp_path: Path, column: str) -> None:
    """An index with a wrong value and a right SHA-256 is found by sample and column; a reader gets no wrong bytes."""
    storage = LocalStorage(tmp_path)
    samples = [(f"{n:03}", {"cls": b"0", "jpg": jpeg(n, 8, 8)}) for n in range(3)]
    shard = write_shard(storage, "train/000000.tar", samples)
    commit(storage, [shard], classes=4)
    right = read(tmp_path)
    index = shard_index.build(TarInMemory(storage.read(shard.name)))[0]
    row = index[3]
    row[column] = b"txt" if column == "part" else row[column] - 1
    data = shard_index.to_bytes(index)
    storage.put(shard.index_name, data)
    commit(storage, [replace(shard, index_sha256=hashlib.sha256(data).hexdigest())], classes=4)
    (finding,) = shardflow.verify(tmp_path)
    assert (finding.key, finding.problem) == ("001", f"part 'jpg' differs from the index in {column}")
    outcome = read(tmp_path)[1]
    if column not in ("width", "part"):  # the pixels do not depend on the one, and nothing but this protects the other
        assert isinstance(outcome, IntegrityError)
    assert [read(tmp_path)[n] for n in (0, 2)] == [right[n] for n in (0, 2)]


def test_index_with_other_members_is_found(tmp_path: Path) -> None:
    """An index with a member too many or too few and a right SHA-256 is found."""
    storage = LocalStorage(tmp_path)
    shard = write_shard(storage, "train/000000.tar", [("000", {"cls": b"0", "jpg": b""}), ("001", {"cls": b"0"})])
    index = shard_index.build(TarInMemory(storage.read(shard.name)))[0]
    for other in (index[[0, 2]], index[[0, 1, 2, 2]]):
        data = shard_index.to_bytes(other)
        storage.put(shard.index_name, data)
        commit(storage, [replace(shard, index_sha256=hashlib.sha256(data).hexdigest())], classes=1)
        found = {(finding.file, finding.problem) for finding in shardflow.verify(tmp_path)}
        assert (shard.index_name, f"has {len(other)} members, but the shard has 3") in found


def test_shard_that_is_no_webdataset_is_found(tmp_path: Path) -> None:
    """A valid tar whose samples are torn apart is found, although it fits the manifest."""
    storage = LocalStorage(tmp_path)
    tar = plain_tar([("a.cls", b"0"), ("b.cls", b"0"), ("a.jpg", b"")])
    shard = write_shard(storage, "train/000000.tar", [("a", {"cls": b"0"})])
    storage.put("train/000000.tar", tar)
    commit(storage, [replace(shard, bytes=len(tar), sha256=hashlib.sha256(tar).hexdigest())], classes=1)
    assert [finding.problem for finding in shardflow.verify(tmp_path)] == [
        "the members of sample 'a' are not neighbours"
    ]
