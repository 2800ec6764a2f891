"""Random numbers as a pure function of keys, computed on the keys' device.

This is `order.keyed_rng` in torch's integer arithmetic. A counter-based hash has no state, so all numbers are computed
at once, on any device, in any order, and inside a compiled graph. torch lacks most unsigned 64-bit arithmetic; signed
integers wrap around to the same bits.
"""

from __future__ import annotations

import math

import torch


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_BITS = 24
"""The precision of a float32 in [0, 1); not every device has float64."""

_TRIES = 8  # a try of Marsaglia and Tsang's method succeeds 19 times out of 20, so all fail once in 10**10


def fold(keys: torch.Tensor, part: int) -> torch.Tensor:
    """Return `keyed_rng.fold(key, part)` of each key, int64 of any shape."""
    return _mix(_mix(torch.full_like(keys, part) + _GAMMA) + keys * _GAMMA)


def uniforms(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` numbers in [0, 1) for each of the keys, int64 [B]: float32 [B, count], multiples of 2**-24."""
    # Without the exclusive-or, torch's compiler treats the range as indices, and the products overflow.
    steps = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device) ^ 0
    bits = _shift_right(_mix(keys[:, None] + steps[None, :] * _GAMMA), 64 - _BITS)
    return bits.to(torch.float32) * 2.0**-_BITS


def between(uniform: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return uniform numbers in [0, 1) scaled to [low, high)."""
    return low + uniform * (high - low)


def normals(uniform_1: torch.Tensor, uniform_2: torch.Tensor) -> torch.Tensor:
    """Return a standard normal number for each pair of uniform numbers in [0, 1) (Box and Muller, 1958)."""
    return (-2 * torch.log(1 - uniform_1)).sqrt() * torch.cos(2 * math.pi * uniform_2)


def symmetric_beta(keys: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return a number for each of the keys, int64 [B], distributed as Beta(alpha, alpha): float32 [B], within [0, 1].

    Computed from two Gamma numbers as x / (x + y), in logarithms, because they underflow for a small alpha.
    """
    uniform = uniforms(keys, 2 * (3 * _TRIES + 1)).reshape(-1, 2, 3 * _TRIES + 1)
    first, second = _log_gamma(uniform, alpha).unbind(1)
    return torch.sigmoid(first - second)


def _log_gamma(uniform: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return the logarithms of Gamma(alpha, 1) numbers, each from the uniform numbers along the last axis.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000: their method for alpha + 1, and
    their step from alpha + 1 to alpha by the power of a uniform number, for any alpha above 0.
    """
    radius, angle, test = uniform[..., :_TRIES], uniform[..., _TRIES : 2 * _TRIES], uniform[..., 2 * _TRIES : -1]
    d = alpha + 1 - 1 / 3
    normal = normals(radius, angle)
    cube = (1 + normal / math.sqrt(9 * d)).clamp(min=1e-7) ** 3
    accepted = torch.log(1 - test) < normal.square() / 2 + d - d * cube + d * torch.log(cube)
    first = accepted.to(torch.int64).argmax(-1, keepdim=True)
    return torch.log(d * cube.gather(-1, first)[..., 0]) + torch.log(1 - uniform[..., -1]) / alpha


def _mix(values: torch.Tensor) -> torch.Tensor:
    values = (values ^ _shift_right(values, 30)) * _MIX_1
    values = (values ^ _shift_right(values, 27)) * _MIX_2
    return values ^ _shift_right(values, 31)


def _shift_right(values: torch.Tensor, places: int) -> torch.Tensor:
    """Shift right and fill with zeros; torch's own shift fills with the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)
