from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import shardflow as sf
from shardflow.errors import ConfigError, FormatError, IntegrityError, NotFoundError
from shardflow.preview.augmentation import augment_sample, training_loader
from tests.helpers.folders import write_tree
from tests.helpers.making import jpeg, make_dataset
from tests.helpers.tars import members_of, write_tar


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images of three classes, and one that cannot be packed."""
    folder = tmp_path_factory.mktemp("sources")
    images = {f"{('cat', 'dog', 'elk')[number % 3]}/{number}.jpg": jpeg(number) for number in range(24)}
    write_tree(folder / "photos", {**images, "cat/bad.jpg": b"\xff\xd8\xff no picture"})
    sf.pack(folder / "photos", folder / "packed", preset="original", shard_samples=9, max_errors=1)
    return folder / "photos"


def check_sources(url: Path, photos: Path) -> None:
    """Check that each sample of a dataset has the bytes of the file that it names as its source."""
    for split in sf.open(url).values():
        for number in range(len(split)):
            assert split[number]["jpg"] == (photos / split.source(number)).read_bytes()


def test_sources_of_samples(photos: Path) -> None:
    """Each sample names the file that it was packed from, by its number, also beside an input that was not packed."""
    packed = photos.parent / "packed"
    check_sources(packed, photos)
    train = sf.open(packed)["train"]
    assert len({train.source(number) for number in range(24)}) == 24
    assert train.source(-1) == train.source(23)
    with pytest.raises(IndexError):
        train.source(24)


def test_sources_in_views(photos: Path, tmp_path: Path) -> None:
    """Datasets over the same tars name the sources too: subsets, splits, merged ones, and those of those."""
    packed = photos.parent / "packed"
    sf.subset(packed, tmp_path / "subset", classes=["dog", "elk"])
    sf.split(tmp_path / "subset", tmp_path / "split", val=0.5)
    sf.subset(packed, tmp_path / "cats", classes=["cat"])
    sf.merge([tmp_path / "split", tmp_path / "cats"], tmp_path / "merged")
    for name in ("subset", "split", "merged"):
        check_sources(tmp_path / name, photos)


def test_sources_of_a_dataset_packed_again(photos: Path, tmp_path: Path) -> None:
    """A dataset packed from a dataset, or from a part of one, names the files that the first one was packed from."""
    packed = photos.parent / "packed"
    sf.subset(packed, tmp_path / "subset", classes=["dog", "elk"])
    for old, name in ((packed, "all"), (tmp_path / "subset", "part")):
        sf.pack(old, tmp_path / name, preset="original", executor="serial")
        check_sources(tmp_path / name, photos)
        assert sorted(sf.open(tmp_path / name)["train"].sources()) == sorted(sf.open(old)["train"].sources())


def test_extending_a_dataset_packed_again(photos: Path, tmp_path: Path) -> None:
    """The same dataset adds nothing, a larger one its further images, and their first source then nothing."""
    packed = photos.parent / "packed"
    sf.subset(packed, tmp_path / "part", classes=["dog", "elk"])
    sf.pack(tmp_path / "part", tmp_path / "again", short_side=32, executor="serial")
    assert sf.extend(tmp_path / "part", tmp_path / "again", executor="serial").packed == 0
    assert sf.extend(packed, tmp_path / "again", executor="serial").packed == 8
    report = sf.extend(photos, tmp_path / "again", max_errors=1, executor="serial")
    assert (report.packed, report.quarantined) == (0, 1)


def test_without_receipts(photos: Path, tmp_path: Path) -> None:
    """Tars of other tools, a lost, a damaged and a wrong receipt are told apart by type, and the file is named."""
    with pytest.raises(NotFoundError, match="other tools") as raised:
        sf.open(make_dataset(tmp_path / "foreign", [3]))["train"].source(0)
    assert str(tmp_path / "foreign/train/000000.json") in str(raised.value)
    copy = Path(shutil.copytree(photos.parent / "packed", tmp_path / "copy"))
    shutil.copyfile(copy / "train/000001.json", copy / "train/000000.json")
    with pytest.raises(IntegrityError, match=str(copy / "train/000000.json")):
        sf.open(copy)["train"].source(0)
    (copy / "train/000000.json").write_text("{}")
    with pytest.raises(FormatError, match=str(copy / "train/000000.json")):
        sf.open(copy)["train"].source(0)


def test_sources_of_indexed_tars(tmp_path: Path) -> None:
    """Samples of indexed tars have the name of the tar and their key there; so columns can be joined by path."""
    for tar in ("a/0.tar", "a/1.tar"):
        write_tar(tmp_path / tar, members_of(range(3)))
    sf.index(tmp_path, tmp_path / "index")
    train = sf.open(tmp_path / "index")["train"]
    keys = [sample["__key__"] for sample in train]
    assert train.sources() == [f"a/{number // 3}.tar/{key}" for number, key in enumerate(keys)]
    assert [train.source(number) for number in range(6)] == train.sources()
    with pytest.raises(ConfigError, match="several samples have the key"):
        train.source(keys[0])
    scores = pa.table({"path": train.sources()[::-1], "score": range(6)})
    sf.columns.add(tmp_path / "index", scores, path="path")
    assert sf.open(tmp_path / "index")["train"].column("score")[0].tolist() == [5, 4, 3, 2, 1, 0]


def test_equal_names_of_tars_bring_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tars of one name in two folders give equal sources: an index of both and a merge say so, one pattern does not."""
    for number, tar in enumerate(("photos/0.tar", "art/0.tar", "more/1.tar")):
        write_tar(tmp_path / tar, members_of(range(3 * number, 3 * number + 3)))
    one = sf.index(f"{tmp_path}/{{photos,art}}/*.tar", tmp_path / "one").url
    assert len({*sf.open(one)["train"].sources()}) == 6
    for name in ("photos", "art", "more"):
        sf.index(tmp_path / name, tmp_path / f"of {name}")
    sf.merge([tmp_path / "of photos", tmp_path / "of more"], tmp_path / "different")
    assert "several folders" not in caplog.text
    sf.index([str(tmp_path / "photos"), str(tmp_path / "art")], tmp_path / "both")
    assert "tars of several folders have the name '0.tar'" in caplog.text


def test_preview_names_the_source(photos: Path) -> None:
    """The sheet of an augmented sample names its source, and its pictures have the default size of the loader."""
    dataset = sf.open(photos.parent / "packed")
    sheet = augment_sample(training_loader(photos.parent / "packed", "train"), 5, epochs=1)
    assert dataset["train"].source(5) in sheet.title
    assert sheet.tiles[1].detail.startswith("224 x 224")


def test_a_key_and_all_samples(photos: Path) -> None:
    """A key, as in messages, leads to the same source as the number; all sources are in the order of the split."""
    train = sf.open(photos.parent / "packed")["train"]
    assert train.sources() == [train.source(number) for number in range(len(train))]
    assert [train.source(sample["__key__"]) for sample in train] == train.sources()
    with pytest.raises(IndexError, match="999999999"):
        train.source("999999999")
