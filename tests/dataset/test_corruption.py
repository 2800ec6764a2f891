from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.formats import tar_members
from tests.helpers.corruption import DAMAGES, TAR, Whole
from tests.helpers.making import flip
from tests.helpers.tars import TarInMemory

AT_MOST = 12
"""Cases of each kind of damage that are tried here, evenly spread; `tools/fire corruption` tries all of them."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The dataset that is damaged and restored again and again."""
    return Whole(tmp_path_factory.mktemp("corruption"))


def test_no_kind_got_lost() -> None:
    """There are eighteen kinds of damage."""
    assert len(DAMAGES) == 18


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_never_delivered(kind: str, whole: Whole) -> None:
    """`verify` reports every file that is not as packed, and readers return the right sample or raise an error."""
    cases = list(DAMAGES[kind](whole.files))
    for damage in cases[:: -(-len(cases) // AT_MOST)]:
        assert whole.harm(damage).found


def test_verify_goes_on_behind_a_damaged_header(whole: Whole, tmp_path: Path) -> None:
    """After a header that cannot be read, further damaged members are found with the index."""
    root = Path(shutil.copytree(whole.root, tmp_path / "set"))
    members = list(tar_members.members(TarInMemory(whole.files[TAR])))
    flip(root / TAR, members[0].offset - 1, members[3].offset + 7, members[4].offset - 300)
    first, *rest = (finding.problem for finding in sf.verify(root))
    assert first == "its SHA-256 differs from the manifest's"
    assert rest[0].startswith("the header at byte 0 is damaged")
    assert rest[1] == "part 'jpg': its CRC-32 differs"
    assert rest[2].startswith("record 2: the header at byte")
    assert len(rest) == 3
