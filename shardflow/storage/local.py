"""Local storage: blobs are files below a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from shardflow.errors import DatasetExistsError, StoreError

from .local_files import COPY_BYTES, map_os_errors, new_file, sync_to_disk, write_verified
from .storage import TEMPORARY, ListedBlob

_LOCK_PATIENCE_S = 2.0


class LocalStorage:
    """Files below a directory. Safe to use from several processes at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return where a blob lies."""
        return self.root / name

    def url(self, name: str) -> str:
        """Return how messages name a blob: its path."""
        return str(self.path(name))

    def read(self, name: str) -> bytes:
        """Return a blob.

        Raises:
            NotFoundError: There is none of that name.
        """
        with map_os_errors(self.path(name)):
            return self.path(name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where it ends before."""
        with map_os_errors(self.path(name)), open(self.path(name), "rb") as file:
            file.seek(start)
            return file.read(max(0, stop - start))

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        with map_os_errors(self.path(name)):
            try:
                return self.path(name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def modified_ns(self, name: str) -> int:
        """Return when a blob was published, in ns since 1970."""
        with map_os_errors(self.path(name)):
            return self.path(name).stat().st_mtime_ns

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new file. A disk is read once: a second look would see the same cache."""
        with map_os_errors(self.path(name)), open(self.path(name), "rb") as file:
            chunks = iter(lambda: file.read(COPY_BYTES), b"")
            with new_file(target) as descriptor:
                write_verified(chunks, descriptor, self.url(name), size=size, sha256=sha256)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name. Only for what no committed dataset names yet."""
        with self.writing(name) as temporary:
            temporary.write_bytes(data)

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet.

        Raises:
            DatasetExistsError: There is one of that name; it is untouched.
        """
        with self.writing(name, create_only=True) as temporary:
            temporary.write_bytes(data)

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file: where it lies on the same disk, by its mere name."""
        with self.writing(name) as temporary:
            shutil.move(source, temporary)

    @contextlib.contextmanager
    def writing(self, name: str, *, create_only: bool = False) -> Iterator[Path]:
        """Lend a temporary path; when the body ends well, its file is made durable and published as `name`."""
        final = self.path(name)
        temporary = final.with_name(f"{TEMPORARY}{final.name}.{secrets.token_hex(4)}")
        with map_os_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                sync_to_disk(temporary)
                if create_only:
                    os.link(temporary, final)
                else:
                    os.replace(temporary, final)
                sync_to_disk(final.parent)
            except FileExistsError as error:
                raise DatasetExistsError(f"{final} exists already; nothing is ever overwritten") from error
            finally:
                temporary.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all blobs and leftovers, sorted."""
        with map_os_errors(self.root):
            found = (Path(folder, file) for folder, _, files in os.walk(self.root) for file in files)
            return sorted(path.relative_to(self.root).as_posix() for path in found)

    def listing(self) -> dict[str, ListedBlob]:
        """Return name → size of all blobs and leftovers, sorted by name."""
        found = {}
        for name in self.names():
            with map_os_errors(self.path(name)), contextlib.suppress(FileNotFoundError):
                status = self.path(name).stat()
                found[name] = ListedBlob(status.st_size, modified_ns=status.st_mtime_ns)
        return found

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover, if there is one."""
        with map_os_errors(self.path(name)):
            self.path(name).unlink(missing_ok=True)

    def close_uploads(self, names: Collection[str]) -> None:
        """Do nothing: on a disk, what was left half done is among the names."""

    @contextlib.contextmanager
    def sole_writer(self, *, patience_s: float = _LOCK_PATIENCE_S) -> Iterator[int]:
        """Hold the root for one writing process; the value is the descriptor that holds it.

        The lock is the kernel's (`flock` on the directory itself), so it leaves no file. A process that inherits the
        descriptor holds the lock as well, and it ends with the last of them: while a worker of a writer that was killed
        is still about to publish something, nobody else starts. Such a worker needs a moment to go, hence the patience.

        Raises:
            StoreError: Another process holds it.
        """
        with map_os_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            deadline = time.monotonic() + patience_s
            try:
                while True:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError as error:
                        if time.monotonic() > deadline:
                            message = f"another process is writing to {self.root}; wait, or choose another destination"
                            raise StoreError(message) from error
                        time.sleep(0.02)
                yield descriptor
            finally:
                os.close(descriptor)
