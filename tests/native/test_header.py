"""The kernel reads a header as libjpeg-turbo reads it, or leaves the image to it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import DecodeError
from shardflow.native.binding import Header
from tests.helpers import jpegs
from tests.helpers.examples import examples
from tests.native.test_entropy import assert_same

KINDS = [{}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"restart_marker_blocks": 2}, {"progressive": True}]
BETWEEN = {
    "a fill byte": b"\xff",
    "a stray byte": b"\x12",
    "a stuffed zero": b"\xff\0",
    "TEM": b"\xff\1",
    "a restart marker": b"\xff\xd3",
    "another start": b"\xff\xd8",
    "an end": b"\xff\xd9",
    "an empty comment": b"\xff\xfe\0\2",
    "a length of one": b"\xff\xfe\0\1",
    "a length beyond the file": b"\xff\xfe\xff\xff",
    "a restart interval of none": b"\xff\xdd\0\4\0\0",
    "a restart interval": b"\xff\xdd\0\4\0\5",
    "a long restart interval": b"\xff\xdd\0\5\0\5\0",
    "a number of lines": b"\xff\xdc\0\4\0\xc8",
    "arithmetic conditioning": b"\xff\xcc\0\4\0\x10",
    "a reserved marker": b"\xff\xf0\0\4\0\0",
    "no Huffman tables": b"\xff\xc4\0\2",
    "a table without codes": b"\xff\xc4\0\x13\x00" + bytes(16),
    "a table of ones": b"\xff\xc4\0\x15\x00\2" + bytes(15) + b"\0\1",
    "a table of a large difference": b"\xff\xc4\0\x14\x00\1" + bytes(15) + b"\x10",
    "steps of two bytes": b"\xff\xdb\0\x83\x10" + b"\0\7" * 64,
    "half of the steps": b"\xff\xdb\0\x23\x00" + b"\7" * 32,
    "a fifth table of steps": b"\xff\xdb\0\x43\x04" + b"\7" * 64,
    "JFIF": b"\xff\xe0\0\x10JFIF\0\1\2" + bytes(7),
    "another JFIF": b"\xff\xe0\0\x10JFIF\0\2\2" + bytes(7),
    "half of JFIF": b"\xff\xe0\0\x09JFIF\0\2\2",
    **{f"Adobe's transform {way}": b"\xff\xee\0\x0eAdobe" + bytes(6) + bytes([way]) for way in range(4)},
}


def header(payload: bytes, *, fast: bool) -> Header | str:
    """Return the header of a JPEG, or why it has none."""
    with jpegs.decoder(fast=fast) as decoder:
        try:
            return decoder.read_header(payload)
        except DecodeError as error:
            return str(error)


def check(payload: bytes) -> None:
    """Fail where the kernel and libjpeg-turbo differ."""
    assert header(payload, fast=True) == header(payload, fast=False)
    for oversampling in (0, 1):
        assert_same([payload] * 2, [(0, 0, 40, 32), (17, 9, 20, 20)], oversampling)


@examples(400)
@given(data=st.data())
def test_any_header(data: st.DataObject) -> None:
    """Segments that are left out, repeated, exchanged, damaged and put in give the same pixels or the same problem."""
    chance = data.draw(st.randoms(use_true_random=False))
    jpeg = jpegs.make(data.draw(st.integers(0, 3)), 40, 32, **data.draw(st.sampled_from(KINDS)))
    segments = [segment for _, segment in jpegs.segments(jpeg)]
    for _ in range(data.draw(st.integers(0, 3))):
        at, other = chance.randrange(len(segments)), chance.randrange(len(segments))
        match data.draw(st.integers(0, 5)):
            case 0:
                del segments[at : at + (len(segments) > 1)]
            case 1:
                segments.insert(other, segments[at])
            case 2:
                segments[at], segments[other] = segments[other], segments[at]
            case 3:
                damaged = bytearray(segments[at])
                damaged[chance.randrange(min(len(damaged), 30))] = chance.choice((0, 1, 2, 3, 0x11, 0x22, 63, 255))
                segments[at] = bytes(damaged)
            case _:
                segments.insert(at, BETWEEN[data.draw(st.sampled_from(sorted(BETWEEN)))])
    check(b"\xff\xd8" + b"".join(segments) + b"\xff\xd9")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_may_stand_in_front_of_a_scan(kind: dict[str, object]) -> None:
    """Whatever is put in front of any segment gives the same pixels or the same problem."""
    segments = [segment for _, segment in jpegs.segments(jpegs.make(1, 40, 32, **kind))]
    for between in BETWEEN.values():
        for at in (0, random.Random(between).randrange(len(segments)), len(segments) - 1):
            check(b"\xff\xd8" + b"".join([*segments[:at], between, *segments[at:]]) + b"\xff\xd9")


def test_colours_are_guessed_alike() -> None:
    """Without a marker that says it, the components' names do."""
    plain = jpegs.without_segments(jpegs.make(1, 40, 32), 0xE0)
    frame, scan = jpegs.frame(plain), plain.rindex(b"\xff\xda")
    for ids in (b"RGB", b"\1\2\3", b"\0\1\2", b"YCC", b"\1\1\2"):
        named = bytearray(plain)
        named[frame + 10 : frame + 19 : 3] = named[scan + 5 : scan + 11 : 2] = ids
        check(bytes(named))


def test_a_cut_header() -> None:
    """A header that is cut anywhere has the same problem."""
    jpeg = jpegs.make(1, 40, 32)
    for end in range(jpeg.rindex(b"\xff\xda") + 20):
        check(jpeg[:end])
