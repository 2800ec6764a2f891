"""The options of commands that pack, about who does it."""

from __future__ import annotations

import click

from shardflow.packing.executors import EXECUTORS

from .options import together

executor_options = together(
    click.option("--workers", type=int, help="Processes.  [default: one per core]"),
    click.option("--executor", type=click.Choice(EXECUTORS), default="processes", show_default=True),
    click.option("--ray-address", help="Of the Ray cluster, such as auto.  [default: one on this machine]"),
)
