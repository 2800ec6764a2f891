"""Seek tables: with one a crop has the pixels that it has without, whatever the table says."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardflow import native
from shardflow.formats import seek_table
from shardflow.native.binding import Problem, Status
from tests.helpers import huffman, jpegs
from tests.helpers.examples import examples
from tests.helpers.seek_tables import read, shifted, table_of, with_sum

Box = tuple[int, int, int, int]


def decode(
    payloads: list[bytes], boxes: list[Box], *, fast: bool = True, oversampling: int = 0, tables: bool = True
) -> tuple[NDArray[np.uint8], list[Problem], int]:
    """Decode a crop of each; returns pixels, problems, and how many images it took libjpeg-turbo to decode."""
    out = np.full((len(payloads), 3, 24, 24), 9, np.uint8)
    flips = np.zeros(len(payloads), np.bool_)
    with jpegs.decoder(fast=fast) as made:
        found = native.decode_views(
            payloads,
            [native.View(np.array(boxes, np.int32), flips, out)],
            seek_tables=np.full(len(payloads), tables),
            oversampling=oversampling,
        )
        return out, found, made.faults


def boxes_of(rng: random.Random, width: int, height: int, count: int) -> list[Box]:
    """Draw crops inside an image, large and small, at its edges and away from them."""
    boxes = []
    for _ in range(count):
        x, y = (rng.choice((0, rng.randrange(side))) for side in (width, height))
        boxes.append((x, y, rng.choice((1, rng.randint(1, width - x), width - x)), rng.randint(1, height - y)))
    return boxes


def entries_of(segment: bytes) -> int:
    """Return where the entries of a segment begin."""
    return 4 + 22 + 1 + segment[25]


@examples(150)
@given(
    seed=st.integers(0, 2**32),
    size=st.tuples(st.integers(90, 400), st.integers(70, 300)),
    how=st.sampled_from(
        [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"mode": "L"}, {"optimize": True}]
    ),
    oversampling=st.sampled_from([0, 0, 1]),
)
def test_any_crop_of_any_coding(seed: int, size: tuple[int, int], how: dict[str, object], oversampling: int) -> None:
    """Whatever the coding, the size, the scale and the crop are, the pixels are those of the JPEG without its table."""
    jpeg = jpegs.make(seed % 50, *size, quality=(80, 97)[seed % 2], **how)
    segment = native.seek_table(jpeg)
    if segment is None:  # too small an image
        return
    payload = seek_table.insert(jpeg, segment)
    boxes = boxes_of(random.Random(seed), *size, 8)
    found = decode([payload] * 8, boxes, oversampling=oversampling)
    assert found[1:] == ([], 0)
    np.testing.assert_array_equal(found[0], decode([jpeg] * 8, boxes, fast=False, oversampling=oversampling)[0])


@pytest.mark.parametrize(
    "sampling", [[(1, 1), (1, 1), (1, 1)], [(1, 2), (1, 1), (1, 1)], [(4, 1), (1, 1), (1, 1)], [(2, 2)]]
)
def test_odd_samplings(sampling: list[tuple[int, int]]) -> None:
    """MCUs of other shapes, and a single component whose factors say nothing, are found as well."""
    rng = random.Random(len(sampling))
    size = (400, 300)
    components = huffman.random_components(rng, size, sampling)
    jpeg = huffman.encode_components(components, size, *huffman.random_tables(rng))
    boxes = boxes_of(rng, *size, 60)
    found = decode([seek_table.insert(jpeg, table_of(jpeg))] * 60, boxes)
    assert found[1:] == ([], 0)
    np.testing.assert_array_equal(found[0], decode([jpeg] * 60, boxes, fast=False)[0])


@examples(60)
@given(seed=st.integers(0, 2**32))
def test_a_table_of_another_scan(seed: int) -> None:
    """A table of another image of the same size, or with random entries, costs time and changes no pixel."""
    rng = random.Random(seed)
    jpeg, other = (jpegs.make(number, 300, 200, quality=95) for number in rng.sample(range(20), 2))
    own, foreign = table_of(jpeg), table_of(other)
    entries = entries_of(own)
    lies = [with_sum(foreign[4:21] + own[21:25] + foreign[25:-4])]  # as if both scans had as many bytes
    lies += [with_sum(own[4:entries] + rng.randbytes(len(own) - 4 - entries)) for _ in range(5)]
    boxes = boxes_of(rng, 300, 200, 6)
    found = decode([seek_table.insert(jpeg, lie) for lie in lies], boxes)
    assert found[1:] == ([], 0)
    np.testing.assert_array_equal(found[0], decode([jpeg] * 6, boxes)[0])


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_a_table_that_deceives(seed: int) -> None:
    """Entries that lie in accord with each other change pixels only where tables are used, and harm no neighbour."""
    rng = random.Random(seed)
    jpeg = jpegs.make(seed % 20, 300, 200, quality=95)
    body = bytearray(table_of(jpeg)[4:-4])
    for _ in range(rng.choice((1, 2, 20))):
        body[rng.randrange(13, len(body))] = rng.choice((0, 1, 32, 255, rng.randrange(256)))
    box = boxes_of(rng, 300, 200, 1)[0]
    found = decode([jpeg, seek_table.insert(jpeg, with_sum(bytes(body))), jpeg], [box] * 3)
    assert found[1:] == ([], 0)
    np.testing.assert_array_equal(found[0][0], found[0][2])
    unused = decode([seek_table.insert(jpeg, with_sum(bytes(body)))], [box], tables=False)
    assert unused[1:] == ([], 0)
    np.testing.assert_array_equal(unused[0][0], found[0][0])


@pytest.mark.parametrize("size", [(300, 200), (300, 30), (100, 60)])
def test_one_wrong_entry(size: tuple[int, int]) -> None:
    """Wherever a single entry is wrong, in the last row and at the end of the scan too, no crop has other pixels."""
    jpeg = jpegs.make(4, *size, quality=96, subsampling=0)
    segment = table_of(jpeg)
    boxes = boxes_of(random.Random(size[0]), *size, 12)
    wanted = decode([jpeg] * len(boxes), boxes)
    count = len(read(segment).bits)
    for entry in {*range(1, count, 1 + count // 12), *range(max(1, count - 3), count)}:
        payload = seek_table.insert(jpeg, shifted(segment, slice(entry, entry + 1), 60))
        found = decode([payload] * len(boxes), boxes)
        assert found[1] == []
        np.testing.assert_array_equal(found[0], wanted[0])


BETWEEN = {
    "a fill byte": b"\xff",
    "a stray byte": b"\x12",
    "a stuffed zero": b"\xff\0",
    "TEM": b"\xff\1",
    "a restart marker": b"\xff\xd3",
    "a comment": b"\xff\xfe\0\5abc",
    "an empty comment": b"\xff\xfe\0\2",
    "a length of one": b"\xff\xfe\0\1",
    "another APP9": b"\xff\xe9\0\5abc",
    "a restart interval of none": b"\xff\xdd\0\4\0\0",
    "a restart interval": b"\xff\xdd\0\4\0\5",
    "a number of lines": b"\xff\xdc\0\4\0\xc8",
}


@examples(120)
@given(data=st.data())
def test_both_walks_find_the_same_table(data: st.DataObject) -> None:
    """Whatever stands in front of a scan, the table with which crops are decoded is the one that `verify` looks at."""
    jpeg = jpegs.make(3, 300, 200, quality=95)
    own = table_of(jpeg)
    lie = shifted(own, slice(1, None), 60)
    newer = with_sum(own[4:12] + b"\2" + own[13:-4])
    choices = {**BETWEEN, "its table": own, "a table that deceives": lie, "one of another version": newer}
    payload = b"\xff\xd8"
    for marker, segment in jpegs.segments(jpeg):
        if marker == 0xDA or data.draw(st.booleans()):
            payload += b"".join(
                choices[name] for name in data.draw(st.lists(st.sampled_from(sorted(choices)), max_size=3))
            )
        payload += segment
    payload += b"\xff\xd9"
    if data.draw(st.integers(0, 9)) == 0:
        payload = jpegs.flipped(payload[:900], data.draw(st.randoms()), 1) + payload[900:]
    box = [(100, 80, 60, 40)]
    plain = decode([payload], box, tables=False)
    if plain[1]:  # it is not a picture
        return
    is_deceived = not np.array_equal(decode([payload], box)[0], plain[0])
    assert is_deceived == (seek_table.find(payload) == lie)


def test_what_a_table_is_checked_for() -> None:
    """Its sum, its version, its shape and the bytes of the scan: a table that fails is as none, and so is a cut one."""
    jpeg = jpegs.make(1, 300, 200)
    segment, boxes = table_of(jpeg), [(100, 80, 60, 40)]
    wanted = decode([jpeg], boxes)
    for at in range(4, len(segment)):
        damaged = segment[:at] + bytes([segment[at] ^ 16]) + segment[at + 1 :]
        found = decode([seek_table.insert(jpeg, damaged)], boxes)
        assert found[1:] == ([], 0)
        np.testing.assert_array_equal(found[0], wanted[0])
    cut = seek_table.insert(jpeg, segment)[:-20]
    assert [problem.status for problem in decode([cut], boxes)[1]] == [Status.TRUNCATED]


def test_damage() -> None:
    """Damage that a crop needs is found, with the pixels that it leaves; damage elsewhere is not looked at."""
    jpeg = jpegs.make(3, 300, 200, quality=95)
    payload = bytearray(seek_table.insert(jpeg, table_of(jpeg)))
    scan = len(payload) - read(table_of(jpeg)).scan_bytes - 2
    middle = scan + (len(payload) - scan) // 2
    payload[middle : middle + 2] = b"\xff\xd9"
    boxes = [(0, 0, 300, 200), (10, 60, 280, 90), (0, 160, 300, 40)]
    pixels, problems, faults = decode([bytes(payload)] * 3, boxes)
    assert [(problem.index, problem.status) for problem in problems] == [(at, Status.DAMAGED) for at in (0, 1)]
    assert faults == 2
    np.testing.assert_array_equal(pixels[:2], decode([bytes(payload)] * 2, boxes[:2], fast=False)[0])
    np.testing.assert_array_equal(pixels[2], decode([jpeg], boxes[2:])[0][0])


def test_which_jpegs_have_none() -> None:
    """Progressive ones, those with restart markers, damaged ones, and those where it would take more than 1 %."""
    assert native.seek_table(jpegs.make(1, 300, 200, progressive=True)) is None
    assert native.seek_table(jpegs.make(1, 300, 200, restart_marker_rows=1)) is None
    assert native.seek_table(jpegs.make(1, 32, 32)) is None
    assert native.seek_table(jpegs.make(1, 300, 200)[:-50]) is None
    assert native.seek_table(b"not a JPEG") is None
    for quality in (60, 90, 100):
        jpeg = jpegs.make(2, 300, 200, quality=quality)
        assert len(table_of(jpeg)) <= len(jpeg) / 100
        assert native.seek_table(seek_table.insert(jpeg, table_of(jpeg))) == table_of(jpeg)


def test_places() -> None:
    """The entries are where the MCUs begin, with the DC coefficients before them; the segment is as it always was."""
    rng = random.Random(5)
    blocks = [[rng.randint(-900, 900), *(rng.choice((0, 0, 1, -3, 70)) for _ in range(63))] for _ in range(400)]
    jpeg = huffman.encode(blocks, *huffman.random_tables(rng))
    table = read(table_of(jpeg))
    assert (table.columns, table.rows, table.per_row) == (400, 1, -(-240 // table.stretch))
    before = [0, *(block[0] for block in blocks)]
    assert table.predictions[:, 0].tolist() == before[: -1 : table.stretch][: table.per_row]
    assert jpeg[-2 - table.scan_bytes - 10 :].startswith(b"\xff\xda")
    assert (
        hashlib.sha256(table_of(jpeg)).hexdigest() == "34cbe4eaadab15499884f1014dee39d5c3dcc6866a8ce028866250293e4048ca"
    )
