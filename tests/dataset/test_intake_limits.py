"""Tars, inputs and lists that ask for gigabytes are read within limits, or refused; none that is refused is written."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardflow as sf
from shardflow.dataset import column_files
from shardflow.dataset.column_files import decode, load_table
from shardflow.dataset.tar_file import open_tar
from shardflow.errors import ConfigError, DecodeError, FormatError, IntegrityError, PackIncompleteError, TarError
from shardflow.formats import quarantine, receipt, shard_index, ustar
from shardflow.formats.labels import MAX_LABEL_BYTES, parse_labels
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.shard import Shard
from shardflow.formats.tar_samples import MAX_PARTS, read_samples
from shardflow.packing import pack_plan, shard_writer
from shardflow.storage.interface import BlobVersion
from shardflow.storage.local import LocalStorage
from shardflow.storage.remote import RemoteStorage
from tests.formats.test_receipt import example
from tests.helpers import bombs
from tests.helpers.folders import image_folder, photo, quarantined, write_tree
from tests.helpers.making import make_dataset
from tests.helpers.tars import TarInMemory, plain_tar
from tests.helpers.warm_python import python

MEMORY_BYTES = 400_000_000
M_ARENA_MAX = -8  # of glibc's malloc.h
PART = 500_000_000  # more than a process may have here
HOLE = 560_000_000  # more than a process may have here, and than a sample may have


def run_alone(function: str, *arguments: object) -> None:
    """Call a function of this module in a process of its own, whose threads share the space for small objects."""
    code = f"import sys; from tests.dataset import test_intake_limits; test_intake_limits.{function}(*sys.argv[1:])"
    code = f"import ctypes; ctypes.CDLL(None).mallopt({M_ARENA_MAX}, 2); {code}"
    command = [python(), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def sparse_tar(path: Path, *members: tuple[str, bytes | int]) -> None:
    """Write a tar; of a member that is given by its size, the payload is a hole in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as tar:
        for name, payload in members:
            size = payload if isinstance(payload, int) else len(payload)
            tar.write(ustar.header(name, size))
            tar.seek(size, os.SEEK_CUR) if isinstance(payload, int) else tar.write(payload)
            tar.write(bytes(ustar.padding(size)))
        tar.write(ustar.END)


def test_long_tars(tmp_path: Path) -> None:
    """A tar that is longer than memory is indexed, verified, repaired and packed, on a disk and behind a URL."""
    image = photo(1)
    sparse_tar(tmp_path / "tars/0.tar", ("a.jpg", image), ("note", HOLE), ("b.jpg", image))
    sparse_tar(tmp_path / "own/train/0.tar", ("a.jpg", image), ("b.bin", PART), ("b.jpg", image))
    with open_tar(LocalStorage(tmp_path / "own"), "train/0.tar", hashed=True) as tar:
        index = shard_index.to_bytes(shard_index.build(tar)[0])
        digests = {"sha256": tar.sha256(), "index_sha256": hashlib.sha256(index).hexdigest()}
        shard = Shard(name="train/0.tar", samples=2, bytes=tar.size, **digests)
    (tmp_path / "own/shardflow.json").write_bytes(Manifest(splits={"train": (shard,)}, inputs=2).to_bytes())
    run_alone("read_long_tars", tmp_path)


def read_long_tars(root: str) -> None:
    """Read the long tars in all ways."""
    sf.pack(f"local://{root}/tars/*.tar", f"{root}/warm", executor="serial", short_side=8)  # loads all modules
    bombs.enter_limits(MEMORY_BYTES)
    assert sf.repair(f"{root}/own").repaired == ("train/0.npy",)
    for number, base in enumerate((root, f"local://{root}")):
        assert sf.verify(f"{base}/own") == []
        assert sf.index(f"{base}/tars/*.tar", f"{root}/index{number}").samples == {"train": 2}
        assert sf.pack(f"{base}/tars/*.tar", f"{root}/pack{number}", executor="serial", short_side=8).packed == 2


def test_samples_over_the_limit(tmp_path: Path) -> None:
    """A sample over the limit is left out by `index`, and quarantined by `pack`; the others of its tar stay."""
    image = photo(1)
    sparse_tar(
        tmp_path / "tars/0.tar", ("a.jpg", image), ("b.jpg", image), ("b.bin", HOLE), ("c.jpg", HOLE), ("d.jpg", image)
    )
    run_alone("read_large_samples", tmp_path)


def read_large_samples(root: str) -> None:
    """Index and pack the tar with large samples."""
    sf.pack(f"{root}/tars/*.tar", f"{root}/warm", executor="serial", short_side=8, max_errors=2)
    bombs.enter_limits(MEMORY_BYTES)
    for number, base in enumerate((f"{root}/tars", f"local://{root}/tars")):
        report = sf.index(f"{base}/*.tar", f"{root}/index{number}", max_errors=2)
        assert report.samples == {"train": 2}
        assert [bad.path[-1] for bad in report.bad] == ["b", "c"]
        assert all("536,870,912 is the most: leave it out" in bad.reason for bad in report.bad)
        packed = sf.pack(f"{base}/*.tar", f"{root}/pack{number}", executor="serial", short_side=8, max_errors=2)
        assert (packed.inputs, packed.packed, packed.quarantined) == (4, 2, 2)
        reasons = [row["reason"] for row in quarantined(Path(root, f"pack{number}"))]
        assert all("536,870,912 is the most for one input: leave it out" in reason for reason in reasons)


def test_inputs_over_the_limit(tmp_path: Path) -> None:
    """A file that is longer than an input may be is quarantined, on a disk and behind a URL, and is not read."""
    write_tree(tmp_path / "src", {"a/sound.jpg": photo(1), "a/long.jpg": photo(2)})
    os.truncate(tmp_path / "src/a/long.jpg", 3 << 30)
    run_alone("pack_large_inputs", tmp_path)


def pack_large_inputs(root: str) -> None:
    """Pack the folder with the long file."""
    for limited in (False, True):
        for number, base in enumerate((f"{root}/src", f"local://{root}/src")):
            dst = f"{root}/{limited}{number}"
            report = sf.pack(base, dst, executor="serial", short_side=8, max_errors=1)
            assert (report.inputs, report.packed, report.quarantined) == (2, 1, 1)
            (row,) = quarantined(Path(dst))
            assert "3,221,225,472 bytes; 536,870,912 is the most" in row["reason"]
        bombs.enter_limits(MEMORY_BYTES)


def test_a_packed_sample_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that would be longer than one that is read is quarantined, with what to do about it."""
    write_tree(tmp_path / "src", {"a/small.jpg": photo(1), "a/large.jpg": photo(2, 500, 400)})
    monkeypatch.setattr(shard_writer, "MAX_SAMPLE_BYTES", 10_000)
    report = sf.pack(tmp_path / "src", tmp_path / "dst", executor="serial", preset="original", max_errors=1)
    assert (report.inputs, report.packed, report.quarantined) == (2, 1, 1)
    (row,) = quarantined(tmp_path / "dst")
    assert (row["path"], row["stage"]) == ("a/large.jpg", "encode")
    assert "10,000 is the most for a sample: leave some out" in row["reason"]


def test_a_shard_with_a_large_sample_or_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar has no index if one of its samples has too many bytes, or if it has too many members."""
    tar = TarInMemory(plain_tar([("a.cls", b"1"), ("a.jpg", photo(1)), ("b.jpg", photo(2))]))
    assert shard_index.build(tar)[1] == ["a", "b"]
    monkeypatch.setattr(shard_index, "MAX_ROWS", 2)
    with pytest.raises(TarError, match=r"2 members"):
        shard_index.build(tar)
    monkeypatch.setattr(shard_index, "MAX_SAMPLE_BYTES", 2000)
    with pytest.raises(TarError, match=r"2,000.*leave"):
        shard_index.build(tar)


def test_a_pack_of_shards_with_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that would have too many members is an error that names it and the setting that makes it smaller."""
    src = image_folder(tmp_path / "src", 4)
    monkeypatch.setattr(shard_index, "MAX_ROWS", 7)
    with pytest.raises(ConfigError, match=r"dst/train/000000\.tar.*7.*--shard-samples"):
        sf.pack(src, tmp_path / "dst", short_side=32, executor="serial")


def test_a_sample_of_very_many_parts() -> None:
    """Of a sample with more parts than one may have, no more are kept, and it cannot be used."""
    data = plain_tar([("a.jpg", b""), *((f"a.{n}", b"") for n in range(2 * MAX_PARTS)), ("b.jpg", b"")])
    large, small = read_samples(TarInMemory(data))
    assert (len(large.parts), large.problem) == (MAX_PARTS, "has more than 1000 parts")
    assert small.problem == ""


def test_a_long_label_is_not_parsed() -> None:
    """A part with labels of more than a megabyte is an error before it is parsed."""
    with pytest.raises(DecodeError, match=r"1,048,577.*1,048,576"):
        parse_labels("labels.json", b"[" * (MAX_LABEL_BYTES + 1))


BOMBS: dict[str, Callable[[], Any]] = {
    "receipt of lists": lambda: receipt.from_bytes(b"[" + b"{}," * (receipt.MAX_BYTES // 3 - 1) + b"1]"),
    "receipt that is too long": lambda: receipt.from_bytes(bytes(receipt.MAX_BYTES + 1)),
    "quarantine of one line": lambda: quarantine.from_bytes(b"[" + b"{}," * (quarantine.MAX_BYTES // 3 - 1) + b"1]"),
    "quarantine of lists": lambda: quarantine.from_bytes(b"[[],[],[]]\n" * (quarantine.MAX_BYTES // 11)),
    "quarantine that is too long": lambda: quarantine.from_bytes(bytes(quarantine.MAX_BYTES + 1)),
}


def test_lists_that_ask_for_gigabytes() -> None:
    """Receipts and quarantines, damaged or as long as they may be, are parsed within a gigabyte."""
    run_alone("parse_lists")


def parse_lists() -> None:
    """Parse the lists in 1 GB, the lists included; a sound one, of a fifth of the length, in a fifth of that."""
    bombs.enter_limits()
    for bomb in BOMBS.values():
        with pytest.raises(FormatError, match=r"damaged|not a receipt"):
            bomb()
    bombs.enter_limits(MEMORY_BYTES // 2)
    line = b'{"path":"ab","stage":"","reason":"cd"}\n'
    assert len(quarantine.from_bytes(line * (quarantine.MAX_BYTES // 5 // len(line)))) > 600_000


ROWS = 130  # two bytes as a number of Thrift's compact protocol, which nothing else in the footers has
LIES = (-1, ROWS + 1, 1 << 29, 1 << 33, 1 << 62)


def footers_that_lie(data: bytes) -> Iterator[bytes]:
    """Yield a Parquet file with other numbers in one of the places of its footer that say its rows, and in all."""
    end = len(data) - 8
    begin = end - int.from_bytes(data[end : end + 4], "little")
    pieces = data[begin:end].split(b"\x16" + thrift_number(ROWS))
    for places in [*({place} for place in range(1, len(pieces))), set(range(1, len(pieces)))]:
        for lie in LIES:
            numbers = [thrift_number(lie if place in places else ROWS) for place in range(1, len(pieces))]
            pairs = zip(numbers, pieces[1:], strict=True)
            footer = pieces[0] + b"".join(b"\x16" + number + piece for number, piece in pairs)
            yield data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def thrift_number(number: int) -> bytes:
    """Return a number in Thrift's compact protocol: zigzag, and 7 bits a byte."""
    left, digits = (number << 1) ^ (number >> 63), bytearray()
    while left > 127:
        digits.append(left & 127 | 128)
        left >>= 7
    return bytes([*digits, left])


def test_footers_that_lie(tmp_path: Path) -> None:
    """Parquet files whose footers say rows, or values, that there are not are refused before memory is asked for.

    Those are tables of columns, tables of images, and the files of columns, of which a manifest can have the SHA-256.
    """
    dataset = make_dataset(tmp_path / "set", [ROWS])
    keys = [f"{n:09}" for n in range(ROWS)]
    table = pa.table({"key": keys, "vec": pa.array([[n, n] for n in range(ROWS)], pa.list_(pa.float32(), 2))})
    pq.write_table(table, tmp_path / "table.parquet")
    images = pa.table({"jpg": [key.encode() for key in keys], "label": [n % 3 for n in range(ROWS)]})
    pq.write_table(images, tmp_path / "images.parquet")
    sf.columns.add(dataset, tmp_path / "table.parquet", key="key")
    run_alone("read_footers_that_lie", tmp_path)


def read_footers_that_lie(root: str) -> None:
    """Read each of them."""
    dataset, file = Path(root, "set"), Path(root, "forged/lie.parquet")
    file.parent.mkdir()
    table, images, column = (
        Path(root, name).read_bytes() for name in ("table.parquet", "images.parquet", "set/train/000000.vec.parquet")
    )
    sf.open(dataset)["train"].column("vec")
    bombs.enter_limits(MEMORY_BYTES)
    doors: dict[str, tuple[bytes, Callable[[], object]]] = {
        "table": (table, lambda: load_table(file, "key", None, None).columns["vec"][1].to_pylist()),
        "images": (images, lambda: [[n, n] for n in range(len(sf.sources.Parquet(str(file)).list().splits["train"]))]),
        "column": (column, lambda: decode(file.read_bytes(), "vec", "float32[2]", ROWS).values.tolist()),
    }
    for door, (data, read) in doors.items():
        refused = []
        for forged in footers_that_lie(data):
            file.write_bytes(forged)
            try:
                assert read() == [[n, n] for n in range(ROWS)]  # what the footer says there is not used
            except (ConfigError, IntegrityError) as error:
                refused.append(str(error))
        assert len(refused) >= len(LIES)
        assert not [
            reason for reason in refused if "malloc" in reason or ("lie.parquet" not in reason) != (door == "column")
        ]


def test_tables_that_expand(tmp_path: Path) -> None:
    """Parquet tables whose rows share a long text, or whose pages expand, are refused before memory is asked for."""
    text, keys = "x" * (1 << 20), [f"{n:09}" for n in range(5000)]
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"key": keys, "text": shared}), tmp_path / "shared.parquet")
    pages = pa.table({"key": keys[:450], "text": [text] * 450})
    pq.write_table(pages, tmp_path / "pages.parquet", use_dictionary=False, compression="zstd")
    run_alone("read_tables_that_expand", tmp_path)


def read_tables_that_expand(root: str) -> None:
    """Read both, the second with a lower limit."""
    bombs.enter_limits(MEMORY_BYTES)
    for name, most in (("shared", column_files.MAX_VALUE_BYTES), ("pages", 64 << 20)):
        column_files.MAX_VALUE_BYTES = most
        with pytest.raises(ConfigError, match=rf"{name}\.parquet: its values have .* {most:,} are the most: divide it"):
            load_table(f"{root}/{name}.parquet", "key", None, None)


def test_what_would_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarantine or a receipt that reading would refuse is an error when it is made, with what to do about it."""
    many = [Quarantined("x" * 100_000, "read", "\U0001f600" * 100_000)] * 200
    with pytest.raises(
        PackIncompleteError, match=r"^200 inputs could not be packed, more than a list of .* run the same"
    ):
        quarantine.to_bytes(many)
    (cut,) = quarantine.from_bytes(quarantine.to_bytes(many[:1]))
    assert cut == ("x" * 65_536, "read", "\U0001f600" * 65_536)
    long = replace(example(), sources=("x" * receipt.MAX_BYTES,))
    with pytest.raises(ConfigError, match=r"2.*33,554,432"):
        long.to_bytes()
    image_folder(tmp_path / "src", 5)
    monkeypatch.setattr(receipt, "MAX_BYTES", 200)
    monkeypatch.setattr(pack_plan, "_CHECKED_INPUTS", 1)
    with pytest.raises(ConfigError, match=r"receipt.*samples"):
        sf.pack(tmp_path / "src", tmp_path / "dst", executor="serial")
    assert not list((tmp_path / "dst").rglob("*.tar"))


@pytest.mark.parametrize("damaged", [1, 2, 99])
def test_bytes_that_are_damaged_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int) -> None:
    """A remote tar whose bytes arrive damaged is read again by `verify`; damage that stays is a finding."""
    image_folder(tmp_path / "src", 5)
    sf.pack(tmp_path / "src", tmp_path / "dst", executor="serial", short_side=8)
    read, tars = RemoteStorage.read_range, list[int]()

    def flip(storage: RemoteStorage, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        data = bytearray(read(storage, name, start, stop, version=version))
        tars.append(1)
        if len(tars) <= damaged:
            data[700] ^= 1 << (len(tars) % 8 if damaged < 99 else 1)
        return bytes(data)

    monkeypatch.setattr(RemoteStorage, "read_range", flip)
    findings = sf.verify(f"local://{tmp_path}/dst")
    assert bool(findings) == (damaged == 99)
    assert len(tars) == min(damaged, 1) + (2 if damaged == 2 else 1)
