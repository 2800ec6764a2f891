"""The parts of a transform: what it holds and what its functions use, wherever they are nested."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType

import numpy as np

_PLAIN = (bool, int, float, str, np.generic)
_USED = (list, tuple, dict, np.ndarray)
_MOST_BYTES = 2**20
_MOST_OBJECTS = 1000  # that are looked into: a transform may hold a whole model


def parts_of(root: object, is_leaf: Callable[[object], bool] = lambda _: False) -> Iterator[object]:
    """Yield an object and its parts, in their order; those of a leaf are left out, and all beyond the first 1,000."""
    seen, left = dict[int, object](), [root]
    for number in range(_MOST_OBJECTS):
        if not left:
            return
        each = left.pop()
        if id(each) not in seen:
            seen[number if isinstance(each, _PLAIN) else id(each)] = each  # kept: another could get its id
            yield each
            if not is_leaf(each):
                left += reversed([*itertools.islice(_parts(each), _MOST_OBJECTS)])


def settings_of(root: object) -> list[object]:
    """Return what may change between epochs in a transform: numbers, texts, hashes of functions and small arrays."""
    return [
        hash(each.__code__)  # other after a cell ran again
        if isinstance(each, FunctionType)
        else hash(each.tobytes() if each.nbytes <= _MOST_BYTES else None)
        if isinstance(each, np.ndarray)
        else each
        for each in parts_of(root)
        if isinstance(each, (*_PLAIN, FunctionType, np.ndarray))
    ]


def _parts(value: object) -> Iterable[object]:
    """Return the parts of an object: its items, its attributes, or the values that a function uses."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, FunctionType):
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            used = inspect.getclosurevars(value)
            values = (*used.nonlocals.values(), *used.globals.values())
            return [each for each in values if callable(each) or isinstance(each, (*_USED, *_PLAIN))]
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, MethodType):
        return (value.__self__,)
    return () if isinstance(value, (type, ModuleType)) else getattr(value, "__dict__", {}).values()
