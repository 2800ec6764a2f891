"""The output of `shardflow pack --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator

from shardflow.packing.dry_run import DryRun

from .shown import number_of, skipped_line

_DESTINATIONS = {
    "free": "is free",
    "unfinished": "holds an unfinished pack, which would be resumed: {finished} of {shards} shards are done",
    "dataset": "holds a dataset already, so a pack would be refused",
    "occupied": "holds other files, so a pack would be refused",
}


def dry_run_lines(counts: DryRun, dst: str) -> Iterator[str]:
    """Yield the lines."""
    for split, inputs in counts.inputs.items():
        sizes = counts.classes.get(split)
        classes = f" in {len(sizes)} classes of {min(sizes.values())} to {max(sizes.values())}" if sizes else ""
        yield f"{split:<11}  {number_of(inputs, 'input')}{classes}"
    yield f"would write  {number_of(counts.shards, 'shard')}"
    if counts.skipped:
        yield skipped_line(counts.skipped)
    state = _DESTINATIONS[counts.destination].format(finished=counts.finished, shards=counts.shards)
    yield f"destination  {dst} {state}"
