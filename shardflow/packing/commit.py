"""The commit: receipts become a manifest, and the manifest makes the dataset.

Everything is counted here from the receipts alone, so it comes out the same whether the jobs were just done or done
by an earlier attempt. The manifest is written last, create-only: before it there is no dataset. An extension puts a new
version in its place in one step, and keeps the old one beside it.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from shardflow.errors import DatasetExistsError, PackIncompleteError
from shardflow.formats import manifest
from shardflow.formats.receipt import Quarantined, Receipt
from shardflow.formats.sharding import Sharding
from shardflow.formats.statistics import PixelSums, Statistics
from shardflow.storage.storage import Storage
from shardflow.storage.write_lock import abort_uploads, release

from .image.codecs import codecs
from .ledger import Ledger
from .recipe import Recipe
from .report import PackReport

_NAMED = 3


def commit(
    ledger: Ledger,
    layout: Sharding,
    *,
    classes: tuple[str, ...] | None,
    recipe: Recipe,
    max_bad: int,
    ignored: Mapping[str, int],
    replacing: manifest.Manifest | None = None,
    before: Mapping[str, Receipt] | None = None,
) -> PackReport:
    """Write `quarantine.jsonl` and, when no more than `max_bad` inputs are in it, the manifest.

    Args:
        ledger: Has the receipts of all jobs of the layout.
        layout: The jobs.
        classes, recipe: What the manifest says of them.
        max_bad: Inputs that may be quarantined, besides those that were so in the version that is replaced.
        ignored: For the report.
        replacing: The version whose place the new one takes; it is kept under another name. None for the first one.
        before: The receipts of that version by the names of the jobs.

    Raises:
        PackIncompleteError: More are quarantined, or nothing could be packed.
        DatasetExistsError: Somebody else committed meanwhile.
    """
    splits: dict[str, list[manifest.Shard]] = {split: [] for split in layout.jobs}
    quarantined: list[Quarantined] = []
    old = before or {}
    bad: list[Quarantined] = []  # among what is new
    statistics = {split: Statistics() for split in splits}
    pixels, bytes_in = PixelSums(), 0
    for name in layout.names():
        receipt = old[name] if name in old else ledger.receipt(name)
        quarantined += receipt.quarantined
        if name not in old:
            bad += receipt.quarantined
        pixels += receipt.pixels
        bytes_in += receipt.bytes_in
        split = name.partition("/")[0]
        statistics[split] += receipt.statistics
        if receipt.shard is not None:
            splits[split].append(receipt.shard)
    ledger.write_quarantine(sorted(quarantined))
    shards = [shard for entries in splits.values() for shard in entries]
    inputs = sum(layout.inputs.values())
    if len(bad) > max_bad or not shards:
        fresh = inputs - (replacing.inputs if replacing is not None else 0)
        raise PackIncompleteError(_refusal(ledger, sorted(bad), fresh, max_bad))
    ledger.remove_strangers(layout.names())

    from shardflow import __version__  # here, because shardflow imports this package while it is being imported

    made = manifest.Manifest(
        splits={split: tuple(entries) for split, entries in splits.items()},
        classes=classes,
        recipe=recipe.describe(),
        tools={"shardflow": __version__, **codecs()},
        inputs=inputs,
        mean=pixels.mean,
        std=pixels.std,
        statistics=statistics,
        sharding=layout,
    )
    abort_uploads(ledger.storage, {shard.name for shard in shards})
    if replacing is None:
        ledger.storage.put_new(manifest.FILE_NAME, made.to_bytes())
    else:
        _replace(ledger.storage, replacing, made)
    release(ledger.storage)
    return PackReport(
        fingerprint=made.fingerprint,
        inputs=inputs,
        packed=made.samples,
        quarantined=len(quarantined),
        reasons=Counter(re.sub(r"\d+", "N", f"{bad.stage}: {bad.reason}") for bad in quarantined),
        ignored=ignored,
        shards=len(shards),
        bytes_in=bytes_in,
        bytes_out=sum(shard.bytes for shard in shards),
        counts=sum(statistics.values(), Statistics()).counts,
    )


def _replace(storage: Storage, old: manifest.Manifest, new: manifest.Manifest) -> None:
    """Put one version in the place of another, which is kept first: at any moment one of them is there, whole."""
    found = storage.read(manifest.FILE_NAME)
    if manifest.from_bytes(found).fingerprint != old.fingerprint:
        raise DatasetExistsError(f"{storage} was extended by another process meanwhile; run the same command again")
    with contextlib.suppress(DatasetExistsError):  # by an attempt that was killed right here
        storage.put_new(manifest.kept_name(old.fingerprint), found)
    storage.put(manifest.FILE_NAME, new.to_bytes())


def _refusal(ledger: Ledger, quarantined: Sequence[Quarantined], inputs: int, max_bad: int) -> str:
    named = "; ".join(f"{bad.path!r} ({bad.stage}: {bad.reason})" for bad in quarantined[:_NAMED])
    more = f"; {len(quarantined) - _NAMED} more" if len(quarantined) > _NAMED else ""
    listed = f"{named}{more}, all listed in {ledger.storage.url(manifest.QUARANTINE_NAME)}"
    if len(quarantined) == inputs:
        return f"none of the {inputs} inputs could be packed: {listed}; is this the right directory?"
    return (
        f"{len(quarantined)} of {inputs} inputs could not be packed, {max_bad} are allowed: {listed}. Mend or remove "
        f"them, or allow them with --max-bad {len(quarantined)}, then run the same command again: what was packed stays"
    )
