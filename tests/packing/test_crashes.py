from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.crashes import Bucket, Disk, Stage
from tests.helpers.s3_server import Server
from tests.helpers.store import Store

STRIDES = {
    ("pack", "disk"): 197,
    ("pack", "S3"): 397,
    ("sync", "disk"): 149,
    ("sync", "S3"): 181,
    ("extend", "disk"): 197,
    ("extend", "S3"): 293,
    ("remove", "S3"): 0,
    ("remove", "gcs"): 0,
    ("remove", "azure"): 0,
    ("columns add", "S3"): 0,
    ("columns add", "disk"): 0,
    ("columns add", "gcs"): 0,
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

IN_PLACE = re.compile(
    r"after (send|put_object) (removals/|shardflow\.json|train/000000\.new)|before delete_?\w* train/000000\.tar"
    r"|before unlink dst/manifests/|after replace dst/shardflow\.json"
)
"""Points of the commands that make another version: before and after the commit, and in the purge."""

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
        server: Server | Store = request.getfixturevalue("server" if place == "S3" else place)
        stage = Stage(tmp_path / "stage", Bucket(server, f"crashes-{command.replace(' ', '-')}", place), command)
    assert len(stage.points) > 20
    turning = {"extend": TURNING, "pack": None, "sync": None}.get(command, IN_PLACE)
    turns = [point for point in stage.points if turning and turning.search(point)]
    some = {*ALWAYS, *turns[:: 2 if command == "remove" and place in ("gcs", "azure") else 1]}  # as in S3
    if stride := STRIDES[command, place]:
        some.update(stage.points[::stride])
    outcomes = [stage.kill_at(point) for point in stage.points if point in some]
    if command not in ("pack", "sync"):
        found = {outcome.reader for outcome in outcomes if not outcome.point.startswith("worker")}
        assert found == {"old", "whole"}
