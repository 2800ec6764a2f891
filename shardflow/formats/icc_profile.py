"""ICC profiles of three curves and a matrix, as cameras, screens and RGB spaces have them.

Source: ICC.1:2022, 7.2 (header), 7.3 (tags), 8.3.3 (matrix models), 10.6 and 10.18 (curves), 10.31 (XYZ numbers).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_COLUMNS = (b"rXYZ", b"gXYZ", b"bXYZ")
_CURVES = (b"rTRC", b"gTRC", b"bTRC")
_TABLES = (b"A2B", b"D2B")  # tags with these prefixes take precedence over curves and a matrix
_PARAMETERS = (1, 3, 4, 5, 7)
"""Number of parameters of each type of parametric curve."""


class MatrixProfile(NamedTuple):
    """Curves from each 8-bit level to linear light [3, 256], and the matrix [3, 3] from that to XYZ for D50."""

    curves: npt.NDArray[np.float64]
    matrix: npt.NDArray[np.float64]


def matrix_profile(profile: bytes) -> MatrixProfile | None:
    """Return the curves and the matrix of an RGB profile; None if the profile is damaged or of another kind."""
    if profile[16:24] != b"RGB XYZ " or profile[36:40] != b"acsp":
        return None
    try:
        (count,) = struct.unpack_from(">I", profile, 128)
        tags = {
            name: profile[offset : offset + size]
            for name, offset, size in struct.iter_unpack(">4sII", profile[132 : 132 + 12 * count])
        }
        if any(name.startswith(_TABLES) for name in tags):
            return None
        columns = [struct.unpack_from(">4s4x3i", tags[name]) for name in _COLUMNS]
        curves = np.array([_curve(tags[name]) for name in _CURVES])
    except (KeyError, ValueError, struct.error):
        return None
    if any(kind != b"XYZ " for kind, *_ in columns) or not np.isfinite(curves).all():
        return None
    return MatrixProfile(curves.clip(0, 1), np.array([numbers for _, *numbers in columns]).T / 65536)


def _curve(tag: bytes) -> npt.NDArray[np.float64]:
    """Return the values of a curve at the 256 8-bit levels; ValueError or struct.error if the tag is damaged."""
    kind, number = struct.unpack_from(">4s4xH", tag)
    levels = np.linspace(0, 1, 256)
    if kind == b"curv":
        (count,) = struct.unpack_from(">I", tag, 8)
        values = np.frombuffer(tag, ">u2", count, 12)
        if count == 0:
            return levels
        if count == 1:
            return np.asarray(levels ** (values[0] / 256))
        return np.interp(levels, np.linspace(0, 1, count), values / 65535)
    if kind != b"para" or number >= len(_PARAMETERS):
        raise ValueError(f"no curve of type {kind!r} {number}")
    g, a, b, c, d, e, f = _parameters(number, np.frombuffer(tag, ">i4", _PARAMETERS[number], 12) / 65536)
    with np.errstate(all="ignore"):
        return np.where(levels >= d, (a * levels + b) ** g + e, c * levels + f)


def _parameters(number: int, given: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Return g, a, b, c, d, e and f of the curve Y = (aX + b)^g + e for X >= d, and Y = cX + f for X < d."""
    numbers: list[float] = given.tolist()
    g, a, b, c, d, e, f = numbers + [0.0] * (7 - len(numbers))
    if number == 0:
        return g, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    if number == 1:
        return g, a, b, 0.0, -b / a if a else 2.0, 0.0, 0.0
    if number == 2:
        return g, a, b, 0.0, -b / a if a else 2.0, c, c
    return g, a, b, c, d, e, f
