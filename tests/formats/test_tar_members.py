"""Tars of other programs are read as Python's tarfile reads them."""

from __future__ import annotations

import contextlib
import io
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import TarError
from shardflow.formats import tar_members, ustar
from shardflow.formats.tar_members import Member
from tests.helpers.tars import TarInMemory

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = ["a.jpg", "x" * 99 + "ü.jpg", "ünï/" + "d" * 150 + "/e=f.png", "f" * 300 + ".cls", "d" * 90 + "/" + "n" * 90]


def members(data: bytes) -> list[Member]:
    """All files, without the links."""
    return [member for member in tar_members.members(TarInMemory(data)) if not member.is_link]


def read_by_tarfile(data: bytes) -> list[tuple[str, int, int]]:
    """The files that Python's tarfile finds."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        return [(info.name, info.offset_data, info.size) for info in tar if info.isreg()]


def written(infos: Iterable[tarfile.TarInfo], kind: str, for_every_member: dict[str, str] | None = None) -> bytes:
    """A tar by Python's tarfile, payloads zero."""
    buffer = io.BytesIO()
    options = {"encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[kind], pax_headers=for_every_member, **options) as tar:  # type: ignore[call-overload]
        for info in infos:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, pax: dict[str, str] | None = None) -> tarfile.TarInfo:
    """A member to write."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.pax_headers = size, kind, pax or {}
    return entry


def header(kind: bytes, size: int, *, field: bytes | None = None) -> bytes:
    """A header of any type; `field` is its size as it stands there."""
    block = bytearray(ustar.header("h", size))
    block[156:157] = kind
    if field is not None:
        block[124:136] = field
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(kind: bytes, text: bytes) -> bytes:
    """An extended header."""
    return header(kind, len(text)) + text + bytes(ustar.padding(len(text)))


def record(keyword: bytes, value: bytes) -> bytes:
    """A record of a pax header."""
    rest = b" " + keyword + b"=" + value + b"\n"
    length = next(n for n in range(len(rest), len(rest) + 9) if len(str(n)) + len(rest) == n)
    return b"%d" % length + rest


PLAIN = ustar.header("a.jpg", 3) + b"abc" + bytes(509)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
paths = st.one_of(texts, texts.map(lambda text: text * 9), texts.map(lambda text: f"dir{text}/" * 20 + text))
paths = paths.filter(lambda text: not text.endswith("/"))
kinds = st.sampled_from([tarfile.REGTYPE] * 4 + [tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
more = st.dictionaries(st.sampled_from(["mtime", "comment", "SCHILY.xattr.user.x", "path", "size"]), texts, max_size=3)


@given(
    entries=st.lists(st.tuples(paths, st.integers(0, 1500), kinds, more), min_size=1, max_size=6),
    kind=st.sampled_from(sorted(FORMATS)),
    for_every_member=st.dictionaries(st.sampled_from(["comment", "mtime"]), texts, max_size=2),
)
def test_members_are_those_that_tarfile_reads(
    entries: list[tuple[str, int, bytes, dict[str, str]]], kind: str, for_every_member: dict[str, str]
) -> None:
    """Whatever tarfile writes, in any format, with any extended headers: the same names, offsets and sizes come back,
    and the name lies where it is said to.
    """
    infos = []
    for name, size, of_type, pax in entries:
        is_file = of_type not in (tarfile.DIRTYPE, tarfile.SYMTYPE)
        said = {**pax, **({"size": str(size)} if "size" in pax else {}), **({"path": name} if "path" in pax else {})}
        infos.append(info(name, size if is_file else 0, of_type, said if is_file else {}))
    try:
        data = written(infos, kind, for_every_member)
    except ValueError:  # too long for ustar
        return
    found = members(data)
    assert [member[:3] for member in found] == read_by_tarfile(data)
    for name, _, _, at, _ in found:
        assert at is None or data[at:].startswith(name.encode(errors="surrogateescape"))


@pytest.mark.parametrize("tar_format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_tars_of_the_tar_command_are_read(tmp_path: Path, tar_format: str) -> None:
    """The `tar` command's files are read as tarfile reads them, in every format, as far as the format holds them."""
    for number, name in enumerate(NAMES):
        path = tmp_path / (name if len(name) < 250 else name[-250:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 300 * number)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    command = ["tar", "--no-recursion", f"--format={tar_format}", "-cf", "-", *names]
    data = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout
    found = members(data)
    assert [member[:3] for member in found] == read_by_tarfile(data)
    assert len(found) == {"v7": 1, "ustar": 2}.get(tar_format, len(NAMES))


def test_numbers_in_binary() -> None:
    """A size in binary, as GNU tar writes large ones, is read."""
    data = header(b"0", 0, field=b"\x80" + (600).to_bytes(11, "big")) + bytes(1024) + ustar.END
    assert members(data) == [Member("h", 512, 600, 0)]


def test_numbers_end_with_a_zero_byte() -> None:
    """What stands behind the zero byte that ends a number is not of it."""
    data = header(b"0", 0, field=b"1130\0" + b"77\0\0\0\0\0") + bytes(1024) + ustar.END
    assert members(data) == [Member("h", 512, 600, 0)]


def test_gnu_headers_have_no_prefix() -> None:
    """What GNU headers keep in the place of the prefix (times, among others) does not become part of the name."""
    block = bytearray(info("a.jpg").tobuf(tarfile.GNU_FORMAT))
    block[345:357] = b"14400000000\0"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    assert members(bytes(block) + ustar.END) == [Member("a.jpg", 512, 0, 0)]


def test_other_members_than_files_are_skipped() -> None:
    """A link has no payload, whatever size it says; members of unknown types have one."""
    link = header(b"1", 700) + PLAIN + ustar.END
    assert members(link) == [Member("a.jpg", 1024, 3, 512)]
    unknown = header(b"V", 700) + bytes(1024) + PLAIN + ustar.END
    assert members(unknown) == [Member("a.jpg", 2048, 3, 1536)]
    assert [member[:3] for data in (link, unknown) for member in members(data)] == [
        *read_by_tarfile(link),
        *read_by_tarfile(unknown),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (extended(b"x", b"99 path=b.jpg\n"), "at byte 0 is damaged: the record at byte 512 does not have the length"),
        (extended(b"x", record(b"path", b"b") + b"11 path=bcd\n"), "the record at byte 521 does not"),
        (extended(b"x", b"14 path=b.jpg "), "the record at byte 512 does not"),
        (extended(b"x", b"0 path=b.jpg\n"), "the record at byte 512 does not"),
        (extended(b"x", b"-9 path=b.jpg\n"), "the record at byte 512 does not"),
        (extended(b"x", b"99999999999999999999 path=b.jpg\n"), "the record at byte 512 does not"),
        (extended(b"x", b"8 path b\n"), "the record at byte 512 does not"),
        (extended(b"x", record(b"size", b"-5")), "the size b'-5' is not a number"),
        (extended(b"x", record(b"size", b"9" * 30)), "is not a number"),
        (extended(b"x", record(b"size", b"9" * 19)), "reaches to byte 10000000000000001535"),
        (extended(b"x", record(b"path", b"b")) * 2, "at byte 1024 is damaged: it repeats the path of a member"),
        (extended(b"L", b"b\0") + extended(b"x", record(b"path", b"c")), "repeats the path of a member"),
        (extended(b"g", record(b"path", b"b")), "or sets it for all members"),
        (extended(b"x", record(b"GNU.sparse.major", b"1")), "sparse file"),
        (header(b"S", 0), "at byte 0 is of a sparse file"),
        (header(b"x", 1 << 21), "has 2097152 bytes; at most 1048576 are read"),
        (header(b"L", 1 << 20), "is cut short: it reaches to byte 1049088"),
        (header(b"0", 0, field=b"\xff" * 12), "expected a number"),
        (header(b"0", 0, field=(-512 & (1 << 96) - 1).to_bytes(12, "big")), "expected a number"),
        (header(b"0", 0, field=b"\x80" + b"\xff" * 11), "reaches to byte"),
        (header(b"0", 0, field=b"0000000000x\0"), "expected a number"),
        (b"\1" * 512, "expected a number"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    """Whatever is wrong with a header, extended or not, is a TarError that says where; what came before is there."""
    found = []
    with pytest.raises(TarError, match=message):
        found.extend(tar_members.members(TarInMemory(data + PLAIN + ustar.END)))
    before = []
    with contextlib.suppress(TarError):
        for member in tar_members.members(TarInMemory(PLAIN + data + PLAIN + ustar.END)):
            before.append(member)
    assert before[0] == Member("a.jpg", 512, 3, 0)


def test_an_extended_header_of_nothing_is_damage() -> None:
    """An extended header that no member follows is a TarError."""
    with pytest.raises(TarError, match="1024 belongs"):
        members(extended(b"L", b"b.jpg\0") + ustar.END)


def test_other_bytes_than_utf8_stay_what_they_are() -> None:
    """A name in another encoding is read as names of files are, wherever it stands."""
    name = "\udcfc" * 5 + ".jpg"
    for data in (
        ustar.header("a.jpg", 0).replace(b"a.jpg\0\0\0\0\0", b"\xfc" * 5 + b".jpg\0", 1),
        extended(b"L", b"\xfc" * 5 + b".jpg\0") + ustar.header("a", 0),
        extended(b"x", record(b"path", b"\xfc" * 5 + b".jpg")) + ustar.header("a", 0),
    ):
        block = bytearray(data[-512:])
        block[148:156] = b"        "
        block[148:156] = b"%06o\0 " % sum(block)
        assert [member.name for member in members(data[:-512] + bytes(block) + ustar.END)] == [name]


def test_every_truncation_is_found() -> None:
    """A tar cut off anywhere is a TarError; what is handed out before is right, but for the end of the last payload."""
    data = written([info("x" * 120, 600), info("ü", 512), info("b", 3)], "pax")
    whole = members(data)
    for length in range(0, whole[-1].offset + 512, 7):
        found: list[Member] = []
        with pytest.raises(TarError):
            found.extend(tar_members.members(TarInMemory(data[:length])))
        assert found == whole[: len(found)]
        assert all(member.offset + member.size <= length for member in found[:-1])


@pytest.mark.parametrize("zeros", [0, 512, 3 << 20])
def test_bytes_after_the_end_are_refused(zeros: int) -> None:
    """Where a tar seems to end and more follows, of another tar or behind a hole, that is a TarError that says so."""
    found = []
    end = PLAIN + ustar.END + bytes(zeros)
    with pytest.raises(
        TarError, match=f"seems to end at byte {len(PLAIN)}, but more follows at byte {len(end)}: .* joined"
    ):
        found.extend(tar_members.members(TarInMemory(end + PLAIN + ustar.END)))
    assert found == [Member("a.jpg", 512, 3, 0)]
    with pytest.raises(TarError, match=f"more follows at byte {len(end) + 5}: it is damaged"):
        members(end + b"\0\0\0\0\0x")
    assert members(end) == found


@given(
    kind=st.sampled_from([b"x", b"L", b"g", b"K", b"0", b"1", b"5", b"S", b"Z"]),
    text=st.one_of(
        st.binary(max_size=600),
        st.lists(st.tuples(st.sampled_from([b"path", b"size", b"mtime", b""]), st.binary(max_size=30)), max_size=4).map(
            lambda pairs: b"".join(record(*pair) for pair in pairs)
        ),
    ),
    flip=st.none() | st.tuples(st.integers(0, 2000), st.integers(1, 255)),
)
def test_hostile_headers_are_a_tar_error(kind: bytes, text: bytes, flip: tuple[int, int] | None) -> None:
    """Any extended header with a right checksum, and any damage to it, gives members of the tar or a TarError."""
    data = bytearray(extended(kind, text) + PLAIN + ustar.END)
    if flip is not None:
        data[flip[0] % len(data)] ^= flip[1]
    try:
        for member in tar_members.members(TarInMemory(data)):
            assert 512 <= member.offset <= len(data)
    except TarError:
        pass


def test_a_bomb_uses_no_memory(tmp_path: Path) -> None:
    """An extended header of a gigabyte, which the file has, is refused without being read."""
    path = tmp_path / "bomb.tar"
    with open(path, "wb") as file:
        file.write(header(b"x", 1 << 30))
        file.truncate((1 << 30) + 2048)
    code = (
        "from shardflow.dataset.tar_file import of_descriptor\nfrom shardflow.formats.tar_members import members\n"
        f"with open({str(path)!r}, 'rb') as file: list(members(of_descriptor(file.fileno(), '')))"
    )
    limit = (400 << 20, 400 << 20)
    done = subprocess.run(
        [sys.executable, "-c", f"import resource; resource.setrlimit({resource.RLIMIT_AS}, {limit})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env={"OPENBLAS_NUM_THREADS": "1"},
    )
    assert "TarError: the extended header at byte 0 has 1073741824 bytes" in done.stderr
