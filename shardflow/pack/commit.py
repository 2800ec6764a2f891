"""The commit: receipts become a manifest, and the manifest makes the dataset.

Everything is counted here from the receipts alone, so it comes out the same whether the jobs were just done or done
by an earlier attempt. The manifest is written last, create-only: before it there is no dataset, after it nothing
changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from shardflow import manifest
from shardflow.claim import release
from shardflow.errors import PackIncompleteError

from .job import Job
from .ledger import Ledger
from .pixels import PixelSums
from .receipt import Quarantined
from .recipe import Recipe, codecs
from .report import PackReport
from .source import Source

_NAMED = 3


def commit(ledger: Ledger, source: Source, jobs: Sequence[Job], *, recipe: Recipe, max_bad: int) -> PackReport:
    """Write `quarantine.jsonl` and, when no more than `max_bad` inputs are in it, the manifest.

    Raises:
        PackIncompleteError: More are, or nothing could be packed.
        DatasetExistsError: Somebody else committed meanwhile.
    """
    splits: dict[str, list[manifest.Shard]] = {split: [] for split in source.splits}
    quarantined: list[Quarantined] = []
    pixels, bytes_in = PixelSums(), 0
    for job, receipt in zip(jobs, ledger.receipts(jobs), strict=True):
        quarantined += receipt.quarantined
        pixels += receipt.pixels
        bytes_in += receipt.bytes_in
        if receipt.shard is not None:
            splits[job.name.partition("/")[0]].append(receipt.shard)
    ledger.write_quarantine(sorted(quarantined))
    shards = [shard for entries in splits.values() for shard in entries]
    if len(quarantined) > max_bad or not shards:
        raise PackIncompleteError(_refusal(ledger, quarantined, source.inputs, max_bad))
    ledger.remove_strangers(jobs)

    from shardflow import __version__  # here, because shardflow imports this package while it is being imported

    made = manifest.Manifest(
        splits={split: tuple(entries) for split, entries in splits.items()},
        classes=source.classes,
        recipe=recipe.describe(),
        tools={"shardflow": __version__, **codecs()},
        inputs=source.inputs,
        mean=pixels.mean,
        std=pixels.std,
    )
    ledger.store.put_new(manifest.FILE_NAME, made.to_bytes())
    release(ledger.store)
    return PackReport(
        fingerprint=made.fingerprint,
        inputs=source.inputs,
        packed=sum(shard.samples for shard in shards),
        quarantined=len(quarantined),
        reasons=Counter(re.sub(r"\d+", "N", f"{bad.stage}: {bad.reason}") for bad in quarantined),
        ignored=source.ignored,
        shards=len(shards),
        bytes_in=bytes_in,
        bytes_out=sum(shard.bytes for shard in shards),
    )


def _refusal(ledger: Ledger, quarantined: Sequence[Quarantined], inputs: int, max_bad: int) -> str:
    named = "; ".join(f"{bad.path!r} ({bad.stage}: {bad.reason})" for bad in quarantined[:_NAMED])
    more = f"; {len(quarantined) - _NAMED} more" if len(quarantined) > _NAMED else ""
    listed = f"{named}{more}, all listed in {ledger.store.url(manifest.QUARANTINE_NAME)}"
    if len(quarantined) == inputs:
        return f"none of the {inputs} inputs could be packed: {listed}; is this the right directory?"
    return (
        f"{len(quarantined)} of {inputs} inputs could not be packed, {max_bad} are allowed: {listed}. Mend or remove "
        f"them, or allow them with --max-bad {len(quarantined)}, then run the same command again: what was packed stays"
    )
