from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import FormatError
from shardflow.formats import quarantine
from shardflow.formats.quarantine import Quarantined

BYTES = b"""{"path": "b/2.jpg", "reason": "cut short", "stage": "decode"}
{"path": "\\udcff.jpg", "reason": "", "stage": "list"}
"""
TEXT = st.text(st.characters())  # with half surrogates and ends of lines


def test_bytes_are_frozen() -> None:
    """Each input is an object on a line of its own, with sorted keys in ASCII."""
    inputs = [Quarantined("b/2.jpg", "decode", "cut short"), Quarantined("\udcff.jpg", "list", "")]
    assert quarantine.to_bytes(inputs) == BYTES
    assert quarantine.from_bytes(BYTES) == inputs
    assert quarantine.to_bytes([]) == b""


@given(st.lists(st.builds(Quarantined, TEXT, TEXT, TEXT), max_size=5))
def test_what_is_written_is_read(inputs: list[Quarantined]) -> None:
    """Any names and reasons come back as they were."""
    assert quarantine.from_bytes(quarantine.to_bytes(inputs)) == inputs


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"\xff",
        b"{}",
        b"[]",
        b"7",
        b'{"path": "a", "stage": "read"}',
        b"[" * 100_000,
        b'{"path": 1, "stage": "read", "reason": ""}',
    ],
    ids=lambda line: len(line),
)
def test_damage_is_a_format_error(line: bytes) -> None:
    """A line that is no such object, or nested too deeply to be read, is a FormatError."""
    with pytest.raises(FormatError, match=r"^damaged .*; restore it from a copy$"):
        quarantine.from_bytes(BYTES + line)
