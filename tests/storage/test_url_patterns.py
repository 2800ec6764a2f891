from __future__ import annotations

from pathlib import Path

import pytest

from shardflow.errors import ConfigError
from shardflow.storage.url_patterns import expand_braces, has_wildcards, matching_tars, split_pattern


@pytest.mark.parametrize(
    ("url", "root", "pattern"),
    [
        ("s3://bucket/a/{000..009}.tar", "s3://bucket/a", "{000..009}.tar"),
        ("s3://bucket/a*/b/c?.tar", "s3://bucket", "a*/b/c?.tar"),
        ("s3://bucket/[ab]/*.tar", "s3://bucket", "[ab]/*.tar"),
        ("S3://bucket/a/b.tar", "s3://bucket/a", "b.tar"),
        ("s3://bucket/X/", "s3://bucket/X", None),
        ("https://host/a/b.tar?sig=x/y*", "https://host/a?sig=x/y*", "b.tar"),
        ("https://host/a/{0..9}.tar?sig=x", "https://host/a?sig=x", "{0..9}.tar"),
        ("HTTPS://host/a/?sig={x}.tar", "https://host/a?sig={x}.tar", None),
        *(
            ("*.tar", ".", "*.tar"),
            ("/*.tar", "/", "*.tar"),
            ("/", "/", None),
            ("file:///x%20y/*.tar", "/x y", "*.tar"),
        ),
    ],
)
def test_a_pattern_is_cut_behind_its_root(url: str, root: str, pattern: str | None) -> None:
    """The root ends before the first segment with a brace or wildcard, or before a tar; a directory has no pattern.

    The query of a web URL stays with the root.
    """
    assert split_pattern(url) == (root, pattern)


def test_names_that_exist_are_no_patterns(tmp_path: Path) -> None:
    """A directory whose name has brackets is read as it is, and a tar so named is the tar."""
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "b{1}.tar").touch()
    assert split_pattern(tmp_path / "a[1]") == (str(tmp_path / "a[1]"), None)
    assert split_pattern(tmp_path / "b{1}.tar") == (str(tmp_path), "b{1}.tar")


def test_braces_and_wildcards() -> None:
    """Braces are expanded in order; wildcards choose the tars of a listing, a segment's end being nothing special."""
    assert expand_braces("{08..10}/{a,b}.tar") == [
        "08/a.tar",
        "08/b.tar",
        "09/a.tar",
        "09/b.tar",
        "10/a.tar",
        "10/b.tar",
    ]
    with pytest.raises(ConfigError, match=r"'\{1.tar' is not a pattern: .*; expected such as \{00000..00099\}.tar"):
        expand_braces("{1.tar")
    assert [has_wildcards(name) for name in ("a.tar", "a*", "a?", "[a]")] == [False, True, True, True]
    assert matching_tars("a*", ["a.tar", "a/b.tar", "b.tar", "a.npy", "a.tar.npy"]) == ["a.tar", "a/b.tar"]
