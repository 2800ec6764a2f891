"""Options that several commands have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*options: Decorator) -> Decorator:
    """Return what gives a command these options, which its help has in this order."""
    return lambda command: functools.reduce(lambda given, option: option(given), reversed(options), command)
