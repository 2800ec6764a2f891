from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardflow
from shardflow.dataset import reader as reader_module
from shardflow.dataset.open_dataset import Dataset, Split
from shardflow.errors import ConfigError, IntegrityError, ManifestError, NotFoundError, ShardflowError, StoreError
from shardflow.formats import shard_index, ustar
from shardflow.formats.manifest import FILE_NAME
from shardflow.storage.cache import Cache
from shardflow.storage.local import LocalStorage
from tests.helpers.command import exit_code
from tests.helpers.counting import CountingStorage
from tests.helpers.loading import open_files
from tests.helpers.making import flip, jpeg, make_dataset, write_dataset

SIZES = [5, 1, 7]
TOTAL = sum(SIZES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of 13 labelled samples in three shards, and two more in another split."""
    return make_dataset(tmp_path / "set", {"train": SIZES, "val": [2]})


def expected(number: int, root: Path, split: str = "train") -> dict[str, Any]:
    """Return sample `number` as it was written."""
    sizes = SIZES if split == "train" else [2]
    shard = next(n for n in range(len(sizes)) if number < sum(sizes[: n + 1]))
    return {
        "__key__": f"{number:09}",
        "__url__": str(root / split / f"{shard:06}.tar"),
        "cls": str(number).encode(),
        "jpg": jpeg(number % 97, 48 + number % 3, 40 + number % 5),
    }


def all_samples(url: Path) -> list[dict[str, Any]]:
    """Open the dataset and return the samples of the split `train`."""
    return list(shardflow.open(url)["train"])


def test_samples_by_number(root: Path) -> None:
    """A split's samples are numbered across its shards, and each is its key, its shard and its parts as bytes."""
    split = shardflow.open(root)["train"]
    assert len(split) == TOTAL
    assert [split[number] for number in range(TOTAL)] == [expected(number, root) for number in range(TOTAL)]
    assert list(split) == [expected(number, root) for number in range(TOTAL)]
    assert {type(value) for value in split[0].values()} == {str, bytes}


def test_splits_share_a_cache(root: Path, tmp_path: Path) -> None:
    """The splits of a remote dataset have one cache, and those of a local one none."""
    content = shardflow.open(root).manifest
    far = Dataset(CountingStorage(root, tmp_path / "log"), content, tmp_path / "cache")
    caches = {split.reader.cache for split in far.values()}
    assert [cache and cache.directory for cache in caches] == [tmp_path / "cache"]
    near = Dataset(LocalStorage(root), content, tmp_path / "cache")
    assert {split.reader.cache for split in near.values()} == {None}


def test_no_shard_is_mapped(tmp_path: Path) -> None:
    """However much of its shards a process reads, none of their pages count as its memory."""
    split = shardflow.open(make_dataset(tmp_path / "set", [20]))["train"]
    samples = [split.reader.read(0, record, sequential=True) for record in range(20)]
    assert len({sample.key for sample in samples}) == 20
    assert f"{tmp_path}/set" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("far", [False, True])
def test_a_shard_that_is_cut_short_while_it_is_open(root: Path, tmp_path: Path, far: bool) -> None:
    """It is an error that names the shard, and no signal that ends the process; a copy in the cache is replaced."""
    storage = CountingStorage(root, tmp_path / "log") if far else LocalStorage(root)
    split = Split(storage, "train", shardflow.open(root)["train"].shards, Cache(tmp_path / "cache"))
    whole = split[:2]
    tar = tmp_path / "cache/blobs" / split.shards[0].sha256 if far else root / "train/000000.tar"
    os.truncate(tar, 600)
    if far:
        assert split[:2] == whole
        return
    with pytest.raises(IntegrityError, match=r"train/000000\.tar.*the.*`shardflow ver"):
        split[1]
    with pytest.raises(IntegrityError, match=r"train/000000\.tar.*the.*bytes"):
        split.reader.key(0, 1)


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("far", [False, True])
def test_a_disk_that_fails_while_a_shard_is_open(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: bool, has_index: bool
) -> None:
    """It is an error that says so, also while an index is made; a copy in the cache is replaced by another one."""
    storage = CountingStorage(root, tmp_path / "log") if far else LocalStorage(root)
    cache = Cache(tmp_path / "cache")
    split = Split(storage, "train", shardflow.open(root)["train"].shards, cache)
    whole = split[:2]
    if not has_index:
        (root / "train/000000.npy").unlink()
        (tmp_path / "cache/blobs" / split.shards[0].index_sha256).unlink(missing_ok=True)
        split = Split(storage, "train", split.shards, cache)
    broken = os.stat(tmp_path / "cache/blobs" / split.shards[0].sha256 if far else root / "train/000000.tar")

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(descriptor: int, *arguments: Any) -> Any:
            if os.path.samestat(os.fstat(descriptor), broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(descriptor, *arguments)

        return read

    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    if far:
        assert split[:2] == whole
        return
    with pytest.raises(IntegrityError, match=r"train/000000\.tar.*cannot.*Input/output"):
        split[0]


def test_a_dataset_says_what_it_holds(root: Path) -> None:
    """Printed, a dataset has its place and its splits, and a split its samples and shards."""
    dataset = shardflow.open(root)
    for said in (str(root), f"train {TOTAL}", "val 2"):
        assert said in repr(dataset)
    assert "'val': 2 samples in 1 shard>" in repr(dataset["val"])


def test_notebooks_show_a_dataset(tmp_path: Path) -> None:
    """The HTML has splits, classes as text alone, and the first pictures as they are stored; damage leaves them out."""
    samples = [(f"{number:03}", {"jpg": jpeg(number), "cls": b"0"}) for number in range(9)]
    root = write_dataset(tmp_path / "set", {"train": [samples], "val": [samples[:2]]}, classes=("<b>", "sea"))
    shown = shardflow.open(root)._repr_html_()
    assert "<td>train</td><td>9</td><td>1</td>" in shown
    assert "classes (2): &lt;b&gt;, sea" in shown
    pictures = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', shown)
    assert [base64.b64decode(picture) for picture in pictures] == [jpeg(number) for number in range(8)]
    for split in ("train", "val"):
        (root / f"{split}/000000.tar").write_bytes(b"")
    assert "<img" not in shardflow.open(root)._repr_html_()


def test_samples_from_the_end(root: Path) -> None:
    """Negative numbers count from the end."""
    split = shardflow.open(root)["train"]
    assert [split[number - TOTAL] for number in range(TOTAL)] == list(split)
    assert split[1:7:2] == [split[number] for number in (1, 3, 5)]
    with pytest.raises(ConfigError, match=r"number,.*'a'"):
        split["a"]  # type: ignore[call-overload]


@pytest.mark.parametrize("number", [TOTAL, -TOTAL - 1, 10**12])
def test_numbers_out_of_range(root: Path, number: int) -> None:
    """A number that no sample has is an IndexError, as for a list."""
    with pytest.raises(IndexError, match=rf"{number} does.*{TOTAL},.*0"):
        shardflow.open(root)["train"][number]


@pytest.mark.parametrize("number", ["0", 1.5, None])
def test_what_is_no_number(root: Path, number: object) -> None:
    """A sample is read by its number; what is neither a number nor a slice is refused with what is expected."""
    with pytest.raises(ConfigError, match=r"number.*sample"):
        shardflow.open(root)["train"][number]  # type: ignore[index]
    assert shardflow.open(root)["train"][np.int64(1)]["__key__"] == shardflow.open(root)["train"][1]["__key__"]


def test_dataset_is_a_mapping_of_splits(root: Path) -> None:
    """A dataset maps the names of its splits to them."""
    dataset = shardflow.open(root)
    assert sorted(dataset) == sorted(dataset.splits) == sorted(dataset.keys()) == ["train", "val"]
    assert {name: len(split) for name, split in dataset.items()} == {"train": TOTAL, "val": 2}
    assert (len(dataset), "train" in dataset, "test" in dataset) == (2, True, False)
    assert dataset["val"].name == "val"
    assert dataset["val"][1] == expected(1, root, "val")


def test_missing_split_is_named(root: Path) -> None:
    """A split that does not exist is a ConfigError that names the splits."""
    with pytest.raises(ConfigError, match=r"no split 'test'; it has (train, val|val, train)"):
        shardflow.open(root)["test"]
    with pytest.raises(ConfigError, match="no split None; it has"):
        shardflow.Loader(root, split=None, batch_size=1)  # type: ignore[arg-type]


def test_validation_without_training(tmp_path: Path) -> None:
    """Where `val` is all there is, the error for `train`, which `split` needs too, says how to pack it as that."""
    url = write_dataset(tmp_path / "set", {"val": [[("a", {"cls": b"0"}), ("b", {"cls": b"0"})]]})
    for attempt in (
        lambda: shardflow.Loader(url, batch_size=1),
        lambda: shardflow.split(url, tmp_path / "x", test=0.5),
    ):
        with pytest.raises(ConfigError, match=r"no split 'train'; it has val; to train on .* divide .* pack again"):
            attempt()


def test_validation_by_another_name(tmp_path: Path) -> None:
    """Where the split for validation has another of its usual names, the error for `val` names it, and no command."""
    url = write_dataset(tmp_path / "set", {"train": [[("a", {"cls": b"0"})]], "validation": [[("b", {"cls": b"0"})]]})
    with pytest.raises(ConfigError, match=r"did you mean 'validation'\?\)$"):
        shardflow.open(url)["val"]


def test_a_missing_val_can_be_pasted(tmp_path: Path) -> None:
    """Where there is `train` alone, the error for `val` has the command that holds a part of it out, quoted."""
    root = make_dataset(tmp_path / "my set", [20], labelled=False)
    with pytest.raises(ConfigError, match=r"'val';.*`shardflow split") as caught:
        shardflow.open(f"{root}/")["val"]
    _, command, _ = str(caught.value).split("`")
    assert exit_code(*shlex.split(command)[1:]) == 0
    assert len(shardflow.open(f"{root}-split")["val"]) == 2


def test_dataset_says_what_it_is(root: Path) -> None:
    """Classes, recipe, fingerprint and URL are the manifest's."""
    dataset = shardflow.open(str(root))
    assert dataset.classes == [f"class{n}" for n in range(TOTAL)]
    assert dataset.fingerprint == json.loads((root / FILE_NAME).read_bytes())["fingerprint"]
    assert dataset.recipe == {}
    assert dataset.url == str(root)


def test_dataset_without_labels(tmp_path: Path) -> None:
    """A dataset whose samples have no labels has no classes either."""
    dataset = shardflow.open(make_dataset(tmp_path / "set", [3], labelled=False))
    assert dataset.classes is None
    assert set(dataset["train"][2]) == {"__key__", "__url__", "jpg"}


def test_first_sample_of_each_shard(root: Path) -> None:
    """`first_sample` gives the number in the split of each shard's first sample."""
    split = shardflow.open(root)["train"]
    assert split.first_sample(np.array([2, 0, 1, 2])).tolist() == [6, 0, 5, 6]


def test_missing_dataset_is_named(root: Path, tmp_path: Path) -> None:
    """A path that does not exist, a file, and a directory without a manifest get different messages with a remedy."""
    with pytest.raises(NotFoundError, match=r"exist; check"):
        shardflow.open(tmp_path / "none")
    with pytest.raises(NotFoundError, match=r"exist; `shardflow index` makes"):
        shardflow.open(tmp_path / "{000..001}.tar")
    with pytest.raises(NotFoundError, match=f"file; name the dataset's folder, {root}"):
        shardflow.open(root / FILE_NAME)
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(NotFoundError, match=r"file; make a dataset of images with `shardflow pack`"):
        shardflow.open(tmp_path / "photo.jpg")
    with pytest.raises(NotFoundError, match=r"file; make a dataset of tars with `shardflow index`"):
        shardflow.open(root / "train/000000.tar")
    with pytest.raises(NotFoundError, match=r"file; name the dataset's folder, memory://set$"):
        shardflow.open(f"memory://set/{FILE_NAME}")
    with pytest.raises(NotFoundError, match=r"memory://tars/0\.tar is a file; .* with `shardflow index`"):
        shardflow.open("memory://tars/0.tar")
    with pytest.raises(NotFoundError, match=rf"{root}x.*{root}\?"):
        shardflow.open(f"{root}x")
    (root / FILE_NAME).unlink()
    with pytest.raises(
        NotFoundError,
        match=r"shardflow\.json:.*it.*`shardflow index`",
    ):
        shardflow.open(root)
    picture = tmp_path / "photos/train/sea/0.JPG"
    picture.parent.mkdir(parents=True)
    picture.touch()
    with pytest.raises(NotFoundError, match=r"`shardflow pack .*/photos .*` packs its 1 image"):
        shardflow.open(tmp_path / "photos")


def test_damaged_manifest_is_named(root: Path) -> None:
    """A manifest that cannot be read is a ManifestError that names the file."""
    (root / FILE_NAME).write_bytes(b"{")
    with pytest.raises(ManifestError, match=r"set/shardflow\.json:.*shardflow") as caught:
        shardflow.open(root)
    assert caught.value.shard == str(root / FILE_NAME)


def test_empty_split(tmp_path: Path) -> None:
    """A split without shards has no samples."""
    split = shardflow.open(make_dataset(tmp_path / "set", {"train": [1], "val": []}))["val"]
    assert (len(split), list(split)) == (0, [])
    with pytest.raises(IndexError):
        split[0]


def read_all(split: shardflow.Split, results: Any) -> None:
    """Put all samples of a split into a queue; runs in another process."""
    results.put(list(split))


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_other_processes_read_the_same(root: Path, method: str) -> None:
    """A split can be sent to another process, after samples were read from it as well, and maps its shards there."""
    split = shardflow.open(root)["train"]
    samples = list(split)
    assert len(pickle.dumps(split)) < 5000
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=read_all, args=(split, results))
    process.start()
    assert results.get(timeout=60) == samples
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("limit", [1, 2])
def test_few_shards_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """With more shards than stay open, the samples are right in any order and the number of open files is bounded."""
    monkeypatch.setattr(reader_module, "OPEN_SHARDS", limit)
    split = shardflow.open(make_dataset(tmp_path / "set", [2] * 20))["train"]
    before = len(os.listdir("/proc/self/fd"))
    for number in [*range(40), *range(39, -1, -1), 0, 39, 1, 38, 0]:
        assert split[number]["cls"] == str(number).encode()
    assert len(os.listdir("/proc/self/fd")) - before <= limit
    assert len(open_files(tmp_path)) <= limit


def test_shard_used_last_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many shards are open, the least recently used one is closed."""
    monkeypatch.setattr(reader_module, "OPEN_SHARDS", 2)
    root = make_dataset(tmp_path / "set", [1] * 3)
    split = shardflow.open(root)["train"]
    for shard in (0, 1, 0, 2):
        split.reader.read(shard, 0)
    assert open_files(root) == [f"{root}/train/{shard:06}.tar" for shard in (0, 2)]


def test_writes_to_parts_do_not_reach_the_file(root: Path) -> None:
    """Payloads are writable memoryviews, and writes do not reach the disk."""
    before = (root / "train/000000.tar").read_bytes()
    parts = shardflow.open(root)["train"].reader.read(0, 0).parts
    assert isinstance(parts["jpg"], memoryview)
    parts["jpg"][:] = bytes(len(parts["jpg"]))
    assert (root / "train/000000.tar").read_bytes() == before
    assert shardflow.open(root)["train"][0] == expected(0, root)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "of another shard", "hostile"])
def test_index_is_rebuilt(root: Path, damage: str) -> None:
    """A missing, damaged or exchanged index is rebuilt from the shard, and every sample is right."""
    index = root / "train/000000.npy"
    data = index.read_bytes()
    if damage == "missing":
        index.unlink()
    elif damage == "flipped":
        flip(index, len(data) - 20)
    else:
        other = (root / "train/000002.npy").read_bytes()
        hostile = b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 60_000
        index.write_bytes({"empty": b"", "cut": data[:-1], "of another shard": other, "hostile": hostile}[damage])
    assert all_samples(root) == [expected(number, root) for number in range(TOTAL)]


def test_index_and_shard_both_wrong(root: Path) -> None:
    """When a rebuilt index is not the one packed, or cannot be rebuilt, a typed error names the shard."""
    tar = root / "train/000000.tar"
    (root / "train/000000.npy").unlink()
    flip(tar, 1536)
    with pytest.raises(IntegrityError, match=r"000000\.tar: neither"):
        all_samples(root)
    flip(tar, 0)
    with pytest.raises(ShardflowError, match=r"000000\.tar:.*0") as caught:
        all_samples(root)
    assert caught.value.shard == str(tar)


@pytest.mark.parametrize("part", ["cls", "jpg"])
def test_damaged_payload_is_named(root: Path, part: str) -> None:
    """A payload whose CRC-32 differs is an IntegrityError with shard, key and part; the other samples are read."""
    tar = root / "train/000002.tar"
    index = shard_index.from_bytes((root / "train/000002.npy").read_bytes(), samples=7, tar_bytes=tar.stat().st_size)
    (row,) = index[(index["record"] == 3) & (index["part"] == part.encode())].tolist()
    flip(tar, row[2] + row[3] - 1)
    split = shardflow.open(root)["train"]
    with pytest.raises(IntegrityError, match=rf"000002\.tar,.*000000009:.*'{part}'") as caught:
        split[9]
    assert (caught.value.shard, caught.value.key) == (str(tar), "000000009")
    assert [split[number] for number in range(TOTAL) if number != 9] == [
        expected(number, root) for number in range(TOTAL) if number != 9
    ]
    assert {*split.reader.read(2, 3, unused={part}).parts, part} == {"cls", "jpg"}
    with pytest.raises(IntegrityError, match="is damaged"):
        split.reader.read(2, 3, unused={"cls", "jpg"} - {part})


@pytest.mark.parametrize("damage", ["name", "not text", "zeros", "other size", "other part"])
def test_damaged_key_is_named(root: Path, damage: str) -> None:
    """A key in a damaged header is an IntegrityError: a sample never gets a wrong key."""
    tar = root / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    if damage == "name":
        data[8] ^= 1
    elif damage == "not text":
        data[8] = 0xFF
    elif damage == "zeros":
        data[:512] = bytes(512)
    elif damage == "other size":
        data[:512] = ustar.header("000000000.cls", 2)
    else:
        data[:512] = ustar.header("000000000.txt", 1)
    tar.write_bytes(data)
    split = shardflow.open(root)["train"]
    with pytest.raises(IntegrityError, match=r"train/000000\.tar:.*0: .*`shardflow verify`") as caught:
        split[0]
    assert caught.value.shard == str(tar)
    assert split[1] == expected(1, root)


def test_wrong_size_is_named(root: Path) -> None:
    """A shard that is longer or shorter than the manifest says is an IntegrityError with both sizes."""
    tar = root / "train/000001.tar"
    data = tar.read_bytes()
    for wrong in (data[:-512], data + bytes(512), b""):
        tar.write_bytes(wrong)
        with pytest.raises(IntegrityError, match=f"000001.tar: has {len(wrong)} bytes, the manifest says {len(data)}"):
            all_samples(root)


def test_missing_shard_is_named(root: Path) -> None:
    """A shard that is missing is a NotFoundError, one that is a directory a StoreError; both name it."""
    (root / "train/000001.tar").unlink()
    with pytest.raises(NotFoundError, match=r"train/000001\.tar does not exist; if the dataset was moved"):
        all_samples(root)
    (root / "train/000001.tar").mkdir()
    with pytest.raises(StoreError, match=r"train/000001\.tar"):
        all_samples(root)


def test_shards_of_all_splits(root: Path) -> None:
    """The shards of a dataset are those of its splits, in order."""
    dataset = shardflow.open(root)
    assert dataset.shards == (*dataset["train"].shards, *dataset["val"].shards)


def test_a_damaged_copy_of_an_index_is_fetched_again(root: Path, tmp_path: Path) -> None:
    """The index of a remote shard is downloaded again if its copy is damaged; a missing index is an error."""
    split = shardflow.open(f"local://{root}", cache=tmp_path / "cache")["train"]
    whole = split.reader.index(0).tolist()
    copy = tmp_path / "cache/blobs" / split.shards[0].index_sha256
    flip(copy, 300)
    assert split.reader.index(0).tolist() == whole == shardflow.open(root)["train"].reader.index(0).tolist()
    assert copy.stat().st_size == (root / "train/000000.npy").stat().st_size
    for number, damage in ((1, Path.unlink), (2, lambda path: flip(path, 300))):
        damage(root / f"train/{number:06}.npy")
        for url in (root, f"local://{root}"):
            with pytest.raises((NotFoundError, IntegrityError), match=rf"{number:06}\.npy"):
                shardflow.open(url, cache=tmp_path / "cache")["train"].reader.index(number)


def far(root: Path, tmp_path: Path) -> Split:
    """The training split, read through a cache."""
    return shardflow.open(f"local://{root}", cache=tmp_path / "cache")["train"]


def flip_copy(split: Split, shard: int, position: int) -> None:
    """Turn a bit over in the copy of a shard, in the cache."""
    assert split.reader.cache is not None
    flip(split.reader.cache.directory / "blobs" / split.shards[shard].sha256, position)


@pytest.mark.parametrize("position", [8, 1600])
def test_a_damaged_copy_is_fetched_again_as_often_as_it_happens(
    root: Path, tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A bit flipped in the header or the payload of a cached sample costs a download, every time; a key that is read
    later is right as well."""
    split = far(root, tmp_path)
    for _ in range(4):
        sample = split.reader.read(0, 0)
        flip_copy(split, 0, position)
        assert sample.key == split.reader.key(0, 0) == "000000000"
        assert [member.name for member in split.reader.members(0, 0)] == ["000000000.cls", "000000000.jpg"]
        assert {**split[0], "__url__": None} == {**expected(0, root), "__url__": None}
    assert len(caplog.messages) == 4
    assert f"in the cache {tmp_path / 'cache'} is damaged" in caplog.messages[0]


def test_an_index_is_rebuilt_from_a_sound_copy(root: Path, tmp_path: Path) -> None:
    """Where the index is missing and the copy of its tar is damaged, the tar is fetched again."""
    (root / "train/000000.npy").unlink()
    split = far(root, tmp_path)
    assert split.reader.fetch(0).name == "CACHED"
    flip_copy(split, 0, 8)
    assert split[0]["__key__"] == "000000000"


def test_damage_at_the_source_is_an_error(root: Path, tmp_path: Path) -> None:
    """A shard that is damaged at its source as well is an error that names the source, and is not fetched for ever."""
    split = far(root, tmp_path)
    assert split[0]
    flip_copy(split, 0, 1600)
    flip(root / "train/000000.tar", 1600)
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"train/000000\.tar:.*SHA-256"):
            split[0]


def test_a_shard_that_was_packed_wrong_is_not_fetched_again(root: Path, tmp_path: Path) -> None:
    """If the copy has the right SHA-256, its damaged sample is an error at once."""
    tar, index = root / "train/000000.tar", root / "train/000000.npy"
    flip(tar, 1600)
    packed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tar, index)}
    shard = dataclasses.replace(
        shardflow.open(root)["train"].shards[0], sha256=packed[tar.name], index_sha256=packed[index.name]
    )
    storage = CountingStorage(root, tmp_path / "log")
    split = Split(storage, "train", (shard,), Cache(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"is damaged .*`shardflow verify`"):
            split[0]
    assert storage.reads() == {shard.name: 1, shard.index_name: 1}


def test_a_cache_on_a_broken_disk_is_named(root: Path, tmp_path: Path) -> None:
    """Where one copy after the other is damaged, the error names the cache, and not the dataset, as the reason."""

    class BrokenDisk(CountingStorage):
        def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
            super().get(name, target, size=size, sha256=sha256)
            flip(target, 8, 1600)

    storage = BrokenDisk(root, tmp_path / "log")
    split = Split(storage, "train", shardflow.open(root)["train"].shards, Cache(tmp_path / "cache"))
    for read in (split.reader.read, split.reader.key):
        with pytest.raises(IntegrityError, match=rf"3.*{tmp_path}/cache,"):
            read(0, 0)
    assert storage.reads()["train/000000.tar"] <= 10


def test_an_index_in_the_cache_that_cannot_be_read_is_fetched_again(root: Path, tmp_path: Path) -> None:
    """The copy of an index is fetched again as often as it is damaged."""
    split = far(root, tmp_path)
    whole = split.reader.index(0).tolist()
    copy = tmp_path / "cache/blobs" / split.shards[0].index_sha256
    for damage in (b"", b"x", copy.read_bytes()[:-1] + b"x"):
        copy.write_bytes(damage)
        assert split.reader.index(0).tolist() == whole
