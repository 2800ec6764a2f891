"""ICC profiles, made here. Source: Specification ICC.1:2001-04, 6 and 7."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

# Columns are what red, green and blue are in XYZ, under D50.
SRGB: Matrix = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
ADOBE: Matrix = np.array([[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]])

_D50 = (0.9642, 1.0, 0.8249)


def rgb(primaries: Matrix, curve: float | bytes, more: dict[bytes, bytes] | None = None) -> bytes:
    """Return the profile of an RGB space with one curve, a gamma or a tag; `more` are tags of any other kind."""
    tags = {b"wtpt": _xyz(*_D50), **(more or {})}
    tag = curve if isinstance(curve, bytes) else _curve(curve)
    for name, column in zip((b"r", b"g", b"b"), primaries.T, strict=True):
        tags |= {name + b"XYZ": _xyz(*column), name + b"TRC": tag}
    return _profile(b"RGB ", b"XYZ ", tags)


def grey(gamma: float) -> bytes:
    """Return the profile of a grey space."""
    return _profile(b"GRAY", b"XYZ ", {b"wtpt": _xyz(*_D50), b"kTRC": _curve(gamma)})


def grey_inks() -> bytes:
    """Return the profile of a CMYK space in which every ink is grey: the less of all, the lighter."""
    corners = [[bool(number & bit) for bit in (8, 4, 2, 1)] for number in range(16)]
    lab = b"".join(bytes([round(255 * (1 - sum(inks) / 4)), 128, 128]) for inks in corners)
    identity = struct.pack(">9i", *(65536 * (place % 4 == 0) for place in range(9)))
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + identity + bytes(range(256)) * 4 + lab + bytes(range(256)) * 3
    return _profile(b"CMYK", b"Lab ", {b"wtpt": _xyz(*_D50), b"A2B0": table})


def shown(pixels: npt.NDArray[np.uint8], primaries: Matrix, gamma: float) -> Matrix:
    """Return what RGB values in such a space are in sRGB (IEC 61966-2-1), 0 … 255, clipped."""
    light = (pixels / 255) ** gamma @ primaries.T @ np.linalg.inv(SRGB).T
    light = light.clip(0, 1)
    encoded: Matrix = 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return encoded


def _profile(space: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    offset, directory, body = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        padded = data + bytes(-len(data) % 4)
        directory += name + struct.pack(">II", offset + len(body), len(data))
        body += padded
    size = 128 + len(directory) + len(body)
    head = struct.pack(">I4xI4s4s4s12x4s", size, 0x02400000, b"mntr", space, connection, b"acsp")
    head += bytes(28) + struct.pack(">3i", *(round(65536 * value) for value in _D50))
    return head.ljust(128, b"\0") + directory + body


def _xyz(*values: float) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(65536 * value) for value in values))


def table(*values: int) -> bytes:
    """Return a curve as a table of 16-bit values; none is a straight line."""
    return b"curv" + bytes(4) + struct.pack(f">I{len(values)}H", len(values), *values)


def parametric(number: int, *parameters: float) -> bytes:
    """Return a parametric curve."""
    numbers = [round(65536 * value) for value in parameters]
    return b"para" + bytes(4) + struct.pack(f">HH{len(numbers)}i", number, 0, *numbers)


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(256 * gamma))
