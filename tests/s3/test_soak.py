from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.helpers.s3_server import Server
from tests.helpers.soaking import SHARDS, TOLERANCES, Sample, leaks, soak
from tests.helpers.weather import PROMPT


def test_epochs_in_bad_weather_are_exact_and_leave_nothing_behind(server: Server, tmp_path: Path) -> None:
    """Epoch after epoch through faults has the pixels of the directory, and nothing that the processes hold grows."""
    samples = list(soak(server, tmp_path, epochs=9, every=1, faults=PROMPT, share=0.05))
    assert [sample.epoch for sample in samples] == list(range(1, 10))
    assert samples[-1].faults > 5
    assert samples[-1].requests > 9 * SHARDS / 2  # the cache is smaller than the dataset
    assert leaks(samples) == {}


def test_what_grows_is_a_leak() -> None:
    """A figure that rises by more than its tolerance is named; a peak in between is not a leak."""
    flat = Sample(epoch=1, seconds=0, **dict.fromkeys(TOLERANCES, 50 << 20))
    for name, tolerance in TOLERANCES.items():
        values = [50 << 20, *[(51 << 20) + tolerance] * 9, 50 << 20]
        peaks = [dataclasses.replace(flat, **{name: value}) for value in values]
        assert leaks(peaks) == {}
        assert leaks(peaks[:-1] + peaks[1:2]) == {name: (1 << 20) + tolerance}
