"""Unpacked places: images, tars or datasets below a place without a manifest, and the command for them."""

from __future__ import annotations

import shlex
from collections import Counter

from shardflow._cores import allowed_cores
from shardflow._wording import plural, size_text
from shardflow.errors import ShardflowError
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.manifest import FILE_NAME as MANIFEST
from shardflow.formats.quarantine import FILE_NAME as UNFINISHED_PACK
from shardflow.storage.interface import Storage

from .write_lock import FILE_NAME as LOCK

_LISTED = 10_000
"""Files that are listed at most: ten requests to a bucket."""

_MS_PER_IMAGE, _MS_PER_MB = 1.0, 6.5
"""CPU time of packing to a short side of 256: docs/performance.md has 1.1 ms for 0.2 megapixels, 24 for 12 (3.5 MB)."""


def packing_command(storage: Storage) -> str:
    """Return the command for a place with images or tars, with their number and size, and the time that it takes. Where
    datasets are below it, as after `split --folds`, return the name of one.

    "" where it holds neither, or cannot be listed. The listing is bounded: beyond it, there is at least so much.
    """
    try:
        found = storage.listing(most=_LISTED)
    except (ShardflowError, OSError):
        return ""
    place, least = str(storage).rstrip("/"), "at least " if len(found) >= _LISTED else ""
    if inside := sorted(name for name in found if name.endswith(f"/{MANIFEST}")):
        return (
            f"it has {least}{plural(len(inside), 'dataset')}: name one, such as {place}/{inside[0].rpartition('/')[0]}"
        )
    tars = {name.removesuffix(".tar") for name in found if name.endswith(".tar")}
    if not {UNFINISHED_PACK, LOCK}.isdisjoint(found) or any(name.removesuffix(".npy") in tars for name in found):
        return ""  # a pack was not finished, or a dataset has lost its manifest
    counts, sizes = Counter[str](), Counter[str]()
    for name, blob in found.items():
        extension = name.rpartition(".")[2].lower()
        kind = "tar" if extension == "tar" else "image" if extension in SOURCE_PARTS else ""
        counts[kind] += 1
        sizes[kind] += max(0, blob.size)
    kind = max(("image", "tar"), key=counts.__getitem__)
    if not counts[kind]:
        return ""
    held = f"{least}{plural(counts[kind], kind)}, {size_text(sizes[kind])}"
    if kind == "tar":
        command = ["shardflow", "index", f"{place}/", "--to", f"{place.rpartition('/')[2]}-index"]
        return f"`{shlex.join(command)}` makes a dataset of its {held}, which are read once"
    command = ["shardflow", "pack", place, f"{place}-256"]
    cpu_s = (counts[kind] * _MS_PER_IMAGE + sizes[kind] / 1e6 * _MS_PER_MB) / 1000
    cores = allowed_cores()
    return f"`{shlex.join(command)}` packs its {held}, in about {_duration(cpu_s / cores)} on {plural(cores, 'core')}"


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(1, seconds):.0f} s"
