"""The rounds: every row under every condition, in turn, so that what else the machine does falls on all alike."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report
from bench import BLOBS, HERE, Bench
from conditions import CONDITIONS, FAR, UNCAPPED, Condition, proxy
from environments import PROJECT, FailedError
from machine import hardware
from measure import tree
from rows import EPOCHS, STORE, Row

from tests.helpers.s3_server import Server, running

PROCESSES = (1, 2)
STREAMS = (1, 4, 8)


def run(given: argparse.Namespace) -> None:
    """Measure epochs or the store, and write what was measured after every row anew."""
    data = (given.output / f"data-{given.images.name if given.images else 'drawn'}-{given.samples}").resolve()
    data.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results: dict[str, Any] = {"what": given.what, "date": date, "hardware": hardware(), "rows": []}
    rows = [row for row in {"epochs": EPOCHS, "store": STORE}[given.what] if (given.only or "") in row.name]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=data)))))
        bench = Bench(given.environments.resolve(), data, server)
        for row in rows:
            found = {
                "name": row.name,
                "package": row.package,
                "version": bench.environments.version(row.environment, row.package),
            }
            results["rows"].append({**found, "rounds": [], "failures": []})
        {"epochs": _epochs, "store": _store}[given.what](given, bench, server, rows, results, stack)
    print(report.tables(results))
    if given.publish:
        shutil.copy(given.output / f"{given.what}.json", HERE)
        report.publish(results, PROJECT / "docs")


def _epochs(
    given: argparse.Namespace,
    bench: Bench,
    server: Server,
    rows: list[Row],
    results: dict[str, Any],
    stack: contextlib.ExitStack,
) -> None:
    pictures = bench.pictures(given.samples, given.images)
    picture_bytes = sum(path.stat().st_size for path in pictures.rglob("*.jpg")) // given.samples
    results |= {"samples": given.samples, "picture_bytes": picture_bytes}
    way = stack.enter_context(proxy(server.endpoint, FAR))
    served_by = [pid for pid in tree(os.getpid()) if pid != os.getpid()]
    for number, condition, row, result in _turns(given.rounds, rows, results):
        try:
            local = bench.uploaded(row, pictures)
            measured = bench.epochs(row, local, given.samples, way if condition.proxied else None, served_by)
        except FailedError as error:
            _failed(result, number, condition, error)
            continue
        result["rounds"].append({"round": number, "condition": condition.name, **measured})
        _write(given.output, results)
        for name in ("cold", "warm"):
            one = measured[name]
            print(
                f"round {number}: {row.name}, {condition.name}, {name}: {one['images_per_s']:,.0f} images/s, "
                f"{one['cpu_ms_per_image']:.2f} CPU-ms, first batch {one['first_batch_s']:.2f} s, "
                f"{'exact' if one['exact'] else 'NOT EXACT'}, others {one['others']:.0%}, "
                f"server {one['server_cpu_ms_per_image']:.2f} CPU-ms, {one.get('bytes', 0) / 1e6:.0f} MB",
                flush=True,
            )


def _store(
    given: argparse.Namespace,
    bench: Bench,
    server: Server,
    rows: list[Row],
    results: dict[str, Any],
    stack: contextlib.ExitStack,
) -> None:
    blobs = bench.blobs(given.shard_bytes)
    results |= {"blobs": BLOBS, "blob_bytes": given.shard_bytes, "passing": {}}
    for condition in (*CONDITIONS, UNCAPPED):
        with proxy(server.endpoint, condition) as way:
            passing = [bench.passing(blobs, way if condition.proxied else None, streams) for streams in STREAMS]
        results["passing"][condition.name] = passing
        print(f"{condition.title}: to {STREAMS} curls at once {passing} MB/s", flush=True)
    ways = [stack.enter_context(proxy(server.endpoint, FAR)) for _ in range(max(PROCESSES))]
    for number, condition, row, result in _turns(given.rounds, rows, results):
        for processes in PROCESSES:
            try:
                measured = bench.fetched(row, blobs, ways if condition.proxied else [], processes)
            except FailedError as error:
                _failed(result, number, condition, error)
                continue
            result["rounds"].append({"round": number, "condition": condition.name, "processes": processes, **measured})
            _write(given.output, results)
            print(
                f"round {number}: {row.name}, {condition.name}, {processes} processes: {measured['mb_per_s']:,.0f} "
                f"MB/s, {measured['cpu_s_per_gb']:.2f} CPU-s per GB (server {measured['server_cpu_s_per_gb']:.2f}), "
                f"{measured['peak_bytes'] / 1e6:.0f} MB resident, others {measured['others']:.0%}",
                flush=True,
            )


def _turns(
    rounds: int, rows: list[Row], results: dict[str, Any]
) -> Iterator[tuple[int, Condition, Row, dict[str, Any]]]:
    for number in range(1, rounds + 1):
        for condition in CONDITIONS:
            for row, result in zip(rows, results["rows"], strict=True):
                yield number, condition, row, result


def _failed(result: dict[str, Any], number: int, condition: Condition, error: Exception) -> None:
    result["failures"].append({"round": number, "condition": condition.name, "reason": str(error)})
    print(f"round {number}: {result['name']}, {condition.name}: failed: {error}", flush=True)


def _write(output: Path, results: dict[str, Any]) -> None:
    (output / f"{results['what']}.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / f"{results['what']}.md").write_text(report.tables(results))
