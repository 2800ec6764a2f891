"""Dead workers: what the error of a worker process that was killed, or crashed, says."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shardflow._signals import FOR_THE_JOB
from shardflow.errors import ConfigError, ShardflowError, WorkerError

RUN_AGAIN = 78  # the exit code of a worker that was about to start workers
UNGUARDED = (
    "workers that are not forked run the training script again, and it starts workers at once: put what starts the "
    'training below `if __name__ == "__main__":`'
)


def is_death(error: RuntimeError) -> bool:
    """Return whether the DataLoader says that a worker died, or the thread that pins batches."""
    return str(error).startswith(("DataLoader worker (pid", "Pin memory thread"))


def cause_of_death(codes: Sequence[int | None], error: RuntimeError) -> ShardflowError:
    """Return the error for workers that ended with these exit codes, None for those that run."""
    if RUN_AGAIN in codes:
        return ConfigError(UNGUARDED)
    signals = {signal.Signals(-code).name for code in codes if code is not None and code < 0}
    remedy = "The state is still right: save it and start again"
    if not signals and (ended := sorted({code for code in codes if code})):
        reason = f"it ended by itself, with exit code {ended[0]}, and said why on its standard error"
    elif not signals or signals & {"SIGKILL", "SIGBUS"}:
        reason = "the usual reasons are too little memory or too small a /dev/shm"
    elif sent := sorted(signals & {each.name for each in FOR_THE_JOB}):
        reason = (
            f"{sent[0]} ended it: Slurm sends such signals to all processes of a job (--signal, the time limit), and "
            "Kubernetes when the grace period of a pod begins; workers ignore them once they have started"
        )
    else:
        reason = f"native code crashed there ({', '.join(sorted(signals))}): a library that a transform calls, perhaps"
    message = str(error).rstrip(". ")
    return WorkerError(f"{message}; {reason}. {remedy}")
