"""Whatever the bytes are, an image's problem is its own."""

from __future__ import annotations

import gc
import io
import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardflow import native
from shardflow.errors import ConfigError, DecodeError, TooLargeError
from shardflow.formats import image_limits
from shardflow.native.binding import Header, Status
from tests.helpers import jpegs

BOX = (5, 7, 50, 30)
GOOD = jpegs.make(1)  # 64 x 48


def decode(
    payloads: list[bytes], *, box: tuple[int, int, int, int] = BOX
) -> tuple[NDArray[np.uint8], dict[int, Status]]:
    """Decode the same crop of each; returns the pixels and the problems' kinds by index."""
    out = np.full((len(payloads), 3, 24, 24), 9, np.uint8)
    boxes = np.array([box] * len(payloads), np.int32)
    problems = native.decode_views(payloads, [native.View(boxes, np.zeros(len(payloads), np.bool_), out)])
    assert all(problem.message for problem in problems)
    assert [problem.index for problem in problems] == sorted({problem.index for problem in problems})
    return out, {problem.index: problem.status for problem in problems}


def between_good(payload: bytes) -> Status | None:
    """Decode the payload between two good ones, which must not notice; returns what is wrong with it."""
    out, problems = decode([GOOD, payload, GOOD])
    wanted, none = decode([GOOD])
    assert none == {}
    np.testing.assert_array_equal(out[0], wanted[0])
    np.testing.assert_array_equal(out[2], wanted[0])
    assert set(problems) <= {1}
    status = problems.get(1)
    if status not in (None, Status.DAMAGED):
        assert (out[1] == 0).all()
    return status


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"<html><body>404</body></html>", b"\0" * 5000, b"\xff" * 5000],
    ids=["empty", "one byte", "start", "start and end", "HTML", "zeros", "ones"],
)
def test_what_is_no_jpeg(payload: bytes) -> None:
    """Bytes that are no JPEG are a problem of that sample alone, and have no header."""
    assert between_good(payload) in (Status.CORRUPT, Status.TRUNCATED)
    with pytest.raises(DecodeError):
        native.read_header(payload)


def test_bad_bytes_for_a_whole_image() -> None:
    """Decoding a whole image returns its problem too, instead of raising."""
    out = np.full((8, 8, 3), 9, np.uint8)
    problem = native.decode_resized(GOOD[:-5], out)
    assert problem is not None
    assert problem.status == Status.TRUNCATED
    assert (out == 0).all()


def test_random_bytes() -> None:
    """Random bytes, with and without the start of a JPEG before them, never decode."""
    rng = random.Random(0)
    for _ in range(300):
        noise = rng.randbytes(rng.randrange(1, 3000))
        assert between_good(noise) in (Status.CORRUPT, Status.TRUNCATED)
        between_good(b"\xff\xd8" + noise)
        between_good(GOOD[: rng.randrange(2, len(GOOD))] + noise)


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"restart_marker_blocks": 2}, {"mode": "L"}], ids=str)
def test_every_truncation(how: dict[str, object]) -> None:
    """A JPEG cut anywhere is refused, also where the crop lies above the cut."""
    payload = jpegs.make(2, 40, 32, quality=60, **how)
    cut = [payload[:length] for length in range(len(payload))]
    for box in [(0, 0, 1, 1), (3, 3, 30, 12), (0, 0, 40, 32)]:
        out, problems = decode([*cut, payload], box=box)
        assert set(problems) == set(range(len(cut)))
        assert set(problems.values()) <= {Status.TRUNCATED, Status.CORRUPT}
        assert (out[:-1] == 0).all()
        assert (out[-1] != 0).any()


def test_bytes_after_the_end_are_allowed() -> None:
    """Bytes behind the end marker do no harm, as with torchvision and Pillow."""
    out, problems = decode([GOOD, GOOD + b"\0" * 100, GOOD + b"trailing \xff bytes"])
    assert problems == {}
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[0], out[2])


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"subsampling": 0}, {"mode": "L"}], ids=str)
def test_flipped_bits(how: dict[str, object]) -> None:
    """Thousands of JPEGs with flipped bits crash nothing, and leave their neighbours and the decoder alone."""
    payload = jpegs.make(1, 64, 48, quality=70, **how)
    wanted, _ = decode([GOOD])
    rng = random.Random(3)
    for _ in range(40):
        batch = [GOOD]
        for _ in range(40):
            batch += [jpegs.flipped(payload, rng, rng.choice((1, 1, 2, 8))), GOOD]
        out, problems = decode(batch)
        assert all(index % 2 for index in problems)
        assert (out[::2] == wanted).all()


def test_damage_is_told_and_decoded() -> None:
    """Where libjpeg-turbo goes on after corrupt data, the pixels are there and the caller is told."""
    ends_early = GOOD[: len(GOOD) * 2 // 3] + b"\xff\xd9"
    out, problems = decode([ends_early], box=(0, 0, 64, 48))
    assert problems == {0: Status.DAMAGED}
    assert (out != 0).any()


@pytest.mark.parametrize(
    ("width", "height"), [(65535, 65535), (65500, 65500), (0, 48), (64, 0), (65535, 1), (20000, 9000)]
)
def test_forged_dimensions(width: int, height: int) -> None:
    """A header of a huge or an empty image is refused before memory is allocated for it."""
    for how in ({}, {"progressive": True}):
        assert between_good(jpegs.set_size(jpegs.make(1, **how), width, height)) in (
            Status.TOO_LARGE,
            Status.CORRUPT,
            Status.TRUNCATED,
            Status.BAD_BOX,
        )


def test_pixel_limit() -> None:
    """`max_pixels` is the most that is allowed."""
    out, boxes, flips = np.zeros((1, 3, 8, 8), np.uint8), np.array([BOX], np.int32), np.zeros(1, np.bool_)
    assert native.decode_views([GOOD], [native.View(boxes, flips, out)], max_pixels=64 * 48) == []
    (problem,) = native.decode_views([GOOD], [native.View(boxes, flips, out)], max_pixels=64 * 48 - 1)
    assert problem.status == Status.TOO_LARGE
    assert "64 x 48" in problem.message


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"mode": "L", "progressive": True}], ids=str)
def test_limits_are_those_of_the_header_check(how: dict[str, object]) -> None:
    """What the kernel decodes passes the check that other decoders rely on, whatever is damaged and allowed."""
    payload, rng = jpegs.make(1, 64, 48, **how), random.Random(5)
    out, boxes, flips = np.zeros((1, 3, 8, 8), np.uint8), np.array([(0, 0, 1, 1)], np.int32), np.zeros(1, np.bool_)
    agreed = Counter[bool]()
    for _ in range(1500):
        data = jpegs.flipped(payload[: rng.choice((400, 650))], rng, rng.choice((1, 2, 3))) + payload[650:]
        most = rng.choice((64 * 48 - 1, 64 * 48, 64 * 48 * 10 // 9, 64 * 48 * 10 // 9 + 1, 10_000, 20_000))
        problems = native.decode_views([data], [native.View(boxes, flips, out)], max_pixels=most)
        status = problems[0].status if problems else None
        try:
            image_limits.check_image(data, most)
            allowed = True
        except TooLargeError:
            allowed = False
        agreed[allowed] += 1
        if status in (None, Status.DAMAGED, Status.BAD_BOX):
            assert allowed
        elif status == Status.TOO_LARGE:
            assert not allowed
    assert min(agreed.values()) > 100


def test_endless_scans_are_refused() -> None:
    """A progressive file that repeats a scan thousands of times does not keep the decoder busy."""
    payload = jpegs.make(1, 64, 48, progressive=True)
    last = payload.rindex(b"\xff\xda")
    assert between_good(payload[:last] + payload[last:-2] * 3000 + payload[-2:]) == Status.TOO_LARGE


def test_what_needs_a_general_decoder() -> None:
    """CMYK, 12 bits and arithmetic coding are told apart from broken files, or are at least refused."""
    cmyk = io.BytesIO()
    Image.fromarray(jpegs.pixels(0, 64, 48)).convert("CMYK").save(cmyk, "JPEG")
    assert between_good(cmyk.getvalue()) == Status.UNSUPPORTED
    assert native.read_header(cmyk.getvalue()).components == 4
    at = jpegs.frame(GOOD)
    assert between_good(GOOD[: at + 1] + b"\xc9" + GOOD[at + 2 :]) in (Status.UNSUPPORTED, Status.CORRUPT)
    assert between_good(GOOD[: at + 1] + b"\xc3" + GOOD[at + 2 :]) in (Status.UNSUPPORTED, Status.CORRUPT)
    assert between_good(GOOD[: at + 4] + b"\x0c" + GOOD[at + 5 :]) in (Status.UNSUPPORTED, Status.CORRUPT)


def test_no_tables_from_the_image_before() -> None:
    """A file without quantisation tables is refused, not decoded with its neighbour's; without Huffman tables it is
    decoded with the standard's, as by itself."""
    bare = jpegs.without_segments(GOOD, 0xDB)
    assert between_good(bare) == Status.CORRUPT
    other = jpegs.make(5, 64, 48, optimize=True, quality=95)
    standard = jpegs.without_segments(GOOD, 0xC4)
    wanted, _ = decode([GOOD])
    out, problems = decode([other, standard, other, standard])
    assert problems == {}
    np.testing.assert_array_equal(out[1], wanted[0])
    np.testing.assert_array_equal(out[3], wanted[0])


@pytest.mark.parametrize(
    "box", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, -3), (60, 0, 5, 5), (0, 44, 5, 5), (2**31 - 1,) * 4]
)
def test_crops_outside_the_image(box: tuple[int, int, int, int]) -> None:
    """A crop that is not inside its image is that image's problem."""
    out, problems = decode([GOOD], box=box)
    assert problems == {0: Status.BAD_BOX}
    assert (out == 0).all()


@pytest.mark.parametrize(
    "resized", [(24, 24, 1, 0), (24, 24, 0, 1), (23, 24, 0, 0), (24, 24, -1, 0), (70000, 24, 0, 0)]
)
def test_windows_outside_the_resized_crop(resized: tuple[int, int, int, int]) -> None:
    """A window that is not inside the resized crop is that image's problem."""
    out, flips = np.full((1, 3, 24, 24), 9, np.uint8), np.zeros(1, np.bool_)
    (problem,) = native.decode_views(
        [GOOD], [native.View(np.array([BOX], np.int32), flips, out, resized=np.array([resized], np.int32))]
    )
    assert problem.status == Status.BAD_BOX


def test_images_of_another_size_than_expected() -> None:
    """An image that has not the size that its crop was chosen for is that image's problem; 0 expects nothing."""
    boxes, flips = np.array([BOX] * 4, np.int32), np.zeros(4, np.bool_)
    pixels = np.zeros((48, 64, 3), np.uint8)
    for expected, wrong in (((64, 48), False), ((0, 0), False), ((48, 64), True), ((64, 49), True), ((6400, 48), True)):
        out = np.full((4, 3, 8, 8), 9, np.uint8)
        sizes = np.array([(64, 48), expected, (64, 48), expected], np.int32)
        problems = native.decode_views([GOOD, GOOD, GOOD, pixels], [native.View(boxes, flips, out)], expected=sizes)
        assert [(problem.index, problem.status) for problem in problems] == (
            [(1, Status.WRONG_SIZE), (3, Status.WRONG_SIZE)] if wrong else []
        )
        assert (out[1] == 0).all() == wrong
        assert (out[0] == out[2]).all()


def test_threads_decode_side_by_side() -> None:
    """Threads that decode good and bad images at the same time get what one thread gets."""
    payloads = [jpegs.make(i, 64, 48) for i in range(8)] + [GOOD[:500], b"garbage"]
    wanted, problems = decode(payloads)
    differences: list[object] = []

    def work() -> None:
        for _ in range(150):
            out, found = decode(payloads)
            if found != problems or (out != wanted).any():
                differences.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differences == []
    assert sorted(problems) == [8, 9]


def test_memory_does_not_grow() -> None:
    """Decoding on, good and bad images alike, does not take more memory with every batch."""
    payloads = [*(jpegs.make(i, 64, 48) for i in range(20)), GOOD[:700], b"", jpegs.make(1, progressive=True)[:900]]

    def resident_bytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(20):
        decode(payloads)
    before = resident_bytes()
    for _ in range(400):
        decode(payloads)
    assert resident_bytes() - before < 2_000_000


def test_headers() -> None:
    """A header says the size, the components and whether the image is progressive."""
    found = native.read_header(jpegs.make(0, 63, 47, progressive=True))
    assert found == Header(width=63, height=47, components=3, progressive=True)
    grey = native.read_header(memoryview(jpegs.make(0, 1, 1, mode="L")))
    assert grey == Header(width=1, height=1, components=1, progressive=False)


def test_wrong_arrays() -> None:
    """Arrays of the wrong type, shape or layout raise before anything is read or written."""
    boxes, flips, out = np.array([BOX], np.int32), np.zeros(1, np.bool_), np.zeros((1, 3, 8, 8), np.uint8)
    read_only = out.copy()
    read_only.flags.writeable = False
    for arguments, name in [
        ((boxes.astype(np.int64), flips, out), "boxes"),
        ((boxes[:, :3], flips, out), "boxes"),
        ((boxes, flips.astype(np.int64), out), "flips"),
        ((boxes, np.zeros(2, np.bool_), out), "flips"),
        ((boxes, flips, out.astype(np.float32)), "out"),
        ((boxes, flips, np.zeros((2, 3, 8, 8), np.uint8)), "out"),
        ((boxes, flips, np.zeros((1, 3, 8, 16), np.uint8)[..., ::2]), "out"),
        ((boxes, flips, np.zeros((1, 3, 0, 8), np.uint8)), "out"),
        ((boxes, flips, read_only), "out"),
    ]:
        with pytest.raises(ConfigError, match=f"^{name}"):
            native.decode_views([GOOD], [native.View(*arguments)])
    with pytest.raises(ConfigError, match=r"^out"):
        native.decode_views(
            [GOOD] * 2, [native.View(boxes.repeat(2, 0), flips.repeat(2), np.broadcast_to(out, (2, 3, 8, 8)))]
        )
    with pytest.raises(ConfigError, match=r"^interpolation"):
        native.decode_views([GOOD], [native.View(boxes, flips, out)], interpolation="nearest")  # type: ignore[arg-type]
    for pixels in [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 3), np.int32),
        np.zeros((8, 0, 3), np.uint8),
        np.zeros((8, 16, 3), np.uint8)[:, ::2],
    ]:
        view = native.View(boxes.repeat(2, 0), flips.repeat(2), np.zeros((2, 3, 8, 8), np.uint8))
        with pytest.raises(ConfigError, match=r"^payload 1"):
            native.decode_views([GOOD, pixels], [view])  # type: ignore[list-item]
    assert native.decode_views([], [native.View(np.zeros((0, 4), np.int32), np.zeros(0, np.bool_), out[:0])]) == []


def test_a_crop_outside_of_pixels_is_a_problem_as_of_a_file() -> None:
    """An image that is decoded already has the same problem with a crop that is not inside it."""
    pixels = np.full((48, 64, 3), 9, np.uint8)
    out = np.full((2, 3, 8, 8), 7, np.uint8)
    boxes = np.array([(0, 0, 64, 48), (1, 0, 64, 48)], np.int32)
    (problem,) = native.decode_views([pixels, pixels], [native.View(boxes, np.zeros(2, np.bool_), out)])
    assert (problem.index, problem.status) == (1, Status.BAD_BOX)
    assert (out[0] == 9).all()
    assert not out[1].any()
