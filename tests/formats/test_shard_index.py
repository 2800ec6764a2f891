from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ShardIndexError, TarError
from shardflow.formats import shard_index
from shardflow.formats.shard_index import DTYPE, Row
from shardflow.storage.local import LocalStorage
from tests.helpers.examples import examples
from tests.helpers.making import jpeg, write_shard
from tests.helpers.tars import TarInMemory, plain_tar

ROWS = [
    Row(0, b"cls", 512, 1, 0xF3DBD4FE, 0, 0),
    Row(0, b"jpg", 1536, 900, 0xDEADBEEF, 48, 40),
    Row(1, b"mask.png", 3072, 700, 7, 65_535, 1),
    Row(2, b"sixteen-bytes-xx", 4608, 2**32 - 1, 2**32 - 1, 0, 0),
]
BYTES_SHA256 = "c88da089451c08792a1e89b3eff50fe6d8a9730df04ac9eb12fdebc424f623ef"
TAR_BYTES = 2**33
MAGIC = b"\x93NUMPY\x01\x00"
DESCR = repr(DTYPE.descr)


def npy(header: str, data: bytes = b"") -> bytes:
    """A `.npy` file with any header."""
    return MAGIC + len(header).to_bytes(2, "little") + header.encode("latin-1") + data


def read(data: bytes, samples: int = 3, tar_bytes: int = TAR_BYTES) -> shard_index.Index:
    """The index in these bytes, as if they belonged to the shard of `ROWS`."""
    return shard_index.from_bytes(data, samples=samples, tar_bytes=tar_bytes)


def assert_valid(index: shard_index.Index, samples: int, tar_bytes: int) -> None:
    """Whatever was read: each sample has its members in order, and none reaches outside of the shard."""
    assert index.dtype == DTYPE
    records = index["record"].tolist()
    assert records == sorted(records)
    assert set(records) == set(range(samples))
    for row in index.tolist():
        assert row[2] + row[3] <= tar_bytes
        assert row[1].decode().encode() == row[1]


def test_bytes_are_frozen() -> None:
    """An index has the same bytes for ever and with every numpy: manifests hold their SHA-256."""
    data = shard_index.to_bytes(shard_index.from_rows(ROWS))
    assert hashlib.sha256(data).hexdigest() == BYTES_SHA256


def test_numpy_reads_it(tmp_path: Path) -> None:
    """`numpy.load` loads an index, without pickle and as a memory map, with the rows that were written."""
    data = shard_index.to_bytes(shard_index.from_rows(ROWS))
    (tmp_path / "index.npy").write_bytes(data)
    for loaded in (
        np.load(io.BytesIO(data), allow_pickle=False),
        np.load(tmp_path / "index.npy", mmap_mode="r", allow_pickle=False),
    ):
        assert loaded.dtype == DTYPE
        assert [Row(*row) for row in loaded.tolist()] == ROWS


def test_data_is_aligned() -> None:
    """However many rows there are, they are read again, and start at a multiple of 64 as the `.npy` format asks."""
    for count in (1, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 100_000):
        data = shard_index.to_bytes(shard_index.from_rows(ROWS[:1] * count))
        assert (len(data) - count * DTYPE.itemsize) % 64 == 0
        assert data[len(data) - count * DTYPE.itemsize - 1] == ord("\n")
        assert len(read(data, 1)) == count


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30), data=st.data())
def test_round_trip(sizes: list[int], data: st.DataObject) -> None:
    """What `to_bytes` writes, `from_bytes` reads, for any rows that belong to a shard."""
    u4, u2 = st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)
    part = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4).map(str.encode)
    rows = [
        Row(record, data.draw(part), data.draw(st.integers(0, 2**40)), *data.draw(st.tuples(u4, u4, u2, u2)))
        for record, size in enumerate(sizes)
        for _ in range(size)
    ]
    index = read(shard_index.to_bytes(shard_index.from_rows(rows)), len(sizes), 2**41)
    assert [Row(*row) for row in index.tolist()] == rows


def test_build_finds_what_was_written(tmp_path: Path) -> None:
    """An index rebuilt from a tar has the bytes of the one written with it, and the keys are the names' common part."""
    samples: list[tuple[str, Mapping[str, bytes]]] = [
        ("d/e/000", {"jpg": jpeg(0, 48, 40), "cls": b"5", "mask.png": b"no png"}),
        ("d/e/001", {"jpg": jpeg(1, 30, 20)}),
        ("002", {"json": b"{}", "txt": b""}),
    ]
    storage = LocalStorage(tmp_path)
    write_shard(storage, "a.tar", samples)
    index, keys = shard_index.build(TarInMemory(storage.read("a.tar")))
    assert shard_index.to_bytes(index) == storage.read("a.npy")
    assert keys == ["d/e/000", "d/e/001", "002"]
    assert index["record"].tolist() == [0, 0, 0, 1, 2, 2]
    assert index["part"].tolist() == [b"cls", b"jpg", b"mask.png", b"jpg", b"json", b"txt"]
    assert list(zip(index["width"].tolist(), index["height"].tolist(), strict=True))[:4] == [
        *[(0, 0), (48, 40), (0, 0), (30, 20)]
    ]


def test_row_of_a_member() -> None:
    """A row holds the payload's size, CRC-32 and, of an image, width and height."""
    assert shard_index.make_row(3, "txt", 512, b"123456789") == Row(3, b"txt", 512, 9, 0xCBF43926, 0, 0)
    assert shard_index.make_row(0, "left.eye.jpeg", 512, jpeg(0, 48, 40))[5:] == (48, 40)
    assert shard_index.make_row(0, "jpg.txt", 512, jpeg(0, 48, 40))[5:] == (0, 0)


def test_sizes_that_the_columns_cannot_hold_are_not_known() -> None:
    """An image of more than 65535 pixels on a side has width and height 0 in its row."""
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (65_536).to_bytes(4, "big") + (7).to_bytes(4, "big")
    assert shard_index.make_row(0, "png", 0, png)[5:] == (0, 0)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (65_535).to_bytes(4, "big") + (7).to_bytes(4, "big")
    assert shard_index.make_row(0, "png", 0, png)[5:] == (65_535, 7)


def test_long_parts_are_refused() -> None:
    """A part name of more than 16 bytes is refused by name; one of 16 is kept whole."""
    assert shard_index.make_row(0, "x" * 16, 0, b"").part == b"x" * 16
    for part in ("x" * 17, "ä" * 9):
        with pytest.raises(ShardIndexError, match=part):
            shard_index.make_row(0, part, 0, b"")
    with pytest.raises(ShardIndexError, match="16 bytes"):
        shard_index.build(TarInMemory(plain_tar([("a." + "x" * 17, b"")])))


@pytest.mark.parametrize("name", ["nodot", ".hidden", "key.", "a.b/nodot", "a/.x", "."])
def test_names_that_are_no_key_and_part_are_refused(name: str) -> None:
    """A member that is not named KEY.PART is a TarError that names it."""
    with pytest.raises(TarError, match=r"KEY\.PART"):
        shard_index.build(TarInMemory(plain_tar([("0.jpg", b""), (name, b"")])))


def test_keys_end_at_the_first_dot_of_the_file_name() -> None:
    """Dots in directories belong to the key, dots in the file name to the part: the WebDataset convention."""
    index, keys = shard_index.build(TarInMemory(plain_tar([("v1.0/a.seg.png", b""), ("v1.1/a.seg.png", b"")])))
    assert (keys, index["part"].tolist()) == (["v1.0/a", "v1.1/a"], [b"seg.png"] * 2)


def test_samples_that_are_torn_apart_are_refused() -> None:
    """Members of one sample with another's between them are a TarError: they would become two samples."""
    with pytest.raises(TarError, match="'a' are not neighbours"):
        shard_index.build(TarInMemory(plain_tar([("a.cls", b"1"), ("b.cls", b"2"), ("a.jpg", b"3")])))


def test_a_part_that_comes_twice_is_refused() -> None:
    """Two members of one name are a TarError: one of them would hide the other."""
    with pytest.raises(TarError, match=r"'a\.cls'.*twice"):
        shard_index.build(TarInMemory(plain_tar([("a.cls", b"1"), ("a.jpg", b"2"), ("a.cls", b"3")])))


@pytest.mark.parametrize("records", [[1, 1, 2], [0, 2, 2], [0, 1, 1], [0, 1, 3], [0, 2, 1], [0, 1, 2, 1], []])
def test_records_run_from_first_to_last(records: list[int]) -> None:
    """An index whose records leave one out, go back, or end early or late belongs to another shard."""
    index = shard_index.from_rows([Row(record, b"x", 512, 0, 0, 0, 0) for record in records])
    with pytest.raises(ShardIndexError, match="from 0 to 2"):
        read(shard_index.to_bytes(index))


def test_a_record_needs_a_member() -> None:
    """A record that has but a key, and no member, belongs to no shard."""
    rows = [Row(0, b"", 1, 1, 0, 0, 0), Row(0, b"jpg", 512, 1, 0, 0, 0), Row(1, b"", 600, 1, 0, 0, 0)]
    with pytest.raises(ShardIndexError, match="from 0 to 1"):
        read(shard_index.to_bytes(shard_index.from_rows(rows)), 2)
    assert len(read(shard_index.to_bytes(shard_index.from_rows(rows[:2])), 1)) == 2


def test_members_lie_inside_of_the_shard() -> None:
    """A member that ends behind the shard's end is refused, also where its end overflows 64 bits."""
    for offset, size in [(512, 489), (1001, 0), (2**64 - 1, 2), (2**64 - 512, 1024)]:
        data = shard_index.to_bytes(shard_index.from_rows([Row(0, b"x", offset, size, 0, 0, 0)]))
        with pytest.raises(ShardIndexError, match="reaches to byte"):
            read(data, 1, 1000)
    assert len(read(shard_index.to_bytes(shard_index.from_rows([Row(0, b"x", 512, 488, 0, 0, 0)])), 1, 1000)) == 1


def test_part_names_are_text() -> None:
    """A part whose name is not UTF-8 is refused when the index is read, and not when a sample is."""
    data = shard_index.to_bytes(shard_index.from_rows([Row(0, b"\xff", 512, 1, 0, 0, 0)]))
    with pytest.raises(ShardIndexError, match="not UTF-8"):
        read(data, 1)


def test_no_samples_have_no_members() -> None:
    """An index of no rows is read for a shard of no samples, and members without a sample are refused."""
    assert len(read(shard_index.to_bytes(shard_index.from_rows([])), 0)) == 0
    with pytest.raises(ShardIndexError, match="4 members"):
        read(shard_index.to_bytes(shard_index.from_rows(ROWS)), 0)


def test_every_truncation_is_found() -> None:
    """An index cut off at any byte is a ShardIndexError, and so is one with bytes after its end."""
    data = shard_index.to_bytes(shard_index.from_rows(ROWS))
    for length in range(len(data)):
        with pytest.raises(ShardIndexError):
            read(data[:length])
    for extra in (b"\0", data[-DTYPE.itemsize :]):
        with pytest.raises(ShardIndexError):
            read(data + extra)


def test_every_wrong_byte_is_found_or_harmless() -> None:
    """Whatever one byte becomes: a ShardIndexError, or an index whose rows all lie inside of the shard."""
    data = bytearray(shard_index.to_bytes(shard_index.from_rows(ROWS)))
    for position in range(len(data)):
        kept = data[position]
        for value in {kept ^ (1 << bit) for bit in range(8)} | {0, 0x20, 0x27, 0x28, 0x5B, 0xFF}:
            data[position] = value
            try:
                index = read(bytes(data))
            except ShardIndexError:
                continue
            assert_valid(index, 3, TAR_BYTES)
        data[position] = kept


@pytest.mark.parametrize(
    "header",
    [
        *(
            f"{{'descr': {DESCR}, 'fortran_order': False, 'shape': {shape}}}"
            for shape in ("(2,)", "(1, 1)", "()", "1", "(-1,)", "(10**99,)")
        ),
        f"{{'descr': {DESCR}, 'fortran_order': True, 'shape': (1,)}}",
        f"{{'descr': {DESCR}, 'fortran_order': False}}",
        f"{{'descr': {DESCR}, 'shape': (1,)}}",
        *(
            f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}"
            for descr in (
                *(f"{DESCR[:-1]}, ('extra', '<u4')]", DESCR.replace("<u4", ">u4")),
                *("'|O'", "[('record', '|O')]", "'<f8'", "'O,O'", "','", "None"),
                "{'names': ['a'], 'formats': ['<u4'], 'offsets': [1 << 70]}",
                "{'names': ['a'], 'formats': ['<u4'], 'offsets': [1180591620717411303424]}",
            )
        ),
        "{'descr': '<f8', 'fortran_order': False, 'shape': (5,)}",
        *(
            "__import__('os').abort()",
            "[1, 2, 3]",
            "{'descr', 'fortran_order', 'shape'}",
            "'descr'",
            "7",
            "",
            "{",
            "\0",
        ),
        *("\xff", "'\\d'", "1if 1else 2", "9" * 10_000, "(" * 60_000, "-" * 60_000 + "1", "[" * 5_000 + "]" * 5_000),
    ],
    ids=lambda header: header[:40].encode("unicode_escape").decode(),
)
def test_hostile_headers_are_refused(header: str) -> None:
    """A header of other columns, another shape, objects, or no dictionary at all is refused, and never run."""
    with pytest.raises(ShardIndexError, match="rebuilt from the shard"):
        read(npy(header, bytes(DTYPE.itemsize)), samples=1)


def test_pickles_are_refused() -> None:
    """An array of objects, which numpy stores as a pickle, is refused without being loaded."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ShardIndexError):
        read(buffer.getvalue(), samples=1)


@given(data=st.binary(max_size=300), start=st.sampled_from([b"", MAGIC, MAGIC + b"\xff\xff", MAGIC + b"\0\0", b"PK"]))
def test_garbage_is_an_index_error(data: bytes, start: bytes) -> None:
    """Bytes that are no index are a ShardIndexError and nothing else."""
    with pytest.raises(ShardIndexError):
        read(start + data)


LITERALS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(descr=st.one_of(LITERALS, st.just(DTYPE.descr)), fortran_order=LITERALS, shape=LITERALS)
@examples(300)
def test_any_header_is_an_index_error_or_valid(descr: object, fortran_order: object, shape: object) -> None:
    """Any values in the three places of a header are a ShardIndexError, or a valid index."""
    header = repr({"descr": descr, "fortran_order": fortran_order, "shape": shape})
    try:
        index = read(npy(header.encode("unicode_escape").decode(), bytes(DTYPE.itemsize)), samples=1)
    except ShardIndexError:
        return
    assert_valid(index, 1, TAR_BYTES)
