"""The rows of the table: every packer, in each of the ways that were thought worth measuring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One packer used in one way.

    Attributes:
        name: As in the table; unique.
        peer, variant: The file in `peers/`, and what it is told.
        environment: Which environment it runs in.
        package: Whose version the table names; of Debian's where the name begins with "apt:".
    """

    name: str
    peer: str
    variant: str
    package: str
    environment: str = "common"


_SHARED = "mosaicml-litdata"

ROWS = (
    Row(name="img2dataset", peer="img2dataset", variant="area", package="img2dataset", environment="img2dataset"),
    Row(name="LitData optimize, Pillow", peer="litdata", variant="pillow", package="litdata", environment=_SHARED),
    Row(
        name="MosaicML MDSWriter, Pillow",
        peer="mosaicml",
        variant="pillow",
        package="mosaicml-streaming",
        environment=_SHARED,
    ),
    Row(name="webdataset writer, Pillow", peer="webdataset", variant="pillow", package="webdataset"),
    Row(name="webdataset writer, Pillow with draft", peer="webdataset", variant="pillow-draft", package="webdataset"),
    Row(name="webdataset writer, torchvision", peer="webdataset", variant="torchvision", package="webdataset"),
    Row(name="vipsthumbnail, files", peer="vips", variant="lanczos", package="apt:libvips-tools"),
    Row(name="shardflow, no kernel", peer="shardflow", variant="no-kernel", package="shardflow"),
    Row(name="shardflow", peer="shardflow", variant="kernel", package="shardflow"),
)
