"""Runs one packer once, in the environment that it is installed in.

python pack.py PEER VARIANT SOURCE DESTINATION                      packs
python pack.py PEER VARIANT SOURCE DESTINATION --extract FOLDER     writes what was packed as FOLDER/NAME.jpg
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path


def main() -> None:
    """Pack, or read back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("variant")
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--extract", type=Path)
    given = parser.parse_args()
    peer = importlib.import_module(f"peers.{given.peer}")
    if given.extract is None:
        peer.pack(given.source, given.destination, given.variant)
        return
    given.extract.mkdir(parents=True)
    for name, jpeg in peer.pictures(given.destination):
        (given.extract / f"{name}.jpg").write_bytes(jpeg)


if __name__ == "__main__":
    main()
