"""The kill matrix: a command that writes dies at each point where it writes, publishes, removes or asks.

Whatever the point, a reader sees a whole dataset or none (of one that is changed: the old version or the new), and
the same command run again ends with the bytes of an uninterrupted run: no additional file, no open upload, no temporary
directory. The death of a worker has no effect on the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import shardflow as sf
from shardflow.errors import DatasetExistsError, NotFoundError
from shardflow.storage.local_files import lock_directory
from shardflow.storage.s3_transport import LEAST_PART_BYTES
from tests.helpers.command import COMMAND
from tests.helpers.folders import contents, encoded, write_tree
from tests.helpers.s3_server import Server
from tests.helpers.store import Store
from tests.helpers.warm_python import python

INSTRUMENT = Path(__file__).parent / "instrument"
CLASSES = "ababc"  # of the images; the last one is new to an extension
BAD = 1
SETTINGS: dict[str, Any] = {"short_side": 1024, "format": "keep", "shard_samples": 3, "max_errors": BAD, "workers": 1}
ORDER = ["--short-side", "1024", "--format", "keep", "--shard-samples", "3", "--max-errors", str(BAD), "--workers", "1"]
ORDERS = {"pack": ORDER, "sync": [], "extend": ["--max-errors", str(BAD), "--workers", "1"]}
IN_PLACE = ("remove", "columns add", "columns drop")
"""Commands that make another version of a dataset with a column; a removal deletes the old one."""
REMOVED = (0, 3)
BEGUN = 3
WHENS = ("before", "half", "after")
DEADLINE_S = 60.0


def noise(number: int, side: int) -> bytes:
    """Return a JPEG of noise, as large as one of so many pixels can be: 2 MB for a side of 704."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)


class Disk:
    """Directories below one."""

    name, side = "disk", 64

    def __init__(self, folder: Path) -> None:
        self._folder, self._used = folder, 0
        folder.mkdir(parents=True, exist_ok=True)  # or the first run alone would make it, and have more points
        self.environment: dict[str, str] = {}
        self.options: dict[str, Any] | None = None
        self.plan: dict[str, Any] = {}

    def fresh(self) -> str:
        """Return a directory that does not exist."""
        self._used += 1
        return str(self._folder / f"dst{self._used}")

    def fill(self, dst: str, files: Mapping[str, bytes]) -> None:
        """Write the files."""
        write_tree(Path(dst), files)

    def contents(self, dst: str) -> dict[str, bytes]:
        """Return every file."""
        return contents(Path(dst))

    def left_open(self, dst: str) -> list[str]:  # noqa: ARG002 - the interface's
        """Return nothing: a disk has no uploads."""
        return []


class Bucket:
    """Prefixes of a bucket. The images are so large that shards are uploaded to S3 in parts."""

    name, side = "S3", 704

    def __init__(self, server: Server | Store, prefix: str, kind: str = "S3") -> None:
        self._server, self._prefix, self._used = server, prefix, 0
        self.options = server.options()
        if isinstance(server, Server):
            self.environment, self.plan = server.environment(), {"parts": LEAST_PART_BYTES}
        else:
            self.name, self.side, self.plan = kind, 64, {"store": kind}
            self.environment = {f"FSSPEC_{scheme}": json.dumps(self.options) for scheme in ("GCS", "ABFS")}

    def fresh(self) -> str:
        """Return the URL of a new prefix."""
        self._used += 1
        return self._server.url(f"{self._prefix}/{self._used}")

    def fill(self, dst: str, files: Mapping[str, bytes]) -> None:
        """Put the blobs."""
        for name, data in files.items():
            self._server.storage(self._below(dst)).put(name, data)

    def contents(self, dst: str) -> dict[str, bytes]:
        """Return every blob."""
        return self._server.contents(self._below(dst))

    def left_open(self, dst: str) -> list[str]:
        """Return the keys of the open multipart uploads; only S3 has them."""
        if isinstance(self._server, Store):
            return []
        return [key for key, _ in self._server.open_uploads(self._below(dst))]

    def _below(self, dst: str) -> str:
        return dst.removeprefix(self._server.url(""))


Place = Disk | Bucket
"""A kind of destination."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one kill: what a reader found in the destination, and how many inputs the next run resumed."""

    point: str
    reader: str
    resumed: int | None = None

    def __str__(self) -> str:
        return self.reader if self.resumed is None else f"{self.reader}, {self.resumed}"


class Stage:
    """One command on one kind of place, run again and again with a few images.

    Args:
        folder: A directory for all files.
        place: The kind of destination.
        command: "pack"; "sync" of a packed dataset; "extend" of one that was made from half of the images; or one of
            `IN_PLACE`.
    """

    def __init__(self, folder: Path, place: Place, command: str) -> None:
        self.place, self.command, self._folder = place, command, folder
        self._staging = folder / "staging"
        self._staging.mkdir(parents=True)
        images = {f"{name}/{n}.jpg": noise(n, place.side) for n, name in enumerate(CLASSES)}
        self.src = write_tree(folder / "src", {**images, "a/bad.jpg": b"\xff\xd8"})
        self._begun: dict[str, bytes] = {}
        self._old = ""
        if command == "sync":
            sf.pack(self.src, folder / "dataset", **SETTINGS)
            self.src = folder / "dataset"
        if command == "extend":
            begun = write_tree(folder / "begun", {**dict(list(images.items())[:BEGUN]), "b/worse.jpg": b""})
            sf.pack(begun, folder / "dataset", **SETTINGS)
            self._begun, self._old = contents(folder / "dataset"), sf.open(folder / "dataset").fingerprint
        if command in IN_PLACE:
            sf.pack(self.src, folder / "dataset", **SETTINGS)
            self.keys = [sample["__key__"] for sample in sf.open(folder / "dataset")["train"]]
            pq.write_table(pa.table({"key": self.keys, "old": self.keys}), folder / "old.parquet")
            sf.columns.add(folder / "dataset", folder / "old.parquet", key="key")
            pq.write_table(pa.table({"key": self.keys, "new": range(len(self.keys))}), folder / "new.parquet")
            (folder / "keys").write_text("\n".join(self.keys[number] for number in REMOVED))
            self._begun, self._old = contents(folder / "dataset"), sf.open(folder / "dataset").fingerprint
        dst, trace = self._destination(), folder / "trace"
        with self.start(dst, trace=str(trace)) as process:
            assert process.wait(DEADLINE_S) == 0, self.output()
        self.points = trace.read_text().splitlines()
        self.uninterrupted = self._timeless(dst)
        self.check_and_remove(dst)

    def _destination(self) -> str:
        for left in self._staging.iterdir():  # after a failed case
            shutil.rmtree(left)
        shutil.rmtree(self._folder / "cache", ignore_errors=True)  # with one, fewer files would be asked for
        dst = self.place.fresh()
        self.place.fill(dst, self._begun)
        return dst

    @contextlib.contextmanager
    def start(self, dst: str, **plan: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run the command under the instrument; if the body leaves it running, it is killed."""
        roots = {f"{self._staging}/shardflow-staging-": "staging", dst: "dst"}
        environment = {
            **os.environ,
            **self.place.environment,
            "PYTHONPATH": os.pathsep.join([str(INSTRUMENT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TMPDIR": str(self._staging),
            "XDG_CACHE_HOME": str(self._folder / "cache"),
            "FIRE": json.dumps({"roots": roots, **self.place.plan, **plan}),
        }
        if self.command == "remove":
            order = ["remove", dst, "--keys", str(self._folder / "keys"), "--purge"]
        elif self.command in IN_PLACE:
            is_new = self.command == "columns add"
            order = [*self.command.split(), dst, *([str(self._folder / "new.parquet"), "--key", "key"] * is_new)]
            order += ["old"] * (not is_new)
        else:
            order = [self.command, str(self.src), dst, *ORDERS[self.command]]
        with open(self._folder / "messages", "wb") as messages:
            # One that is killed from here has to be gone then; a warm one lives a moment longer.
            command = [python(), *COMMAND[1:]] if plan else COMMAND
            process = subprocess.Popen([*command, *order], env=environment, stdout=messages, stderr=messages)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def output(self) -> str:
        """Return the output of the last command."""
        return (self._folder / "messages").read_text(errors="replace")

    def kill_at(self, point: str) -> Outcome:
        """Kill the process at a point, resume, and check the result.

        Raises:
            AssertionError: A promise is broken.
        """
        dst, fired = self._destination(), self._folder / "fired"
        fired.unlink(missing_ok=True)
        with self.start(dst, kill=point, fired=str(fired)) as process:
            code = process.wait(DEADLINE_S)
        assert fired.exists(), f"the point was not passed: {point}; exit status {code}\n{self.output()}"
        if point.startswith("worker"):
            assert code == 0, self.output()
            self.check_and_remove(dst)
            return Outcome(point, "went on")
        assert code == -signal.SIGKILL
        return self.resume(dst, point)

    def kill_after(self, seconds: float) -> Outcome | None:
        """Kill the parent after some time, resume, and check the result; None when it had ended before."""
        dst = self._destination()
        with self.start(dst) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            early = process.poll() is not None
        outcome = self.resume(dst, f"after {seconds:.3f} s")
        return None if early else outcome

    def resume(self, dst: str, point: str) -> Outcome:
        """Read the destination after a kill, run the command again, and check that the kill left no trace."""
        reader = self._reader(dst)
        for left in self._staging.iterdir():
            with lock_directory(left, timeout_s=30):  # until its workers have ended
                pass
        before = tempfile.tempdir
        tempfile.tempdir = str(self._staging)
        resumed = None
        try:
            resumed = self._again(dst)
        except DatasetExistsError:
            assert reader == "whole"
        finally:
            tempfile.tempdir = before
        self.check_and_remove(dst)
        return Outcome(point, reader, resumed)

    def check_and_remove(self, dst: str) -> None:
        """Assert that the destination has exactly the files of an uninterrupted run, and remove it."""
        found = self._timeless(dst)
        assert found.keys() == self.uninterrupted.keys()
        assert found == self.uninterrupted
        assert self.place.left_open(dst) == []
        assert list(self._staging.iterdir()) == []
        if "://" not in dst:
            shutil.rmtree(dst)

    def _timeless(self, dst: str) -> dict[str, bytes]:
        """Return every file; of the record of a removal without the time."""
        files = self.place.contents(dst).items()
        return {name: b"" if name.startswith("removals/") else data for name, data in files}

    def _again(self, dst: str) -> int | None:
        options = self.place.options
        if self.command == "remove":
            sf.remove(dst, keys=[self.keys[each] for each in REMOVED], purge=True, storage_options=options)
            return None
        if self.command == "columns add":
            sf.columns.add(dst, self._folder / "new.parquet", key="key", storage_options=options)
            return None
        if self.command == "columns drop":
            sf.columns.drop(dst, ["old"], storage_options=options)
            return None
        if self.command == "sync":
            return sf.sync(self.src, dst, dst_options=options).found
        if self.command == "extend":
            return sf.extend(self.src, dst, max_errors=BAD, executor="serial", storage_options=options).resumed
        return sf.pack(self.src, dst, **SETTINGS, executor="serial", storage_options=options).resumed

    def _reader(self, dst: str) -> str:
        try:
            dataset = sf.open(dst, storage_options=self.place.options)
        except NotFoundError:
            assert not self._begun
            return "none"
        assert sf.verify(dst, storage_options=self.place.options) == []
        if self.command in IN_PLACE:
            return "old" if dataset.fingerprint == self._old else "whole"
        if self._begun:
            old = sf.open(dst, version=self._old, storage_options=self.place.options)
            assert len(old["train"]) == BEGUN
            if dataset.fingerprint == self._old:
                return "old"
        assert len(dataset["train"]) == len(CLASSES)
        return "whole"
