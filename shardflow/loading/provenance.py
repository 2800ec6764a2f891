"""Described: what a run has to note down of its data, as plain JSON."""

from __future__ import annotations

import functools
import inspect
import json
import re
from importlib import metadata
from typing import Any

from shardflow import native
from shardflow.dataset.dataset import Dataset

_PACKAGES = ("torch", "torchvision", "webdataset", "numpy", "pillow")


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return which dataset it is and how it was made; without credentials, as its URL is known by them alone."""
    bases = {name: base.to_json() for name, base in dataset.manifest.roots.items()}
    return {
        "url": dataset.url,
        "fingerprint": dataset.fingerprint,
        "recipe": json.loads(json.dumps(dict(dataset.recipe))),
        "classes": None if dataset.classes is None else len(dataset.classes),
        **({"bases": bases} if bases else {}),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of what pixels may depend on, the native kernel's and its libjpeg-turbo's included."""
    return {
        "shardflow": metadata.version("shardflow"),
        "native kernel": native.describe() if native.available() else f"not active: {native.describe()}",
        **{package: package_version(package) for package in _PACKAGES},
    }


def package_version(package: str) -> str:
    """Return the version of an installed package, "not installed" without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe_object(thing: Any) -> str | None:
    """Return what a decoder or a transform is, in words that are the same in every process."""
    if thing is None:
        return None
    if isinstance(thing, functools.partial):
        given = [*map(repr, thing.args), *(f"{name}={value!r}" for name, value in thing.keywords.items())]
        text = f"partial({', '.join([str(describe_object(thing.func)), *given])})"
    elif inspect.isroutine(thing):
        text = f"{thing.__module__}.{thing.__qualname__}"
    elif type(thing).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        public = {name: value for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}
        text = f"{type(thing).__qualname__}({', '.join(f'{name}={value!r}' for name, value in public.items())})"
    else:
        text = repr(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
