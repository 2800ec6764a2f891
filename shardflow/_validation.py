"""Argument checks: one rule and one wording for numbers, ranges, sizes and callables. Each raises `ConfigError`."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, ParamSpec, SupportsIndex, TypeVar

import numpy as np

from .errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def check_integer(name: str, value: SupportsIndex, least: int | None = None, most: int | None = None) -> int:
    """Return the value as an `int`. numpy's integers are accepted, but must not end up in a saved state."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):  # True is 1 for Python, and a mistake here
        raise ConfigError(f"{name} must be a whole number, found {value!r}")
    if least is not None and number < least:
        raise ConfigError(f"{name} must be {least} or more, found {number}")
    if most is not None and number > most:
        raise ConfigError(f"{name} must be {most:,} or less, found {number:,}")
    return number


def check_switch(name: str, value: object) -> bool:
    """Return the value as a `bool` if it is True or False, also numpy's."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, found {value!r}")
    return bool(value)


def check_share(name: str, value: float) -> float:
    """Return the value if it is above 0 and below 1."""
    if not isinstance(value, Real) or not 0 < value < 1:
        raise ConfigError(f"{name} must be above 0 and below 1, found {value!r}")
    return value


def check_probability(name: str, value: float, *, most: float = 1) -> float:
    """Return the value if it is within 0 … `most`."""
    if isinstance(value, bool):  # other libraries have a switch here
        raise ConfigError(f"{name} must be a probability, 0 … {most}, such as 0.5; found {value}")
    if not isinstance(value, Real) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be 0 … {most}, found {value}")
    return value


def check_range(
    name: str, value: tuple[float, float], *, most: float = math.inf, or_zero: bool = False
) -> tuple[float, float]:
    """Return the value if it is a pair with 0 < low <= high <= `most`; `or_zero` allows low = 0."""
    try:
        low, high = value
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a range (low, high), found {value!r}") from None
    are_numbers = isinstance(low, Real) and isinstance(high, Real)
    if not are_numbers or not (low > 0 or (or_zero and low == 0)) or not low <= high <= most or high == math.inf:
        within = "above 0" if most == math.inf else f"within {'[' if or_zero else '('}0, {most}]"
        raise ConfigError(f"{name} must be a range (low, high) {within}, found {value}")
    return value


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the closest of the words, or "" if none is close."""
    by_name = {name.lower(): name for name in reversed([*words])}
    close = difflib.get_close_matches(str(word).lower(), list(by_name), n=1)
    return f" (did you mean {by_name[close[0]]!r}?)" if close else ""


def check_names(names: Iterable[str], own: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Raise ConfigError, with a remedy, for a name that is not among the arguments `own`; see below."""
    for name in names:
        if name not in own:
            why = f"; {elsewhere[name]}" if name in elsewhere else did_you_mean(name, own)
            raise ConfigError(f"there is no argument {name!r}{why or '; there are ' + ', '.join(own)}")


def is_series(values: object) -> bool:
    """Return whether these are a pandas Series, without importing pandas."""
    return hasattr(values, "reindex") and hasattr(values, "index")


def explain_unknown_arguments(elsewhere: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function raise ConfigError, with a remedy, for unknown arguments and for positional ones that need a name.

    `elsewhere` maps arguments of other libraries to the equivalent here.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters.values()
        own = [each.name for each in parameters if each.name != "self"]
        unnamed = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(args) > len(unnamed):
                named = ", ".join(f"{name}=" for name in own if name not in unnamed)
                after = f" after {unnamed[-1]!r}" if unnamed[-1] != "self" else ""
                raise ConfigError(f"write the name of each argument{after}: one of {named}")
            check_names(kwargs, own, elsewhere)
            return function(*args, **kwargs)

        return checked

    return decorate


def check_callable(name: str, value: Any, gets: str = "") -> None:
    """Check that an optional argument is None or callable, and not a class that was not instantiated.

    If it is called with one argument, `gets` describes that, and the value's signature must take it.
    """
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be callable, found {value!r}")
    if isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__):
        raise ConfigError(f"{name} must be an instance, such as {value.__name__}(), found the class")
    if value is not None and gets and (signature := _signature(value)) is not None:
        try:
            signature.bind(None)
        except TypeError:
            raise ConfigError(f"{name} gets one argument, {gets}; found one that takes {signature}") from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None for builtins without one."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def size_in_bytes(size: int | str) -> int:
    """Return the number of bytes of a size such as 10**9, "1GB", "1.5 TB" or "64GiB"; a text needs a unit."""
    if isinstance(size, int) and size >= 0:
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?=[kmgtb])([kmgt]?i?)b?", str(size).strip().lower())
    if found is None or found[2] not in _UNITS:
        expected = "a size must be a number of bytes, or a text with a unit such as '500MB', '1.5TB', '64GiB'"
        raise ConfigError(f"{expected}, found {size!r}")
    return int(float(found[1]) * _UNITS[found[2]])
