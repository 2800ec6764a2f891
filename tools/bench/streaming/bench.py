"""What the rounds run on: environments, data in a folder and in the bucket, and one run of one row."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from conditions import WARM, Far
from environments import Environments, FailedError
from measure import cpu_s, machine_cpu_s, tree
from prepare import FOLDERS
from rows import Row
from spoken import reason, speaking

from tests.helpers.s3_server import ACCESS_KEY, SECRET_KEY, Server

HERE = Path(__file__).resolve().parent
BLOBS = 16


class Bench:
    """One server, one folder for everything that is made, and the environments."""

    def __init__(self, environments_folder: Path, data: Path, server: Server) -> None:
        self.environments, self._data, self._server = Environments(environments_folder), data, server
        self._uploaded: set[str] = set()  # formats that are in the bucket

    def pictures(self, samples: int, images: Path | None) -> Path:
        """Return the folder of the pictures, made if need be."""
        arguments = ["--samples", str(samples), *(("--images", str(images)) if images else ())]
        folder = self._data / "pictures"
        self._made(
            folder,
            [
                str(self.environments.python("streaming")),
                str(HERE.parent / "loaders" / "pictures.py"),
                str(folder),
                *arguments,
            ],
        )
        return folder

    def uploaded(self, row: Row, pictures: Path) -> Path:
        """Return the folder with the format that a row reads, made if need be; it is in the bucket as well."""
        folder = self._data / row.reads
        python = str(self.environments.python(row.environment))
        self._made(folder, [python, str(HERE / "prepare.py"), row.reads, str(pictures), str(folder)])
        if row.reads not in self._uploaded:
            self._server.client().put(str(folder / FOLDERS[row.reads]), self._server.bucket, recursive=True)
            self._uploaded.add(row.reads)
        return folder / FOLDERS[row.reads]

    def blobs(self, size: int) -> list[dict[str, Any]]:
        """Put random blobs into the bucket, the first one small, and return what they are."""
        blobs = []
        for number in range(BLOBS + 1):
            data, key = random.Random(number).randbytes(size if number else 1000), f"blobs/{number:02}.tar"
            self._server.client().pipe_file(f"{self._server.bucket}/{key}", data)
            blobs.append({"key": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        return blobs

    def epochs(self, row: Row, local: Path, samples: int, way: Far | None, served_by: list[int]) -> dict[str, Any]:
        """Run a loader in a fresh process, and return what it measured in its cold and in its warm epochs."""
        measured = {}
        with tempfile.TemporaryDirectory(dir=self._data, prefix="cache-") as cache:
            command = [str(self.environments.python(row.environment)), str(HERE / "epochs.py"), row.way, row.variant]
            command += ["--url", self._server.url(FOLDERS[row.reads]), "--local", str(local), "--cache", cache]
            command += ["--samples", str(samples), "--served-by", *map(str, served_by)]
            with speaking(command, self._variables(way)) as process:
                if way:
                    way.count()
                for name, repeats in (("cold", 1), ("warm", WARM)):
                    measured[name] = process.heard()
                    if way:
                        measured[name] |= {what: count / repeats for what, count in way.count().items()}
                    process.say()
        return measured

    def fetched(self, row: Row, blobs: list[dict[str, Any]], ways: list[Far], processes: int) -> dict[str, Any]:
        """Fetch the blobs with so many processes, each its share and by its own proxy, and return what it took."""
        served_by = [pid for pid in tree(os.getpid()) if pid != os.getpid()]
        with contextlib.ExitStack() as stack:
            running = []
            for number in range(processes):
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-"))
                command = [str(self.environments.python(row.environment)), str(HERE / "fetch.py"), row.way, row.variant]
                command += [self._server.bucket, json.dumps([blobs[0], *blobs[1 + number :: processes]]), folder]
                running.append(stack.enter_context(speaking(command, self._variables(ways[number] if ways else None))))
            for process in running:
                process.heard()
            busy, served, begun = machine_cpu_s(), sum(map(cpu_s, served_by)), time.monotonic()
            for process in running:
                process.say()
            found = [process.heard() for process in running]
            busy, served = machine_cpu_s() - busy, sum(map(cpu_s, served_by)) - served
            passed = time.monotonic() - begun
        gigabytes, cpu = sum(blob["size"] for blob in blobs[1:]) / 1e9, sum(one["cpu_s"] for one in found)
        return {
            "mb_per_s": 1000 * gigabytes / max(one["wall_s"] for one in found),
            "cpu_s_per_gb": cpu / gigabytes,
            "server_cpu_s_per_gb": served / gigabytes,
            "peak_bytes": max(one["peak_bytes"] for one in found),
            "others": max(0.0, busy - served - cpu) / (passed * (os.cpu_count() or 1)),
        }

    def passing(self, blobs: list[dict[str, Any]], way: Far | None, streams: int) -> float:
        """Return how many MB/s come to so many curls at once, which only throw them away."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=way.endpoint if way else self._server.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )
        command = ["curl", "-s", "-f", "--max-time", "60", "-o", "/dev/null", "-w", "%{time_total}"]
        curls = []
        for blob in blobs[1 : 1 + streams]:
            where = {"Bucket": self._server.bucket, "Key": blob["key"]}
            link = client.generate_presigned_url("get_object", Params=where)
            curls.append(subprocess.Popen([*command, link], stdout=subprocess.PIPE, text=True))
        slowest = max(float(curl.communicate()[0]) for curl in curls)
        if failed := [curl.returncode for curl in curls if curl.returncode]:
            raise FailedError(f"curl ended with code {failed[0]}")
        return sum(blob["size"] for blob in blobs[1 : 1 + streams]) / 1e6 / slowest

    def _variables(self, way: Far | None) -> dict[str, str]:
        endpoint = way.endpoint if way else self._server.endpoint
        return {
            **os.environ,
            **self._server.environment(),
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,  # what MosaicML Streaming calls it
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _made(self, folder: Path, command: list[str]) -> None:
        """Make a folder that is there only when it is complete."""
        stamp = folder.with_suffix(".complete")
        if stamp.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        print(f"preparing {folder.name}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise FailedError(reason(done.stderr))
        stamp.touch()
