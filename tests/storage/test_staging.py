from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from shardflow.storage import local_files, staging
from shardflow.storage.staging import remove_abandoned, temporary_staging


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_staging_directory_ends_with_its_use(temporary: Path) -> None:
    """It is locked, and removed with all that is in it, also after an error."""
    with contextlib.suppress(KeyError), temporary_staging() as (folder, lock):
        assert folder.parent == temporary
        assert os.path.samestat(folder.stat(), os.fstat(lock))
        (folder / "a").touch()
        raise KeyError
    assert list(temporary.iterdir()) == []


def test_a_directory_that_is_removed_before_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one takes its place, for this user alone too."""
    lock_directory, removed = staging.lock_directory, list[Path]()

    def lock_late(folder: Path) -> contextlib.AbstractContextManager[int]:
        if not removed:
            removed.append(folder)
            folder.rmdir()
        return lock_directory(folder)

    monkeypatch.setattr(staging, "lock_directory", lock_late)
    with temporary_staging() as (folder, _):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [*folder.parent.iterdir()] == [folder] != removed


def test_abandoned_directories_are_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that killed processes left are removed, whatever stands beside them: held ones, for which nothing waits,
    files, links and others.
    """
    monkeypatch.delattr(local_files, "pause")
    prefix = f"shardflow-staging-{os.getuid()}-"
    with temporary_staging() as (first, _), temporary_staging() as (second, _):
        kept = [temporary / name for name in (f"{prefix}file", f"{prefix}link", "shardflow-staging-x", "of-others")]
        kept[0].touch()
        kept[1].symlink_to(kept[3])
        for each in (*kept[2:], *(temporary / f"{prefix}{number}" for number in range(8))):
            (each / "a").mkdir(parents=True)
        remove_abandoned()
        assert set(temporary.iterdir()) == {first, second, *kept}
        assert (kept[3] / "a").is_dir()


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, as on a full disk, nothing is removed, and that is no error."""

    def fail() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    remove_abandoned()
