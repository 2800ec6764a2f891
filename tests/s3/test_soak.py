from __future__ import annotations

import dataclasses
import subprocess

import pytest

from tests.helpers.loading import PROJECT
from tests.helpers.soaking import SHARDS, TOLERANCES, Sample, command, leaks


@pytest.mark.timeout(600)
def test_epochs_are_exact_whatever_happens_and_leave_nothing_behind() -> None:
    """Through faults and kills, with a clock that jumps and a full disk, epochs are exact, and nothing held grows."""
    asked = command("--epochs=6", "--seed=1")
    done = subprocess.run(asked, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, f"{' '.join(asked)}\n{done.stdout}\n{done.stderr}"
    heading, *rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if "|" in line]
    last = dict(zip(heading, rows[-1], strict=True))
    assert last["epoch"] == "6"
    assert int(last["faults"]) > 5
    assert int(last["requests"]) > 6 * SHARDS / 2  # the cache is smaller than the dataset
    assert "worker killed" in done.stdout


def test_what_grows_is_a_leak() -> None:
    """A figure that rises by more than its tolerance is named; a peak, or a low sample after a death, is no leak."""
    flat = Sample(epoch=1, life=0, seconds=0, clock_s=0, **dict.fromkeys(TOLERANCES, 50 << 20))
    for name, tolerance in TOLERANCES.items():
        low, usual, high = (
            dataclasses.replace(flat, **{name: value}) for value in (0, 50 << 20, (51 << 20) + tolerance)
        )
        assert leaks([usual, low, usual, *[high] * 4, usual, usual, high]) == {}
        assert leaks([usual, low, usual, *[high] * 4, usual, high, high]) == {name: (1 << 20) + tolerance}
