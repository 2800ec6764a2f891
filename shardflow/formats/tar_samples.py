"""Samples of a tar: in the WebDataset convention, consecutive members named KEY.PART with one key are a sample.

Source: https://github.com/webdataset/webdataset, "The WebDataset Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardflow.errors import ConfigError, TarError

from .tar_members import TarBytes, members
from .ustar import BLOCK

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
"""The first bytes of compressed files, which may be named `.tar`: Python's tarfile expands them without a word."""

MAX_PARTS = 1000
"""The most parts of a sample in a tar of another writer."""


def split_member_name(name: str) -> tuple[str, str] | None:
    """Return key and part of a member's name, split at the first dot of its last segment; None if either is empty.

    >>> split_member_name("train/0001.seg.png")
    ('train/0001', 'seg.png')
    """
    folder, slash, base = name.rpartition("/")
    stem, _, part = base.partition(".")
    return (folder + slash + stem, part) if stem and part else None


@dataclass(slots=True)
class TarSample:
    """The members of a tar that share a key."""

    key: str  # "" for everything after the damage in a tar
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)  # in lower case → offset and size of the payload
    key_offset: int | None = None  # of the key in the tar; None if a header splits the name in two
    problem: str = ""  # why the sample cannot be used


def read_samples(tar: TarBytes, url: str = "the tar") -> Iterator[TarSample]:
    """Yield the samples of a tar in order. If the tar is damaged or cut short, a last sample without a key says so.

    Raises:
        ConfigError: The tar, named by its `url` in the message, is compressed.
    """
    sample: TarSample | None = None
    damage = ""
    try:
        for name, offset, size, name_offset, is_link in members(tar):
            if (key_and_part := split_member_name(name)) is None:
                continue  # such as __metadata__, which webdataset skips as well
            key, part = key_and_part[0], key_and_part[1].lower()
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = TarSample(key)
            if len(sample.parts) == MAX_PARTS:
                sample.problem = f"has more than {MAX_PARTS} parts"
                continue
            if part in sample.parts:
                sample.problem = f"has two parts {part!r}"
            if is_link:
                sample.problem = f"its part {part!r} is a link; write the tar with --dereference --hard-dereference"
            sample.parts[part] = (offset, size)
            if sample.key_offset is None:
                sample.key_offset = name_offset
    except TarError as error:
        head, damage = bytes(tar.read(0, BLOCK)), str(error)
        compression = next((each for magic, each in _COMPRESSIONS.items() if head.startswith(magic)), None)
        if sample is None and compression is not None:
            raise ConfigError(f"{url} is compressed by {compression}; decompress it first") from error
    if sample is not None:
        if damage and not sample.problem:
            sample.problem = "parts of it may be missing: it is the last one before the tar is damaged"
        yield sample
    if damage:
        after = f"after sample {sample.key!r}" if sample is not None else "from its start"
        lost = "the rest is lost" if sample is not None else "all samples in it are lost"
        yield TarSample("", problem=f"{after} the tar cannot be read: {damage}; {lost}")
