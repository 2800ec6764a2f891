from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.s3_matrix import DONE, FAULTS, RANGES, READING, WRITING, Stage, cases, s3_stage
from tests.helpers.s3_proxy import proxying
from tests.helpers.s3_server import Server

ALL = [(fault, operation) for fault in FAULTS for operation in READING if fault not in DONE]
ALL += [(fault, operation) for fault in FAULTS for operation in WRITING if fault not in RANGES]


@pytest.fixture(scope="module")
def stage(server: Server) -> Iterator[Stage]:
    """One proxy and its clients for all cases."""
    with proxying(server.endpoint) as proxy:
        yield s3_stage(server, proxy, "faults")


@pytest.mark.parametrize(("fault", "operation"), ALL)
def test_every_fault_ends_well(fault: str, operation: str, stage: Stage, tmp_path: Path) -> None:
    """A fault in the first, a middle, the last or each request: the right bytes or a typed error, and nothing left."""
    outcomes = list(cases(fault, operation, stage, tmp_path))
    assert outcomes[-1].place == "every"
