"""The serial executor: no processes, for debugging and for where none may be started."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardflow.formats.receipt import Receipt
from shardflow.packing.jobs import Finish, Job, PieceResult


class Serial:
    """One job after the other, in the calling process."""

    def run(
        self,
        jobs: Iterable[Job],
        on_piece: Callable[[PieceResult], None],
        on_receipt: Callable[[str, Receipt], None],
    ) -> None:
        """See `Executor`."""
        for job in jobs:
            results = []
            for piece in job.pieces():
                results.append(piece.run(_ignore))
                on_piece(results[-1])
            on_receipt(job.name, Finish(job=job, results=tuple(results)).run(_ignore))


def _ignore(ordinal: int | None) -> None:
    pass
