"""The directory of a cache: which one may become a cache, and which files there are the cache's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardflow
from shardflow.errors import ConfigError
from shardflow.storage.cache import Cache
from shardflow.storage.cache_directory import TAG_NAME
from tests.helpers.command import exit_code
from tests.helpers.folders import contents, write_tree
from tests.helpers.loading import prefetching_threads, until
from tests.helpers.making import make_dataset

SHA = "ab" * 32
OWN = {
    "partial/notes.txt": b"a draft",
    "partial/0123.4567": b"",
    "locks/key": b"",
    "blobs/photo.jpg": b"a photo",
    "decoded/film.mkv": b"a film",
    "thesis.tex": b"all of it",
}
"""Files of a user, in folders that are called as those of a cache."""


def write_own(root: Path) -> Path:
    """Write the user's files, with their empty folders, for this user alone; return the directory."""
    write_tree(root, OWN)
    for folder in (root, *(path for path in root.iterdir() if path.is_dir())):
        folder.chmod(0o700)
    return root


def every_use(url: str, directory: Path) -> None:
    """Use a cache of 20 kB and 100 kB of pixels, all of whose files are evicted and pruned."""
    cache = Cache(directory, "20kB", pixels="100kB")
    for _ in range(2):
        list(shardflow.Loader(url, batch_size=4, num_workers=0, cache=cache))
    assert until(lambda: not prefetching_threads(), 60)  # they end by themselves
    cache.prune_damaged()
    cache.prune(0)


@pytest.fixture
def far(tmp_path: Path) -> str:
    """The URL of a dataset that is read through the cache."""
    return f"local://{make_dataset(tmp_path / 'set', {'train': [5, 7, 6]})}"


@pytest.mark.parametrize(
    "own",
    [
        *([name] for name in OWN),
        [f"blobs/{SHA}/x"],
        [f"other/{SHA}"],
        [".tmp-other"],
        [*OWN],
    ],
    ids=lambda own: ",".join(own)[:20],
)
def test_a_directory_with_other_files_is_refused(far: str, tmp_path: Path, own: list[str]) -> None:
    """No door makes a cache of a directory that holds other files, and all of them stay as they are."""
    directory = write_tree(tmp_path / "mine", dict.fromkeys(own, b"mine"))
    for folder in (directory, *directory.rglob("*")):
        folder.chmod(0o700)
    before = contents(directory)
    doors = [
        lambda: Cache(directory),
        lambda: shardflow.Loader(far, batch_size=4, num_workers=0, cache=directory),
        lambda: shardflow.open(far, cache=directory),
    ]
    for door in doors:
        with pytest.raises(ConfigError, match=r"empty,.*directory"):
            door()
    named = ("--cache-dir", str(directory))
    for command in ([], ["prune", "--limit", "0"], ["prune", "--damaged"], ["warm", far]):
        assert exit_code("cache", *command, *named) == 2
    assert contents(directory) == before
    assert sorted(path.name for path in directory.iterdir()) == sorted({name.partition("/")[0] for name in own})


def test_folders_of_another_mode_are_refused(tmp_path: Path) -> None:
    """A folder of blobs that shardflow did not make is not a cache, though its files are named as a cache's are."""
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine/blobs").mkdir()
    (tmp_path / "mine/blobs").chmod(0o755)
    (tmp_path / "mine/blobs" / SHA).write_bytes(b"mine")
    with pytest.raises(ConfigError, match="it holds 'blobs'"):
        Cache(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["blobs"]


@pytest.mark.parametrize("place", [f"blobs/{SHA}", "locks/eviction", f"locks/{SHA}", f"decoded/{SHA}"])
def test_a_deleted_cache_is_marked_again(far: str, tmp_path: Path, place: str) -> None:
    """A deletion that leaves a directory in the place of a file of the cache does not make the cache another's."""
    directory = tmp_path / "cache"
    Cache(directory)
    (directory / TAG_NAME).unlink()
    (directory / place).mkdir()
    Cache(directory)
    assert (directory / TAG_NAME).exists()
    list(shardflow.Loader(far, batch_size=4, num_workers=0, cache=directory))
    assert (directory / place).is_dir()


def test_other_files_in_a_cache_stay(far: str, tmp_path: Path) -> None:
    """Loading, eviction and pruning neither touch nor count files that have no name of the cache's own form."""
    Cache(tmp_path / "cache")
    write_own(tmp_path / "cache")
    (tmp_path / "cache/blobs" / SHA[1:]).write_bytes(bytes(10**6))
    (tmp_path / "cache/locks/folder").mkdir()
    before = contents(tmp_path / "cache")
    every_use(far, tmp_path / "cache")
    cache = Cache(tmp_path / "cache")
    assert (cache.blobs(), cache.decoded()) == ([], [])
    assert contents(tmp_path / "cache") == before
    assert (tmp_path / "cache/locks/folder").is_dir()


def test_the_tag_marks_a_cache(tmp_path: Path) -> None:
    """A new, an empty and a half-marked directory get the tag that backup programs know; a marked one keeps it."""
    for name in ("new", "empty", "half"):
        if name != "new":
            (tmp_path / name).mkdir(mode=0o700)
        if name == "half":
            (tmp_path / name / f".tmp-{TAG_NAME}").write_bytes(b"Signature: 8a47")
        for _ in range(2):
            Cache(tmp_path / name)
            lines = (tmp_path / name / TAG_NAME).read_bytes().splitlines()
            assert lines[0] == b"Signature: 8a477f597d28d172789f06886806bc55"
            assert lines[1] == b"# shardflow cache, version 1"
            assert sorted(os.listdir(tmp_path / name)) == [TAG_NAME, "blobs", "decoded", "locks", "partial"]


@pytest.mark.parametrize(
    ("line", "said"),
    [("# This file marks the cache of restic", "another program"), ("# shardflow cache, version 2", "update")],
)
def test_caches_of_others_are_refused(tmp_path: Path, line: str, said: str) -> None:
    """A tag of another program, or of a newer shardflow, marks no cache of this one."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / TAG_NAME).write_text(f"Signature: 8a477f597d28d172789f06886806bc55\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        Cache(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == [TAG_NAME]


def test_a_cache_that_lost_its_tag_gets_it_again(far: str, tmp_path: Path) -> None:
    """A cache whose deletion was interrupted is a cache still, and one in use while it is deleted."""
    cache = Cache(tmp_path / "cache")
    list(shardflow.open(far, cache=cache)["train"])
    (tmp_path / "cache" / TAG_NAME).unlink()
    shutil.rmtree(tmp_path / "cache/locks")
    assert len(Cache(tmp_path / "cache").blobs()) == 6
    assert (tmp_path / "cache" / TAG_NAME).exists()


def test_first_users_may_race(tmp_path: Path) -> None:
    """Processes that create one cache at the same moment all succeed, and leave nothing but the cache."""
    code = "import sys; from shardflow.storage.cache import Cache; sys.stdin.read(); print(Cache(sys.argv[1]).blobs())"
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    users = [subprocess.Popen(command, **pipes) for _ in range(8)]  # type: ignore[call-overload]
    for user in users:
        user.stdin.close()
    assert [(user.stdout.read(), user.wait()) for user in users] == [("[]\n", 0)] * 8
    for user in users:
        user.stdout.close()
    assert sorted(os.listdir(tmp_path / "cache")) == [TAG_NAME, "blobs", "decoded", "locks", "partial"]
