"""Dataset cards: a README with the Hugging Face Hub's metadata, and Croissant metadata, from the manifest.

Sources: https://huggingface.co/docs/hub/datasets-cards and
https://docs.mlcommons.org/croissant/docs/croissant-spec.html (1.0).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardflow._wording import plural
from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import StoreError
from shardflow.formats.image_types import IMAGE_TYPES
from shardflow.formats.shard_layout import sample_key
from shardflow.formats.statistics import median

from . import SEAL, beside_shards, write_sealed

_OF_CROISSANT = (
    "citeAs column extract field fileProperty fileObject fileSet format includes isLiveDataset jsonPath key md5 "
    "parentField path recordSet references regex repeated replace separator source subField transform"
)
_CONTEXT: dict[str, Any] = {  # appendix 1 of the specification
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in _OF_CROISSANT.split()},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_BOUNDS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B")
_SIZES = ("n<1K", *(f"{least}<n<{most}" for least, most in itertools.pairwise(_BOUNDS)))
_DESCRIPTION = "Images in WebDataset tar shards, with an index and a checksum of every file."


def write_card(
    dataset: Dataset,
    directory: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    license: str | None = None,  # noqa: A002 - the word of both metadata formats
) -> Iterator[Path]:
    """Write README.md and croissant.json into a directory, by default next to the shards; yield the paths.

    A virtual dataset gets only README.md: Croissant lists whole tars, which may have further samples.

    Args:
        dataset: The dataset, of which no shard is read.
        directory: Created if it does not exist. Files that an earlier call wrote there are replaced.
        name: The dataset's name; by default the last part of its URL.
        license: The Hub's identifier ("cc-by-4.0") or a URL; by default the card has no license.

    Raises:
        ConfigError: One of the files exists, and was not written by this function or was edited since.
    """
    name = name or dataset.url.rstrip("/").rpartition("/")[2]
    readme = f"{card(dataset, name, license)}\n<!-- written by `shardflow export card`, {SEAL} -->\n"
    files = {"README.md": readme}
    if not dataset.manifest.roots:
        metadata = json.dumps({**croissant(dataset, name, license), "@id": SEAL}, indent=1, ensure_ascii=False)
        files["croissant.json"] = f"{metadata}\n"
    yield from write_sealed(beside_shards(dataset.storage, directory), files)


def card(dataset: Dataset, name: str, license_id: str | None) -> str:
    """Return the README: metadata in YAML (written as JSON, which is YAML too), and the dataset in tables."""
    content = dataset.manifest
    listed = None
    with contextlib.suppress(StoreError):  # some web servers have no listings
        listed = {name for name in dataset.storage.listing() if name.endswith(".tar")}
    # Tars of a virtual dataset are elsewhere. A directory can hold tars of other versions, and of unfinished work.
    is_all = listed == {shard.name for shard in dataset.shards}
    files = {
        split.name: f"{split.name}/*.tar" if is_all else [shard.name for shard in split.shards]
        for split in dataset.values()
        if not content.roots
    }
    data_files = [{"split": split, "path": path} for split, path in files.items()]
    metadata: dict[str, Any] = {
        **({} if license_id is None else {"license": license_id}),
        "pretty_name": name,
        "size_categories": [_SIZES[min(max(0, len(str(content.samples)) - 3), len(_SIZES) - 1)]],
        **({} if dataset.classes is None else {"task_categories": ["image-classification"]}),
        "tags": ["webdataset", "shardflow"],
        **({} if content.roots else {"configs": [{"config_name": "default", "data_files": data_files}]}),
    }
    splits = []
    for split in dataset.values():
        size = f"{sum(shard.bytes for shard in split.shards) / 1e6:,.1f} MB"
        splits.append(
            (split.name, f"{len(split):,}", f"{len(split.shards):,}", size, _median_size(dataset, split.name))
        )
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items()) + "---",
        f"# {_escaped(name)}",
        f"{_DESCRIPTION} {plural(content.samples, 'sample')} in {plural(len(dataset.shards), 'shard')}; fingerprint "
        f"`{dataset.fingerprint}`.",
        "## Splits",
        _table(("split", "samples", "shards", "size", "median image"), splits),
    ]
    if dataset.classes is not None:
        parts += ["## Classes", _table(("label", "class"), [(str(n), text) for n, text in enumerate(dataset.classes)])]
    made = {**dataset.recipe, **{f"version of {tool}": version for tool, version in content.tools.items()}}
    if made:
        parts += ["## How it was made", _table(("setting", "value"), [(key, _text(made[key])) for key in made])]
    parts += [
        f"Of {plural(content.inputs, 'input')}, {content.quarantined:,} could not be used (listed in the quarantine).",
        "## Reading it",
        "```python\nimport shardflow\n\n"
        f'loader = shardflow.Loader("path/or/url", split="{dataset.splits[0]}", batch_size=256)\n```',
    ]
    return "\n\n".join(parts) + "\n"


def croissant(dataset: Dataset, name: str, license_id: str | None) -> dict[str, Any]:
    """Return the Croissant metadata: each shard with size and SHA-256, the images of each split, and the classes."""
    any_key = "?" * len(sample_key(0))  # "*" would match further images and masks, such as 000000017.mask.png
    images = [f"{any_key}.{part}" for kind in IMAGE_TYPES if kind.in_shards for part in kind.parts]
    distribution: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    for split in dataset.values():
        for shard in split.shards:
            size = {"contentUrl": shard.name, "contentSize": f"{shard.bytes} B", "encodingFormat": "application/x-tar"}
            distribution.append(_node("FileObject", shard.name, **size, sha256=shard.sha256))
        files = f"{split.name}-images"
        tars = [{"@id": shard.name} for shard in split.shards]
        distribution.append(_node("FileSet", files, containedIn=tars, encodingFormat="image/*", includes=images))
        fields = [
            _node(
                "Field",
                f"{split.name}/{field}",
                dataType=kind,
                source={"fileSet": {"@id": files}, "extract": {"fileProperty": found}},
            )
            for field, kind, found in (("key", "sc:Text", "filename"), ("image", "sc:ImageObject", "content"))
        ]
        count = f"{plural(len(split), 'sample')} in {plural(len(split.shards), 'shard')}."
        records.append(_node("RecordSet", split.name, description=count, field=fields))
    if dataset.manifest.classes:
        records.append(_classes(dataset.manifest.classes))
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": _DESCRIPTION,
        "version": "1.0.0",
        "identifier": dataset.fingerprint,
        **({} if license_id is None else {"license": license_id}),
        "distribution": distribution,
        "recordSet": records,
    }


def _classes(classes: tuple[str, ...]) -> dict[str, Any]:
    fields = (("label", "sc:Integer"), ("name", "sc:Text"))
    return _node(
        "RecordSet",
        "classes",
        dataType="sc:Enumeration",
        key={"@id": "classes/label"},
        field=[_node("Field", f"classes/{field}", dataType=kind) for field, kind in fields],
        data=[{"classes/label": label, "classes/name": text} for label, text in enumerate(classes)],
    )


def _node(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": name, "name": name, **properties}


def _median_size(dataset: Dataset, split: str) -> str:
    statistics = (dataset.manifest.statistics or {}).get(split)
    if statistics is None:
        return ""
    return f"{median(statistics.widths_after)} x {median(statistics.heights_after)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(dict(value) if isinstance(value, Mapping) else value)


def _table(columns: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    cells = [columns, ("---",) * len(columns), *(tuple(map(_escaped, line)) for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _escaped(text: str) -> str:
    """Return text with all markup of Markdown and HTML escaped."""
    return re.sub(r"[^\w\s.,:;/()=+-]|_", lambda found: f"&#{ord(found[0])};", re.sub(r"\s+", " ", text))
