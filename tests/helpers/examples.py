"""How many examples a property test tries: `--hypothesis-profile long` multiplies those of all tests.

A test gives its number of examples for the long run; Hypothesis tries 100 where a test gives none. The profiles are in
tests/conftest.py.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def some_of(count: int) -> int:
    """Return how many of the long run's examples this run tries."""
    return max(1, count * settings.default.max_examples // LONG)


def stride(step: int) -> int:
    """Return which of many places this run tries: every `step`-th in the long run, and half of those in others."""
    if some_of(LONG) == LONG:
        return step
    return 2 * step - 1 if step > 1 else 2  # odd, so that each bit of a byte has its turn


def examples(count: int, parent: settings | None = None, **others: Any) -> settings:
    """Return Hypothesis's settings for a test with so many examples in the long run."""
    return settings(parent, max_examples=some_of(count), **others)


LONG = 100
"""The examples of a property in the long run, by default."""
