"""img2dataset, from file to tar, with its default resizer: OpenCV's area filter for reductions."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from img2dataset import download

from . import QUALITY, SHORT_SIDE, WORKERS, files

_SHARDS = 8


def pack(source: Path, destination: Path, variant: str) -> None:
    """There is one `variant`, "area"."""
    assert variant == "area"
    paths = files(source)
    urls = destination.with_suffix(".txt")
    urls.write_text("\n".join(f"file://{path}" for path in paths))
    download(
        url_list=str(urls),
        output_folder=str(destination),
        output_format="webdataset",
        number_sample_per_shard=max(1, len(paths) // _SHARDS),
        processes_count=WORKERS,
        thread_count=8,  # of each process, to read files with; the default of 256 is for downloads
        image_size=SHORT_SIDE,
        resize_mode="keep_ratio",
        resize_only_if_bigger=True,
        encode_quality=QUALITY,
    )


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The metadata beside each picture says where it came from."""
    for shard in sorted(destination.glob("*.tar")):
        with tarfile.open(shard) as tar:
            contents = {member.name: file.read() for member in tar if (file := tar.extractfile(member)) is not None}
        for name in contents:
            if name.endswith(".jpg"):
                metadata = json.loads(contents[name.removesuffix("jpg") + "json"])
                yield Path(metadata["url"]).stem, contents[name]
