"""Benchmarks of shardflow, with other tools beside it on the same images.

    python3 tools/bench loaders       training loaders on a local disk           docs/performance.md
    python3 tools/bench packers       packers, from small and large originals    docs/performance.md
    python3 tools/bench streaming     epochs from S3                             docs/performance.md
    python3 tools/bench micro         single questions about shardflow itself    docs/performance.md
    python3 tools/bench gpu           what only a GPU can show, in ten minutes   docs/performance.md

`--help` after a workload describes it and its options. To compare two checkouts of shardflow in alternating rounds, in
the project's own environment alone:

    .venv/bin/python tools/bench loaders --against OTHER_CHECKOUT
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the modules are the package `bench`
from bench.processes import FailedError  # noqa: E402

WORKLOADS = ("loaders", "packers", "streaming", "micro", "gpu")


def main() -> None:
    """Run a workload."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in WORKLOADS:
        print(__doc__.strip())
        sys.exit(name not in ("-h", "--help"))
    workload = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(
        prog=f"tools/bench {name}",
        description=workload.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        workload.main(parser, arguments)
    except FailedError as error:
        sys.exit(f"tools/bench: {error}")


if __name__ == "__main__":
    main()
