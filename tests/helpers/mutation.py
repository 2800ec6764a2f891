"""The pytest plugin of `tools/mutation`: the same examples each time, and the shortest tests first, up to a limit."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import Phase, settings

LIMIT_S = 20
"""For the tests of a mutant, by the durations that mutmut recorded in its first run."""

_CHOSEN = pytest.StashKey[set[str]]()

settings.register_profile(
    "mutation", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
)


def pytest_configure(config: pytest.Config) -> None:
    """Collect whole files: the ids of some tests, with brackets and colons in them, are no arguments."""
    settings.load_profile("mutation")  # in the place of conftest.py's
    config.stash[_CHOSEN] = {argument for argument in config.args if "::" in argument}
    config.args = list(dict.fromkeys(argument.partition("::")[0] for argument in config.args))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests that mutmut chose for a mutant by their durations, and leave out those behind the limit."""
    if chosen := config.stash[_CHOSEN]:
        durations: dict[str, float] = json.loads(Path("mutmut-stats.json").read_text())["duration_by_test"]
        items[:] = sorted(
            (item for item in items if item.nodeid in chosen), key=lambda item: durations.get(item.nodeid, 0.0)
        )
        begins = [0.0, *accumulate(durations.get(item.nodeid, 0.0) for item in items)]
        items[:] = [item for item, begin in zip(items, begins, strict=False) if begin < LIMIT_S]
