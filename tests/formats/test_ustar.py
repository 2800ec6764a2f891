from __future__ import annotations

import io
import itertools
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import TarError
from shardflow.formats import tar_members, ustar
from shardflow.formats.tar_members import Member, parse_header
from tests.helpers.tars import TarInMemory, plain_tar

FILES = [("train/000000000.cls", b"7"), ("train/000000000.jpg", b"\xff" * 600), ("b.txt", b""), ("ä.x", b"y" * 512)]


def info(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    """The member of Python's tarfile that equals one of ours."""
    result = tarfile.TarInfo(name)
    result.size, result.mode, result.type = size, 0o444, kind
    return result


def python_tar(infos: Iterable[tarfile.TarInfo], tar_format: int) -> bytes:
    """A tar written by Python's tarfile, payloads zero."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for entry in infos:
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    return buffer.getvalue()


def walk(data: bytes) -> list[Member]:
    """All members."""
    return list(tar_members.members(TarInMemory(data)))


def rechecked(block: bytes) -> bytes:
    """The header with its checksum set right."""
    blank = block[:148] + b" " * 8 + block[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


@given(
    name=st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=100),
    size=st.integers(0, 8**11 - 1),
)
def test_header_is_what_tarfile_writes(name: str, size: int) -> None:
    """A header has the very bytes that Python's tarfile writes for a ustar member of mode 0444 and time 0."""
    assert ustar.header(name, size) == info(name, size).tobuf(tarfile.USTAR_FORMAT, "utf-8")


@given(name=st.text(max_size=110), size=st.integers(0, 8**11 - 1))
def test_header_keeps_the_name_or_refuses_it(name: str, size: int) -> None:
    """Any text comes back as it was, or is refused as a name that ustar cannot hold."""
    try:
        block = ustar.header(name, size)
    except TarError:
        assert not name or "\0" in name or len(name.encode()) > 100
    else:
        assert parse_header(block, 0).name == name.encode()


@pytest.mark.parametrize(("name", "size"), [("", 0), ("x" * 101, 0), ("ä" * 51, 0), ("a\0b", 0), ("x", 8**11)], ids=str)
def test_header_refuses_what_ustar_cannot_hold(name: str, size: int) -> None:
    """A name of no or too many bytes, a zero byte in it, and a payload of 8 GiB are TarErrors."""
    with pytest.raises(TarError):
        ustar.header(name, size)


def test_limits_are_held() -> None:
    """100 bytes of name and 8 GiB - 1 of payload still fit, and come back."""
    block = ustar.header("ä" * 50, 8**11 - 1)
    with pytest.raises(TarError, match="cut short"):
        walk(block)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").size == 8**11 - 1
    assert parse_header(block, 0)[1:3] == (8**11 - 1, ("ä" * 50).encode())


@given(size=st.integers(0, 10**7))
def test_padding_fills_the_block(size: int) -> None:
    """A payload and its padding are whole blocks, with less than a block of padding."""
    assert (size + ustar.padding(size)) % 512 == 0
    assert 0 <= ustar.padding(size) < 512


@given(files=st.lists(st.tuples(st.sampled_from("abc").map("{}.bin".format), st.binary(max_size=1100)), max_size=5))
def test_tarfile_reads_ours(files: list[tuple[str, bytes]]) -> None:
    """Python's tarfile and `walk` find the same members and payloads in what we write."""
    data = plain_tar(files)
    with tarfile.open(fileobj=io.BytesIO(data), format=tarfile.USTAR_FORMAT) as archive:
        read = [(entry.name, archive.extractfile(entry).read()) for entry in archive]  # type: ignore[union-attr]
    assert read == files
    assert [(m.name, data[m.offset : m.offset + m.size]) for m in walk(data)] == files


def test_tar_lists_and_extracts_ours(tmp_path: Path) -> None:
    """The `tar` command lists our members with their fixed attributes, and extracts their bytes."""
    (tmp_path / "shard.tar").write_bytes(plain_tar(FILES))
    command = ["tar", "--utc", "--numeric-owner", "-C", str(tmp_path), "--quoting-style=literal"]
    listed = subprocess.run([*command, "-tvf", "shard.tar"], cwd=tmp_path, capture_output=True, check=True)
    assert listed.stderr == b""
    for line, (name, data) in zip(listed.stdout.decode().splitlines(), FILES, strict=True):
        assert line.split() == ["-r--r--r--", "0/0", str(len(data)), "1970-01-01", "00:00", name]
    subprocess.run([*command, "-xf", "shard.tar"], cwd=tmp_path, check=True)
    assert [(tmp_path / name).read_bytes() for name, _ in FILES] == [data for _, data in FILES]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others_are_read(tar_format: int) -> None:
    """`walk` finds what tarfile wrote in any of its formats, as long as no extension was needed."""
    infos = [info("a.jpg", 1000), info("dir/b.cls", 0), info("x" * 100, 512)]
    infos[0].mtime, infos[0].uid, infos[0].uname = 1_700_000_000, 1000, "somebody"
    members = walk(python_tar(infos, tar_format))
    assert [(member.name, member.size) for member in members] == [(entry.name, entry.size) for entry in infos]
    assert [member.offset for member in members] == [512, 2048, 2560]


@pytest.mark.parametrize("length", [101, 150, 206])
def test_names_with_a_prefix_are_put_together(length: int) -> None:
    """A name that ustar splits into prefix and name comes back whole."""
    name = ("d" * (length - 51)) + "/" + "n" * 50
    assert [member.name for member in walk(python_tar([info(name, 3)], tarfile.USTAR_FORMAT))] == [name]


def test_gnu_headers_have_no_prefix() -> None:
    """What old GNU headers keep in the place of the prefix (times, among others) does not become part of the name."""
    block = bytearray(info("a.jpg", 0).tobuf(tarfile.GNU_FORMAT, "utf-8"))
    block[345:357] = b"14400000000\0"
    assert [member.name for member in walk(rechecked(bytes(block)) + ustar.END)] == ["a.jpg"]


def test_records_of_zeros_at_the_end_are_fine() -> None:
    """Any number of zero blocks may follow, as tar fills its last record; two are the least."""
    assert walk(plain_tar(FILES) + bytes(20 * 512)) == walk(plain_tar(FILES))
    assert walk(ustar.END) == []


def test_every_truncation_is_found() -> None:
    """A tar cut off at any byte is a TarError; only the last member before it may be cut short."""
    data = plain_tar([("a.jpg", b"\1" * 600), ("b.jpg", b"\2" * 512)])
    for length in range(len(data) - ustar.BLOCK):  # one zero block is an end as well
        members: list[Member] = []
        with pytest.raises(TarError):
            members.extend(tar_members.members(TarInMemory(data[:length])))
        assert all(member.offset + member.size <= length for member in members[:-1])


def test_every_wrong_header_byte_is_found_or_harmless() -> None:
    """Whatever one byte of a header becomes: a TarError, or the same member."""
    data = bytearray(plain_tar([("a.jpg", b"\1" * 600)]))
    members = walk(bytes(data))
    harmless = 0
    for position, value in itertools.product(range(512), range(256)):
        kept, data[position] = data[position], value
        try:
            assert walk(data) == members
            harmless += value != kept
        except TarError:
            pass
        data[position] = kept
    assert harmless < 300  # other ways to write the checksum's own leading zero and end, and the byte behind that


def test_every_wrong_byte_at_the_end_is_found() -> None:
    """Anything but zeros in the closing blocks is a TarError."""
    data = bytearray(plain_tar([("a.jpg", b"\1" * 512)]))
    for position in range(1024, len(data)):
        data[position] = 0x30
        with pytest.raises(TarError):
            walk(data)
        data[position] = 0


@given(data=st.one_of(st.binary(max_size=2000), st.binary(min_size=345, max_size=345).map(lambda b: b * 3)))
def test_garbage_is_a_tar_error(data: bytes) -> None:
    """Bytes that are no tar are a TarError and nothing else."""
    if any(data):
        with pytest.raises(TarError):
            walk(data)


@given(block=st.binary(min_size=512, max_size=512), rest=st.integers(0, 3))
def test_hostile_headers_are_a_tar_error(block: bytes, rest: int) -> None:
    """A header with a right checksum and magic, and anything in its other fields, is a member or a TarError."""
    block = rechecked(block[:156] + b"0" + block[157:257] + b"ustar\x0000" + block[265:])
    found: list[Member] = []
    try:
        found.extend(tar_members.members(TarInMemory(block + bytes(512 * rest) + ustar.END)))
    except TarError:
        return
    assert all(512 <= member.offset <= member.offset + member.size <= 512 * (rest + 3) for member in found)
