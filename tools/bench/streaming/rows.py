"""The rows of the tables: every way to stream, and every way to fetch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One loader, or one client of a store, used in one way.

    Attributes:
        name: As in the table; unique.
        way, variant: The file in `ways/` or `stores/`, and what it is told.
        package: Whose version the table names.
        environment: Which environment it runs in.
        reads: Which of the prepared formats it reads, by the peer that wrote it.
    """

    name: str
    way: str
    variant: str = ""
    package: str
    environment: str = "streaming"
    reads: str = "shardflow"


EPOCHS = (
    Row(name="shardflow, local directory", way="shardflow", variant="local", package="shardflow"),
    Row(name="shardflow", way="shardflow", variant="s3", package="shardflow"),
    Row(name="webdataset, pipe:curl", way="tars", variant="curl", package="webdataset"),
    Row(name="webdataset, s3fs", way="tars", variant="s3fs", package="webdataset"),
    Row(name="s3torchconnector, webdataset", way="tars", variant="s3torchconnector", package="s3torchconnector"),
    Row(
        name="MosaicML Streaming",
        way="mosaicml",
        package="mosaicml-streaming",
        environment="mosaicml-litdata",
        reads="mosaicml",
    ),
    Row(name="LitData", way="litdata", package="litdata", environment="mosaicml-litdata", reads="litdata"),
)

STORE = (
    Row(name="shardflow", way="shardflow", variant="1", package="shardflow"),
    Row(name="shardflow, 4 shards at once", way="shardflow", variant="4", package="shardflow"),
    Row(name="s3fs get_file", way="s3fs", package="s3fs"),
    Row(name="boto3 download_file", way="boto3", package="boto3"),
    Row(name="obstore, shardflow's window", way="obstore", package="obstore"),
    Row(name="s3torchconnector", way="s3torchconnector", package="s3torchconnector"),
)
