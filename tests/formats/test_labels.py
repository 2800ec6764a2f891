from __future__ import annotations

import pytest

from shardflow.errors import DecodeError
from shardflow.formats.labels import LABEL_PARTS, Label, format_label, parse_labels, sample_labels


@pytest.mark.parametrize(
    ("part", "payload", "expected"),
    [
        ("cls", b"7", (7,)),
        ("cls", b"007\n", (7,)),
        ("cls", b" 0 ", (0,)),
        ("labels.json", b"[2, 0]", (2, 0)),
        ("labels.json", b"[]", ()),
        ("labels.json", b"5", (5,)),
    ],
)
def test_numbers_are_read(part: str, payload: bytes, expected: tuple[int, ...]) -> None:
    """One number is read with zeros before it and blanks around it, several are a list, of which one may be bare."""
    assert parse_labels(part, payload) == parse_labels(part, payload, classes=8) == expected


@pytest.mark.parametrize("payload", [b"", b"cat", b"-1", b"+1", b"1.0", b"1_0", b"1 2", "\u0663".encode(), b"9" * 19])
def test_other_text_than_a_number_is_refused(payload: bytes) -> None:
    """Text other than decimal digits is refused and shown."""
    with pytest.raises(DecodeError, match=r"^label b'.*' is not a whole number, 0 or more$"):
        parse_labels("cls", payload)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"[1", b"null", b"[null]", b"[true]", b"true", b"[-1]", b"-1", b"[0.5]", b'["1"]', b'"12"', b'{"1": 2}'),
        *(b"[[1]]", b"[%d]" % 10**30, b"[" * 100_000, b"[" + b"9" * 10_000 + b"]", b"\xff"),
    ],
    ids=lambda payload: repr(payload)[:20],
)
def test_other_json_than_numbers_is_refused(payload: bytes) -> None:
    """Anything but a JSON list of numbers from 0 on is refused and shown."""
    with pytest.raises(DecodeError, match=r"^labels b.* are not a list of whole numbers, 0 or more$"):
        parse_labels("labels.json", payload)


def test_numbers_beyond_the_classes_are_refused() -> None:
    """Where the number of classes is known, a larger number is refused."""
    for part, payload in (("cls", b"8"), ("labels.json", b"[0, 8]"), ("labels.json", b"8")):
        assert parse_labels(part, payload, classes=9)
        with pytest.raises(DecodeError, match="from 0 to 7"):
            parse_labels(part, payload, classes=8)
        with pytest.raises(DecodeError, match="from 0 to 7"):
            sample_labels({part: payload}.get, classes=8)


def test_numbers_have_eighteen_digits_at_most() -> None:
    """The largest number that is read fits into int64, the next one is refused."""
    most = b"9" * 18
    assert parse_labels("cls", most) == parse_labels("labels.json", b"[%s]" % most) == (10**18 - 1,)
    for part, payload in (("cls", b"1" + b"0" * 18), ("labels.json", b"[1%s]" % (b"0" * 18))):
        with pytest.raises(DecodeError, match="not a"):
            parse_labels(part, payload)


def test_strict_parsing_accepts_our_form_alone() -> None:
    """A strict parse refuses every form but the one that is written."""
    for part, payload in (("cls", b"7"), ("labels.json", b"[7]")):
        assert parse_labels(part, payload, strict=True) == (7,)
    for part, payload in (("cls", b"7\n"), ("cls", b" 7"), ("labels.json", b"7")):
        with pytest.raises(DecodeError, match="not a"):
            parse_labels(part, payload, strict=True)


@pytest.mark.parametrize("label", [None, 0, 7, (), (3,), (0, 5, 9)])
def test_labels_are_read_as_they_were_written(label: Label) -> None:
    """A number is written to `cls`, several to `labels.json`, none to no part; all are read again, strictly too."""
    parts = format_label(label)
    expected = None if label is None else (label,) if isinstance(label, int) else label
    assert sample_labels(parts.get) == sample_labels(parts.get, classes=10) == expected
    assert [parse_labels(part, memoryview(payload), strict=True) for part, payload in parts.items()] == (
        [] if expected is None else [expected]
    )


def test_several_labels_count_before_one() -> None:
    """Of a sample with both parts `labels.json` is read, and `cls` is not even asked for."""
    assert LABEL_PARTS == ("labels.json", "cls")
    parts = {"cls": b"not read", "labels.json": b"[1, 2]"}
    assert sample_labels(parts.get) == (1, 2)
    with pytest.raises(DecodeError, match="not a whole number"):
        sample_labels({"cls": b"cat"}.get)
