from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from shardflow.dataset.tar_file import TarFile, of_descriptor
from shardflow.errors import IntegrityError
from shardflow.packing import shard_writer
from shardflow.packing.shard_writer import PartialTar, assemble, sample

SAMPLES = [
    sample("000000000", {"jpg": b"\xff\xd8 not really", "cls": b"7"}),
    sample("000000001", {"jpg": bytes(512), "cls": b"0"}),
    sample("000000003", {"jpg": b"", "cls": b"12"}),
]

GOLDEN_TAR = "b2d390c514f63623e55e4c6330bee5739004ca0cb8171303cbffc06a542f4738"
GOLDEN_INDEX = "5f35857008b49dfadd9e4ea21b3d7a9e32ee439b1a26a284ca42a9f86217e97a"


def _partial_tars(folder: Path, *groups: list[bytes]) -> list[tuple[Path, PartialTar]]:
    pieces = []
    for number, group in enumerate(groups):
        data = b"".join(group)
        path = folder / str(number)
        path.write_bytes(data)
        partial = PartialTar(name=str(number), samples=len(group), size=len(data), crc32=zlib.crc32(data))
        pieces.append((path, partial))
    return pieces


def test_golden_bytes(tmp_path: Path) -> None:
    """The bytes of a shard and its index are frozen: a pack of years ago is still made the same way."""
    shard, data = assemble(tmp_path / "x.tar", "train/0.tar", _partial_tars(tmp_path, SAMPLES))
    tar = (tmp_path / "x.tar").read_bytes()
    assert hashlib.sha256(tar).hexdigest() == shard.sha256 == GOLDEN_TAR
    assert hashlib.sha256(data).hexdigest() == shard.index_sha256 == GOLDEN_INDEX
    assert (len(tar), len(SAMPLES)) == (shard.bytes, shard.samples)


def test_cuts_leave_no_trace(tmp_path: Path) -> None:
    """However the samples are spread over partial tars, empty ones among them, the shard is the same."""
    whole = assemble(tmp_path / "a.tar", "train/0.tar", _partial_tars(tmp_path, SAMPLES))
    cut = assemble(tmp_path / "b.tar", "train/0.tar", _partial_tars(tmp_path, [], SAMPLES[:1], [], SAMPLES[1:]))
    assert cut == whole
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_plain_tar(tmp_path: Path) -> None:
    """Python's tarfile reads the members, in order, with nothing in their headers that a machine could leave there."""
    assemble(tmp_path / "x.tar", "train/0.tar", _partial_tars(tmp_path, SAMPLES))
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
    assert [member.name for member in members][:3] == ["000000000.cls", "000000000.jpg", "000000001.cls"]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o444)}


def test_index_loads_with_numpy(tmp_path: Path) -> None:
    """The index is an ordinary `.npy` that points at the payloads."""
    _, data = assemble(tmp_path / "x.tar", "train/0.tar", _partial_tars(tmp_path, SAMPLES))
    index = np.load(io.BytesIO(data))
    tar = (tmp_path / "x.tar").read_bytes()
    assert [tar[row["offset"] :][: row["size"]] for row in index if row["part"] == b"cls"] == [b"7", b"0", b"12"]


def test_partial_tar_damaged_on_disk(tmp_path: Path) -> None:
    """A partial tar that does not come back as it was written stops the shard."""
    pieces = _partial_tars(tmp_path, SAMPLES)
    (tmp_path / "0").write_bytes(b"".join(SAMPLES).replace(b"not really", b"not rea1ly"))
    with pytest.raises(IntegrityError, match="does not hold the bytes that were written"):
        assemble(tmp_path / "x.tar", "train/0.tar", pieces)


@pytest.mark.parametrize("position", [0, 600], ids=["header", "payload"])
def test_shard_damaged_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    """A shard that does not come back as it was written is an error of the disk, even if it is not a tar any more."""

    def damaged(descriptor: int, url: str, *, hashed: bool) -> TarFile:
        data = bytearray(Path(url).read_bytes())
        data[position] ^= 1
        Path(url).write_bytes(data)
        return of_descriptor(descriptor, url, hashed=hashed)

    monkeypatch.setattr(shard_writer, "of_descriptor", damaged)
    with pytest.raises(IntegrityError, match=r"x.tar does not hold the bytes that were written"):
        assemble(tmp_path / "x.tar", "train/0.tar", _partial_tars(tmp_path, SAMPLES))
