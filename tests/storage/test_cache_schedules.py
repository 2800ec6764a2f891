from __future__ import annotations

import subprocess
import sys

SCHEDULES = 120


def test_every_schedule_keeps_the_promises() -> None:
    """However threads interleave that read, fetch and evict, while some are killed and stopped and files are damaged,
    readers get the right bytes, no error and no long wait, and the limit holds: a hundred schedules by seed."""
    command = [sys.executable, "-m", "tests.helpers.cache_schedules", "--schedules", str(SCHEDULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{SCHEDULES} schedules from seed 0\n"
