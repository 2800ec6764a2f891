"""The iterations of a loader or a mix: they hand out the workers' batches, and end together with what they replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

from shardflow.errors import ConfigError, IntegrityError, WorkerError

from .sampler import WorkerControl
from .stats import StatsRecorder
from .workers import WorkerPool

logger = logging.getLogger(__name__)


class BatchRun:
    """Runs one iteration after the other over the same workers.

    Attributes:
        substituted: The problem of each sample that was replaced by another, in all iterations.
        stats: Where the time of the last iteration went.
        counted_by: Recorders that count the batches: `stats`, and that of a mix.
    """

    def __init__(self, workers: WorkerPool, control: WorkerControl, *, max_bad: int, what: str) -> None:
        self._workers, self._control, self._max_bad, self._what = workers, control, max_bad, what
        self.substituted: set[str] = set()
        self.stats = StatsRecorder()
        self.counted_by = [self.stats]

    def batches(
        self, iteration: int, steps: int, batches_in_progress: Callable[[], str]
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield each batch of an iteration of so many steps, with the number of those handed out by then.

        Raises:
            ConfigError: Another iteration began, or the cursor was moved, before all steps were done.
            WorkerError: A worker died; `batches_in_progress` says on what.
        """
        handed_out = 0
        outputs = self._workers.batches()
        try:
            for output in self.stats.timed(outputs):
                if output.substituted:
                    self._record_substituted(output.substituted)
                for recorder in self.counted_by:
                    recorder.count(output.counts, len(output.substituted))
                handed_out += 1
                yield handed_out, output.columns
                if self._control.iteration() != iteration:
                    break
            else:
                if handed_out != steps:
                    raise WorkerError(
                        f"the workers ended after {handed_out} of {steps} batches; start the iteration again"
                    )
        except GeneratorExit:  # must be first: at interpreter exit the name in the next clause no longer exists
            raise
        except Exception as error:
            self._workers.end()  # their state is unknown
            if isinstance(error, WorkerError):
                raise WorkerError(f"{error}. {batches_in_progress()}") from None
            raise
        finally:
            outputs.close()
        if self._control.iteration() != iteration and handed_out < steps:
            raise ended_early(self._what)

    def _record_substituted(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self.substituted:
                self.substituted.add(problem)
                logger.warning("substituted: %s", problem)
        if len(self.substituted) > self._max_bad:
            raise IntegrityError(
                f"{len(self.substituted)} samples are damaged, {self._max_bad} are allowed (max_bad); the last: "
                f"{problems[-1]}"
            )


def ended_early(what: str) -> ConfigError:
    """Return the error of an iteration that another one, or a move of the cursor, has ended."""
    plural = f"{what}es" if what.endswith("x") else f"{what}s"
    return ConfigError(
        f"the {what} was iterated again, or moved by set_epoch or load_state_dict, which ended this iteration; "
        f"move it between iterations, and use two {plural} for two at once"
    )
