"""The parts of a transform: what it holds and what its functions use, wherever they are nested."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np

from shardflow import errors

_PLAIN = (bool, int, float, str, np.generic)
_LIBRARIES = tuple(f"{os.path.dirname(os.path.abspath(file))}{os.sep}" for file in (os.__file__, errors.__file__))
_MOST_BYTES = 2**20
_MOST_OBJECTS = 1000  # that are looked into: a transform may hold a whole model


def parts_of(
    root: object, is_leaf: Callable[[object], bool] = lambda _: False, *, with_classes: bool = False
) -> Iterator[object]:
    """Yield an object and its parts, in their order; those of a leaf are left out, and all beyond the first 1,000.

    `with_classes` adds the classes of objects with their functions, and all variables that functions read.
    """
    seen, left = dict[int, object](), [root]
    for number in range(_MOST_OBJECTS):
        if not left:
            return
        each = left.pop()
        if id(each) not in seen:
            seen[number if isinstance(each, _PLAIN) else id(each)] = each  # kept: another could get its id
            yield each
            if not is_leaf(each):
                left += reversed([*itertools.islice(_parts(each, with_classes), _MOST_OBJECTS)])


def settings_of(root: object) -> list[object]:
    """Return what may change between epochs in a transform: numbers, texts, hashes of functions and small arrays.

    Functions and classes of the user are followed to the variables that they read; those of libraries are not.
    """
    return [
        hash(each.__code__)  # other after a cell ran again
        if isinstance(each, FunctionType)
        else hash(each.tobytes() if each.nbytes <= _MOST_BYTES else None)
        if isinstance(each, np.ndarray)
        else each
        for each in parts_of(root, _is_of_library, with_classes=True)
        if isinstance(each, (*_PLAIN, FunctionType, np.ndarray))
    ]


def _parts(value: object, with_classes: bool) -> Iterable[object]:
    """Return the parts of an object: its items, its attributes, or the values that a function uses."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, FunctionType):
        return [each for each in _variables(value) if callable(each) or _is_followed(each, with_classes)]
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, MethodType):
        return (value.__self__,)
    if isinstance(value, type):
        functions = (getattr(each, "__func__", getattr(each, "fget", each)) for each in vars(value).values())
        return (*value.__bases__, *functions) if with_classes else ()
    own = () if isinstance(value, ModuleType) else getattr(value, "__dict__", {}).values()
    return own if not with_classes or _is_of_library(type(value)) else (*own, type(value))


def _is_followed(value: object, with_classes: bool) -> bool:
    """Return whether a variable of a function that cannot be called may be a setting, or hold some."""
    if isinstance(value, (*_PLAIN, list, tuple, dict)):
        return True
    is_namespace = isinstance(value, (SimpleNamespace, argparse.Namespace)) or not _is_of_library(type(value))
    return with_classes and (isinstance(value, np.ndarray) or is_namespace)


def _variables(function: FunctionType) -> list[object]:
    """Return the values that a function reads from the functions around it, and from its module and further ones."""
    names, codes, found = dict[str, None](), [function.__code__], list[object]()
    for code in codes:
        names |= dict.fromkeys(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]  # of functions inside
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            found.append(cell.cell_contents)
    found += [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [each for each in found if isinstance(each, ModuleType) and not _is_library(each.__name__)]
    return found + [vars(module)[name] for module in modules for name in names if name in vars(module)]


def _is_of_library(value: object) -> bool:
    return isinstance(value, (FunctionType, type)) and _is_library(value.__module__)


@functools.cache
def _is_library(module: str) -> bool:
    """Return whether a module is Python's, installed, or this package's."""
    if module == "__main__" or module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    return file is None or "-packages" in file or file.startswith(_LIBRARIES)
