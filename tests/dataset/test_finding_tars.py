from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.dataset.finding_tars import find_tars, split_pattern, splits_of_files
from shardflow.errors import ConfigError
from shardflow.storage.local import LocalStorage
from tests.helpers.examples import examples
from tests.helpers.making import make_dataset


@pytest.mark.parametrize(
    ("url", "root", "pattern"),
    [
        ("s3://bucket/a/{000..009}.tar", "s3://bucket/a", "{000..009}.tar"),
        ("s3://bucket/a*/b/c?.tar", "s3://bucket", "a*/b/c?.tar"),
        ("s3://bucket/[ab]/*.tar", "s3://bucket", "[ab]/*.tar"),
        ("S3://bucket/a/b.tar", "s3://bucket/a", "b.tar"),
        ("s3://bucket/X/", "s3://bucket/X", None),
        ("https://host/a/b.tar?sig=x/y*", "https://host/a?sig=x/y*", "b.tar"),
        ("https://host/a/{0..9}.tar?sig=x", "https://host/a?sig=x", "{0..9}.tar"),
        ("HTTPS://host/a/?sig={x}.tar", "https://host/a?sig={x}.tar", None),
        *(
            ("*.tar", ".", "*.tar"),
            ("/*.tar", "/", "*.tar"),
            ("/", "/", None),
            ("file:///x%20y/*.tar", "/x y", "*.tar"),
        ),
    ],
)
def test_a_pattern_is_cut_behind_its_root(url: str, root: str, pattern: str | None) -> None:
    """The root ends before the first segment with a brace or wildcard, or before a tar; a directory has no pattern.

    The query of a web URL stays with the root.
    """
    assert split_pattern(url) == (root, pattern)


def test_names_that_exist_are_no_patterns(tmp_path: Path) -> None:
    """A directory whose name has brackets is read as it is, and a tar so named is the tar."""
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "b{1}.tar").touch()
    assert split_pattern(tmp_path / "a[1]") == (str(tmp_path / "a[1]"), None)
    assert split_pattern(tmp_path / "b{1}.tar") == (str(tmp_path), "b{1}.tar")


def test_two_names_in_one_are_refused() -> None:
    """Names that are joined as webdataset joins them are refused with the pattern to write."""
    with pytest.raises(ConfigError, match=r"'a\.tar::s3://b/c\.tar' has '::'.*\{a,b\}\.tar"):
        split_pattern("a.tar::s3://b/c.tar")


def test_hidden_tars_are_left_out(tmp_path: Path) -> None:
    """Wildcards match no name that begins with a dot, such as macOS's `._a.tar`, unless the pattern has the dot."""
    storage = LocalStorage(tmp_path)
    for name in ("a.tar", "._a.tar", ".old/b.tar", "c/.d.tar", ".e.tar.gz"):
        storage.put(name, b"")
    assert list(find_tars(storage, None)) == list(find_tars(storage, "**")) == list(find_tars(storage, "*.tar"))
    assert list(find_tars(storage, None)) == ["a.tar"]
    assert list(find_tars(storage, "{.old/*,._a.tar,**/.d*}")) == ["._a.tar", ".old/b.tar", "c/.d.tar"]


def test_braces_and_wildcards(tmp_path: Path) -> None:
    """Braces are expanded; wildcards choose the tars of a listing, `**` over folders, others within one."""
    storage = LocalStorage(tmp_path)
    for name in ("a.tar", "a/b.tar", "b.tar", "a.npy", "a.tar.npy", "08/a.tar", "10/b.tar"):
        storage.put(name, b"")
    assert list(find_tars(storage, "a*")) == ["a.tar"]
    assert list(find_tars(storage, "a*/**")) == ["a/b.tar"]
    assert list(find_tars(storage, "{08..10..2}/?.tar")) == ["08/a.tar", "10/b.tar"]
    assert list(find_tars(storage, "{b,a}.tar")) == ["a.tar", "b.tar"]
    assert len(find_tars(storage, None)) == 5
    with pytest.raises(ConfigError, match=r"'c\.tar': it has 5 tars"):
        find_tars(storage, "{a..c}.tar")
    storage.put("c/0.tar.gz", b"")
    with pytest.raises(ConfigError, match=r"'c\.tar': .*; decompress \.gz files first"):
        find_tars(storage, "c.tar")
    with pytest.raises(ConfigError, match=r"'\{1.tar'.*\{00000..00099\}.tar"):
        find_tars(storage, "{1.tar")


@pytest.mark.parametrize("name", ["b.tar.gz", "c/d.TAR", "e.tgz"])
def test_compressed_tars_are_not_left_out(tmp_path: Path, name: str) -> None:
    """A folder or pattern with a compressed tar, or one with another case, is refused; a pattern without it is not."""
    storage = LocalStorage(tmp_path)
    for each in ("a.tar", "a.tar.idx", "notes.gz", name):
        storage.put(each, b"")
    for pattern in (None, f"{{a.tar,{name.replace('.', '*')}}}"):
        with pytest.raises(ConfigError, match=r"which would be left out.*a pattern such as '\*\*/\*\.tar'"):
            find_tars(storage, pattern)
    assert list(find_tars(storage, "**/*.tar")) == ["a.tar"]


PATTERNS = ("", "/*/*/*.tar", "/p", "/p/train", "/p/train/*.tar", "/p/{train,val}/000000.tar", "/p/train/000000.tar")


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_tars_of_a_packed_dataset_are_refused(tmp_path: Path, store: str) -> None:
    """Neither `index` nor `pack` takes tars of a packed dataset: with them are those of older versions."""
    team = str(tmp_path / "team") if store == "disk" else "memory://team"
    sf.sync(make_dataset(tmp_path / "made", {"train": [1], "val": [1]}), f"{team}/p")
    for pattern in PATTERNS:
        with pytest.raises(ConfigError, match=rf"{team}/p is a packed dataset.* name {team}/p itself"):
            sf.index(team + pattern, tmp_path / "index")
        if pattern != "/p":
            with pytest.raises(ConfigError, match=f"{team}/p is a packed dataset"):
                sf.pack(team + pattern, tmp_path / "dst", short_side=32, executor="serial")
    assert sf.pack(f"{team}/p", tmp_path / "dst", short_side=32, executor="serial").packed == 2


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["imgs-train-0.tar", "imgs-val-0.tar"], ["train", "val"]),
        (["Test_000.tar", "validation.001.tar"], ["test", "validation"]),
        (["portraits-0.tar", "trained-1.tar"], ["train", "train"]),
        (["a/val-0.tar", "a/val-1.tar"], ["val", "val"]),
        (["train/val-0.tar"], ["val"]),
        (["train/a/0.tar", "my-dev-set/0.tar"], ["train", "validation"]),
        (["image_info_test-dev2017.json"], ["test"]),
    ],
)
def test_names_of_files_name_their_splits(names: list[str], splits: list[str]) -> None:
    """A word of a file's name is its split, or else one of its folders; names of splits go before other words."""
    assert list(splits_of_files("s3://bucket/imgs", names).values()) == splits


@pytest.mark.parametrize(
    "names",
    [
        ["imgs-val-0.tar", "imgs-0.tar"],
        ["train-val-0.tar"],
        ["val/0.tar", "1.tar"],
        ["train/val/0.tar"],
        ["train/0.tar", "held-out/0.tar"],
        ["data/train-00000-of-00001.parquet", "data/minival-00000-of-00001.parquet"],
    ],
)
def test_tars_that_may_be_of_another_split(names: list[str]) -> None:
    """Tars for validation beside others do not become training data."""
    with pytest.raises(ConfigError, match="val"):
        splits_of_files("s3://bucket/imgs", names)


@pytest.mark.parametrize(
    ("root", "split"),
    [("val", "val"), ("a/Val2017", "val"), ("eval", "test"), ("my-val", "train"), ("hf://a/b", "train")],
)
def test_the_root_names_the_split_of_all(root: str, split: str) -> None:
    """Files without such a word have the split after which the root is named as a whole."""
    assert splits_of_files(root, ["a/0.tar", "1.tar"]) == {"a/0.tar": split, "1.tar": split}


WORDS = {"train": "train", "val": "val", "TEST": "test", "dev": "validation", "cats": None, "trained": None}
NAMES = st.lists(st.lists(st.sampled_from([*WORDS]), min_size=1, max_size=2), min_size=1, max_size=3)


@given(st.lists(NAMES, min_size=1, max_size=4))
@examples(200)
def test_any_names(names: list[list[list[str]]]) -> None:
    """A file has the split that its name says, or else its folders; names that leave a doubt are refused."""
    files, splits = list[str](), list[set[str | None]]()
    for number, parts in enumerate(names):
        said: list[set[str | None]] = [{WORDS[word] for word in words} - {None} for words in parts]
        said = [each - {"validation"} or each for each in said]
        splits.append(said[-1] or set().union(*said) or {None})
        files.append("/".join("_".join(words) for words in parts) + f"-{number}.tar")
    all_splits = set().union(*splits)
    is_one_kind = None not in all_splits or all_splits == {None}
    if is_one_kind and all(len(each) == 1 for each in splits):
        wanted = [min(each) or "train" for each in splits]
        assert list(splits_of_files("s3://bucket/imgs", files).items()) == list(zip(files, wanted, strict=True))
    else:
        with pytest.raises(ConfigError, match=r"names several splits|names its split"):
            splits_of_files("s3://bucket/imgs", files)
