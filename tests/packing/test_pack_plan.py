from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow.dataset.open_dataset import open_dataset
from shardflow.errors import IntegrityError, PackIncompleteError
from shardflow.formats.receipt import from_bytes
from shardflow.formats.shard_layout import Sharding
from shardflow.packing.base_version import BaseVersion
from shardflow.packing.commit import commit
from shardflow.packing.creating import plan_pack
from shardflow.packing.executors import Serial
from shardflow.packing.extending import plan_extension, preview_extension
from shardflow.packing.ledger import Ledger
from shardflow.packing.recipe import Recipe
from shardflow.packing.run import run
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import contents, image_folder, photo, write_tree

SHARDING = Sharding(shard_samples=4, shuffle=False, seed=0, jobs={}, inputs={})
RECIPE = Recipe(short_side=32)
SAME: dict[str, Any] = {"short_side": 32, "shard_samples": 4, "shuffle": False, "executor": "serial"}


def test_planned_run_and_committed(tmp_path: Path) -> None:
    """A plan that is run and committed is a pack; the plan has its counts, and a second run finds all done."""
    src = write_tree(image_folder(tmp_path / "src", 9), {"a/bad.jpg": b"x"})
    ledger = Ledger(tmp_path / "dst")
    with plan_pack(src, ledger, RECIPE, SHARDING, None, max_errors=1) as plan:
        assert not (tmp_path / "dst").exists()
        with ledger.storage.exclusive_writer() as writer:
            assert run(plan, writer, Serial()).resumed == 0
    with plan_pack(src, Ledger(tmp_path / "dst"), RECIPE, SHARDING, None, max_errors=1) as plan:
        assert (plan.destination, plan.finished) == ("unfinished", 3)
        with plan.ledger.storage.exclusive_writer() as writer:
            results = run(plan, writer, Serial())
            made = commit(plan, results)
        assert results.resumed == 10
    report = sf.pack(src, tmp_path / "other", **SAME, max_errors=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "other")
    assert (made.fingerprint, made.inputs) == (report.fingerprint, sum(plan.inputs.values()))
    assert (len(plan.jobs), plan.new_classes) == (report.shards, report.new_classes) == (3, ("a", "b", "c"))


def test_too_many_bad_inputs_commit_nothing(tmp_path: Path) -> None:
    """The plan says how many inputs may be left out; the commit refuses more, and names them."""
    src = write_tree(image_folder(tmp_path / "src", 3), {"a/bad.jpg": b"x"})
    ledger = Ledger(tmp_path / "dst")
    with plan_pack(src, ledger, RECIPE, SHARDING, None) as plan, ledger.storage.exclusive_writer() as writer:
        results = run(plan, writer, Serial())
        with pytest.raises(PackIncompleteError, match=r"1.*4.*0.*'a/bad\.jpg'"):
            commit(plan, results)
    assert not (tmp_path / "dst/shardflow.json").exists()


def test_an_extension_goes_on_with_the_numbers(tmp_path: Path) -> None:
    """The jobs of an extension follow those of its base, and the sharding that it commits has all of them."""
    src = image_folder(tmp_path / "src", 9)
    sf.pack(src, tmp_path / "dst", **SAME)
    write_tree(src, {f"d/{n}.jpg": photo(n) for n in range(5)})
    base = BaseVersion.read(open_dataset(tmp_path / "dst"))
    with list_source(src) as source:
        plan = plan_extension(source, Ledger(tmp_path / "dst"), base, "error")
    assert [(job.name, job.first, len(job.items)) for job in plan.jobs] == [
        ("train/000003", 9, 4),
        ("train/000004", 13, 1),
    ]
    assert (plan.known, plan.conflicting, plan.new_classes) == (9, [], ("d",))
    assert (plan.sharding.jobs, plan.sharding.inputs) == ({"train": 5}, {"train": 14})


def test_a_receipt_of_another_shard_is_found_by_the_plan(tmp_path: Path) -> None:
    """A dataset whose receipts do not fit its shards is refused before any work, also by a dry run."""
    src = image_folder(tmp_path / "src", 9)
    sf.pack(src, tmp_path / "dst", **SAME)
    path = tmp_path / "dst/train/000001.json"
    assert from_bytes(path.read_bytes()).first == 4
    path.write_bytes((tmp_path / "dst/train/000000.json").read_bytes())
    with pytest.raises(IntegrityError, match=r"train/000001\.json.*receipt"):
        preview_extension(src, tmp_path / "dst")
