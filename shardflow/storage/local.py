"""Local storage: blobs are files below a directory."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from shardflow.errors import DatasetExistsError, NotFoundError, StoreError

from .file_names import name_of, path_of
from .interface import IDLE_TIMEOUT_S, MAX_READ_BYTES, TEMPORARY, BlobTooLargeError, BlobVersion, Writer
from .local_files import (
    COPY_BYTES,
    flock,
    is_folder,
    is_shared,
    lock_directory,
    map_os_errors,
    move,
    new_file,
    publish,
    reread,
    sync_to_disk,
    write_verified,
)

_OF_SYSTEM = (".", "lost+found")  # folders that may be closed to users, as at the root of a disk
_REMOVED = ".nfs"  # prefix of removed files that NFS keeps until the last process closes them


class LocalStorage:
    """Files below a directory; see Storage. Several processes may use one at the same time."""

    idle_timeout_s = IDLE_TIMEOUT_S

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._locked: os.stat_result | None = None  # the root, while a writer holds its lock

    def __str__(self) -> str:
        return str(self.root)

    def url(self, name: str) -> str:
        return str(self.local_path(name))

    def local_path(self, name: str) -> Path:
        return self.root / path_of(name)

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        path = self.local_path(name)

        def read() -> bytes:
            with open(path, "rb") as file:
                if (size := os.fstat(file.fileno()).st_size) > most_bytes:
                    raise BlobTooLargeError.of(self.url(name), size, most_bytes)
                return file.read()

        return reread(path, read)

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        path = self.local_path(name)

        def read() -> bytes:
            with open(path, "rb") as file:
                if version not in (None, _version(os.fstat(file.fileno()))):
                    raise StoreError(
                        f"{path} was replaced while it was read; stop the process that writes to it, and try again"
                    )
                file.seek(start)
                return file.read(max(0, stop - start))

        return reread(path, read)

    def version(self, name: str) -> BlobVersion | None:
        path = self.local_path(name)
        try:
            return _version(reread(path, path.stat))
        except NotFoundError:
            return None

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new file. It is not retried: the page cache would return the same."""
        path = self.local_path(name)

        def copy() -> None:
            with open(path, "rb") as file, new_file(target) as new:
                chunks = iter(lambda: file.read(COPY_BYTES), b"")
                write_verified(chunks, new, self.url(name), size=size, sha256=sha256)

        reread(path, copy)

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob. With `replaces`, the old one is locked meanwhile. A file on the same disk is renamed."""
        with self._locked_blob(name, replaces), self.writing(name, create_only=new) as temporary:
            if isinstance(content, Path):
                move(content, temporary)
            else:
                temporary.write_bytes(content)

    @contextlib.contextmanager
    def _locked_blob(self, name: str, tag: str | None) -> Iterator[None]:
        """Lock a blob while the body runs, if `tag` is given, which must be the blob's current tag."""
        if tag is None:
            yield
            return
        path = self.local_path(name)
        with map_os_errors(path), contextlib.ExitStack() as held:
            self._check_root()
            is_current = False
            with contextlib.suppress(FileNotFoundError):  # not raised by the body
                # After another writer released its lock, the path has a new file, so the tag is compared after locking.
                # NFS locks only files that are open for writing.
                old = held.enter_context(open(path, "r+b" if os.access(path, os.W_OK) else "rb"))
                is_current = flock(old.fileno()) and (
                    {_version(os.fstat(old.fileno())).tag, _version(path.stat()).tag} == {tag}
                )
            if is_current:
                yield
                return
        raise DatasetExistsError(f"{path} was changed by another process meanwhile; run the same command again")

    @contextlib.contextmanager
    def writing(self, name: str, *, create_only: bool = False) -> Iterator[Path]:
        """Provide a temporary path; when the body succeeds, sync its file to the disk and publish it as `name`."""
        final = self.local_path(name)
        temporary = final.with_name(f"{TEMPORARY}{final.name}.{secrets.token_hex(4)}")
        with map_os_errors(final):
            self._check_root()  # otherwise, a manifest could be published into a new directory without its shards
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                sync_to_disk(temporary)
                publish(temporary, final, create_only=create_only)
                sync_to_disk(final.parent)
            except FileExistsError as error:
                raise DatasetExistsError(f"{final} exists already; nothing is ever overwritten") from error
            finally:
                temporary.unlink(missing_ok=True)

    def listing(self, *, most: int | None = None) -> dict[str, BlobVersion]:
        return reread(self.root, partial(self._list, most))

    def _list(self, most: int | None) -> dict[str, BlobVersion]:
        found: dict[str, BlobVersion] = {}
        for path in itertools.islice(_files(self.root), most):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                try:
                    status = path.stat()
                except OSError:  # a dangling link: reading it is an error, but it is not left out
                    status = path.lstat()
                    if not path.suffix:  # it may be a folder
                        message = f"{path} is a link to {os.readlink(path)}, which does not exist"
                        raise StoreError(f"{message}; restore that, or remove the link") from None
                name = name_of(path.relative_to(self.root).as_posix())
                found[name] = BlobVersion(status.st_size, modified_ns=status.st_mtime_ns)
        return dict(sorted(found.items()))

    def remove(self, name: str) -> None:
        path = self.local_path(name)
        with map_os_errors(path):
            path.unlink(missing_ok=True)

    def abort_uploads(self, names: Collection[str]) -> None:
        """Do nothing: the files of a killed writer are in the listing."""

    @contextlib.contextmanager
    def exclusive_writer(self) -> Iterator[Writer]:
        """Create the root if it does not exist, and lock it. It is also the staging directory."""
        with map_os_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with lock_directory(self.root) as lock:
            self._locked = os.fstat(lock)
            try:
                yield Writer(self.root, lock, is_exclusive=not is_shared(self.root))
            finally:
                self._locked = None

    def _check_root(self) -> None:
        """Check that the root is still the directory that the writer locked, if there is one."""
        try:
            same = self._locked is None or os.path.samestat(self._locked, self.root.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise NotFoundError(
                f"{self.root} vanished or was replaced during a write; put it back and run the same command again"
            )


def _version(status: os.stat_result) -> BlobVersion:
    return BlobVersion(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_ctime_ns}")


def _files(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the files below a folder, and below links to folders, except links to a folder `above`."""
    try:
        status = folder.stat()
        here = status.st_dev, status.st_ino
        if here in above:
            return
        with os.scandir(folder) as entries:
            listed = [*entries]
    except (FileNotFoundError, NotADirectoryError):
        return  # removed meanwhile
    except PermissionError:
        if above and folder.name.startswith(_OF_SYSTEM):
            return
        raise
    for entry in listed:
        if is_folder(entry):
            yield from _files(Path(entry.path), above | {here})
        elif not entry.name.startswith(_REMOVED):
            yield Path(entry.path)
