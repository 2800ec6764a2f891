"""What the commands that make views say of them."""

from __future__ import annotations

import click

import shardflow

from .shown import number_of


def show_view(report: shardflow.ViewReport | shardflow.IndexReport, dst: str) -> None:
    """Say what was made."""
    click.echo(f"{'dataset':14}{dst}, over tars that stay where they are")
    for split, number in report.samples.items():
        click.echo(f"{split:14}{number_of(number, 'sample')} in {number_of(report.shards[split], 'shard')}")
    click.echo(f"{'fingerprint':14}{report.fingerprint}")
