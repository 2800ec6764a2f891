"""vipsthumbnail, a few processes with a batch of files each. It writes files, not shards: less work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import QUALITY, SHORT_SIDE, WORKERS, files


def pack(source: Path, destination: Path, variant: str) -> None:
    """There is one `variant`, "lanczos": its filter. It takes the width or the height, so which way matters."""
    assert variant == "lanczos"
    destination.mkdir()
    output = f"{destination}/%s.jpg[Q={QUALITY},subsample_mode=on,strip]"
    for way, size in (("landscape", f"x{SHORT_SIDE}"), ("portrait", f"{SHORT_SIDE}x")):
        paths = [path for path in files(source) if Path(path).parent.name == way]
        batch = str(max(1, len(paths) // (2 * WORKERS)))
        command = ["xargs", "-P", str(WORKERS), "-n", batch, "vipsthumbnail", "--size", size, "-o", output]
        # A process each is what runs in parallel here; more threads in each only cost.
        variables = {**os.environ, "VIPS_CONCURRENCY": "1"}
        subprocess.run(command, input="\n".join(paths), text=True, check=True, env=variables)


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The files are named as the originals."""
    for path in sorted(destination.glob("*.jpg")):
        yield path.stem, path.read_bytes()
