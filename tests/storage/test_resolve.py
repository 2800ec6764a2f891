from __future__ import annotations

from pathlib import Path

import pytest

from shardflow.errors import ConfigError
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage


def test_paths_and_file_urls_are_served(tmp_path: Path) -> None:
    """A path, as text or not, and a `file://` URL with escapes lead to the same storage."""
    root = tmp_path / "with space # and %"
    LocalStorage(root).put("a", b"1")
    for url in (root, str(root), root.as_uri(), f"file://localhost{root.as_uri().removeprefix('file://')}"):
        assert open_storage(url).read("a") == b"1"
        assert str(open_storage(url)) == str(root)


def test_relative_paths_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one below the working directory, whatever it looks like."""
    monkeypatch.chdir(tmp_path)
    for path in ("a", "./b", "c:d", "[e", "[f/g"):
        open_storage(path).put("x", b"1")
        assert (tmp_path / path / "x").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["nothing://x", "x://", "1s3://bucket", "://x"])
def test_other_schemes_are_refused(url: str) -> None:
    """A scheme that is not supported is a ConfigError that repeats the URL."""
    with pytest.raises(ConfigError) as caught:
        open_storage(url)
    assert url.rstrip("/") in str(caught.value)


@pytest.mark.parametrize("path", ["a\0b", "half \ud800"])
def test_names_that_no_file_has_are_refused(path: str) -> None:
    """A zero byte and half a character name no file: a ConfigError, not one of the system's."""
    with pytest.raises(ConfigError, match="is not the name of a file"):
        open_storage(path)


def test_a_place_to_write() -> None:
    """A place that can only be read is refused where it is to be written, and nowhere else."""
    assert str(open_storage("https://host/a")) == "https://host/a"
    with pytest.raises(ConfigError, match="can be read, but not written"):
        open_storage("https://host/a", to_write=True)


def test_options_are_those_of_the_url() -> None:
    """storage_options go to the storage of a URL."""
    with pytest.raises(ConfigError, match=r"deadline_s.*0"):
        open_storage("memory://a", {"deadline_s": 0})


def test_a_directory_takes_no_options(tmp_path: Path) -> None:
    """storage_options for a local path are a ConfigError, unless they are known to be for remote places alone."""
    with pytest.raises(ConfigError, match="leave them out"):
        open_storage(tmp_path, {"key": "x"})
    assert str(open_storage(tmp_path, {"key": "x"}, may_be_local=True)) == str(tmp_path)
