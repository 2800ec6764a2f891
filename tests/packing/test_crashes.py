from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.crashes import Bucket, Disk, Stage
from tests.helpers.s3_server import Server

STRIDES = {
    ("pack", "disk"): 29,
    ("pack", "S3"): 53,
    ("sync", "disk"): 29,
    ("sync", "S3"): 31,
    ("extend", "disk"): 29,
    ("extend", "S3"): 37,
}
"""One in so many points is tried here, and those below; `tools/fire kills` tries all of them."""

ALWAYS = (
    "worker after unlink dst/train/.tmp-000000.000000000 #1",  # the shard is done, and the parent does not know
    "worker after create_multipart_upload train/000000.tar #1",
    "parent after link dst/shardflow.json #1",
    "parent after put_object shardflow.json #1",
    "parent half write dst/.tmp-unfinished.json.* #1",
)
"""Points after which only a file is there that looks like a leftover, or like another writer's."""

TURNING = re.compile(r"(half write|after (link|replace|put_object)) .*(manifests/|shardflow\.json|dst/.*quarantine)")
"""Points of an extension, tried as well, at which the ledger or the manifest is replaced."""

every_stage = pytest.mark.parametrize(("command", "place"), STRIDES)


@every_stage
def test_a_kill_at_any_point_leaves_no_trace(
    command: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A process killed before, amid or after a step leaves a whole dataset or none; the next run shows no trace.

    A killed worker has no effect on the result.
    """
    if place == "disk":
        stage = Stage(tmp_path / "stage", Disk(tmp_path / "disk"), command)
    else:
        server: Server = request.getfixturevalue("server")
        stage = Stage(tmp_path / "stage", Bucket(server, f"crashes-{command}"), command)
    assert len(stage.points) > 50
    outcomes = []
    for number, point in enumerate(stage.points):
        turning = command == "extend" and TURNING.search(point)
        if number % STRIDES[command, place] == 0 or point in ALWAYS or turning:
            outcomes.append(stage.kill_at(point))
    if command == "extend":
        found = {outcome.reader for outcome in outcomes if not outcome.point.startswith("worker")}
        assert found == {"old", "whole"}
