from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import corruption
import shardflow as sf
from corruption import TAR, Whole
from shardflow import ustar

AT_MOST = 12
"""So many cases of each kind of damage are tried here, evenly spread; `tools/fire corruption` tries all of them."""

KINDS = (
    *("a bit of a header flipped", "a bit of a payload flipped", "a bit of padding flipped"),
    *("a bit of the end flipped", "a bit of an index flipped", "a bit of the manifest flipped"),
    *("a shard cut at 512 bytes", "an index cut at 64 bytes", "the manifest cut at 64 bytes"),
    *("a block of 512 zeroed", "a page of 4096 zeroed", "bytes appended", "a file missing", "files exchanged"),
    *("members taken out", "members doubled", "members moved", "payloads exchanged"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The dataset that is damaged and mended again and again."""
    return Whole(tmp_path_factory.mktemp("corruption"))


def test_every_kind_is_tried(whole: Whole) -> None:
    """The kinds listed here are those of the matrix."""
    assert tuple(corruption.damages(whole.files)) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_never_delivered(kind: str, whole: Whole) -> None:
    """`verify` names every file that is not as it was packed, and readers deliver the right sample or an error."""
    cases = list(corruption.damages(whole.files)[kind]())
    for damage in cases[:: -(-len(cases) // AT_MOST)]:
        assert whole.harm(damage).found


def test_verify_goes_on_behind_a_damaged_header(whole: Whole, tmp_path: Path) -> None:
    """Behind a header that cannot be read, every further damaged member is named as well, as the index has them."""
    root = Path(shutil.copytree(whole.root, tmp_path / "set"))
    data = bytearray(whole.files[TAR])
    members = list(ustar.walk(memoryview(bytes(data))))
    for damaged in (members[0].offset - 1, members[3].offset + 7, members[4].offset - 300):
        data[damaged] ^= 0xFF
    (root / TAR).write_bytes(data)
    first, *rest = (finding.problem for finding in sf.verify(root))
    assert first == "its SHA-256 differs from the manifest's"
    assert rest[0].startswith("the header at byte 0 fails")
    assert rest[1] == "record 1, part 'jpg': its CRC-32 differs"
    assert rest[2].startswith("record 2, part 'cls': the header at byte")
    assert len(rest) == 3
