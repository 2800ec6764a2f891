from __future__ import annotations

import re

from tests.helpers.pages import PAGES, PROJECT

ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGES["docs/glossary.md"].read_text(encoding="utf-8"), re.M)


def test_terms_are_defined_once_in_alphabetical_order() -> None:
    """Each term has one row with its meaning, and the rows are sorted."""
    terms = [term for term, _, _ in ROWS[1:]]
    assert len(terms) > 50
    assert terms == sorted(set(terms))
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS[1:])


def test_modules_exist() -> None:
    """Each term names one or more modules, and all of them exist."""
    for term, _, modules in ROWS[1:]:
        paths = re.findall(r"`([^`]+)`", modules)
        assert paths, term
        assert all((PROJECT / "shardflow" / path).is_file() for path in paths), f"{term}: {modules}"
