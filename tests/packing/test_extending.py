from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

import shardflow as sf
from shardflow.dataset.write_lock import WriteLock
from shardflow.errors import (
    ConfigError,
    DatasetExistsError,
    IntegrityError,
    NotFoundError,
    PackIncompleteError,
    ResumeMismatchError,
    StoreError,
)
from shardflow.formats.manifest import Manifest, from_bytes, kept_name
from shardflow.formats.quarantine import version_name
from shardflow.packing.extending import preview_extension
from shardflow.packing.sources.labelling import append_classes
from shardflow.packing.sources.reader import Reader
from shardflow.packing.sources.source import Source
from shardflow.storage.local import LocalStorage
from shardflow.storage.s3_transport import LEAST_PART_BYTES
from tests.helpers.crashes import INSTRUMENT
from tests.helpers.folders import contents, encoded, image_folder, photo, write_tree
from tests.helpers.making import make_dataset
from tests.helpers.s3_server import Server
from tests.helpers.warm_python import python

AMID = "parent after put_object train/000003.tar #1"  # of an extension of a dataset in a bucket
SETTINGS: dict[str, Any] = {"short_side": 32, "shard_samples": 20, "seed": 3, "executor": "serial"}


def _grow(src: Path) -> Path:
    """Add images to a folder: of a class that is new, and of one that is there."""
    return write_tree(src, {f"{'a1' if n % 2 else 'b'}/new{n}.jpg": photo(n) for n in range(25)})


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `src`, of which `dst` was made when it had fewer images, and `whole` since."""
    root = tmp_path_factory.mktemp("packed")
    src = write_tree(image_folder(root / "src", 50), {"a/bad.jpg": b"\xff\xd8"})
    sf.pack(src, root / "dst", **SETTINGS, max_errors=1)
    sf.pack(_grow(src), root / "whole", **SETTINGS, max_errors=1)
    return root


@pytest.fixture
def dst(packed: Path, tmp_path: Path) -> Path:
    """A dataset that can be extended from `packed / "src"`."""
    return shutil.copytree(packed / "dst", tmp_path / "dst")


def test_new_inputs_become_new_shards(packed: Path, dst: Path) -> None:
    """New images make new shards, no file of the old shards is touched, and the dataset is valid."""
    before, old = contents(dst), sf.open(dst)
    report = sf.extend(packed / "src", dst, executor="serial")
    after, new = contents(dst), sf.open(dst)
    assert (report.known, report.inputs, report.packed, report.quarantined, report.shards) == (51, 25, 25, 0, 2)
    assert (report.previous, report.fingerprint) == (old.fingerprint, new.fingerprint)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"shardflow.json"}
    added = {f"train/00000{number}.{kind}" for number in (3, 4) for kind in ("json", "npy", "tar")}
    assert after.keys() - before.keys() == {kept_name(old.fingerprint), version_name(new.fingerprint), *added}
    assert sf.verify(dst) == []
    assert new.manifest.inputs == 76 == len(new["train"]) + 1
    assert len({sample["__key__"] for sample in new["train"]}) == 75


def test_statistics_are_those_of_all(packed: Path, dst: Path) -> None:
    """Means, deviations and counts are those of a dataset that was packed in one go."""
    sf.extend(packed / "src", dst, executor="serial")
    extended, whole = sf.open(dst).manifest, sf.open(packed / "whole").manifest
    assert (extended.mean, extended.std) == (whole.mean, whole.std)
    assert extended.statistics["train"].counts == whole.statistics["train"].counts


def test_old_classes_keep_their_numbers(packed: Path, dst: Path) -> None:
    """A new class comes last, though its name would sort before others, and every label names its folder."""
    report = sf.extend(packed / "src", dst, executor="serial")
    dataset = sf.open(dst)
    assert dataset.classes == ["a", "b", "c", "a1"]
    assert report.new_classes == ("a1",)
    receipts = [json.loads(path.read_bytes()) for path in sorted(dst.glob("train/*.json"))]
    folders = [source.split("/")[0] for receipt in receipts for source in receipt["sources"]]
    assert [dataset.classes[int(sample["cls"])] for sample in dataset["train"]] == folders


def test_old_versions_stay_readable(packed: Path, dst: Path) -> None:
    """An older fingerprint opens its own version, before and after one more extension."""
    first = sf.open(dst)
    samples = [first["train"][number] for number in range(5)]
    sf.extend(packed / "src", dst, executor="serial")
    second = sf.open(dst)
    sf.extend(write_tree(dst.parent / "more", {"c/one.jpg": photo(1)}), dst, executor="serial")
    assert len(sf.open(dst)["train"]) == 76
    for version, length in ((first, 50), (second, 75)):
        opened = sf.open(dst, version=version.fingerprint)
        assert (opened.fingerprint, len(opened["train"])) == (version.fingerprint, length)
        loader = sf.Loader(dst, version=version.fingerprint, batch_size=5, num_workers=0)
        assert len(loader) == length // 5
        assert len(list(sf.samples(dst, version=version.fingerprint))) == length
    assert [first["train"][number] for number in range(5)] == samples
    with pytest.raises(NotFoundError, match="is not version"):
        sf.open(dst, version="sha256:" + "0" * 64)
    with pytest.raises(ConfigError, match="is not a fingerprint"):
        sf.open(dst, version="1")


def test_files_of_a_later_version_stay(packed: Path, dst: Path) -> None:
    """After an older manifest is put back, no command replaces a file of a version whose manifest is kept."""
    first = sf.open(dst)
    keys = [f"train:{sample['__key__']}" for sample in first["train"]]
    table = {value: pa.table({"key": keys, "score": [value] * len(keys)}) for value in (1, 2)}
    sf.extend(packed / "src", dst, executor="serial")
    second = sf.columns.add(dst, table[1], key="key").fingerprint
    sf.columns.drop(dst, "score")
    shutil.copy(dst / kept_name(first.fingerprint), dst / "shardflow.json")
    before = contents(dst)
    more = write_tree(dst.parent / "more", {f"c/{n}.jpg": photo(n) for n in range(25)})
    for change in (lambda: sf.extend(more, dst, executor="serial"), lambda: sf.columns.add(dst, table[2], key="key")):
        with pytest.raises(ConfigError, match=r"train/00000\d\.\S+ belongs to the version in manifests/.* sync"):
            change()
        assert contents(dst) == before
    assert len(sf.open(dst, version=second)["train"].column("score").values) == 75
    sf.sync(dst, dst.with_name("new"))
    assert sf.extend(more, dst.with_name("new"), executor="serial").packed == 25


def test_checkpoint_of_an_older_version(packed: Path, dst: Path) -> None:
    """A state from before the extension is refused; the message says how to continue, or train on the new version."""
    state = sf.Loader(dst, batch_size=5, num_workers=0).state_dict()
    sf.extend(packed / "src", dst, executor="serial")
    old = rf"newer version; read the old one, Loader\(..., version='{state['fingerprint']}'\)"
    with pytest.raises(ResumeMismatchError, match=rf"{old}, or begin an epoch of this one: loader\.set_epoch"):
        sf.Loader(dst, batch_size=5, num_workers=0).load_state_dict(state)
    sf.Loader(dst, version=state["fingerprint"], batch_size=5, num_workers=0).load_state_dict(state)


def test_same_bytes_on_any_executor(packed: Path, dst: Path, tmp_path: Path) -> None:
    """Processes write the bytes that one process writes."""
    other = shutil.copytree(dst, tmp_path / "other")
    sf.extend(packed / "src", dst, executor="serial")
    sf.extend(packed / "src", other, workers=2)
    assert contents(dst) == contents(other)


def test_nothing_new(packed: Path, dst: Path) -> None:
    """Extending a dataset by what it has already changes no byte and is no error."""
    sf.extend(packed / "src", dst, executor="serial")
    before = contents(dst)
    report = sf.extend(packed / "src", dst, executor="serial")
    assert (report.inputs, report.known, report.fingerprint) == (0, 76, sf.open(dst).fingerprint)
    assert contents(dst) == before


def _cameras(root: Path) -> tuple[Path, Path]:
    """Return a dataset of one camera's pictures, and the folder of another, which names its pictures alike."""
    write_tree(root, {f"cam1/cat/{n}.bmp": bitmap(n) for n in range(5)})
    write_tree(root, {"cam1/cat/bad.bmp": b"bad", "cam2/cat/0.bmp": bitmap(0), "cam2/cat/9.bmp": bitmap(9)})
    write_tree(root, {"cam2/cat/1.bmp": bitmap(11), "cam2/cat/2.bmp": photo(2), "cam2/cat/bad.bmp": bitmap(12)})
    sf.pack(root / "cam1", root / "dst", **SETTINGS, max_errors=1)
    return root / "dst", root / "cam2"


def bitmap(number: int) -> bytes:
    """Return one of several pictures whose files are equally large."""
    return encoded(Image.new("RGB", (9, 9), (number, 0, 0)), "BMP")


def test_another_picture_of_the_same_name(tmp_path: Path) -> None:
    """A picture whose path is known and whose content is not is never passed over: it is an error that names it."""
    dst, src = _cameras(tmp_path)
    before = contents(dst)
    with pytest.raises(
        ConfigError,
        match=r"2.*5.*'cat/1\.bmp', 'cat/2\.bmp'\. .*on_conflict= or --on-conflict skip .* or add .*`shardflow remove`",
    ):
        sf.extend(src, dst, executor="serial")
    with pytest.raises(ConfigError, match=r"on_conflict.*'replace'"):
        sf.extend(src, dst, on_conflict="replace")
    assert contents(dst) == before


def test_adding_what_conflicts(tmp_path: Path) -> None:
    """With "add" both pictures are in the dataset, under one path, and then both are known; a mended one is new."""
    dst, src = _cameras(tmp_path)
    report = sf.extend(src, dst, on_conflict="add", executor="serial")
    assert (report.known, report.conflicting, report.inputs, report.packed) == (1, 2, 4, 4)
    assert (len(sf.open(dst)["train"]), sf.open(dst).manifest.inputs, sf.verify(dst)) == (9, 10, [])
    for again, known in ((src, 5), (tmp_path / "cam1", 6)):
        report = sf.extend(again, dst, executor="serial")
        assert (report.known, report.conflicting, report.inputs) == (known, 0, 0)


def test_skipping_what_conflicts(tmp_path: Path) -> None:
    """With "skip" the pictures that conflict are left out and counted."""
    dst, src = _cameras(tmp_path)
    report = sf.extend(src, dst, on_conflict="skip", executor="serial")
    assert (report.known, report.conflicting, report.inputs, report.packed) == (1, 2, 2, 2)
    report = sf.extend(src, dst, on_conflict="skip", executor="serial")
    assert (report.known, report.conflicting, report.inputs) == (3, 2, 0)


def test_changed_files_and_copies(tmp_path: Path) -> None:
    """A file that changed in its place conflicts though its size and mtime do not; a copy of the source is known."""
    dst, _ = _cameras(tmp_path)
    copy = shutil.copytree(tmp_path / "cam1", tmp_path / "copy")
    assert sf.extend(copy, dst, executor="serial").known == 6
    path = tmp_path / "cam1/cat/3.bmp"
    status = path.stat()
    path.write_bytes(bitmap(33))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ConfigError, match=r"1.*6.*'cat/3\.bmp'\."):
        sf.extend(tmp_path / "cam1", dst, executor="serial")


def test_only_what_may_differ_is_read(tmp_path: Path) -> None:
    """The same files are known without being opened; of others, those are that are as large as what was packed."""
    dst, src = _cameras(tmp_path)
    script = """
import sys
from shardflow.packing.extending import preview_extension
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])[-5:]) if event == "open" else None)
for src in sys.argv[2:]:
    preview_extension(src, sys.argv[1])
print(sorted(path for path in opened if path.endswith(".bmp")))
"""
    command = [sys.executable, "-c", script, dst, tmp_path / "cam1", src]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told == "['0.bmp', '1.bmp']\n"


@pytest.mark.parametrize("labels", [("0", "1"), ("cat", "dog")])
def test_numbers_and_names_of_classes(tmp_path: Path, labels: tuple[str, str]) -> None:
    """Labels that are numbers are not new classes of a dataset with names, nor names those of one with numbers."""
    write_tree(tmp_path, {f"{number}.bmp": bitmap(number) for number in range(4)})
    others = ("cat", "dog") if labels[0] == "0" else ("0", "1")
    for name, used, numbers in (("old", others, (0, 1)), ("new", labels, (2, 3))):
        rows = "".join(f"{number}.bmp,{label}\n" for number, label in zip(numbers, used, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"path,label\n{rows}")
    sf.pack(tmp_path / "old.csv", tmp_path / "dst", **SETTINGS)
    with pytest.raises(ConfigError, match="--classes"):
        sf.extend(tmp_path / "new.csv", tmp_path / "dst", executor="serial")
    named = sf.sources.Table(tmp_path / "new.csv", classes=others) if labels[0] == "0" else tmp_path / "old.csv"
    sf.extend(named, tmp_path / "dst", executor="serial")
    assert sf.open(tmp_path / "dst").classes == list(others)


def test_classes_of_another_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table whose classes are all new, as those of another column are, brings a warning."""
    write_tree(tmp_path, {f"{number}.bmp": bitmap(number) for number in range(2)})
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"path,species,label\n{number}.bmp,cat,pet\n")
    sf.pack(sf.sources.Table(tmp_path / "0.csv", label="species"), tmp_path / "dst", **SETTINGS)
    sf.extend(tmp_path / "1.csv", tmp_path / "dst", executor="serial")
    assert "all classes of the source are new, such as 'pet', the dataset such as 'cat'" in caplog.text


def test_other_labels_and_captions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The content of an input is more than its image: a row with another label, caption or mask conflicts."""
    write_tree(tmp_path, {"1.bmp": bitmap(1), "2.bmp": bitmap(2)})
    rows = "1.bmp,a,one\n2.bmp,b,two\n"
    table = sf.sources.Table(tmp_path / "t.csv", caption="text")
    (tmp_path / "t.csv").write_text(f"path,label,text\n{rows}")
    sf.pack(table, tmp_path / "dst", **SETTINGS)
    for changed in ("1.bmp,b,one\n2.bmp,a,two\n", "1.bmp,a,uno\n2.bmp,b,due\n"):
        (tmp_path / "t.csv").write_text(f"path,label,text\n{changed}")
        with pytest.raises(ConfigError, match="2 of 2 inputs"):
            sf.extend(table, tmp_path / "dst", executor="serial")
    assert not caplog.messages
    preview_extension(table, tmp_path / "dst", on_conflict="add")
    assert "2 inputs, such as 1.bmp, 2.bmp, with as many bytes as an image of the dataset" in caplog.text
    (tmp_path / "t.csv").write_text(f"path,label,text\n3.bmp,c,three\n{rows}")
    write_tree(tmp_path, {"3.bmp": bitmap(3)})
    assert sf.extend(table, tmp_path / "dst", executor="serial").packed == 1


def test_dry_run(tmp_path: Path) -> None:
    """A dry run counts what is known, new and in conflict, and writes nothing; conflicts are no error."""
    dst, src = _cameras(tmp_path)
    write_tree(src, {"dog/1.bmp": bitmap(1)})
    before = contents(dst)
    counts = preview_extension(src, dst)
    assert (counts.known, counts.inputs, len(counts.jobs), counts.new_classes) == (1, {"train": 3}, 1, ("dog",))
    assert counts.conflicting == ["cat/1.bmp", "cat/2.bmp"]
    assert preview_extension(src, dst, on_conflict="add").inputs == {"train": 5}
    with pytest.raises(ConfigError, match="on_conflict must be one of error, add, skip, found 'no'"):
        preview_extension(src, dst, on_conflict="no")
    assert contents(dst) == before


def test_another_dataset(packed: Path, tmp_path: Path) -> None:
    """A packed dataset may grow; of datasets without receipts, whose samples have the same names, one is refused."""
    whole = shutil.copytree(packed / "dst", tmp_path / "whole")
    other = make_dataset(tmp_path / "other", [shard.samples for shard in sf.open(whole)["train"].shards])
    nameless = shutil.copytree(whole, tmp_path / "nameless", ignore=shutil.ignore_patterns("0*.json"))
    sf.pack(nameless, tmp_path / "again", **{**SETTINGS, "short_side": 16})
    before = contents(tmp_path / "again")
    with pytest.raises(ConfigError, match=r"'train/0000.*same name.*`shardflow merge`"):
        sf.extend(other, tmp_path / "again", executor="serial")
    assert contents(tmp_path / "again") == before
    sf.pack(whole, tmp_path / "dst", **{**SETTINGS, "short_side": 16})
    sf.extend(packed / "src", whole, executor="serial")
    assert sf.extend(whole, tmp_path / "dst", executor="serial").packed == 25
    assert sf.extend(whole, tmp_path / "dst", executor="serial").inputs == 0
    sf.pack(packed / "src", tmp_path / "mixed", **SETTINGS, max_errors=1)
    assert sf.extend(other, tmp_path / "mixed", executor="serial").packed == 50


def test_a_test_split_without_labels(tmp_path: Path) -> None:
    """A split that is new, or has no labels, takes inputs without labels; one with labels takes only such."""
    write_tree(tmp_path, {f"{number}.jpg": photo(number) for number in range(8)})

    def table(*rows: str) -> Path:
        path = tmp_path / f"{len(rows)}{rows[0][0]}.csv"
        path.write_text("\n".join(["path,split,label", *(f"{row[0]}.jpg,{row[2:]}" for row in rows)]))
        return path

    sf.pack(table("0,train,a", "1,train,b"), tmp_path / "dst", short_side=16, executor="serial")
    sf.extend(table("2,test,", "3,test,"), tmp_path / "dst", executor="serial")
    sf.extend(table("4,test,", "5,train,b"), tmp_path / "dst", executor="serial")
    sources = [*tmp_path.glob("*.csv")]
    assert (sf.open(tmp_path / "dst").classes, sf.verify(tmp_path / "dst", sources=sources)) == (["a", "b"], [])
    assert {split: len(samples) for split, samples in sf.open(tmp_path / "dst").items()} == {"test": 3, "train": 3}
    before = contents(tmp_path / "dst")
    for rows, message in (
        (["6,train,"], "the dataset has classes and the source has none"),
        (["6,test,a", "7,train,a"], "split 'test' has no labels, the source's has some"),
        (["6,train,", "7,val,a"], "split 'train' has labels, the source's has none"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.extend(table(*rows), tmp_path / "dst", executor="serial")
    assert contents(tmp_path / "dst") == before


class _Counted(str):
    """A name that counts how often it is looked up."""

    hashed = 0

    def __hash__(self) -> int:
        _Counted.hashed += 1
        return super().__hash__()


def test_many_classes() -> None:
    """Putting the classes of a source behind those of a dataset takes a few looks at each name."""
    old, new = (tuple(_Counted(f"{kind}{n}") for n in range(300)) for kind in ("old", "new"))
    source = Source(reader=Reader(base="."), splits={}, classes=new, skipped={})
    assert append_classes(source, old, {}).classes == (*old, *new)
    assert _Counted.hashed < 10 * 600


def test_bad_inputs(dst: Path, tmp_path: Path) -> None:
    """Too many new bad inputs leave the old version; allowed, each is named in the ledger beside the old ones."""
    src = write_tree(tmp_path / "new", {"a/good.jpg": photo(1), "a/worse.jpg": b"", "b/ugly.jpg": b"x"})
    old = sf.open(dst).fingerprint
    with pytest.raises(PackIncompleteError, match=r"2.*3.*1.*allowed.*--max-errors 2"):
        sf.extend(src, dst, executor="serial", max_errors=1)
    assert sf.open(dst).fingerprint == old
    report = sf.extend(src, dst, executor="serial", max_errors=2)
    assert (report.inputs, report.packed, report.quarantined, report.resumed) == (3, 1, 2, 3)
    assert [bad.path for bad in sf.open(dst).quarantine()] == ["a/bad.jpg", "a/worse.jpg", "b/ugly.jpg"]
    assert sf.open(dst).manifest.inputs == 54


def test_a_table_with_fewer_columns(tmp_path: Path) -> None:
    """A table without the further columns of the dataset's json is refused; the message says what makes the json."""
    write_tree(tmp_path, {f"{n}.jpg": photo(n) for n in range(2)})
    (tmp_path / "old.csv").write_text("image,label,age\n0.jpg,a,7\n")
    (tmp_path / "new.csv").write_text("image,label\n1.jpg,a\n")
    sf.pack(tmp_path / "old.csv", tmp_path / "dst", short_side=32, executor="serial")
    with pytest.raises(
        ConfigError, match=r"'1.jpg' of the source lacks the part 'json' .*\(a table's json has its furth"
    ):
        sf.extend(tmp_path / "new.csv", tmp_path / "dst")


def test_what_cannot_be_extended(packed: Path, dst: Path, tmp_path: Path) -> None:
    """No dataset, no labels, no layout and a missing receipt are each said clearly, and nothing is changed."""
    with pytest.raises(NotFoundError, match="does not exist"):
        sf.extend(packed / "src", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    before = contents(dst)
    with pytest.raises(ConfigError, match=r"dataset.*classes"):
        sf.extend(write_tree(tmp_path / "flat", {"x.jpg": photo(1)}), dst)
    (dst / "train/000001.json").rename(tmp_path / "receipt")
    with pytest.raises(NotFoundError, match=r"extending needs all receipts: .*train/000001\.json"):
        sf.extend(packed / "src", dst)
    (tmp_path / "receipt").rename(dst / "train/000001.json")
    assert contents(dst) == before
    made = from_bytes(before["shardflow.json"])
    bare = Manifest(splits=made.splits, classes=made.classes, recipe=made.recipe, inputs=made.inputs)
    (dst / "shardflow.json").write_bytes(bare.to_bytes())
    with pytest.raises(ConfigError, match=r"record.*divided"):
        sf.extend(packed / "src", dst)


def test_a_receipt_of_another_shard(dst: Path) -> None:
    """A receipt that is not that of the shard beside it is an error that names it, and nothing is committed."""
    old = sf.open(dst).fingerprint
    shutil.copy(dst / "train/000000.json", dst / "train/000001.json")
    with pytest.raises(IntegrityError, match=r"train/000001\.json.*receipt"):
        sf.extend(write_tree(dst.parent / "more", {"a/more.jpg": photo(1)}), dst, executor="serial")
    assert sf.open(dst).fingerprint == old


def test_a_damaged_receipt(dst: Path) -> None:
    """A changed receipt is a finding of `verify` and an error of `extend`, which name the file and the remedy."""
    assert sf.verify(dst) == []
    receipt = dst / "train/000001.json"
    receipt.write_text(receipt.read_text().replace('"first": ', '"first": -'))
    with pytest.raises(NotFoundError, match=r"dst/train/000001\.json:.*receipt"):
        sf.extend(write_tree(dst.parent / "more", {"a/more.jpg": photo(1)}), dst, executor="serial")
    (finding,) = sf.verify(dst)
    assert finding.file == "train/000001.json"
    assert "checksum" in finding.problem


def test_one_extender_at_a_time(packed: Path, dst: Path) -> None:
    """While another process writes to a directory, an extension is refused."""
    with LocalStorage(dst).exclusive_writer(), pytest.raises(StoreError, match="another process is writing"):
        sf.extend(packed / "src", dst)


def test_bucket(packed: Path, tmp_path: Path, dst: Path, server: Server, prefix: str) -> None:
    """A dataset in a bucket is extended as one on a disk, goes on after a kill, and is locked meanwhile."""
    url, options, storage = server.url(prefix), server.options(), server.storage(prefix)
    old = sf.open(dst).fingerprint
    sf.sync(dst, url, dst_options=options)
    lock = WriteLock(storage=storage, extends=old, blob=json.dumps({"content": "of another extension"}).encode())
    storage.put(lock.name, lock.blob, new=True)
    with pytest.raises(ConfigError, match=r"inputs.*settings"):
        sf.extend(packed / "src", url, executor="serial", storage_options=options)
    with pytest.raises(DatasetExistsError):
        sf.pack(packed / "src", url, **SETTINGS, storage_options=options)
    lock.check()
    lock.release()
    order = f"{str(packed / 'src')!r}, {url!r}, executor='serial', storage_options={options!r}"
    command = [python(), "-c", f"import shardflow as sf; sf.extend({order})"]
    plan = {"roots": {}, "parts": LEAST_PART_BYTES, "kill": AMID, "fired": str(tmp_path / "fired")}
    environment = {**os.environ, "PYTHONPATH": str(INSTRUMENT), "FIRE": json.dumps(plan)}
    assert subprocess.run(command, env=environment, timeout=60).returncode == -signal.SIGKILL
    assert sf.open(url, storage_options=options).fingerprint == old
    other = write_tree(tmp_path / "other", {"a/other.jpg": photo(1)})
    with pytest.raises(ConfigError, match=r"inputs.*settings"):
        sf.extend(other, url, executor="serial", storage_options=options)
    twins = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    ends = [(twin.communicate(timeout=60)[1], twin.returncode) for twin in twins]
    assert any(code == 0 for _, code in ends), ends
    assert all(code == 0 or b"another process meanwhile" in said for said, code in ends), ends
    storage.put(lock.name, json.dumps({"content": "of one killed at its commit"}).encode(), new=True)
    assert sf.extend(packed / "src", url, executor="serial", storage_options=options).inputs == 0
    sf.extend(packed / "src", dst, executor="serial")
    assert server.contents(prefix) == contents(dst)


def test_a_copy_can_be_extended(tmp_path: Path) -> None:
    """A copy has the receipts of all inputs, also of a shard's worth that was bad, and goes on with other numbers."""
    src = write_tree(tmp_path / "src", {f"{n}.jpg": photo(n) if n < 4 else b"bad" for n in range(6)})
    sf.pack(src, tmp_path / "dst", shard_samples=2, shuffle=False, max_errors=2, executor="serial")
    sf.sync(tmp_path / "dst", tmp_path / "copy")
    write_tree(src, {"7.jpg": photo(7)})
    for dst in ("dst", "copy"):
        report = sf.extend(src, tmp_path / dst, executor="serial")
        assert (report.known, report.inputs) == (6, 1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "copy")
    assert sf.open(tmp_path / "copy")["train"][4]["__key__"] == "000000006"


def test_new_split(tmp_path: Path) -> None:
    """A split that the dataset does not have yet is added, and its samples are counted from zero."""
    src = write_tree(tmp_path / "src", {f"train/a/{n}.jpg": photo(n) for n in range(4)})
    sf.pack(src, tmp_path / "dst", executor="serial")
    write_tree(src, {"val/b/0.jpg": photo(5), "val/a/1.jpg": photo(6)})
    report = sf.extend(src, tmp_path / "dst", executor="serial")
    dataset = sf.open(tmp_path / "dst")
    assert {split: len(samples) for split, samples in dataset.items()} == {"train": 4, "val": 2}
    assert sorted(sample["__key__"] for sample in dataset["val"]) == ["000000000", "000000001"]
    assert report.new_classes == ("b",)
    assert sf.verify(tmp_path / "dst") == []
