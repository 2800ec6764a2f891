from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

import shardflow
from shardflow.errors import ConfigError
from shardflow.formats.tar_samples import TarSample, read_samples, split_member_name
from tests.helpers.tars import TarInMemory, members_of, write_tar

BLOCK = 512


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0001.jpg", ("0001", "jpg")),
        ("train.d/0001.seg.PNG", ("train.d/0001", "seg.PNG")),
        ("./a b.jpg", ("./a b", "jpg")),
        *((name, None) for name in ("", "README", "__metadata__", ".hidden", "d/.hidden.jpg", "a.", "a.jpg/", "a.d/")),
    ],
)
def test_key_and_part(name: str, expected: tuple[str, str] | None) -> None:
    """A name is cut at the first dot of its last segment; without a key or a part there is no sample."""
    assert split_member_name(name) == expected


@given(name=st.text(st.sampled_from("ab./ü"), max_size=12))
def test_names_are_split_as_webdataset_does(name: str) -> None:
    """Key and part are those that the webdataset library reads, which takes an empty part and a hidden file as well."""
    key, part = base_plus_ext(name)
    if "/." in name and name.rpartition("/")[2].startswith("."):
        key = None
    assert split_member_name(name) == ((key, part) if key and part else None)


def test_a_tar_cut_anywhere(tmp_path: Path) -> None:
    """Wherever a tar is cut, a sample that may lack a part has a problem, and so has one that stands for the rest."""
    data = write_tar(tmp_path / "whole.tar", members_of(range(4))).read_bytes()
    end = len(data.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK
    for cut in range(0, end + BLOCK, BLOCK):
        *samples, loss = read_samples(TarInMemory(data[:cut]))
        assert loss.problem, cut
        assert not loss.key, cut
        for sample in samples:
            whole = sorted(sample.parts) == ["cls", "jpg", "json", "txt"] and all(
                offset + size <= cut for offset, size in sample.parts.values()
            )
            assert whole or sample.problem, (cut, sample)
    assert [sample.problem for sample in read_samples(TarInMemory(data))] == [""] * 4


def test_a_damaged_tar_says_where(tmp_path: Path) -> None:
    """The loss behind the damage names the last sample and the damage, and is of no key."""
    data = write_tar(tmp_path / "a.tar", [("a.jpg", b"1")], mtime=1).read_bytes()
    end = "it ends at byte {} without the zero blocks that close a tar: it is cut short"
    damage = f"the tar cannot be read: {end};"
    for cut, after, lost in ((0, "from its start", "all samples in it are"), (1024, "after sample 'a'", "the rest is")):
        loss = list(read_samples(TarInMemory(data[:cut])))[-1]
        assert loss == TarSample("", problem=f"{after} {damage.format(cut)} {lost} lost")


def test_a_name_may_look_like_a_compressed_file(tmp_path: Path) -> None:
    """A tar begins with the name of its first file, which may be that of a compression."""
    (sample,) = read_samples(TarInMemory(write_tar(tmp_path / "a.tar", [("BZh91.jpg", b"1")], mtime=1).read_bytes()))
    assert (sample.key, sample.problem) == ("BZh91", "")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_tar_is_refused(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """A compressed tar is not damaged, so its samples are not left out as bad ones: it has to be decompressed."""
    data = write_tar(tmp_path / "a.tar", [("a.jpg", b"1")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(compress(data))
    for read in (shardflow.index, lambda folder: shardflow.pack(folder, tmp_path / "packed", max_errors=9)):
        with pytest.raises(ConfigError, match=r"a\.tar is compressed by (gzip|bzip2|xz); decompress it first"):
            read(tmp_path)


def test_members_of_a_sample_stand_together(tmp_path: Path) -> None:
    """Members of one key in a row are a sample, parts in lower case; a part that comes twice is its problem."""
    members = [("a.JPG", b"1"), ("a.cls", b"2"), ("note", b""), ("b.jpg", b"3"), ("b.JPG", b"4"), ("a.txt", b"5")]
    data = write_tar(tmp_path / "a.tar", members, mtime=1).read_bytes()
    samples = list(read_samples(TarInMemory(data)))
    assert samples == [
        TarSample("a", {"jpg": (512, 1), "cls": (1536, 1)}, 0),
        TarSample("b", {"jpg": (4096, 1)}, 2560, "has two parts 'jpg'"),
        TarSample("a", {"txt": (5120, 1)}, 4608),
    ]
