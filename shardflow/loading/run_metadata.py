"""Run metadata: the description of a run's data for its log, as plain JSON."""

from __future__ import annotations

import functools
import inspect
import json
import re
from importlib import metadata
from typing import Any

from shardflow import native
from shardflow.dataset.open_dataset import Dataset

_PACKAGES = ("torch", "torchvision", "webdataset", "numpy", "pillow")


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the identity and recipe of a dataset, without credentials."""
    roots = {name: root.to_json() for name, root in dataset.manifest.roots.items()}
    return {
        "url": dataset.url,
        "fingerprint": dataset.fingerprint,
        "recipe": json.loads(json.dumps(dict(dataset.recipe))),
        "classes": None if dataset.classes is None else len(dataset.classes),
        **({"bases": roots} if roots else {}),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of everything that pixels may depend on, including the native kernel and libjpeg-turbo."""
    return {
        "shardflow": metadata.version("shardflow"),
        "native kernel": native.describe() if native.available() else f"not active: {native.describe()}",
        **{package: package_version(package) for package in _PACKAGES},
    }


def package_version(package: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe_object(thing: Any) -> str | None:
    """Return a decoder or transform as text that is equal in every process."""
    if thing is None:
        return None
    if isinstance(thing, functools.partial):
        arguments = [*map(repr, thing.args), *(f"{name}={value!r}" for name, value in thing.keywords.items())]
        text = f"partial({', '.join([str(describe_object(thing.func)), *arguments])})"
    elif inspect.isroutine(thing):
        text = f"{thing.__module__}.{thing.__qualname__}"
    elif type(thing).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        public = {name: value for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}
        text = f"{type(thing).__qualname__}({', '.join(f'{name}={value!r}' for name, value in public.items())})"
    else:
        text = repr(thing)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
