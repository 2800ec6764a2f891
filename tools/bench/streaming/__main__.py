"""Measures streaming from S3 side by side: training epochs, and the store alone.

    python3 tools/bench/streaming [--images DIR]
    python3 tools/bench/streaming store

makes the environments, the pictures and every loader's own format of them, runs an S3 server on loopback, uploads
everything to it, and runs all rows in turn, each time in fresh processes: once on the bare loopback, once through a
proxy that delays every answer and caps every connection. Writes results, tables and the chart to --output, after every
run anew. Takes 25 and 10 minutes, and the first time 13 GB of disk and some downloads for the environments. What does
not install or run is reported in the table.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
sys.path[1:1] = [str(HERE.parent / "loaders"), str(PROJECT / "tests")]

import environments  # noqa: E402


def main() -> None:
    """Go on in the environment that has the server and its clients, and run the benchmark there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("epochs", "store"), nargs="?", default="epochs")
    parser.add_argument("--images", type=Path, help="photographs to cut the pictures from; by default they are drawn")
    parser.add_argument("--samples", type=int, default=16000)
    parser.add_argument("--shard-bytes", type=int, default=64 << 20, help="of each of the 16 that `store` fetches")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--publish", action="store_true", help="put the results into docs/streaming.md")
    parser.add_argument("--environments", type=Path, default=environments.PROJECT / ".venv-bench")
    parser.add_argument("--output", type=Path, default=environments.PROJECT / "build" / "bench-streaming")
    given = parser.parse_args()

    folder = given.environments.resolve() / "streaming"
    if Path(sys.prefix) != folder:
        environments.make("streaming", folder)
        os.execv(folder / "bin" / "python", [str(folder / "bin" / "python"), str(HERE), *sys.argv[1:]])
    import rounds

    rounds.run(given)


if __name__ == "__main__":
    main()
