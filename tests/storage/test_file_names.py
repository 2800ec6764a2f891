from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.storage.file_names import given_path, is_below, name_bytes, name_of, path_of

IN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
PRINT = """
import os
from shardflow.storage.file_names import given_path, name_of, path_of
data = b"\\xc3\\xa4\\xff/a"
name = name_of(data)
text = "\\xe4/a"  # of a program or a table, not of the system
names = name, name_of(os.fsdecode(data)), name_of(text), path_of(text), path_of("a"), given_path(text), given_path("a")
print(ascii(names))
print([os.fsencode(path_of(name)), os.fsencode(given_path(os.fsdecode(data)))])
"""


@given(data=st.binary(max_size=20))
def test_names_are_bytes(data: bytes) -> None:
    """Any bytes are the name of a file, and come back from it; the path leads to them."""
    assert name_bytes(name_of(data)) == data
    assert name_of(os.fsdecode(data)) == name_of(data)
    assert os.fsencode(path_of(name_of(data))) == data


@pytest.mark.parametrize(
    "name", ["/a", "//a", "..", "a/..", "a/../b", "%2Fa", "%252fa", "%2e%2E/a", ".%2e", "a\\..\\b", "a%5c..", "..%5Ca"]
)
def test_names_that_leave_their_root(name: str) -> None:
    """A name that begins with a slash or has a component `..`, also behind quoting or backslashes, is not below."""
    assert not is_below(name)


@given(parts=st.lists(st.text("ab.%2ef 5C\\ä\udcff", min_size=1), min_size=1, max_size=4))
def test_names_below_their_root(parts: list[str]) -> None:
    """A name that is below its root leads there however often it is unquoted, and any other has a `..` or a slash."""
    name = "/".join(parts)
    text, seen = name.replace("\\", "/"), {""}
    while text not in seen:
        seen.add(text)
        text = unquote(text).replace("\\", "/")
    leaves = any(each.startswith("/") or ".." in each.split("/") for each in seen)
    assert is_below(name) != leaves or name.startswith("\\")


def test_names_are_the_same_under_any_locale() -> None:
    """Under `LC_ALL=C` a file has the same name as under UTF-8, and its path is the one that Python finds there."""
    name, text = name_of(b"\xc3\xa4\xff/a"), "ä/a"
    assert (name, path_of(text), given_path(text)) == ("ä\udcff/a", text, text)
    done = subprocess.run([sys.executable, "-c", PRINT], env={**os.environ, **IN_C}, capture_output=True, check=True)
    escaped = "\udcc3\udca4/a"
    assert done.stdout.decode().splitlines() == [
        ascii((name, name, text, escaped, "a", escaped, "a")),
        ascii([b"\xc3\xa4\xff/a"] * 2),
    ]


@pytest.mark.parametrize("path", ["a\0b", "half \ud800"])
def test_texts_that_name_no_file(path: str) -> None:
    """A zero byte, and half of a surrogate pair, are refused with the text in ASCII."""
    with pytest.raises(ConfigError, match=r"^'(a\\x00b|half \\ud800)' is not the name of a file or directory"):
        given_path(path)
