"""Runs one packer once, in the environment that it is installed in."""

from __future__ import annotations

import importlib
from pathlib import Path


def pack(peer: str, source: str, packed: str, variant: str) -> None:
    """Pack the originals of a folder into another."""
    importlib.import_module(f"bench.packers.peers.{peer}").pack(Path(source), Path(packed), variant)


def extract(peer: str, packed: str, folder: str) -> None:
    """Write every packed image as `folder/NAME.jpg`, named as its original."""
    Path(folder).mkdir(parents=True)
    for name, jpeg in importlib.import_module(f"bench.packers.peers.{peer}").pictures(Path(packed)):
        Path(folder, f"{name}.jpg").write_bytes(jpeg)
