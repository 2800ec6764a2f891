"""Images in files have the pixels that they have in memory, and are black where a byte is another."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from shardflow import native
from shardflow.native.binding import ImageInFile, Problem, Status
from tests.helpers import jpegs

LABEL, GAP = b"17", 5
IMAGES = [jpegs.make(number, 60 + number, 50, progressive=number == 1) for number in range(4)]


@dataclass
class Samples:
    """A file of samples: a label, a gap, and an image; the CRC-32s are those of the samples as they were."""

    path: Path
    offsets: list[int]
    memory: list[bytearray]
    places: list[ImageInFile]

    def decode(self) -> tuple[list[Problem], np.ndarray]:
        """Return the problems and the pixels of all images, of which the last is in memory."""
        out = np.full((len(IMAGES), 3, 20, 30), 7, np.uint8)
        view = native.View(None, np.array([False, True, False, True]), out)
        payloads = [b"", b"", b"", IMAGES[3]]
        return native.decode_views(payloads, [view], in_files=[*self.places[:3], None]), out


@pytest.fixture
def samples(tmp_path: Path) -> Iterator[Samples]:
    """A file with the samples."""
    path, offsets, memory, places = tmp_path / "samples", [], [], []
    path.write_bytes(b"".join(b"before" + LABEL + bytes(GAP) + image for image in IMAGES))
    with path.open("rb") as file:
        at = 0
        for image in IMAGES:
            at += len(b"before")
            copied = bytearray(len(LABEL))
            address = ctypes.addressof(ctypes.c_char.from_buffer(copied))
            offsets.append(at)
            at += len(LABEL) + GAP
            parts = (address, offsets[-1], len(LABEL), zlib.crc32(LABEL)), (0, at, len(image), zlib.crc32(image))
            at += len(image)
            size = len(LABEL) + len(image)
            read = memoryview(image).toreadonly
            places.append(ImageInFile(file.fileno(), offsets[-1], at - offsets[-1], parts, size, read, (file, copied)))
            memory.append(copied)
        yield Samples(path, offsets, memory, places)


def from_memory() -> np.ndarray:
    """The pixels of all images, out of memory."""
    out = np.empty((len(IMAGES), 3, 20, 30), np.uint8)
    flips = np.array([False, True, False, True])
    assert not native.decode_views(IMAGES, [native.View(None, flips, out)])
    return out


def test_pixels_are_those_from_memory(samples: Samples) -> None:
    """Images in files and in memory form one batch, whatever their coding; parts beside the images are copied."""
    problems, out = samples.decode()
    assert not problems
    np.testing.assert_array_equal(out, from_memory())
    assert samples.memory == [LABEL, LABEL, LABEL, bytes(len(LABEL))]


@pytest.mark.parametrize("at", [0, len(LABEL) + GAP + 300], ids=["label", "image"])
def test_a_changed_byte_is_found(samples: Samples, at: int) -> None:
    """An image is unread and black if its CRC-32 differs, or that of a part beside it; its neighbours are whole."""
    data = bytearray(samples.path.read_bytes())
    data[samples.offsets[1] + at] ^= 1
    samples.path.write_bytes(data)
    problems, out = samples.decode()
    assert [(problem.index, problem.status) for problem in problems] == [(1, Status.UNREAD)]
    assert not out[1].any()
    np.testing.assert_array_equal(out[[0, 2, 3]], from_memory()[[0, 2, 3]])


def test_a_byte_between_the_parts_does_not_matter(samples: Samples) -> None:
    """Bytes that belong to no part are not checked."""
    data = bytearray(samples.path.read_bytes())
    data[samples.offsets[1] + len(LABEL) + 1] ^= 1
    samples.path.write_bytes(data)
    assert not samples.decode()[0]


def test_a_file_that_ends_too_early(samples: Samples) -> None:
    """What a file does not hold is unread."""
    samples.path.write_bytes(samples.path.read_bytes()[: samples.offsets[2] + 200])
    problems, out = samples.decode()
    assert [(problem.index, problem.status) for problem in problems] == [(2, Status.UNREAD)]
    assert not out[2].any()


def test_a_file_that_cannot_be_read(samples: Samples) -> None:
    """An error of the system is a problem of its image."""
    samples.places[0].descriptor = -1
    assert [(problem.index, problem.status) for problem in samples.decode()[0]] == [(0, Status.UNREAD)]
