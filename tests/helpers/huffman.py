"""An encoder of baseline JPEGs that takes any coefficients, Huffman tables and sampling, as no library does."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

DC_SYMBOLS = range(16)
AC_SYMBOLS = [0x00, 0xF0, *(run << 4 | bits for run in range(16) for bits in range(1, 16))]


@dataclass(frozen=True)
class Table:
    """A Huffman table: how many codes there are of each length from 1 to 16, and their symbols in that order."""

    lengths: list[int]
    symbols: list[int]

    def codes(self) -> dict[int, str]:
        """Return symbol → code."""
        found, code, place = {}, 0, 0
        for length, count in enumerate(self.lengths, 1):
            for symbol in self.symbols[place : place + count]:
                found[symbol] = format(code, f"0{length}b")
                code += 1
            place += count
            code <<= 1
        return found


def random_table(rng: random.Random, symbols: Sequence[int]) -> Table:
    """Return a table in which any symbol may have any length that leaves room for the rest."""
    shuffled = rng.sample(symbols, len(symbols))
    lengths, free, left = [], 2, len(shuffled)
    for length in range(1, 17):
        # One code, the one of ones alone, stays free; and what is left must fit below what is not taken.
        fits = [n for n in range(min(free, left) + 1) if left - n <= ((free - n) << (16 - length)) - 1]
        count = left if length == 16 else rng.choice(fits[: 1 + len(fits) // rng.choice((1, 2, 8))])
        lengths.append(count)
        free, left = 2 * (free - count), left - count
    return Table(lengths, shuffled)


def random_tables(rng: random.Random) -> tuple[Table, Table]:
    """Return a table of all DC symbols and one of all AC symbols."""
    return random_table(rng, DC_SYMBOLS), random_table(rng, AC_SYMBOLS)


def encode(blocks: Sequence[Sequence[int]], dc: Table, ac: Table, *, restart: int | None = None) -> bytes:
    """Return a grey JPEG of one row of blocks: 64 coefficients each, in the order of files; the first is absolute.

    A block of more than 64 is a fault. `restart` is the number of blocks between two restart markers.
    """
    grey = Component(1, 1, [blocks])
    return encode_components([grey], (8 * len(blocks), 8), dc, ac, restart=restart)


@dataclass(frozen=True)
class Component:
    """A component: its sampling factors, and its blocks, row by row, as many as whole MCUs need."""

    across: int
    down: int
    blocks: Sequence[Sequence[Sequence[int]]]


def random_components(
    rng: random.Random, size: tuple[int, int], sampling: Sequence[tuple[int, int]]
) -> list[Component]:
    """Return components of random shades that an image of this size needs."""
    columns, rows = _mcus(size, sampling)

    def block() -> list[int]:
        return [rng.randint(-300, 300), *(rng.randint(-40, 40) for _ in range(5)), *[0] * 58]

    return [
        Component(across, down, [[block() for _ in range(columns * across)] for _ in range(rows * down)])
        for across, down in sampling
    ]


def encode_components(
    components: Sequence[Component],
    size: tuple[int, int],
    dc: Table,
    ac: Table,
    *,
    restart: int | None = None,
    interleaved: bool = True,
    ids: Sequence[int] = (1, 2, 3, 4),
) -> bytes:
    """Return a JPEG; of width and height. Not `interleaved`, each component has a scan of its own.

    The identifiers 82, 71 and 66 ("RGB") say that the components are no YCbCr.
    """
    sampling, codes = [(each.across, each.down) for each in components], (dc.codes(), ac.codes())
    header = b"".join(struct.pack(">BBB", ids[n], h << 4 | v, 0) for n, (h, v) in enumerate(sampling))
    scans = [range(len(components))] if interleaved else [range(n, n + 1) for n in range(len(components))]
    return (
        b"\xff\xd8"
        + _segment(0xDB, bytes([0, *[1] * 64]))
        + _segment(0xC0, struct.pack(">BHHB", 8, size[1], size[0], len(components)) + header)
        + _segment(0xC4, bytes([0x00, *dc.lengths, *dc.symbols]))
        + _segment(0xC4, bytes([0x10, *ac.lengths, *ac.symbols]))
        + (_segment(0xDD, struct.pack(">H", restart)) if restart else b"")
        + b"".join(_scan(components, scan, size, codes, restart, ids) for scan in scans)
        + b"\xff\xd9"
    )


def lossless(width: int, height: int) -> bytes:
    """Return a lossless JPEG of even grey (T.81, annex H): each sample is as predicted: one bit."""
    table = Table([1] + [0] * 15, [0])
    bits = "0" * (width * height) + "1" * (-width * height % 8)
    return (
        b"\xff\xd8"
        + _segment(0xC3, struct.pack(">BHHBBBB", 8, height, width, 1, 1, 0x11, 0))
        + _segment(0xC4, bytes([0x00, *table.lengths, *table.symbols]))
        + _segment(0xDA, bytes([1, 1, 0x00, 1, 0, 0]))  # the first predictor
        + int(bits, 2).to_bytes(len(bits) // 8, "big")
        + b"\xff\xd9"
    )


def _mcus(size: tuple[int, int], sampling: Sequence[tuple[int, int]]) -> tuple[int, int]:
    across, down = (max(factors) for factors in zip(*sampling, strict=True))
    return -(-size[0] // (8 * across)), -(-size[1] // (8 * down))


def _scan(
    components: Sequence[Component],
    members: Sequence[int],
    size: tuple[int, int],
    codes: tuple[dict[int, str], dict[int, str]],
    restart: int | None,
    ids: Sequence[int],
) -> bytes:
    """Return a scan of some of the components (T.81, A.2: the order of the blocks)."""
    sampling = [(each.across, each.down) for each in components]
    if len(members) == 1:  # without the blocks that only fill up whole MCUs
        (number,) = members
        one = components[number]
        most = [max(factors) for factors in zip(*sampling, strict=True)]
        width, height = -(-size[0] * one.across // most[0]), -(-size[1] * one.down // most[1])
        units = [[(number, block)] for row in one.blocks[: -(-height // 8)] for block in row[: -(-width // 8)]]
    else:
        columns, rows = _mcus(size, sampling)
        units = [
            [
                (number, components[number].blocks[row * v + y][column * h + x])
                for number in members
                for h, v in [sampling[number]]
                for y in range(v)
                for x in range(h)
            ]
            for row in range(rows)
            for column in range(columns)
        ]
    interval, data = restart or len(units), b""
    for number, begin in enumerate(range(0, len(units), interval)):
        data += bytes([0xFF, 0xD0 + (number - 1) % 8]) if number else b""
        data += _interval([block for unit in units[begin : begin + interval] for block in unit], *codes)
    header = bytes([len(members), *(byte for number in members for byte in (ids[number], 0x00)), 0, 63, 0])
    return _segment(0xDA, header) + data


def _interval(blocks: Sequence[tuple[int, Sequence[int]]], dc: dict[int, str], ac: dict[int, str]) -> bytes:
    bits: list[str] = []
    before: dict[int, int] = {}
    for component, block in blocks:
        bits += [*_coded(dc, 0, block[0] - before.get(component, 0))]
        before[component], run = block[0], 0
        last = max((i for i in range(1, len(block)) if block[i]), default=0)
        for value in block[1 : last + 1]:
            if not value:
                run += 1
                continue
            bits += [ac[0xF0]] * (run // 16) + [*_coded(ac, run % 16, value)]
            run = 0
        if last < 63:
            bits.append(ac[0x00])
    stream = "".join(bits)
    stream += "1" * (-len(stream) % 8)
    return int(stream, 2).to_bytes(len(stream) // 8, "big").replace(b"\xff", b"\xff\x00")


def _coded(codes: dict[int, str], run: int, value: int) -> tuple[str, str]:
    bits = abs(value).bit_length()
    low = value if value >= 0 else value + (1 << bits) - 1
    return codes[run << 4 | bits], format(low, f"0{bits}b") if bits else ""


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content
