"""An encoder of grey baseline JPEGs that takes any coefficients and any Huffman tables, as no library does."""

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
    """Return a JPEG of one row of blocks: 64 coefficients each, in the order of files, of which the first is absolute.

    A block of more than 64 is a fault. `restart` is the number of blocks between two restart markers.
    """
    interval, codes = restart or len(blocks), (dc.codes(), ac.codes())
    scan = b""
    for number, begin in enumerate(range(0, len(blocks), interval)):
        scan += bytes([0xFF, 0xD0 + (number - 1) % 8]) if number else b""
        scan += _interval(blocks[begin : begin + interval], *codes)
    return (
        b"\xff\xd8"
        + _segment(0xDB, bytes([0, *[1] * 64]))
        + _segment(0xC0, struct.pack(">BHHBBBB", 8, 8, 8 * len(blocks), 1, 1, 0x11, 0))
        + _segment(0xC4, bytes([0x00, *dc.lengths, *dc.symbols]))
        + _segment(0xC4, bytes([0x10, *ac.lengths, *ac.symbols]))
        + (_segment(0xDD, struct.pack(">H", restart)) if restart else b"")
        + _segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0]))
        + scan
        + b"\xff\xd9"
    )


def _interval(blocks: Sequence[Sequence[int]], dc: dict[int, str], ac: dict[int, str]) -> bytes:
    bits, before = [], 0
    for block in blocks:
        bits += [*_coded(dc, 0, block[0] - before)]
        before, run = block[0], 0
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
