from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import FormatError
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import UNREAD, InputRecord, Receipt, from_bytes
from shardflow.formats.shard import Shard
from shardflow.formats.statistics import PixelSums, Statistics

BYTES_SHA256 = "190c9b80f1a0065b10740938e394d6404daf3ed19d4c901fb715c4c5eea6eaf7"
EMPTY_SHA256 = "74f1adec9e7a6467e1bea6ec227c346fe5fe51db330e630e8d322c0fe4ddc4b1"
SHARD = Shard(name="train/0.tar", samples=1, bytes=2048, sha256="0" * 64, index_sha256="1" * 64)


def example(shard: Shard | None = SHARD) -> Receipt:
    """A receipt with a value in every entry."""
    statistics = Statistics()
    statistics.count(before=(300, 200), after=(100, 67), labels=(1,), bytes_before=9000, turned=1)
    return Receipt(
        first=3,
        items_sha256="a",
        recipe_sha256="b",
        sources=("x.jpg",),
        quarantined=(Quarantined("y", "read", "z"),),
        skipped=(1,),
        bytes_in=7,
        pixels=PixelSums(3, (1, 2, 3), (4, 5, 6)),
        statistics=statistics,
        shard=shard,
        index_bytes=9,
        sizes=(7, -1),
        contents="0123456789abcdef" + "0" * 16,
        identities="a" * 16 + "b" * 16,
    )


@pytest.mark.parametrize(
    ("receipt", "digest"),
    [(example(), BYTES_SHA256), (example(None), EMPTY_SHA256)],
    ids=("with a shard", "without a shard"),
)
def test_bytes_are_frozen(receipt: Receipt, digest: str) -> None:
    """A receipt has the same bytes for ever and is read as it was written."""
    assert hashlib.sha256(receipt.to_bytes()).hexdigest() == digest
    assert from_bytes(receipt.to_bytes()) == receipt


def sealed(content: dict[str, Any]) -> bytes:
    """Return the bytes of a receipt with these entries and their checksum."""
    entries = {name: value for name, value in content.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return json.dumps({**entries, "sha256": digest}).encode()


def test_an_edited_receipt_is_a_format_error() -> None:
    """A receipt in which any letter changed is refused, though it has the form of one."""
    assert from_bytes(sealed(json.loads(example().to_bytes()))) == example()
    with pytest.raises(FormatError, match="checksum"):
        from_bytes(example().to_bytes().replace(b"x.jpg", b"y.jpg"))


def test_inputs_are_in_the_order_of_the_job() -> None:
    """Quarantined inputs stand where they stood among the inputs; entries that contradict each other are an error."""
    assert example().inputs() == ["x.jpg", "y"]
    with pytest.raises(FormatError, match="do not add up"):
        from_bytes(sealed({**json.loads(example().to_bytes()), "skipped": [0, 1]})).inputs()


def test_records() -> None:
    """A receipt has size, content and identity of each input, and whether it was packed."""
    packed = InputRecord(7, "0123456789abcdef", "a" * 16, is_packed=True)
    assert example().record(0) == packed
    assert example().record(1) == InputRecord(-1, UNREAD, "b" * 16, is_packed=False)
    content = json.loads(example().to_bytes())
    for wrong in ({"sizes": [7]}, {"contents": "0" * 31}, {"identities": "g" * 32}, {"version": 1}):
        with pytest.raises(FormatError, match="not a receipt"):
            from_bytes(sealed({**content, **wrong}))


@pytest.mark.parametrize("entry", sorted(json.loads(example().to_bytes()).keys() - {"sha256"}))
@given(value=st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2))
def test_damage_is_a_format_error(entry: str, value: Any) -> None:
    """A receipt without an entry is a FormatError; with any value in its place it is one, or a receipt."""
    content = json.loads(example().to_bytes())
    with pytest.raises(FormatError):
        from_bytes(sealed({name: content[name] for name in content if name != entry}))
    with contextlib.suppress(FormatError):
        from_bytes(sealed({**content, entry: value}))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"first": value} for value in (True, -1, 1.5, "3", None)),
        {"bytes_in": "7"},
        {"index_bytes": False},
        {"sources": [3]},
        {"quarantined": [{"path": 3, "stage": "read", "reason": "z"}]},
        {"quarantined": [{"path": "y", "stage": "read", "reason": None}]},
        *({"skipped": value} for value in ([], [True], [-1], [2], ["1"], [0, 1], [1, 1], [[]])),
    ],
    ids=repr,
)
def test_entries_of_other_kinds_are_a_format_error(wrong: dict[str, Any]) -> None:
    """Paths and reasons are texts, numbers are whole and 0 or more, and each quarantined input has one place."""
    content = json.loads(example().to_bytes())
    with pytest.raises(FormatError, match="not a receipt"):
        from_bytes(sealed({**content, **wrong}))


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"version": 2}', b"[" * 100_000, b"\xff"], ids=repr)
def test_other_bytes_are_a_format_error(data: bytes) -> None:
    """Bytes that are not a receipt of this version are a FormatError."""
    with pytest.raises(FormatError, match="receipt"):
        from_bytes(data)
