"""The scenes of the demo's pictures: eight classes, drawn with numpy.

A scene is a function from a random generator and a size to pixels. Light, time of day and palette vary within a class
as much as between classes, so that a network distinguishes classes by shape and texture, not by colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.floating[Any]]  # [H, W], usually 0 … 1
Pixels = npt.NDArray[np.floating[Any]]  # [H, W, 3], RGB, about 0 … 1; clipped later
Scene = Callable[[np.random.Generator, int, int], Pixels]

_SKIES = (  # at the top, at the horizon; the last is at night
    ((0.25, 0.48, 0.82), (0.78, 0.88, 0.95)),
    ((0.30, 0.25, 0.48), (0.98, 0.62, 0.36)),
    ((0.55, 0.60, 0.66), (0.86, 0.87, 0.88)),
    ((0.05, 0.07, 0.18), (0.24, 0.26, 0.42)),
)


def bricks(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw a brick wall, seen slightly from the side."""
    x, y = _tilted_grid(rng, width, height, 0.12)
    course = rng.uniform(26, 48)
    length = course * rng.uniform(2.0, 2.8)
    row = np.floor(y / course)
    shifted = x / length + 0.5 * (row % 2)
    column = np.floor(shifted)
    across, along = y / course - row, shifted - column
    mortar = np.minimum(np.minimum(across, 1 - across) * course, np.minimum(along, 1 - along) * length)
    tone = _cell_noise(rng, column, row)
    palette = ((0.62, 0.28, 0.20), (0.74, 0.66, 0.54), (0.42, 0.40, 0.40), (0.80, 0.48, 0.30))
    brick = _colour(palette[rng.integers(len(palette))]) * (0.7 + 0.5 * tone)[..., None]
    brick *= (0.8 + 0.4 * _noise(rng, width, height, 60, octaves=5))[..., None]
    joint = _colour((0.72, 0.70, 0.66)) * rng.uniform(0.5, 1.1) * (0.8 + 0.3 * _noise(rng, width, height, 8))[..., None]
    return _mix(joint, brick, _step(mortar - rng.uniform(1.5, 3.0), 1.5))


def city(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw rows of houses with windows, by day or by night."""
    pixels, night = _sky(rng, width, height)
    for depth in (0.5, 0.75, 1.0):
        left = -int(rng.integers(0, 40))
        while left < width:
            wide, top = int(rng.integers(44, 96)), int(height * (1 - depth * rng.uniform(0.3, 0.85)))
            tone = _colour(rng.uniform(0.25, 0.75)) * rng.uniform(0.85, 1.15, 3).astype(np.float32)
            wall = _mix(tone, pixels[0, 0], np.float32(0.6 * (1 - depth))) * np.float32(0.35 if night else 1.0)
            house = pixels[top:, max(left, 0) : left + wide]
            house[...] = wall
            step = rng.uniform(11, 19)
            across = (np.arange(max(left, 0), min(left + wide, width)) - left)[None, :] / step
            down = np.arange(height - top)[:, None] / (step * 1.25)
            lit = _cell_noise(rng, np.floor(across), np.floor(down)) > (0.45 if night else 0.9)
            glass = np.where(lit[..., None], _colour((1.0, 0.85, 0.5)), wall * 0.5 + 0.05)
            window = (across % 1 > 0.35) & (down % 1 > 0.4)
            house[window] = glass[window]
            left += wide + int(rng.integers(-8, 14))
    return pixels


def dunes(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw sand dunes with ripples."""
    pixels, _ = _sky(rng, width, height)
    x, y = _grid(width, height)
    hues = ((0.90, 0.70, 0.44), (0.86, 0.82, 0.74), (0.78, 0.46, 0.30))
    hue = _colour(hues[rng.integers(len(hues))])
    horizon = rng.uniform(0.15, 0.4) * height
    for layer in range(5):
        phase, period = rng.uniform(0, 6.3), rng.uniform(0.7, 1.5) * width
        crest = horizon + layer * (height - horizon) / 5 + 0.07 * height * np.sin(6.3 * x / period + phase)
        below = y - crest
        slope = np.cos(6.3 * x / period + phase + 0.01 * below) * rng.choice((-1, 1))
        ripples = np.sin((below * rng.uniform(0.5, 0.8) + 5 * np.sin(x / 45 + phase)) * (0.4 + 0.5 / (1 + layer)))
        light = 0.78 + 0.24 * np.tanh(2 * slope) + 0.05 * ripples - 0.0006 * below
        pixels = _mix(pixels, hue * light[..., None], _step(below, 1))
    return pixels


def forest(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw tree trunks in front of leaves."""
    leaves = 0.6 * _noise(rng, width, height, 60, octaves=3) + 0.7 * _noise(rng, width, height, 9, octaves=3) - 0.15
    tones = ((0.20, 0.42, 0.14), (0.75, 0.45, 0.12), (0.55, 0.62, 0.20), (0.70, 0.74, 0.78))
    pixels: Pixels = _colour(tones[rng.integers(len(tones))]) * (0.1 + 1.4 * leaves.clip(0, 1) ** 1.5)[..., None]
    x, y = _grid(width, height)
    ground = height * rng.uniform(0.75, 0.95)
    pixels = _mix(pixels, _colour((0.30, 0.24, 0.16)) * (0.5 + leaves)[..., None], _step(y - ground - 20 * leaves, 3))
    bark = 0.6 + 0.8 * _noise(rng, width, height, (6, 40), octaves=3)
    far = pixels.mean((0, 1))
    for depth in np.linspace(0.35, 1.0, int(rng.integers(7, 13))).tolist():
        radius = width * 0.03 * depth * rng.uniform(0.6, 1.5)
        rows = y[:, :1]
        centre = rng.uniform(0, width) + rng.uniform(-0.12, 0.12) * (rows - height / 2) + 6 * np.sin(rows / 70)
        columns = slice(max(int(centre.min() - radius) - 2, 0), max(int(centre.max() + radius) + 3, 0))
        offset = (x - centre)[:, columns] / np.float32(radius)
        shade = np.sqrt(np.clip(1 - 0.8 * (offset + 0.3) ** 2, 0.04, 1))
        tone = _colour((0.36, 0.28, 0.20)) * rng.uniform(0.4, 1.9) * (shade * bark[:, columns])[..., None]
        tone = _mix(far, tone, np.float32(depth))
        inside = _step(1 - np.abs(offset), 2 / radius) * (y[:, columns] < ground + 0.2 * height * depth)
        pixels[:, columns] = _mix(pixels[:, columns], tone, inside)
    return pixels


def marbles(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw balls of glass and rubber on a table."""
    grain = _noise(rng, width, height, (90, 12), octaves=4)
    pixels = _colour(rng.uniform(0.3, 0.9, 3)) * (0.7 + 0.5 * grain)[..., None]
    x, y = _grid(width, height)
    towards = rng.uniform(-0.7, 0.7)
    for _ in range(int(rng.integers(6, 14))):
        radius = rng.uniform(0.07, 0.19) * height
        cx, cy = rng.uniform(0, width), rng.uniform(0, height)
        reach = 3 * radius  # where the shadow has faded
        box = slice(max(int(cy - reach), 0), int(cy + reach)), slice(max(int(cx - reach), 0), int(cx + reach))
        u, v, part = (x[box] - cx) / radius, (y[box] - cy) / radius, pixels[box]
        part = part * (1 - 0.5 * np.exp(-(((u + towards) / 1.3) ** 2 + (v - 0.75) ** 2) / 0.6))[..., None]
        depth = np.sqrt(np.clip(1 - u * u - v * v, 0, 1))
        light = np.clip(towards * u - 0.55 * v + 0.65 * depth, 0, 1)
        swirl = 0.7 + 0.3 * np.sin(6 * u * rng.uniform(0, 1) + 5 * v * rng.uniform(0, 1) + 4 * depth)
        ball = _colour(rng.uniform(0.1, 1.0, 3)) * (swirl * (0.25 + 0.85 * light))[..., None]
        ball = ball + (0.9 * light**24)[..., None]
        pixels[box] = _mix(part, ball, _step(1 - np.hypot(u, v), 2 / radius))
    return pixels


def mountains(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw mountain ridges in haze, some with snow."""
    pixels, _ = _sky(rng, width, height)
    haze = pixels[-1, 0]
    _, y = _grid(width, height)
    rock = _noise(rng, width, height, (45, 70), octaves=5)
    relief = np.gradient(rock, axis=1) * 28 * rng.choice((-1, 1))
    tone = _colour(((0.30, 0.34, 0.26), (0.34, 0.30, 0.32), (0.46, 0.38, 0.28))[rng.integers(3)])
    snow_line = height * rng.uniform(0.1, 0.6)
    layers = int(rng.integers(3, 6))
    for layer in range(layers):
        near = (layer + 1) / layers
        ridge = _noise(rng, width, 1, rng.uniform(90, 220), octaves=6)[0]
        crest = height * (0.95 * near**1.2 - rng.uniform(0.55, 0.75) * ridge * (1.2 - 0.5 * near) + 0.15)
        below = y - crest
        light = 0.6 + 0.4 * np.tanh(np.roll(relief, 60 * layer, axis=1)) + 0.3 * (rock - 0.5)
        face = tone * light[..., None] * 1.4
        snow = _step(snow_line - y + 110 * (rock - 0.5) + 0.3 * (y - below - snow_line), 6) * (near < 0.9)
        face = _mix(face, _colour(0.95) * (0.6 + 0.5 * light)[..., None], snow)
        pixels = _mix(pixels, _mix(haze, face, np.float32(0.25 + 0.75 * near)), _step(below, 1.5))
    return pixels


def pebbles(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw rounded stones side by side."""
    size = rng.uniform(34, 70)
    x, y = _tilted_grid(rng, width, height, 0.5)
    x = x + 0.3 * size * (_noise(rng, width, height, size) - 0.5)
    column, row = np.floor(x / size).astype(np.int64), np.floor(y / size).astype(np.int64)
    jitter = rng.integers(0, 1 << 30, 3)
    first = np.full(x.shape, 9.0, np.float32)
    second = first.copy()
    tone = np.zeros_like(first)
    for dx in (-1, 0, 1):
        for dy in (-1, 0, 1):
            cx, cy = column + dx, row + dy
            px = cx + 0.15 + 0.7 * _hash(cx, cy, int(jitter[0]))
            py = cy + 0.15 + 0.7 * _hash(cx, cy, int(jitter[1]))
            distance = np.hypot(x / size - px, y / size - py).astype(np.float32)
            closer = distance < first
            second = np.where(closer, first, np.minimum(second, distance))
            tone = np.where(closer, _hash(cx, cy, int(jitter[2])), tone)
            first = np.where(closer, distance, first)
    edge = np.clip((second - first) * 2.2, 0, 1)
    dome = np.sqrt(np.clip(1 - (1 - edge) ** 2, 0, 1))
    light = np.clip(0.55 + 0.6 * np.gradient(dome, axis=rng.integers(2)) * size * 0.12 * rng.choice((-1, 1)), 0, 1.3)
    warm, cold = _colour((0.72, 0.58, 0.46)), _colour((0.48, 0.54, 0.60))
    stone = _mix(cold, warm, tone) * (0.45 + 0.75 * ((tone * 7.3) % 1))[..., None]
    stone = stone * (0.8 + 0.4 * _noise(rng, width, height, 10, octaves=3))[..., None]
    return np.asarray(stone * (dome * (0.35 + light))[..., None] + 0.04)


def sea(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Draw water to the horizon, with reflections of the sky."""
    pixels, _ = _sky(rng, width, height)
    x, y = _grid(width, height)
    horizon = height * rng.uniform(0.2, 0.6)
    below = np.clip(y - horizon, 0, None)
    near = below / (height - horizon)
    waves = np.zeros_like(y)
    for period in (6.0, 11.0, 23.0, 41.0):
        drift = x * rng.uniform(-0.012, 0.012) + 2.5 * np.sin(x / (period * rng.uniform(3, 7)) + rng.uniform(0, 6.3))
        waves += np.sin(height / period * 1.2 * np.log1p(6 * near) + drift + rng.uniform(0, 6.3)) / 4
    waves += 0.6 * (_noise(rng, width, height, (50, 7), octaves=3) - 0.5)
    deep = _colour(((0.06, 0.22, 0.34), (0.10, 0.34, 0.36), (0.22, 0.26, 0.30))[rng.integers(3)])
    water = _mix(pixels[int(horizon)][None], deep, np.clip(0.35 + 0.5 * near + 0.35 * waves, 0, 1))
    sun = np.exp(-(((x - rng.uniform(0, width)) / (12 + 120 * near)) ** 2))
    water = water + (rng.uniform(0, 0.9) * sun * np.clip(waves, 0, 1))[..., None] * _colour((1.0, 0.92, 0.75))
    foam = _step(near * waves - rng.uniform(0.25, 0.5), 0.05)
    return _mix(pixels, _mix(water, _colour(0.92), foam), _step(y - horizon, 1))


SCENES: dict[str, Scene] = {
    scene.__name__: scene for scene in (bricks, city, dunes, forest, marbles, mountains, pebbles, sea)
}


def _sky(rng: np.random.Generator, width: int, height: int) -> tuple[Pixels, bool]:
    """Return a sky with clouds, and whether it is night."""
    number = int(rng.integers(len(_SKIES)))
    above, below = (_colour(colour) for colour in _SKIES[number])
    down = np.broadcast_to(np.linspace(0, 1, height, dtype=np.float32)[:, None], (height, width))
    clouds = _noise(rng, width, height, (rng.uniform(90, 200), rng.uniform(30, 80)), octaves=5)
    cover = np.clip((clouds - rng.uniform(0.4, 0.75)) * 3, 0, 0.8) * (1 - 0.6 * down)
    return _mix(_mix(above, below, down), below * 0.6 + 0.38, cover), number == len(_SKIES) - 1


def _noise(
    rng: np.random.Generator, width: int, height: int, scale: float | tuple[float, float], octaves: int = 4
) -> Plane:
    """Return fractal noise in 0 … 1 whose largest features are `scale` pixels wide (and high)."""
    wide, high = scale if isinstance(scale, tuple) else (scale, scale)
    total = np.zeros((height, width), np.float32)
    weight = 1.0
    for _ in range(octaves):
        shape = (int(height / max(high, 1)) + 2, int(width / max(wide, 1)) + 2)
        coarse = Image.fromarray(rng.random(shape, dtype=np.float32))
        total += weight * np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
        weight, wide, high = weight / 2, wide / 2, high / 2
    low, high = float(total.min()), float(total.max())
    return (total - low) / max(high - low, 1e-6)


def _grid(width: int, height: int) -> tuple[Plane, Plane]:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    return x, y


def _tilted_grid(rng: np.random.Generator, width: int, height: int, most: float) -> tuple[Plane, Plane]:
    x, y = _grid(width, height)
    angle = rng.uniform(-most, most)
    near = 1 + rng.uniform(-0.35, 0.35) * (x / width - 0.5)
    u = (np.cos(angle) * x - np.sin(angle) * y) * near + 10_000
    v = (np.sin(angle) * x + np.cos(angle) * (y - height / 2)) * near + 10_000
    return u.astype(np.float32), v.astype(np.float32)


def _cell_noise(rng: np.random.Generator, column: Plane, row: Plane) -> Plane:
    return _hash(column.astype(np.int64), row.astype(np.int64), int(rng.integers(1 << 30)))


def _hash(column: npt.NDArray[np.int64], row: npt.NDArray[np.int64], key: int) -> Plane:
    mixed = (column * 73_856_093) ^ (row * 19_349_663) ^ key
    mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177 & 0xFFFFFFFF
    return np.asarray((mixed ^ (mixed >> 16)) & 0xFFFF, dtype=np.float32) / 0xFFFF


def _colour(value: float | Sequence[float] | npt.NDArray[Any]) -> Pixels:
    return np.broadcast_to(np.asarray(value, dtype=np.float32), (3,))


def _step(distance: Plane, softness: float) -> Plane:
    """Return 0 where `distance` is negative and 1 where it is positive, with a ramp of width `softness`."""
    return np.asarray(np.clip(distance / softness + 0.5, 0, 1))


def _mix(first: Pixels, second: Pixels, share: Plane | np.float32) -> Pixels:
    weight = np.asarray(share, dtype=np.float32)[..., None]
    return np.asarray(first * (1 - weight) + second * weight, dtype=np.float32)
