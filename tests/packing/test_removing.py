from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from shardflow.formats import manifest, receipt
from shardflow.interop.energon import write_energon
from shardflow.packing.extending import preview_extension
from shardflow.storage.local import LocalStorage
from tests.helpers.command import run
from tests.helpers.examples import examples
from tests.helpers.folders import contents, image_folder, photo, write_tree
from tests.helpers.making import flip, make_dataset
from tests.helpers.s3_server import Server
from tests.helpers.store import Store
from tests.helpers.tars import write_tar

SETTINGS: dict[str, Any] = {"shard_samples": 4, "short_side": 16, "executor": "serial"}
IMAGES = 10


def make(root: Path) -> Path:
    """Pack twelve inputs of two classes, one of which is not an image, into three shards, and add two columns."""
    source = write_tree(image_folder(root / "src", IMAGES), {"a/bad.jpg": b"\xff\xd8", "b/secret.jpg": photo(20)})
    sf.pack(source, root / "set", **SETTINGS, max_errors=1)
    keys = keys_of(root / "set")
    table = pa.table({"id": keys, "text": [f"caption of {key}" for key in keys], "n": [int(key) for key in keys]})
    sf.columns.add(root / "set", table, key="id")
    return root / "set"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a dataset, which no test may change."""
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    """A copy of it, receipts included."""
    return write_tree(tmp_path / "set", contents(made))


def keys_of(url: Any, **options: Any) -> list[str]:
    """Return the keys of the training samples."""
    return [sample["__key__"] for sample in sf.open(url, **options)["train"]]


def samples_of(opened: Dataset) -> dict[str, Any]:
    """Return the parts and the values of all columns of each sample, by key."""
    found = {}
    for split in opened.values():
        columns = {name: split.column(name) for name in split.columns.kinds}
        for number, sample in enumerate(split):
            values = {name: (values[number], present[number]) for name, (values, present) in columns.items()}
            parts = {part: payload for part, payload in sample.items() if part != "__url__"}
            found[f"{split.name}:{sample['__key__']}"] = (parts, values)
    return found


def secret(url: Path) -> tuple[int, str, dict[str, Any]]:
    """Return number, key and parts of the sample that was packed from `b/secret.jpg`."""
    train = sf.open(url)["train"]
    number = train.sources().index("b/secret.jpg")
    return number, train[number]["__key__"], train[number]


def test_a_sample_is_removed(dataset: Path) -> None:
    """The new version has all other samples as they were, in their order, and verifies; the old one is still there."""
    before, samples = sf.open(dataset), samples_of(sf.open(dataset))
    _, key, _ = secret(dataset)
    report = sf.remove(dataset, keys=[key])
    after = sf.open(dataset)
    assert (report.fingerprint, report.removed, report.shards) == (after.fingerprint, {"train": 1}, 1)
    assert sf.verify(dataset) == []
    expected = {name: sample for name, sample in samples.items() if name != f"train:{key}"}
    assert samples_of(after) == expected
    assert list(samples_of(after)) == list(expected)
    assert after.manifest.inputs == before.manifest.inputs - 1
    assert after.manifest.quarantined == before.manifest.quarantined == 1
    assert "b/secret.jpg" not in after["train"].sources()
    assert samples_of(sf.open(dataset, version=before.fingerprint)) == samples
    assert after.manifest.statistics is not None
    counted = after.manifest.statistics["train"]
    labels = [int(sample["cls"]) for sample in after["train"]]
    assert counted.classes == {label: labels.count(label) for label in set(labels)}
    assert counted.counts["images"] == len(labels)
    assert counted.counts["bytes_after"] == sum(len(sample["jpg"]) for sample in after["train"])


def test_statistics_are_those_of_the_rest(tmp_path: Path) -> None:
    """After a removal, images, bytes, sizes, classes and annotations are counted as if the others had been packed."""
    content = json.dumps(
        {"boxes": [[1, 2, 30, 40], [300, 300, 310, 310]], "points": [[[5, 5, 2], [6, 6, 0]]] * 2}
    ).encode()
    samples = [
        [(f"{n}.jpg", photo(n)), (f"{n}.cls", b"1"), (f"{n}.json", content)]
        + [(f"{n}.{name}.jpg", photo(n + 9, 80, 60)) for name in "ab"[: n % 3]]
        for n in range(6)
    ]
    declared = sf.annotations.Annotations(
        images=("a.jpg", "b.jpg"),
        boxes=sf.annotations.Boxes("json", "boxes", "xyxy"),
        keypoints=sf.annotations.Keypoints("json", "points[]", "xyv"),
    )
    found = []
    for name, some in (("all", samples), ("rest", [samples[n] for n in (0, 3, 5)])):
        write_tar(tmp_path / f"{name}.tar", [member for each in some for member in each])
        sf.pack(tmp_path / f"{name}.tar", tmp_path / name, annotations=declared, shuffle=False, **SETTINGS)
    sf.remove(tmp_path / "all", keys=[f"{n:09}" for n in (1, 2, 4)])
    for name in ("all", "rest"):
        statistics = sf.open(tmp_path / name).manifest.statistics
        assert statistics is not None
        counts = {kind: count for kind, count in statistics["train"].counts.items() if kind != "bytes_before"}
        found.append((counts, statistics["train"].classes, statistics["train"].widths_after))
    assert found[0] == found[1]
    assert (counts["images"], counts["boxes"], counts["keypoints"]) == (5, 6, 6)


def test_after_a_purge_no_byte_is_left(dataset: Path) -> None:
    """Afterwards no file has the image, its caption or its path, the record says what was removed, and no more."""
    _, key, parts = secret(dataset)
    sf.columns.add(dataset, pa.table({"id": [key], "note": ["a note on it"]}), key="id")
    sf.columns.drop(dataset, ["note"])
    old = sf.open(dataset)
    report = sf.remove(dataset, keys=[f"train:{key}"], purge=True)
    assert report.purged > 0
    files = contents(dataset)
    for trace in (bytes(parts["jpg"]), f"caption of {key}".encode(), b"secret", b"a note on it"):
        assert [name for name, data in files.items() if trace in data] == []
    assert not [name for name in files if name.startswith("manifests/")]
    assert sf.verify(dataset) == []
    assert len(sf.open(dataset).quarantine()) == 1
    with pytest.raises(NotFoundError):
        sf.open(dataset, version=old.fingerprint)
    record = json.loads(Path(report.receipt).read_bytes())
    assert record["samples"] == {"train": [key]}
    assert record["rule"] == {"keys": 1}
    assert (record["from"], record["to"]) == (old.fingerprint, report.fingerprint)
    again = sf.remove(dataset, keys=[key], purge=True)
    assert (again.fingerprint, again.removed, again.purged) == (report.fingerprint, {}, 0)


def test_a_late_listing_ends_a_purge(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge refuses a listing that lacks files of the current version; repeated, it completes."""
    keys, late, listed = keys_of(dataset)[:1], LocalStorage(dataset).listing(), LocalStorage.listing
    monkeypatch.setattr(LocalStorage, "listing", lambda *_, **__: late)
    with pytest.raises(StoreError, match="the listing lacks it"):
        sf.remove(dataset, keys=keys, purge=True)
    monkeypatch.setattr(LocalStorage, "listing", listed)
    assert sf.remove(dataset, keys=keys, purge=True).purged > 0
    assert not [*dataset.glob("manifests/*")]


def test_a_record_does_not_quote_its_condition(dataset: Path) -> None:
    """A condition that names a value of the removed sample leaves its digest, by which the same call knows its own."""
    pytest.importorskip("duckdb")
    _, key, _ = secret(dataset)
    where = f"text = 'caption of {key}'"
    report = sf.remove(dataset, where=where, purge=True)
    assert report.removed == {"train": 1}
    assert [name for name, data in contents(dataset).items() if f"caption of {key}".encode() in data] == []
    rule = json.loads(Path(report.receipt).read_bytes())["rule"]
    assert rule == {"where_sha256": hashlib.sha256(where.encode()).hexdigest()}
    assert sf.remove(dataset, where=where, purge=True).removed == {}


def test_a_bucket_with_versioning(dataset: Path, tmp_path: Path, server: Server, prefix: str) -> None:
    """A purge leaves old versions of deleted objects in such a bucket, and the page's command deletes them all."""
    bucket, client = replace(server, bucket=f"versions-{prefix}"), server.client()
    client.mkdir(bucket.bucket)
    client.call_s3("put_bucket_versioning", Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    _, key, parts = secret(dataset)
    traces = (bytes(parts["jpg"]), f"caption of {key}".encode(), b"b/secret.jpg")
    url = bucket.put("sets of mine/set", dataset)

    def versions() -> tuple[dict[str, Any], list[bytes]]:
        found = client.call_s3("list_object_versions", Bucket=bucket.bucket, Prefix="sets of mine/set/")
        named = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found.get("Versions", ())]
        objects = [client.call_s3("get_object", Bucket=bucket.bucket, **each) for each in named]
        return found, [fsspec.asyn.sync(client.loop, each["Body"].read) for each in objects]

    (tmp_path / "keys").write_text(key)
    environment = {**os.environ, **bucket.environment()}
    done = run("remove", url, "--keys", tmp_path / "keys", "--purge", env=environment)
    assert done.returncode == 0, done.stderr
    assert [trace for trace in traces if trace in b"".join(bucket.contents("sets of mine/set").values())] == []
    found, objects = versions()
    assert [trace for trace in traces if trace not in b"".join(objects)] == []
    assert 'see "Other copies" in docs/removing.md' in done.stdout
    page = (Path(__file__).parents[2] / "docs" / "removing.md").read_text()
    command = page.partition("```bash\n")[2].partition("```")[0]
    command = command.replace("BUCKET", bucket.bucket).replace("PREFIX/", "'sets of mine/set/'")
    (query,) = re.findall(r"--query '(.*?)'", command)
    rows = pytest.importorskip("jmespath").search(query, found)
    (tmp_path / "listed").write_text("".join(f"{name}\t{version}\n" for name, version in rows))
    stub = "aws() { [ $2 = list-object-versions ] && cat listed || printf '%s\\n' \"$@\" >> deleted; }\n"
    subprocess.run(["bash", "-c", stub + command], cwd=tmp_path, check=True)
    asked = (tmp_path / "deleted").read_text().splitlines()
    for start in range(0, len(asked), 8):
        named, name, version = asked[start + 3 : start + 8 : 2]
        client.call_s3("delete_object", Bucket=named, Key=name, VersionId=version)
    found, objects = versions()
    assert [trace for trace in traces if trace in b"".join(objects)] == []
    assert (found.get("DeleteMarkers", []), len(found["Versions"])) == ([], len(bucket.contents("sets of mine/set")))
    assert sf.verify(url, storage_options=bucket.options()) == []


def foreign(root: Path) -> dict[str, bytes]:
    """Return files that shardflow did not write, all with names as it gives them."""
    write_tar(root / "mine.tar", [("000000000.jpg", b"mine"), ("000000001.jpg", b"mine")])
    pq.write_table(pa.table({"note": ["mine"]}), root / "mine.parquet")
    np.save(root / "mine.npy", np.arange(9))
    named = {f"train/000099.{kind}": (root / f"mine.{kind}").read_bytes() for kind in ("tar", "npy")}
    named |= {"train/000099.idx": b"mine", "train/000099.tar.idx": b"mine", "train/000099.json": b"{}"}
    named["train/000001.mine.parquet"] = (root / "mine.parquet").read_bytes()
    folders = {"manifests/": ".json", "removals/": ".json", "quarantine-": ".jsonl", "unfinished-": ".json"}
    return named | {f"{folder}{number:064x}{end}": b"mine" for number, (folder, end) in enumerate(folders.items())}


@pytest.mark.parametrize("kind", ["disk", "server"])
def test_only_its_own_files_are_purged(
    kind: str, dataset: Path, tmp_path: Path, prefix: str, request: pytest.FixtureRequest
) -> None:
    """A purge leaves files that shardflow did not write, and names those whose names are like ours.

    The shard that a killed command has left, which no manifest names, is deleted.
    """
    others = {"notes.txt": b"1", "train/notes.json": b"2", "manifests/a.json": b"3", **foreign(tmp_path)}
    left = {f"train/000050.{end}": (dataset / f"train/000000.{end}").read_bytes() for end in ("tar", "npy", "json")}
    url, options, key = str(dataset), None, keys_of(dataset)[0]
    write_tree(dataset, {**others, **left})
    if kind == "server":
        store: Server = request.getfixturevalue("server")
        for name, data in contents(dataset).items():
            store.storage(prefix).put(name, data)
        url, options = store.url(prefix), store.options()
    report = sf.remove(url, keys=[key], purge=True, storage_options=options)
    files = contents(dataset) if kind == "disk" else store.contents(prefix)
    assert {name: data for name, data in files.items() if name in others} == others
    named = {name for name in foreign(tmp_path) if not name.startswith("unfinished-")}
    assert set(report.left) == named
    assert files.keys().isdisjoint(left)
    if kind == "disk":
        again = run("remove", dataset, "--keys", write_tree(tmp_path, {"keys": key.encode()}) / "keys", "--purge")
        assert again.returncode == 1
        assert f"{len(named)} files that shardflow did not write" in again.stdout
        assert {name: data for name, data in contents(dataset).items() if name in others} == others


def test_no_foreign_file_is_overwritten(dataset: Path, tmp_path: Path) -> None:
    """A removal and an extension refuse to write where a file is that shardflow did not write, and change nothing."""
    source = write_tree(tmp_path / "more", {"a/new.jpg": photo(40)})
    for name in ("train/000003.tar", "train/000003.npy", "train/000003.json"):
        write_tree(dataset, {name: b"mine"})
        before = contents(dataset)
        for attempt in (
            lambda: sf.remove(dataset, keys=[keys_of(dataset)[0]]),
            lambda: sf.extend(source, dataset, executor="serial"),
        ):
            with pytest.raises(ConfigError, match=rf"{name} exists, and shardflow did not write it"):
                attempt()
            assert contents(dataset) == before
        (dataset / name).unlink()


def test_a_removal_that_was_never_completed_does_not_count(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed removal has recorded is in no manifest: it is not told as done, and a purge deletes it."""
    first, second = keys_of(dataset)[:2]
    put = LocalStorage.put

    def stop(storage: LocalStorage, name: str, *content: Any, **options: Any) -> None:
        if name == manifest.FILE_NAME:
            raise Stop
        put(storage, name, *content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", stop)
        with pytest.raises(Stop):
            sf.remove(dataset, keys=[first])
    (left,) = dataset.glob("removals/*")
    assert sf.open(dataset).manifest.removals == ()
    report = sf.remove(dataset, keys=[second], purge=True)
    assert [str(path) for path in dataset.glob("removals/*")] == [report.receipt]
    assert sf.open(dataset).manifest.removal_names == [Path(report.receipt).relative_to(dataset).as_posix()]
    assert not left.exists()
    assert sf.remove(dataset, keys=[first]).removed == {"train": 1}


def test_a_copy_has_the_records(dataset: Path, tmp_path: Path) -> None:
    """`sync` copies the records of removals, by which the copy knows what was removed; an extension keeps them."""
    key = keys_of(dataset)[0]
    report = sf.remove(dataset, keys=[key])
    sf.sync(dataset, tmp_path / "copy")
    assert (tmp_path / "copy/removals" / Path(report.receipt).name).read_bytes() == Path(report.receipt).read_bytes()
    write_tree(tmp_path / "more", {"a/other.jpg": photo(30)})
    sf.extend(tmp_path / "more", tmp_path / "copy", executor="serial")
    again = sf.remove(tmp_path / "copy", keys=[key], purge=True)
    assert again.removed == {}
    assert len(list((tmp_path / "copy/removals").iterdir())) == 1


def test_indexes_for_other_loaders_are_purged(dataset: Path) -> None:
    """Those that exports wrote for the old tars are deleted, and those for the others stay."""
    written = {str(path.relative_to(dataset)) for path in write_energon(sf.open(dataset))}
    write_tree(dataset, {"train/000000.idx": b"", "train/000001.idx": b""})
    key = sf.open(dataset)["train"][0]["__key__"]
    sf.remove(dataset, keys=[key], purge=True)
    assert {"train/000000.tar.idx", "train/000001.tar.idx"} <= written
    assert {path.name for path in dataset.glob("train/*.idx")} == {"000001.idx", "000001.tar.idx", "000002.tar.idx"}


def test_a_whole_shard_is_removed(dataset: Path) -> None:
    """A shard whose samples all leave is gone; with quarantined inputs of it the counts still add up."""
    keys = keys_of(dataset)
    first = sf.open(dataset)["train"].shards[0].samples
    sf.remove(dataset, keys=keys[:first], purge=True)
    assert keys_of(dataset) == keys[first:]
    assert len(sf.open(dataset)["train"].shards) == 2
    assert sf.open(dataset)["train"].column("n").values.tolist() == [int(key) for key in keys[first:]]
    assert sf.verify(dataset) == []
    assert len(sf.open(dataset).quarantine()) == 1


def test_extending_after_a_removal(dataset: Path, made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An extension continues with new keys and keeps versions and columns; what was removed comes back if asked for."""
    _, key, _ = secret(dataset)
    before = sf.open(dataset).fingerprint
    removed = sf.remove(dataset, keys=[key]).fingerprint
    left = samples_of(sf.open(dataset))
    source = write_tree(tmp_path / "src", contents(made.parent / "src"))
    write_tree(source, {"a/new.jpg": photo(21)})
    (source / "b/secret.jpg").unlink()
    report = sf.extend(source, dataset, max_errors=1, executor="serial")
    assert (report.packed, report.known) == (1, IMAGES + 1)
    after = samples_of(sf.open(dataset))
    assert {name: after[name][0] for name in left} == {name: sample for name, (sample, _) in left.items()}
    assert list(after)[: len(left)] == list(left)
    assert len(after) == len(left) + 1
    found = sf.open(dataset)["train"].column("n")
    assert found.values[:-1].tolist() == [int(name.partition(":")[2]) for name in left]
    assert not found.present[-1]
    for version in (before, removed):
        assert len(samples_of(sf.open(dataset, version=version))) in (IMAGES + 1, IMAGES)
    assert "removed" not in caplog.text
    caplog.clear()
    preview_extension(write_tree(source, {"b/secret.jpg": photo(20)}), dataset)
    foretold = [*caplog.messages]
    caplog.clear()
    assert foretold[-1].startswith("1 of 1 new input: the content is that of removed samples (b/secret.jpg); pass on_")
    then = contents(dataset)
    with pytest.raises(ConfigError, match=re.escape(foretold[-1])):
        sf.extend(source, dataset, max_errors=1, executor="serial")
    assert not sf.extend(source, dataset, max_errors=1, executor="serial", on_conflict="skip").inputs
    assert contents(dataset) == then
    assert caplog.messages == ["left out: 1 input with the content of removed samples (b/secret.jpg)"]
    write_tree(source, {"a/newer.jpg": photo(22)})
    assert sf.extend(source, dataset, max_errors=1, executor="serial", on_conflict="skip").packed == 1
    assert "b/secret.jpg" not in sf.open(dataset)["train"].sources()
    (source / "a/newer.jpg").unlink()
    caplog.clear()
    sf.extend(source, dataset, max_errors=1, executor="serial", on_conflict="add")
    assert caplog.messages == [message.replace(" (b/secret.jpg)", "") for message in foretold]
    assert sf.verify(dataset) == []


def test_a_label_is_corrected(dataset: Path, made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the removal of a sample, `extend` packs its image with the label of another folder, without a warning."""
    _, key, _ = secret(dataset)
    sf.remove(dataset, keys=[key])
    source = write_tree(tmp_path / "src", contents(made.parent / "src"))
    (source / "b/secret.jpg").rename(source / "a/secret.jpg")
    assert sf.extend(source, dataset, max_errors=1, executor="serial").packed == 1
    assert sf.verify(dataset, sources=[source]) == []
    train = sf.open(dataset)["train"]
    assert [train[train.sources().index("a/secret.jpg")]["cls"], len(train)] == [b"0", IMAGES + 1]
    assert "removed" not in caplog.text


def test_removed_copies_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies that were taken out of a dataset do not come back from the same source, nor stop other inputs."""
    source = image_folder(tmp_path / "src", 10)
    write_tree(source, {f"a/copy{n}.jpg": photo(n) for n in range(10)})
    sf.pack(source, tmp_path / "dst", short_side=32, executor="serial")
    train = sf.open(tmp_path / "dst")["train"]
    copies = [sample["__key__"] for sample in train if "copy" in train.source(sample["__key__"])]
    sf.remove(tmp_path / "dst", keys=copies)
    write_tree(source, {"a/new.jpg": photo(22)})
    with pytest.raises(ConfigError, match=r"10 of 11 new inputs: the content is that of removed samples .*skip"):
        sf.extend(source, tmp_path / "dst", executor="serial")
    assert sf.extend(source, tmp_path / "dst", executor="serial", on_conflict="skip").packed == 1
    assert caplog.messages[-1].startswith("left out: 10 inputs with the content of removed samples")
    assert not sf.extend(source, tmp_path / "dst", executor="serial", on_conflict="skip").inputs


def test_a_purge_alone(dataset: Path) -> None:
    """Without keys and condition, a purge deletes earlier versions, and the command removes no further sample."""
    _, key, _ = secret(dataset)
    before = sf.open(dataset).fingerprint
    removed = sf.remove(dataset, keys=[key]).fingerprint
    answer = run("remove", dataset, "--purge")
    assert (answer.returncode, "removed" in answer.stdout) == (0, False)
    assert "purged" in answer.stdout
    with pytest.raises(NotFoundError):
        sf.open(dataset, version=before)
    assert sf.open(dataset).fingerprint == removed
    assert sf.open(dataset).manifest.samples == IMAGES
    assert sf.remove(dataset, purge=True).purged == 0
    assert sf.verify(dataset) == []


def test_what_cannot_be_removed(dataset: Path, tmp_path: Path) -> None:
    """Unknown keys, all samples, nothing, both rules, a view and a dataset without receipts are refused, unchanged."""
    before = contents(dataset)
    sf.subset(dataset, tmp_path / "view", limit=3)
    plain = make_dataset(tmp_path / "plain", [3])
    for attempt in (
        lambda: sf.remove(dataset, keys=["000000099"]),
        lambda: sf.remove(dataset, keys=keys_of(dataset)),
        lambda: sf.remove(dataset, keys=[]),
        lambda: sf.remove(dataset),
        lambda: sf.remove(dataset, keys=["000000001"], where="true"),
        lambda: sf.remove(dataset, keys="000000001"),
        lambda: sf.remove(tmp_path / "view", keys=["000000001"]),
        lambda: sf.remove(plain, keys=["000000001"]),
    ):
        with pytest.raises(ConfigError):
            attempt()
    assert contents(dataset) == before


def test_damage_is_not_sealed_anew(dataset: Path) -> None:
    """A damaged shard is not written anew with fresh checksums."""
    flip(dataset / "train/000001.tar", 700)
    keys = [key for key, sample in zip(keys_of(dataset), sf.open(dataset)["train"].sources(), strict=True) if sample]
    with pytest.raises(IntegrityError, match=r"train/000001\.tar"):
        sf.remove(dataset, keys=[keys[5]])


@examples(8)
@given(st.sets(st.integers(0, IMAGES), min_size=1, max_size=IMAGES), st.integers(0, 2**31))
def test_removing_and_the_subset_of_the_others_are_equal(
    made: Path, tmp_path_factory: pytest.TempPathFactory, numbers: set[int], seed: int
) -> None:
    """Removed in one step or in two, the samples that are left are those of the subset by the complement."""
    root = tmp_path_factory.mktemp("law")
    url = write_tree(root / "set", contents(made))
    keys = keys_of(url)
    gone = [keys[number] for number in sorted(numbers)]
    sf.subset(url, root / "others", keys=sorted(set(keys) - set(gone)))
    cut = int(np.random.default_rng(seed).integers(0, len(gone)))
    for some in (gone[:cut], gone[cut:]):
        if some:
            sf.remove(url, keys=some)
    assert samples_of(sf.open(url)) == samples_of(sf.open(root / "others"))
    assert sf.verify(url) == []
    made_of = [receipt.from_bytes((url / name).read_bytes()) for name in sf.open(url).manifest.receipt_names]
    assert sum(len(each.sources) + len(each.quarantined) for each in made_of) == sf.open(url).manifest.inputs


class Stop(BaseException):
    """The process is killed here."""


def killing(number: int) -> Callable[..., Any]:
    """Return a patch of a method of storages that is killed before or after a call."""
    calls = iter(range(1 << 30))

    def patch(method: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            here = next(calls) == number
            if here and not after:
                raise Stop
            result = method(*args, **kwargs)
            if here:
                raise Stop
            return result

        return wrapped

    return patch


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step(
    made: Path, tmp_path_factory: pytest.TempPathFactory, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after whichever write or deletion, the same call ends with the files of one that was not."""
    root = tmp_path_factory.mktemp("kills")
    whole = write_tree(root / "whole", contents(made))
    gone = [keys_of(whole)[number] for number in (0, 1, 6)]
    sf.remove(whole, keys=gone, purge=True)

    def files(url: Path) -> dict[str, bytes]:
        return {name: data for name, data in contents(url).items() if not name.startswith("removals/")}

    number = ends = 0
    while not ends:
        url = write_tree(root / f"{number}", contents(made))
        patch = killing(number)
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "put", patch(LocalStorage.put, after=after))
            patched.setattr(LocalStorage, "remove", patch(LocalStorage.remove, after=after))
            try:
                sf.remove(url, keys=gone, purge=True)
                ends = number
            except Stop:
                opened = sf.open(url)
                assert len(opened["train"]) in (IMAGES + 1, IMAGES - 2)
                assert sf.verify(url) == []
        sf.remove(url, keys=gone, purge=True)
        assert files(url) == files(whole)
        assert len([name for name in contents(url) if name.startswith("removals/")]) == 1
        number += 1
    assert ends > 20


@pytest.mark.parametrize("kind", ["server", "gcs", "azure"])
def test_in_every_store(kind: str, prefix: str, made: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In a bucket of each kind a removal with a purge leaves the bytes that it leaves on a disk, and no lock."""
    store: Store = request.getfixturevalue(kind)
    local = write_tree(tmp_path / "set", contents(made))
    for name, data in contents(made).items():
        store.storage(prefix).put(name, data)
    gone = [keys_of(local)[number] for number in (2, 9)]
    for url, options in ((local, None), (store.url(prefix), store.options())):
        report = sf.remove(url, keys=gone, purge=True, storage_options=options)
        assert sf.verify(url, storage_options=options) == []
    found = [
        {name: data for name, data in files.items() if not name.startswith("removals/")}
        for files in (contents(local), store.contents(prefix))
    ]
    assert found[0] == found[1]
    assert report.removed == {"train": 2}


def test_the_command(dataset: Path, tmp_path: Path) -> None:
    """The command removes by a condition and purges, says what it did, and again that nothing is left to do."""
    pytest.importorskip("duckdb")
    asked = ("remove", dataset, "--where", "n = 3 or class = 'b'", "--purge")
    first = run(*asked)
    assert first.returncode == 0, first.stderr
    assert "removals/" in first.stdout
    again = run(*asked)
    assert again.returncode == 0, again.stderr
    assert "before" in again.stdout
    refused = run("remove", dataset, "--where", "n = 4000")
    assert refused.returncode == 2
    (tmp_path / "keys").write_text(f"{keys_of(dataset)[0]}\n\n")
    assert run("remove", dataset, "--keys", tmp_path / "keys").returncode == 0


def test_a_source_of_several_samples(tmp_path: Path) -> None:
    """A condition on `source` that selects two samples of one source is refused, with their keys; others are not."""
    pytest.importorskip("duckdb")
    src = write_tree(tmp_path / "src", {f"a/{number}.jpg": photo(number) for number in range(3)})
    sf.pack(src, tmp_path / "dst", short_side=32, executor="serial")
    write_tree(src, {"a/0.jpg": photo(9)})
    sf.extend(src, tmp_path / "dst", on_conflict="add", executor="serial")
    before = contents(tmp_path / "dst")
    with pytest.raises(ConfigError, match=r"2 samples of .* have the source 'a/0.jpg': train:\d+, train:\d+; .*--keys"):
        sf.remove(tmp_path / "dst", where="source in ('a/0.jpg', 'a/1.jpg')")
    with pytest.raises(ConfigError, match="2 samples"):
        sf.remove(tmp_path / "dst", where="source in ('a/0.jpg')", purge=True)
    assert contents(tmp_path / "dst") == before
    assert sf.remove(tmp_path / "dst", where="source = 'a/2.jpg'").removed == {"train": 1}
