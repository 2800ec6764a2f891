from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run


def test_shards_are_packed_anew(tmp_path: Path) -> None:
    """Three shards of another writer become two of ours, and captions stay with their images."""
    assert run("pack_shards.py", tmp_path / "out").startswith(
        "packed 30 samples into 2 shards; the first is 'a disc in "
    )
