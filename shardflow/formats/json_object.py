"""JSON objects: objects without repeated names, and dataclasses that are written to a file.

Each field of such a class declares its own entry in the file.

To add an entry to such a file, add a field to its class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from shardflow.errors import ManifestError

_Object = TypeVar("_Object", bound="JsonObject")


class Entry(NamedTuple):
    """How a field is written to a file."""

    name: str = ""  # name of the entry; that of the field if empty
    write: Callable[[Any], Any] = lambda value: value  # turns the value of the field into one that `json` writes
    read: Callable[[Any], Any] = lambda value: value  # the inverse of `write`
    fingerprinted: bool = True  # whether the entry counts for a fingerprint
    optional: bool = False  # whether the entry is left out of the file where the value is empty or None


def entry(**declared: Any) -> dict[type[Entry], Entry]:
    """Return an `Entry` as the metadata of a dataclass field."""
    return {Entry: Entry(**declared)}


def nested(kind: type[JsonObject], **declared: Any) -> dict[type[Entry], Entry]:
    """Return the entry of a field that holds another object."""
    return entry(write=kind.to_json, read=kind.from_json, **declared)


def by_name(kind: type[JsonObject], **declared: Any) -> dict[type[Entry], Entry]:
    """Return the entry of a field that holds a mapping from names to other objects."""
    return entry(
        write=lambda objects: {name: each.to_json() for name, each in objects.items()},
        read=lambda content: {name: kind.from_json(each) for name, each in content.items()},
        **declared,
    )


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, as `object_pairs_hook` of `json`; ValueError for a repeated name, which would lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(name for name in found if names.count(name) > 1)!r} twice")
    return found


@functools.cache
def entries(kind: Any) -> dict[str, tuple[str, Entry]]:
    """Return the entries of a dataclass: name → the field's name and its declaration."""
    declared = {each.name: each.metadata.get(Entry, Entry()) for each in fields(kind)}
    return {each.name or field: (field, each) for field, each in declared.items()}


class JsonObject:
    """Base of dataclasses that are written as JSON objects."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the entries, as `json` writes them."""
        return {
            name: declared.write(value)
            for name, (field, declared) in entries(type(self)).items()  # type: ignore[arg-type]
            if (value := getattr(self, field)) or not declared.optional
        }

    @classmethod
    def from_json(cls: type[_Object], content: Mapping[str, Any]) -> _Object:
        """Return the object that `to_json` wrote.

        Raises:
            ManifestError: An entry is missing, has another type, or is one that this version does not know.
        """
        known, called = entries(cls), cls.__name__.lower()  # type: ignore[arg-type]
        try:
            if unknown := content.keys() - known.keys():
                raise ManifestError(
                    f"{called} has entries that this version does not know ({', '.join(sorted(unknown))}), so a newer "
                    "one wrote it; update shardflow"
                )
            values = {}
            for name, (field, declared) in known.items():
                if name in content:
                    values[field] = declared.read(content[name])
                elif not declared.optional:
                    raise ManifestError(f"{called} has no entry {name!r}, so it is damaged; restore it")
            return cls(**values)
        except ManifestError:
            raise
        except (ValueError, TypeError, AttributeError) as error:
            raise ManifestError(f"not a {called}: {type(error).__name__}: {error}") from error
