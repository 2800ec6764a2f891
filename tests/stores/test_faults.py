"""The fault matrix of S3, for the stores that have requests of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardflow.storage.local import LocalStorage
from tests.helpers.s3_matrix import DONE, PERSISTENT, READING, SLOW, WRITING, Stage, cases
from tests.helpers.s3_proxy import proxying
from tests.helpers.s3_server import QUICK
from tests.helpers.web_server import ServedStorage

FAULTS = ("500", "500, and it was done", "503 SlowDown", "429", "reset, and it was done", "reset in the body")
FAULTS += ("short body", "hang", "hang in the body", "drip", "flipped bit", "flipped bit sent", "other range", "403")
NO_CHECKSUM = ("read", "flipped bit")  # a small blob comes without one; what it holds is checked where it is read


@pytest.fixture(scope="module", params=["gcs", "azure", "web", "the_hub"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """One proxy and its clients for all cases of a store."""
    found = request.getfixturevalue(request.param)
    store, folder = found if isinstance(found, tuple) else (found, None)
    with proxying(store.endpoint) as proxy:
        direct = store.storage("faults")
        if folder is not None:
            direct = ServedStorage(LocalStorage(folder.root / "faults"), direct)
        if request.param == "web":  # the endpoint is the URL
            store = dataclasses.replace(store, bucket=proxy.endpoint)
        yield Stage(
            direct=direct,
            storage=store.storage("faults", proxy.endpoint),
            quick=store.storage("faults", proxy.endpoint, QUICK),
            persistent=store.storage("faults", proxy.endpoint, PERSISTENT),
            proxy=proxy,
        )


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_ends_well(request: pytest.FixtureRequest, fault: str, stage: Stage, tmp_path: Path) -> None:
    """A fault in the first or each request of an operation: the right bytes or a typed error, and nothing left."""
    kind = request.node.callspec.params["stage"]
    operations = (() if fault in DONE else READING) + (WRITING if kind in ("gcs", "azure") else ())
    for operation in operations:
        if (operation, fault) == NO_CHECKSUM and kind != "azure":
            continue
        if (fault == "other range" and operation in WRITING) or (
            fault in SLOW and operation in ("read", "upload")
        ):  # few: they wait
            continue
        assert list(cases(fault, operation, stage, tmp_path, ("first", "every")))
