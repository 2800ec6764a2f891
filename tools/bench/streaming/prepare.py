"""Writes the pictures in the format that a loader reads, in pieces of about 250 pictures whichever it is.

python prepare.py PEER PICTURES FOLDER
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "loaders"))

FOLDERS = {"shardflow": "packed", "mosaicml": "mds", "litdata": "chunks"}
"""What each peer calls the folder that it writes."""
SIZES = {"shardflow": 250, "mosaicml": 7_700_000, "litdata": "7.7MB"}

if __name__ == "__main__":
    peer, pictures, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    importlib.import_module(f"peers.{peer}").prepare(pictures, folder, SIZES[peer])
