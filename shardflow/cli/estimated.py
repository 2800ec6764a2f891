"""How an estimate is shown."""

from __future__ import annotations

from collections.abc import Iterator

from shardflow.packing.estimate import Estimate

from .shown import ignored_line, megabytes, number_of

_DESTINATIONS = {
    "free": "is free",
    "unfinished": "holds an unfinished pack, which would go on: {finished} of {shards} shards are done",
    "dataset": "holds a dataset already, so a pack would be refused",
    "occupied": "holds other files, so a pack would be refused",
}
_NAMED = 3


def estimated(told: Estimate, dst: str) -> Iterator[str]:
    """Yield the lines."""
    for split, inputs in told.inputs.items():
        counts = told.classes.get(split)
        classes = f" in {len(counts)} classes of {min(counts.values())} to {max(counts.values())}" if counts else ""
        yield f"{split:<11}  {number_of(inputs, 'input')}{classes}"
    size = f"about {megabytes(told.bytes)} ± {megabytes(told.plus_minus)}, judged by {number_of(told.sampled, 'input')}"
    yield f"would write  {number_of(told.shards, 'shard')}, {size}"
    if told.quarantined:
        named = "; ".join(f"{bad.path!r} ({bad.stage}: {bad.reason})" for bad in told.quarantined[:_NAMED])
        yield f"quarantined  {len(told.quarantined)} of these {told.sampled}: {named}"
    if told.ignored:
        yield ignored_line(told.ignored)
    yield f"destination  {dst} {_DESTINATIONS[told.destination].format(finished=told.finished, shards=told.shards)}"
