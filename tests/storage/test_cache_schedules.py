from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.examples import some_of


@pytest.mark.timeout(600)
def test_every_schedule_keeps_the_promises() -> None:
    """However threads interleave that read, fetch and evict, while some are killed and stopped and files are damaged,
    readers get the right bytes, no error and no long wait, and the limit holds: dozens of schedules by seed."""
    schedules = some_of(400)
    command = [sys.executable, "-m", "tests.helpers.cache_schedules", "--schedules", str(schedules), "--seed", "230"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{schedules} schedules from seed 230\n"
