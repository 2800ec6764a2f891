"""The sample recipe: how an input becomes a sample, its image by a recipe and its other parts by the annotations."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from shardflow.formats.annotations import NOTHING, Annotations
from shardflow.formats.labels import Label
from shardflow.formats.manifest import Manifest

from .annotations import check_size, transform_parts
from .image.encoded_image import EncodedImage
from .image.pipeline import pack_image
from .recipe import Recipe, recipe_of
from .shard_writer import check_sample
from .sources.reader import Input

_GEOMETRY_VERSION = 2
"""Raised whenever masks or coordinates are moved by other arithmetic: packs that were begun before are not resumed."""


class PackedSample(NamedTuple):
    """A packed sample: its image, all of its parts by name, and the number of its annotations by kind."""

    image: EncodedImage
    parts: dict[str, bytes]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecipe:
    """How inputs become samples: the recipe of their images, and which of their other parts are annotations."""

    image: Recipe
    annotations: Annotations = NOTHING

    @classmethod
    def of(cls, manifest: Manifest) -> SampleRecipe:
        """Return the recipe that a dataset was packed with; raise ConfigError where it is not known here."""
        return cls(image=recipe_of(manifest), annotations=manifest.annotations)

    @property
    def digest(self) -> str:
        """SHA-256 of all settings that the packed bytes depend on, the versions of the codecs included."""
        if not self.annotations:
            return self.image.digest
        moved_by = {"geometry": _GEOMETRY_VERSION}
        text = json.dumps([self.image.digest, self.annotations.to_json(), moved_by], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def pack(self, found: Input, label: Label) -> PackedSample:
        """Return the sample of an input; raise a SampleError if there cannot be one."""
        image = pack_image(found.image, self.image)
        check_size(found.size, image.geometry)
        beside = transform_parts(found.parts, label, image.geometry, self.annotations, max_pixels=self.image.max_pixels)
        parts = {image.part: image.image, **beside.parts}
        check_sample(parts)
        return PackedSample(image, parts, beside.counts)
